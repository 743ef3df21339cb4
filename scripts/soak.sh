#!/bin/sh
# Plays 2,000 hosts with one allocator for a long time, with constant churn, and checks that the
# allocator's memory stays flat, that no session is lost and that both ends agree at the end. Writes a report.
#
#   scripts/soak.sh [SECONDS [REPORT]]      default: 600 s, target/soak.md
#
# SESSIONS, FLOWS, CHURN, TRANSPORT and BIN_DIR may be set in the environment. Build first:
#   cargo build --release -p ratewright-bench -p ratewright-allocator --bins
set -eu

seconds=${1:-600}
report=${2:-target/soak.md}
sessions=${SESSIONS:-2000}
flows=${FLOWS:-20000}
churn=${CHURN:-2000}
transport=${TRANSPORT:-udp}
bin=${BIN_DIR:-target/release}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$(dirname "$report")"

set -- swarm --transport "$transport" --sessions "$sessions" --flows "$flows" --churn "$churn" \
    --seconds "$seconds" --memory-log "$work/memory" --json
"$bin/ratewright-bench" "$@" > "$work/result.json"

# Flat: the mean of the last quarter is at most 5 % above that of the second quarter (the first one is
# for buffers and pools to find their size). Fewer than 8 samples say nothing.
verdict=$(awk '
    { bytes[NR] = $2 }
    END {
        if (NR < 8) { print "too few samples to tell"; exit }
        quarter = int(NR / 4)
        for (i = 1; i <= quarter; i++) { early += bytes[quarter + i]; late += bytes[NR - quarter + i] }
        growth = 100 * (late / early - 1)
        printf "%s: %.1f MB in the second quarter, %.1f MB in the last, %+.1f %%\n", \
            (growth <= 5 ? "flat" : "GROWS"), early / quarter / 1e6, late / quarter / 1e6, growth
    }' "$work/memory")
figure() { sed -n "s/.*\"$1\":\([0-9]*\).*/\1/p" "$work/result.json"; }
lost=$(figure lost_views)
sessions_lost=$(($(figure sessions_lost) - $(figure sessions_lost_before)))

{
    echo "# Soak"
    echo
    echo "\`$bin/ratewright-bench $*\`"
    echo
    echo "- Flows on which both ends disagree at the end: $lost"
    echo "- Memory of the allocator: $verdict"
    echo "- Sessions lost (and come back) during the measurement: $sessions_lost"
    echo
    echo "Resident memory, every ten seconds:"
    echo
    echo "| s | MB |"
    echo "|---|---|"
    awk '{ printf "| %.0f | %.2f |\n", $1, $2 / 1e6 }' "$work/memory"
    echo
    echo '```json'
    cat "$work/result.json"
    echo '```'
} > "$report"

echo "lost views: $lost; memory $verdict; sessions lost: $sessions_lost; report: $report"
case $verdict in GROWS*) exit 1 ;; esac
[ "$lost" = 0 ] && [ "$sessions_lost" = 0 ]
