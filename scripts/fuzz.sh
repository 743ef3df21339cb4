#!/bin/sh
# Builds every fuzz target with coverage instrumentation and runs each for a
# bounded time. Usage: scripts/fuzz.sh [SECONDS_PER_TARGET] [TARGET...]
#
# Works on the stable toolchain: the instrumentation is LLVM's own pass, the
# engine is libFuzzer out of the crate libfuzzer-sys. Sanitizers would need
# nightly and are left out; our code has none of the unsafe blocks that they
# watch in what is fuzzed here. Overflow checks and assertions are on.
#
# Exit status 1 upon a finding; its input is in fuzz/artifacts/TARGET.
set -eu

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

status=0
for target in "$@"; do
    mkdir -p "corpus/$target" "artifacts/$target"
    seeds=""
    [ -d "seeds/$target" ] && seeds="seeds/$target"
    echo "fuzz: $target for $seconds s"
    # shellcheck disable=SC2086 # no seeds, no argument
    if ! "target/$host/release/$target" \
        -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=4096 \
        -print_final_stats=1 -artifact_prefix="artifacts/$target/" \
        "corpus/$target" $seeds >"artifacts/$target.log" 2>&1; then
        echo "fuzz: $target FAILED, see fuzz/artifacts/$target.log:"
        tail -n 40 "artifacts/$target.log"
        status=1
        continue
    fi
    sed -n 's/^stat::number_of_executed_units: */fuzz: executions /p; s/^#[0-9]*[[:space:]]*DONE/fuzz: &/p' \
        "artifacts/$target.log"
done
exit "$status"
