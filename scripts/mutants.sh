#!/usr/bin/env bash
# Alters the modules whose mistakes would harm connections or allocations, one change at a time, and runs
# their quick tests on each (cargo-mutants): a change that no test notices is a promise that no test holds.
# usage: scripts/mutants.sh [PART]... [-- OPTIONS OF CARGO MUTANTS]
#   parts: session, recovery, lease, admission, optimiser, flows (default: all). --shard K/N --sharding round-robin
#   takes every N-th change.
# The tests near a module come first. What survives them meets all tests that hold the module.
# Results: target/mutants/PART; the survivors of a part stand in survivors.txt there. Exit status 1 if more than a
# tenth of any part survived.
set -euo pipefail
cd "$(dirname "$0")/.."

parts=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do parts+=("$1"); shift; done
[ "${1:-}" = -- ] && shift
[ ${#parts[@]} -gt 0 ] || parts=(session recovery lease admission optimiser flows)

# One crate is compiled again and again; other crates are compiled once for all parts.
export CARGO_INCREMENTAL=1
out=$(realpath -m "${CARGO_TARGET_DIR:-target}")/mutants
export CARGO_TARGET_DIR=$out/build
# A random test that fails is enough; its least example is of no use here.
export PROPTEST_MAX_SHRINK_ITERS=0 RUST_BACKTRACE=0
status=0

# alter RESULTS SECONDS OPTIONS... -- TARGETS... [-- FILTERS...]: one run of cargo-mutants with the tests of some
# targets, each of which may use SECONDS of processor time: an endless loop ends then, however busy the machine is.
alter() {
  local results=$1 seconds=$2 code=0 options=() targets=()
  shift 2
  while [ "$1" != -- ]; do options+=("$1"); shift; done
  shift
  # Named to every cargo call, or each change would also compile the package's other tests, examples and programs.
  while [ $# -gt 0 ] && [ "$1" != -- ]; do targets+=("--cargo-arg=$1"); shift; done
  mkdir -p "$results"
  # 2: some survive; 3: some ran out of time, which counts as noticed. Anything else is a mistake of ours.
  CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER="prlimit --cpu=$seconds --as=17179869184 --core=0" \
    cargo mutants --output "$results" --no-shuffle --colors never "${options[@]}" "${targets[@]}" -- "$@" || code=$?
  case $code in 0 | 2 | 3) ;; *) exit "$code" ;; esac
}

for part in "${parts[@]}"; do
  case $part in
    session)
      package=ratewright-proto
      files=(proto/src/client/mod.rs proto/src/client/slots.rs proto/src/server/mod.rs proto/src/server/slots.rs)
      near=(--test=behaviour -- sessions::)
      tests=(--lib --test=behaviour)
      ;;
    recovery)
      package=ratewright-proto
      files=(proto/src/recovery.rs proto/src/sequence.rs proto/src/server/registry.rs)
      near=(--lib -- recovery:: sequence:: server::registry::)
      tests=(--lib --test=behaviour)
      ;;
    lease)
      package=ratewright-proto
      files=(proto/src/client/lease.rs)
      near=(--lib -- client::lease::)
      tests=(--lib --test=behaviour)
      ;;
    admission)
      package=ratewright-allocator
      files=(allocator/src/service/admission.rs allocator/src/service/hub/pre_hello.rs allocator/src/service/hub/admission.rs
        allocator/src/service/hub/token_bucket.rs allocator/src/service/hub/session_flows.rs)
      near=(--lib -- service::admission service::hub::token_bucket service::hub::session_flows service::hub::tests::sessions
        service::hub::tests::trust service::hub::tests::release service::hub::tests::orders service::hub::tests::members)
      tests=(--lib -- service::)
      ;;
    optimiser)
      package=ratewright-allocator
      files=(allocator/src/num/ned.rs allocator/src/num/normalize.rs allocator/src/num/response.rs allocator/src/num/utility.rs
        allocator/src/num/price_correction.rs allocator/src/engine/reference.rs allocator/src/engine/parallel/scalar_flows.rs)
      near=(--lib -- num:: engine::tests engine::parallel::demand_tests::a_demand engine::parallel::demand_tests::demands)
      tests=(--lib --test=behaviour -- num: engine num_oracle num_optimizers num_convergence)
      ;;
    flows)
      package=ratewright-endpointd
      files=(endpointd/src/flows.rs 'endpointd/src/flows/*.rs')
      near=(--lib -- flows::)
      tests=(--lib)
      ;;
    *)
      echo "mutants: no part called $part" >&2
      exit 2
      ;;
  esac
  select=(--package "$package")
  for file in "${files[@]}"; do select+=(--file "$file"); done
  results=$out/$part
  rm -rf "$results"
  alter "$results" 60 "${select[@]}" "$@" -- "${near[@]}"
  count() { wc -l <"$results/mutants.out/$1.txt"; }
  all=$(($(count caught) + $(count timeout) + $(count missed)))
  [ $all -gt 0 ] || { echo "mutants: $part: nothing was altered" >&2; exit 1; }
  cp "$results/mutants.out/missed.txt" "$results/survivors.txt"
  if [ -s "$results/survivors.txt" ]; then
    # By their names, since a shard of the survivors would be another shard.
    while IFS= read -r name; do
      select+=(--re "^$(sed 's/[][(){}.*+?^$|\\]/\\&/g' <<<"$name")\$")
    done <"$results/survivors.txt"
    alter "$results/all-tests" 1200 "${select[@]}" -- "${tests[@]}"
    # Both times: cargo-mutants also tries changes of this crate that the names do not select.
    grep -Fx -f "$results/mutants.out/missed.txt" "$results/all-tests/mutants.out/missed.txt" >"$results/survivors.txt" || true
  fi
  missed=$(wc -l <"$results/survivors.txt")
  echo "mutants: $part: $((all - missed)) of $all caught ($((100 * (all - missed) / all)) %)"
  if [ $((10 * missed)) -gt $all ]; then status=1; fi
done
exit $status
