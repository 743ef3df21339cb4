#!/usr/bin/env bash
# Builds the container images and runs them as deploy/kubernetes does, in network namespaces of its own:
# an allocator that is nobody, and a daemon with the DaemonSet's capabilities and mounts that takes a
# pod's namespace over and gives it back. Shows what fails without each capability.
# usage: scripts/container-test.sh      (root; BIN_DIR and IMAGES as below)
#   BIN_DIR=DIR  packs the programs there instead of building the release profile
#   IMAGES=DIR   takes the images there instead of building any
set -euo pipefail
cd "$(dirname "$0")/.."
images=${IMAGES:-target/container}
[ -n "${IMAGES:-}" ] || scripts/container.sh "$images"
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -1)
manifest=deploy/kubernetes/base/endpointd.yaml
tag=rwct$$
node=$tag-node pod=cni-$tag
work=$(mktemp -d)
say() { printf 'container-test: %s\n' "$*"; }
die() { say "FAIL $*" >&2; exit 1; }
podman_() { podman --root "$work/store" --runroot "$work/run" --storage-driver vfs --cgroup-manager cgroupfs --runtime "$runtime" "$@"; }
clean_up() {
  podman_ rm --all --force --time 5 > /dev/null 2>&1 || true
  ip netns del "$node" 2> /dev/null || true
  ip netns del "$pod" 2> /dev/null || true
  umount "$work/store/vfs" "$work/store" 2> /dev/null || true
  rm -rf "$work"
}
runtime=$(command -v runc || command -v crun) || die "no OCI runtime: install runc"
trap clean_up EXIT
wait_for() { # wait_for WHAT COMMAND...
  local what=$1 turn; shift
  for turn in $(seq 100); do "$@" > /dev/null 2>&1 && return; sleep 0.2; done
  podman_ logs endpointd 2>&1 | tail -5 >&2 || true
  die "$what did not happen within 20 s"
}

# The DaemonSet's own list.
capabilities=$(sed -n 's/^ *add: \[\(.*\)\]$/\1/p' "$manifest" | tr -d ' ')
[ -n "$capabilities" ] || die "$manifest lists no capabilities"
for image in allocator endpointd; do
  podman_ load --quiet --input "$images/ratewright-$image-$version.tar" > /dev/null
done
ip netns add "$node"
ip netns add "$pod"
ip -n "$node" link set lo up

# Certificates, by the image's own program.
mkdir -m 755 "$work/tls" "$work/config" "$work/locks"
ratewright() {
  podman_ run --rm --network none --ulimit nofile=1024:4096 --ulimit nproc=1024:4096 --user 0:0 -v "$work/tls:/tls" \
    --entrypoint /usr/bin/ratewright "localhost/ratewright/allocator:$version" "$@" > /dev/null
}
ratewright certs init --dir /tls
ratewright certs issue --dir /tls --name ratewright-allocator
ratewright certs issue --dir /tls --name node-1
mv "$work/tls/ratewright-allocator.pem" "$work/tls/allocator.pem"
mv "$work/tls/ratewright-allocator.key" "$work/tls/allocator.key"
mv "$work/tls/node-1.pem" "$work/tls/host.pem"
mv "$work/tls/node-1.key" "$work/tls/host.key"
chown 65532 "$work/tls/allocator.key"
cp deploy/kubernetes/base/{allocator,topology}.toml "$work/config/"
sed -e 's/192\.0\.2\.1:7600/127.0.0.1:7600/' -e "s#/run/netns/cni-\*#/run/netns/$pod#" \
  deploy/kubernetes/base/endpointd.toml > "$work/config/endpointd.toml"

mounts=(-v "$work/config:/etc/ratewright:ro" -v "$work/tls:/etc/ratewright-tls:ro")
limits=(--ulimit nofile=1024:4096 --ulimit nproc=1024:4096 --read-only --network "ns:/run/netns/$node")
host=(-v "$work/locks:/run/ratewright" -v /run/netns:/run/netns:ro,rslave
  -v /sys/fs/cgroup:/sys/fs/cgroup:ro -v /sys/fs/bpf:/sys/fs/bpf)
daemon() { # daemon CAPABILITIES MORE... : a container of the daemon
  local add=$1; shift
  podman_ run "${limits[@]}" "${mounts[@]}" "${host[@]}" --security-opt apparmor=unconfined \
    --cap-drop ALL ${add:+--cap-add "$add"} "$@"
}
settings() { ip netns exec "$1" sysctl -a -r '^net.ipv4.tcp_'; }

podman_ run --detach --name allocator "${limits[@]}" "${mounts[@]}" --cap-drop ALL --user 65532:65532 \
  "localhost/ratewright/allocator:$version" > /dev/null
wait_for "the allocator" ip netns exec "$node" curl -sf http://127.0.0.1:9600/ready
say "ok   the allocator serves as user 65532 without a capability"

before=$(settings "$pod")
daemon "$capabilities" --detach --name endpointd "localhost/ratewright/endpointd:$version" \
  run --config /etc/ratewright/endpointd.toml --host node-1 > /dev/null
wait_for "the daemon's session" ip netns exec "$node" curl -sf http://127.0.0.1:9601/ready
taken() {
  ip netns exec "$node" curl -sf http://127.0.0.1:9601/metrics | grep -qx 'ratewright_endpointd_backend_pods 1'
}
wait_for "the pod's namespace to be taken over" taken
say "ok   the daemon has a session and takes a pod over, with $capabilities"
podman_ stop --time 20 endpointd > /dev/null
[ "$before" = "$(settings "$pod")" ] || die "the pod's settings of TCP are others after the daemon's end"
[ "$(podman_ inspect --format '{{.State.ExitCode}}' endpointd)" = 0 ] || die "the daemon did not end well"
say "ok   at its end the pod is as it was"

# Each capability is needed. (The trial of sock_ops wants a cgroup of its own, which the mount denies;
# the daemon above attached it to the mount's own.)
unusable() { # unusable CAPABILITIES: mechanisms that `probe` refuses
  daemon "$1" --rm "localhost/ratewright/endpointd:$version" probe > "$work/probe" 2>&1 || true
  awk '$2 == "no" { print $1 }' "$work/probe" | sort
}
unusable "$capabilities" > "$work/with"
grep -qx tc_htb "$work/with" && die "tc_htb is not usable: $(cat "$work/probe")"
IFS=, read -ra each <<< "$capabilities"
for one in "${each[@]}"; do
  rest=$(printf '%s\n' "${each[@]}" | grep -vx "$one" | paste -sd,)
  missing=$(unusable "$rest" | comm -13 "$work/with" - | paste -sd' ')
  [ -n "$missing" ] || die "nothing is missing without $one"
  say "ok   without $one there is no $missing"
done
