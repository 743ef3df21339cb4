#!/usr/bin/env bash
# What a relay saves at the allocator's link: the same swarm once without and once with a relay between,
# the allocator in a network namespace of its own, and the bytes and packets of its one link counted by
# the kernel. On the wire a packet costs 24 bytes more than what is counted: checksum, preamble, gap.
#
# usage, as root: scripts/relay_savings.sh [BIN_DIR [SESSIONS [HOST_BIT_PER_S [SECONDS]]]]
# NOMINAL_BPS in the environment: what links stand for, for sessions in slow motion (default: HOST_BIT_PER_S).
# Needs ip, ethtool, curl and python3; BIN_DIR has ratewright, ratewright-bench, ratewright-allocator (default: target/release).
set -euo pipefail

bin=$(realpath "${1:-target/release}")
sessions=${2:-256} host_bps=${3:-1000000} seconds=${4:-10}
work=$(mktemp -d) ns=rw-savings-$$ link=rws$$
pids=()
cleanup() {
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
    wait
    ip netns del "$ns" 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT
cd "$work"

ip netns add "$ns"
ip link add "$link" type veth peer name "${link}a" netns "$ns"
ip addr add 10.211.0.1/24 dev "$link"
ip link set "$link" up
ip -n "$ns" addr add 10.211.0.2/24 dev "${link}a"
ip -n "$ns" link set "${link}a" up
ip -n "$ns" link set lo up
# A packet on the link is a packet on a wire.
ethtool -K "$link" gso off gro off tx-udp-segmentation off >/dev/null
ip netns exec "$ns" ethtool -K "${link}a" gso off gro off tx-udp-segmentation off >/dev/null

names=()
for host in $(seq "$sessions"); do names+=(--name "h$host"); done
"$bin/ratewright" certs init --dir . >/dev/null
"$bin/ratewright" certs issue --dir . --name ratewright-allocator --relay relay-1 "${names[@]}" >/dev/null
"$bin/ratewright" topology build two-tier-clos --racks $(((sessions + 15) / 16)) --hosts-per-rack 16 \
    --spines 4 --host-capacity "${host_bps}bit/s" --fabric-capacity "$((host_bps * 4))bit/s" \
    --output topology.toml >/dev/null 2>&1

load=(--sessions "$sessions" --workload web --load 0.8 --host-bps "$host_bps" \
    --nominal-bps "${NOMINAL_BPS:-$host_bps}")
tls() { printf '[tls]\nca = "ca.pem"\ncert = "%s.pem"\nkey = "%s.key"\n[transport]\nhot = "udp"\n' "$1" "$1"; }
{
    printf 'listen = "10.211.0.2:7600"\nadmin = "unix:admin.sock"\ntopology = "topology.toml"\n'
    tls ratewright-allocator
    # Leases and updates in slow motion, as the links are.
    "$bin/ratewright-bench" swarm "${load[@]}" --print-settings
    printf '[trust.relays]\nrelay-1 = ["h*"]\n'
} >allocator.toml
{
    printf 'listen = "127.0.0.1:7609"\nadmin = "unix:relay.sock"\nallocator = ["10.211.0.2:7600"]\n'
    tls relay-1
} >relay.toml

snapshot() {
    cat "/sys/class/net/$link/statistics/"{rx_bytes,rx_packets,tx_bytes,tx_packets} >"$1.link"
    curl -s --unix-socket admin.sock http://allocator/metrics >"$1.metrics"
}
log_has() { for _ in $(seq 100); do grep -q "$2" "$1" && return; sleep 0.1; done; cat "$1"; return 1; }

for way in direct relay; do
    ip netns exec "$ns" "$bin/ratewright-allocator" --config allocator.toml 2>allocator.log &
    allocator=$!
    pids=("$allocator")
    log_has allocator.log "ready: "
    address=10.211.0.2:7600
    if [ $way = relay ]; then
        "$bin/ratewright-allocator" --config relay.toml relay 2>relay.log &
        pids+=($!)
        log_has relay.log "connected to the allocator"
        address=127.0.0.1:7609
    fi
    # A short run and a longer one: their difference has no handshakes.
    for length in 1 $((seconds + 1)); do
        snapshot "before-$length"
        "$bin/ratewright-bench" swarm "${load[@]}" --seconds "$length" --transport udp --allocator "$address" \
            --admin "unix:$work/admin.sock" --cert-dir . --allocator-pid "$allocator" --json >swarm.json
        snapshot "after-$length"
    done
    python3 - "$way" 1 $((seconds + 1)) <<'PYTHON'
import json, sys
way, lengths = sys.argv[1], sys.argv[2:]
swarm = json.load(open("swarm.json"))

def snapshot(name):
    links = list(map(int, open(f"{name}.link").read().split()))
    lines = (line.rsplit(" ", 1) for line in open(f"{name}.metrics") if line[0] not in "#\n")
    metrics = {key: float(value) for key, value in lines}
    of = lambda name: metrics[f"ratewright_allocator_{name}_total"]
    return [of("datagrams_sent"), of("datagrams_received"), *links]

def spent(length):
    return [b - a for a, b in zip(snapshot(f"before-{length}"), snapshot(f"after-{length}"))]

short, longer = map(spent, lengths)
datagrams_down, datagrams_up, down_bytes, down, up_bytes, up = (int(b - a) for a, b in zip(short, longer))
print(json.dumps({
    "way": way,
    "hosts_datagrams_down": datagrams_down,
    "hosts_datagrams_up": datagrams_up,
    "packets_from_allocator": down,
    "packets_to_allocator": up,
    "wire_bytes_from_allocator": down_bytes + 24 * down,
    "wire_bytes_to_allocator": up_bytes + 24 * up,
    "updates_per_s": swarm["updates_per_s"],
    "starts_per_s": swarm["starts_per_s"],
    "start_to_rate_us": swarm["start_to_rate_us"],
    "allocator_cpu_s": swarm["allocator_cpu_s"],
    "lost_views": swarm["lost_views"],
}))
PYTHON
    for pid in "${pids[@]}"; do kill "$pid"; done
    wait || true
    pids=()
done
