#!/bin/sh
# Runs in a guest, from scripts/kernels.py: the probe, the back ends' tests and the lab of three hosts.
# Every line that begins with "result" is read: result SUITE PASSED FAILED SECONDS NAMES-OF-FAILED
cd /tmp || exit 1
echo "release $(uname -r)"
/mnt/share/ratewright-endpointd probe
echo "probe $?"
path=$(cat /mnt/share/daemon-path)
mkdir -p "${path%/*}" && ln -s /mnt/share/ratewright-endpointd "$path"
test=/mnt/share/integration
while read -r name; do
  start=$(date +%s)
  passed=0 failed=0 which=
  # A process for each test: some of them enter other namespaces for good.
  for one in $("$test" --list --format terse 2> /dev/null | sed -n "s/^\($name::.*\): test\$/\1/p"); do
    RUST_BACKTRACE=0 timeout "${TEST_SECONDS:-300}" "$test" --exact "$one" > out 2>&1 < /dev/null
    case $? in
      0) passed=$((passed + 1)) ;;
      124) failed=$((failed + 1)) which="$which$one(time-ran-out) " ;;
      *) failed=$((failed + 1)) which="$which$one "; grep -A4 "panicked at" out | cut -c1-400 >> why ;;
    esac
  done
  echo "result $name $passed $failed $(($(date +%s) - start)) $which"
  [ ! -e why ] || { cat why; rm why; }
done < /mnt/share/suites
start=$(date +%s)
timeout 300 /mnt/share/ratewright-lab fairness --hosts 3 --duration-scale 0.3 --link-mbps 50 --no-baseline \
  --plain --json lab.json > out 2>&1
status=$?
[ $status = 0 ] && verdict="1 0" || verdict="0 1"
echo "result lab $verdict $(($(date +%s) - start))"
tail -25 out
