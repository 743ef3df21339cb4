# Runs in both guests of a pair, from scripts/kernels.py: host h1 with the allocator, host h2 without; then each sends
# to the other at once, and has to be paced to the links of 5 Mbit/s (4.8 of payload). Guests may be emulated and slow:
# hence slow links, a lease of seconds, and flowlets that outlast pauses of 100 ms.
number=$1
cd /tmp || exit 1
cp -r /mnt/share/pki /mnt/share/topology.toml .
echo "h$number runs Linux $(uname -r)"
device=$(ls /sys/class/net | grep -v lo | head -1)
ip addr add "10.0.1.$number/24" dev "$device"
ip link set "$device" up
# The link carries twice what the topology says: whether a transfer is paced shows in its rate.
tc qdisc add dev "$device" root tbf rate 10mbit burst 16k latency 50ms
ip link set lo up
tries=0
until ping -q -c 1 -W 1 "10.0.1.$((3 - number))" > /dev/null; do
  tries=$((tries + 1))
  [ $tries -lt 90 ] || { echo "h$number does not reach the other guest"; exit 1; }
done
if [ "$number" = 1 ]; then
  cat > allocator.toml << 'TOML'
listen = "10.0.1.1:7600"
admin = "unix:allocator.sock"
topology = "topology.toml"
[tls]
ca = "pki/ca.pem"
cert = "pki/ratewright-allocator.pem"
key = "pki/ratewright-allocator.key"
[allocation]
lease_ms = 3000
TOML
  /mnt/share/ratewright-allocator run --config allocator.toml 2> allocator.log &
fi
cat > endpointd.toml << TOML
host = "h$number"
allocator = ["10.0.1.1:7600"]
admin = "unix:endpointd.sock"
[tls]
ca = "pki/ca.pem"
cert = "pki/h$number.pem"
key = "pki/h$number.key"
[pacing]
idle_gap_us = 100000
TOML
/mnt/share/ratewright-endpointd run --config endpointd.toml 2> endpointd.log &
daemon=$!
asked() { curl -sf --unix-socket endpointd.sock "http://x/$1"; }
tries=0
until asked ready > /dev/null; do
  tries=$((tries + 1))
  [ $tries -lt 120 ] || { echo "h$number has no session"; tail -n 8 ./*.log; exit 1; }
  sleep 0.5
done
cat > flow.py << 'PY'
import socket, sys, threading, time
me, other = f"10.0.1.{sys.argv[1]}", f"10.0.1.{3 - int(sys.argv[1])}"
SECONDS = 16
listener = socket.create_server((me, 5001))
arrived = []
def read():
    sink, _ = listener.accept()
    total, begun, counted = 0, time.monotonic(), 0
    while data := sink.recv(1 << 18):
        now = time.monotonic()
        if now - begun > SECONDS / 2:
            counted += len(data)
        last = now
    arrived.append(counted * 8 / (last - begun - SECONDS / 2))
reader = threading.Thread(target=read)
reader.start()
for _ in range(300):
    try:
        source = socket.create_connection((other, 5001)); break
    except OSError: time.sleep(0.2)
end = time.monotonic() + SECONDS
while time.monotonic() < end: source.send(bytes(1 << 16))
source.close()
reader.join()
print(f"{arrived[0]:.0f}")
PY
rate=$(timeout 120 python3 flow.py "$number")
paced=$(asked metrics | sed -n 's/^ratewright_endpointd_first_paced_total //p')
back_end=$(asked metrics | sed -n 's/.*endpointd_info{.*backend="\([a-z_]*\)".*/\1/p')
echo "h$number ($back_end): $rate bit/s arrived, $paced first paced transmissions"
# The other guest may still be sending: allocator and daemon stay for it a while.
sleep 10
kill $daemon
[ "${rate:-0}" -gt 4000000 ] && [ "$rate" -lt 5000000 ] && [ "${paced:-0}" -gt 0 ]
