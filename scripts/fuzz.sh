#!/usr/bin/env bash
# Builds every fuzz target with coverage instrumentation and runs each for a
# bounded time. Usage: scripts/fuzz.sh [SECONDS_PER_TARGET] [TARGET...]
#
# Works on the stable toolchain: the instrumentation is LLVM's own pass, the
# engine is libFuzzer out of the crate libfuzzer-sys. Sanitizers would need
# nightly and are left out; our code has none of the unsafe blocks that they
# watch in what is fuzzed here. Overflow checks and assertions are on.
#
# Exit status 123 upon a finding; its input is in fuzz/artifacts/TARGET.
set -euo pipefail

seconds=${1:-20}
[ $# -gt 0 ] && shift

cd "$(dirname "$0")/../fuzz"
host=$(rustc -vV | sed -n 's/^host: //p')

# With --target, the flags reach the targets but not build scripts and macros.
RUSTFLAGS="--cfg fuzzing -Ccodegen-units=1 -Cpasses=sancov-module \
-Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
-Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares" \
    cargo build --quiet --release --bins --target "$host" --target-dir target

[ $# -gt 0 ] || set -- $(ls fuzz_targets | sed -n 's/\.rs$//p')

# run TARGET: runs one, and prints what it did at once, since others run beside it.
run() {
    local target=$1 seeds=""
    mkdir -p "corpus/$target" "artifacts/$target"
    [ -d "seeds/$target" ] && seeds="seeds/$target"
    # shellcheck disable=SC2086 # no seeds, no argument
    if ! "target/$host/release/$target" \
        -max_total_time="$seconds" -timeout=60 -rss_limit_mb=2048 -max_len=4096 \
        -print_final_stats=1 -artifact_prefix="artifacts/$target/" \
        "corpus/$target" $seeds >"artifacts/$target.log" 2>&1; then
        printf 'fuzz: %s FAILED, see fuzz/artifacts/%s.log:\n%s\n' "$target" "$target" \
            "$(tail -n 40 "artifacts/$target.log")"
        return 1
    fi
    local executions
    executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "artifacts/$target.log")
    printf 'fuzz: %s for %s s: %s executions\n' "$target" "$seconds" "$executions"
    # Beside other parts of `make nightly` it may have little of a core.
    if [ "${executions:-0}" -lt $((seconds * 10)) ]; then
        printf 'fuzz: %s FAILED: fewer than 10 executions each second\n' "$target"
        return 1
    fi
}
export -f run
export host seconds

# One on each core.
printf '%s\n' "$@" | xargs -P "$(nproc)" -I {} bash -c 'run {}'
