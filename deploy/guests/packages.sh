#!/bin/bash
# Runs in a fresh Debian guest, from scripts/packages-test.sh: installs the packages, brings the guest
# to a paced host by the guide's three commands, upgrades, removes and purges, and looks for traces.
# /mnt/share holds first/*.deb and second/*.deb (the same under a higher version).
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive LC_ALL=C
step() { echo "== $*"; }
die() {
  echo "packages-test: $*" >&2
  cat apt.log >&2 2> /dev/null || true
  systemctl --no-pager status 'ratewright*' >&2 || true
  journalctl --no-pager --lines 60 --unit 'ratewright*' >&2 || true
  exit 1
}
cd /root
exec 2>&1

# What an installation could leave behind, one a line.
snapshot() {
  # Not of any package: what the running system and its log write, and the copies that every change of
  # a user or of dpkg's own table leaves of the state before it.
  find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /tmp -o -path /root -o -path /mnt \
    -o -path /run/systemd -o -path /run/log -o -path /var/log -o -path /var/cache -o -path /var/lib/apt \
    -o -path /var/tmp -o -path '/var/lib/systemd/timers' -o -path /usr/lib/modules -o -path /lib/modules \) -prune \
    -o ! -name '*-old' ! -path '/etc/*-' ! -path '/etc/.pwd.lock' ! -path '/var/lib/dpkg/lock*' \
    ! -path /var/lib/systemd/random-seed -printf 'file %p\n' | sort
  find /run/systemd/system /run/ratewright* /sys/fs/bpf /sys/fs/cgroup -maxdepth 2 -type d -o -type f \
    -path '*ratewright*' 2> /dev/null | grep -E 'ratewright|^/sys/fs/bpf' | sed 's/^/place /' | sort || true
  getent passwd | sed 's/^/user /'
  getent group | sed 's/^/group /'
  # Those that move by themselves are no settings.
  sysctl -a 2> /dev/null | grep -E '^(net|kernel|vm)\.' |
    grep -vE 'random|ns_last_pid|pty.nr|nf_conntrack_count|netdev_rss_key|\.stat|fs\.|tcp_fastopen_key' |
    sed 's/^/sysctl /'
  # PID 1 and its own programs for units come and go: what is counted is not theirs.
  bpftool prog show | awk '/^[0-9]+:/ && $4 !~ /^sd_/ { print "program", $2, $4 }' | sort
  bpftool map show | awk '/^[0-9]+:/ { print "map", $2, $4 }' | sort
  tc qdisc show | sed 's/^/qdisc /; s/ 800[0-9a-f]*:/ /'
}

step "a network of two hosts: this guest is one of them"
ip netns add other
ip link add up0 type veth peer name up0 netns other
ip addr add 10.0.1.1/24 dev up0
ip link set up0 up
ip -n other addr add 10.0.1.2/24 dev up0
ip -n other link set up0 up
ip -n other link set lo up
# The link carries twice what the topology will say: whether a transfer is paced shows in its rate.
tc qdisc add dev up0 root tbf rate 40mbit burst 32k latency 50ms
sleep 1
snapshot > before

cat > flow.py << 'PY'
import os, socket, sys, time
# A transfer for so many seconds, to a reader in the other host; prints bits per second that arrived.
seconds = float(sys.argv[1])
if sys.argv[2:] == ["read"]:
    sink, _ = socket.create_server(("10.0.1.2", 5001)).accept()
    begun, counted = time.monotonic(), 0
    while data := sink.recv(1 << 18):
        last = time.monotonic()
        counted += len(data) if last - begun > seconds / 4 else 0
    print(f"{counted * 8 / (last - begun - seconds / 4):.0f}")
    sys.exit()
if os.fork() == 0:
    os.execvp("ip", ["ip", "netns", "exec", "other", "python3", *sys.argv, "read"])
for _ in range(100):
    try:
        source = socket.create_connection(("10.0.1.2", 5001))
        break
    except ConnectionRefusedError:
        time.sleep(0.1)
end = time.monotonic() + seconds
while time.monotonic() < end:
    source.send(bytes(1 << 16))
source.close()
os.wait()
PY

step "install the allocator, and give it a topology of 20 Mbit/s links"
apt-get install -qq -y --no-install-recommends /mnt/share/first/ratewright-allocator_*.deb \
  /mnt/share/first/ratewright-cli_*.deb > apt.log || { cat apt.log; die "the allocator cannot be installed"; }
ratewright topology build big-switch --racks 1 --hosts-per-rack 2 --host-capacity 20Mbit/s \
  --ipv4-base 10.0.0.0/8 --ipv6-base none -o /etc/ratewright/topology.toml
ratewright certs init --dir pki
ratewright certs issue --dir pki --name ratewright-allocator --name h1
cat > /etc/ratewright/allocator.toml << 'TOML'
listen = "0.0.0.0:7600"
admin = "unix:/run/ratewright-allocator/admin.sock"
topology = "topology.toml"
[tls]
ca = "ca.pem"
cert = "ratewright-allocator.pem"
key = "ratewright-allocator.key"
TOML
install -m 644 pki/ca.pem pki/ratewright-allocator.pem /etc/ratewright/
install -m 640 -g ratewright-allocator pki/ratewright-allocator.key /etc/ratewright/
systemctl enable -q --now ratewright-allocator || die "the allocator does not start"

step "the guide's three commands"
mkdir host
cp pki/ca.pem pki/h1.pem pki/h1.key host/
cat > host/endpointd.toml << 'TOML'
host = "h1"
allocator = ["10.0.1.1:7600"]
admin = "unix:/run/ratewright/endpointd.sock"
[tls]
ca = "ca.pem"
cert = "h1.pem"
key = "h1.key"
TOML
cp /mnt/share/first/ratewright-endpointd_*.deb .
set -x
apt-get install -qq -y ./ratewright-endpointd_*.deb > apt.log || { cat apt.log; die "endpointd cannot be installed"; }
cp --preserve=mode host/* /etc/ratewright/
systemctl enable -q --now ratewright-endpointd || die "endpointd does not start"
{ set +x; } 2> /dev/null

asked() { curl -sf --unix-socket /run/ratewright/endpointd.sock "http://x/$1"; }
metric() { asked metrics | sed -n "s/^ratewright_endpointd_$1 //p"; }
ready() {
  local i
  for i in $(seq 60); do asked ready > /dev/null && return; sleep 0.5; done
  die "$1: no session: $(asked ready || true)"
}
paced() { # paced WHEN: a transfer keeps to the link of 20 Mbit/s, of whose line rate 18.8 are payload
  local rate
  (sleep 4; curl -s --unix-socket /run/ratewright-allocator/admin.sock 'http://x/flows?host=h1') > rates &
  rate=$(python3 flow.py 8)
  echo "$1: $rate bit/s, congestion control $(sysctl -n net.ipv4.tcp_congestion_control)," \
    "$(metric first_paced_total) first paced transmissions"
  [ "$rate" -gt 15000000 ] && [ "$rate" -lt 22000000 ] || { asked status; cat rates; die "$1: the transfer is not paced at 20 Mbit/s"; }
}
ready "installed"
paced "installed"
asked status | head -c 300; echo

step "upgrade under a running transfer"
python3 flow.py 15 > long &
flow=$!
sleep 4
pid=$(systemctl show -P MainPID ratewright-endpointd)
apt-get install -qq -y --no-install-recommends /mnt/share/second/*.deb > apt.log || { cat apt.log; die "no upgrade"; }
for unit in ratewright-allocator ratewright-endpointd; do
  systemctl is-active --quiet $unit || die "the upgrade left $unit stopped"
done
[ "$(systemctl show -P MainPID ratewright-endpointd)" != "$pid" ] || die "the upgrade kept the old daemon"
ready "upgraded"
wait $flow || die "the upgrade broke the transfer"
echo "a transfer across the upgrade: $(cat long) bit/s"
dpkg-query -W 'ratewright*'
paced "upgraded"

step "remove: configuration stays, nothing runs"
apt-get remove -qq -y ratewright-endpointd ratewright-allocator ratewright-cli > apt.log || { cat apt.log; die "no removal"; }
[ -e /etc/ratewright/endpointd.toml ] || die "removal took the configuration along"
[ "$(sysctl -n net.ipv4.tcp_congestion_control)" = cubic ] || die "removal left the congestion control"
ps -e | grep ratewright && die "removal left a process"
rate=$(python3 flow.py 3)
echo "removed: $rate bit/s"
[ "$rate" -gt 25000000 ] || die "removed, and the transfer is still paced"

step "purge: nothing is left"
apt-get purge -qq -y ratewright-endpointd ratewright-allocator ratewright-cli > apt.log || { cat apt.log; die "no purge"; }
systemctl daemon-reload
sleep 2
snapshot > after
if ! diff before after > traces; then
  cat traces
  die "purge left traces (or took more than the packages brought)"
fi
echo "$(wc -l < before) files, users, groups, settings, programs, maps and queues: as before"
echo "packages-test: passed"
