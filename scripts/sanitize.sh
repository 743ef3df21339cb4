#!/usr/bin/env bash
# Runs the parallel engine's tests where memory errors show. Usage: scripts/sanitize.sh memcheck|address
#
# memcheck: the test binaries as they are, under valgrind: nothing is built anew. Valgrind knows
#   AVX2, not AVX-512; the engine sees that and leaves those kernels out.
# address: AddressSanitizer, which also sees the AVX-512 kernels. Everything is built for it in
#   target/asan (1 to 2 GB, some minutes). It is an unstable compiler option, so the stable compiler
#   is told to take it.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
export PROPTEST_CASES=${PROPTEST_CASES:-1}

# test_binary ARGS...: builds one of the allocator, prints where it is
test_binary() {
  cargo test --quiet --locked --no-run --message-format=json "$@" |
    sed -n '/"src_path":"[^"]*\/allocator\/.*"profile":{[^}]*"test":true/s/.*"executable":"\([^"]*\)".*/\1/p' | tail -n 1
}

case ${1:-} in
  memcheck)
    command -v valgrind >/dev/null || { echo "sanitize: no valgrind: run scripts/setup.sh valgrind" >&2; exit 1; }
    # By the features of the whole workspace, as all other tests are built.
    binary=$(test_binary --workspace --test behaviour)
    printf 'parallel_equality::%s\n' two_tiers_scalar three_tiers_scalar two_tiers_avx2 three_tiers_avx2 |
      xargs -P "$(nproc)" -I {} sh -c 'echo "memcheck: $2" && exec valgrind --quiet --tool=memcheck \
        --error-exitcode=99 --leak-check=no --fair-sched=yes "$1" --exact "$2" --test-threads 1 --quiet' \
        - "$binary" {}
    ;;
  address)
    host=$(rustc -vV | sed -n 's/^host: //p')
    export RUSTC_BOOTSTRAP=1 RUSTFLAGS="-Zsanitizer=address" CARGO_TARGET_DIR="$target/asan"
    export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1}
    "$(test_binary -p ratewright-allocator --target "$host" --test behaviour)" --quiet parallel_equality::
    "$(test_binary -p ratewright-allocator --target "$host" --lib)" --quiet engine::parallel
    ;;
  *)
    echo "usage: scripts/sanitize.sh memcheck|address" >&2
    exit 2
    ;;
esac
