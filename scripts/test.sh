#!/usr/bin/env bash
# Runs all tests of the gate. Half of their time the cores wait for networks: what only computes runs beside, at idle
# priority: lints, documents, the simulator's and the protocol's tests, examples, figures. So does the compilation of
# the simulator, on which nothing else depends: it is a third of the compiler's work.
# usage: scripts/test.sh MAKE_TARGET...
#   MAKE_TARGET: parts that run beside, besides the tests
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/beside.sh
cargo=${CARGO:-cargo}
folder=${CARGO_TARGET_DIR:-target}/gate
mkdir -p "$folder"
computes='package(ratewright-simfabric) | package(ratewright-proto)'
before=(--locked --workspace --exclude ratewright-simfabric)

$cargo nextest run "${before[@]}" --no-run
# nextest asks cargo for nothing then: the other cargo has the target folder.
$cargo metadata --locked --format-version 1 >"$folder/cargo.json"
$cargo nextest list "${before[@]}" --list-type binaries-only --message-format json >"$folder/binaries.json"

lane=
trap 'beside_stop "$lane"' EXIT
trap 'exit 130' INT TERM
beside_prepare
set -m
(
  beside_enter
  code=0
  for target in "$@"; do make --no-print-directory "$target" || code=1; done
  $cargo nextest run --locked --workspace -E "$computes" || code=1
  exit $code
) >"$folder/beside.log" 2>&1 &
lane=$!
set +m
code=0
$cargo nextest run --cargo-metadata "$folder/cargo.json" --binaries-metadata "$folder/binaries.json" \
  -E "not ($computes)" || code=1
echo "test: what ran beside:"
wait "$lane" || code=1
lane=
cat "$folder/beside.log"
exit $code
