#!/bin/sh
# Runs in a guest, from scripts/kernels.py: the probe, the back ends' tests and the lab of three hosts.
# Every line that begins with "result" is read: result SUITE PASSED FAILED SECONDS NAMES-OF-FAILED
cd /tmp || exit 1
echo "release $(uname -r)"
/mnt/share/ratewright-endpointd probe
echo "probe $?"
for test in /mnt/share/tests/*; do
  name=${test##*/}
  start=$(date +%s)
  RUST_BACKTRACE=0 timeout "${SUITE_SECONDS:-900}" "$test" --test-threads=1 > out 2>&1
  status=$?
  seconds=$(($(date +%s) - start))
  count() { grep -c "^test .*\.\.\. $1" out || true; }
  failed=$(sed -n 's/^test \([^ ]*\) \.\.\. FAILED.*/\1/p' out | tr '\n' ' ')
  [ $status != 124 ] || failed="$failed(time ran out in $(sed -n 's/^test \([^ ]*\) \.\.\. *$/\1/p' out | tail -1))"
  echo "result $name $(count ok) $(count FAILED) $seconds $failed"
  [ $status = 0 ] || grep -A4 "panicked at" out | cut -c1-400
done
start=$(date +%s)
timeout 300 /mnt/share/ratewright-lab fairness --hosts 3 --duration-scale 0.3 --link-mbps 50 --no-baseline \
  --plain --json lab.json > out 2>&1
status=$?
[ $status = 0 ] && verdict="1 0" || verdict="0 1"
echo "result lab $verdict $(($(date +%s) - start))"
tail -25 out
