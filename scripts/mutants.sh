#!/usr/bin/env bash
# Alters the modules whose mistakes would harm connections or allocations, one change at a time, and runs
# their quick tests on each (cargo-mutants): a change that no test notices is a promise that no test holds.
# usage: scripts/mutants.sh [PART]... [-- OPTIONS OF CARGO MUTANTS]
#   parts: session, lease, admission, optimiser, flows (default: all). --shard K/N takes one N-th.
# Results: target/mutants/PART; survivors stand in mutants.out/missed.txt there. Exit status 1 if more than a tenth
# of any part survived.
set -euo pipefail
cd "$(dirname "$0")/.."

parts=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do parts+=("$1"); shift; done
[ "${1:-}" = -- ] && shift
[ ${#parts[@]} -gt 0 ] || parts=(session lease admission optimiser flows)

# One crate is compiled again and again.
export CARGO_INCREMENTAL=1
out=${CARGO_TARGET_DIR:-target}/mutants
status=0
for part in "${parts[@]}"; do
  case $part in
    session)
      package=ratewright-proto
      files=(proto/src/client/mod.rs proto/src/client/slots.rs 'proto/src/server/*.rs' proto/src/recovery.rs proto/src/sequence.rs)
      tests=()
      ;;
    lease)
      package=ratewright-proto
      files=(proto/src/client/lease.rs)
      tests=()
      ;;
    admission)
      package=ratewright-allocator
      files=(allocator/src/service/hub/admission.rs allocator/src/service/hub/token_bucket.rs allocator/src/service/hub/session_flows.rs)
      tests=(--lib)
      ;;
    optimiser)
      package=ratewright-allocator
      files=(allocator/src/num/ned.rs allocator/src/num/normalize.rs allocator/src/num/response.rs allocator/src/num/utility.rs
        allocator/src/num/price_correction.rs allocator/src/engine/reference.rs allocator/src/engine/parallel/scalar_flows.rs)
      tests=(--lib --test num_oracle --test engine_churn)
      ;;
    flows)
      package=ratewright-endpointd
      files=(endpointd/src/flows.rs 'endpointd/src/flows/*.rs')
      tests=(--lib)
      ;;
    *)
      echo "mutants: no part called $part" >&2
      exit 2
      ;;
  esac
  mkdir -p "$out/$part"
  select=()
  for file in "${files[@]}"; do select+=(--file "$file"); done
  # 2: some survive; 3: some ran out of time, which counts as noticed. Anything else is a mistake of ours.
  code=0
  cargo mutants --package "$package" "${select[@]}" --output "$out/$part" --no-shuffle --colors never "$@" \
    -- --fail-fast ${tests[@]+"${tests[@]}"} || code=$?
  case $code in 0 | 2 | 3) ;; *) exit "$code" ;; esac
  results=$out/$part/mutants.out
  count() { wc -l <"$results/$1.txt"; }
  caught=$(($(count caught) + $(count timeout)))
  missed=$(count missed)
  all=$((caught + missed))
  [ $all -gt 0 ] || { echo "mutants: $part: nothing was altered" >&2; exit 1; }
  echo "mutants: $part: $caught of $all caught ($((100 * caught / all)) %)"
  if [ $((10 * caught)) -lt $((9 * all)) ]; then status=1; fi
done
exit $status
