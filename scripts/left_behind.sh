#!/usr/bin/env bash
# What tests and labs change on a machine, noted before them and compared after them.
# usage: scripts/left_behind.sh note FILE | compare FILE
#   WITH_IDLE=1: programs at idle priority, too. Otherwise they are those of parts that run beside (scripts/parts.sh).
#
# note: writes one line for each setting of TCP and of the network's core, network namespace, interface, cgroup,
#   mount, pinned object and program of BPF, congestion control, file in /run, and running program of ours.
# compare: names what is there now and was not then; exit status 1 if anything is. Processes and cgroups may take
#   some seconds to end.
set -euo pipefail
what=${1:-}
file=${2:-}
repository=$(realpath "$(dirname "$0")/..")
target=$(realpath -m "${CARGO_TARGET_DIR:-$repository/target}")

settings() {
  local path value
  # A lab that was killed noted the list of controls of before, and the next lab restores that.
  local before=/run/ratewright-lab.allowed-congestion-control
  [ ! -e $before ] || echo "sysctl net/ipv4/tcp_allowed_congestion_control = $(<$before)"
  # A key that the kernel draws at its first use, and the list of controls, which is judged below.
  find /proc/sys/net/ipv4 /proc/sys/net/core -maxdepth 1 -type f -readable \( -path '*/net/core/*' -o -name 'tcp_*' \) \
    ! -name tcp_fastopen_key ! -name tcp_available_congestion_control |
    while read -r path; do
      value=$(cat "$path" 2>/dev/null) && printf 'sysctl %s = %s\n' "${path#/proc/sys/}" "${value//[$'\n\t']/ }"
    done
}

# A module that the kernel loaded for somebody stays, and does no harm.
controls() {
  local name
  for name in $(cat /proc/sys/net/ipv4/tcp_available_congestion_control); do
    [ -d "/sys/module/tcp_$name" ] || echo "congestion control $name"
  done
}

mounts() { # bpffs, cgroup2, namespaces, and all that is mounted at a place of ours
  awk '{ for (i = 7; $i != "-"; i++); kind = $(i + 1)
         if (kind ~ /^(bpf|cgroup2|nsfs)$/ || $5 ~ /ratewright|rwlab/) print "mount " kind " at " $5 }' /proc/self/mountinfo
}

cgroups() { # but those of systemd's own services, which come and go
  awk '$3 == "cgroup2" { print $2 }' /proc/mounts | while read -r root; do
    find "$root" -mindepth 1 \( -name system.slice -o -name user.slice -o -name init.scope \) -prune -o -type d -printf 'cgroup %p\n'
  done
}

pins() {
  awk '$3 == "bpf" { print $2 }' /proc/mounts | while read -r root; do find "$root" -mindepth 1 -printf 'pinned at %p\n'; done
}

programs_of_bpf() { # by bpf(2), since no tool for it need be there; those of systemd have names of their own
  python3 - <<'PYTHON'
import ctypes, os, struct
libc, number = ctypes.CDLL(None, use_errno=True), {"x86_64": 321, "aarch64": 280}[os.uname().machine]
def bpf(command, attributes):
    return libc.syscall(number, command, attributes, len(attributes))
at = 0
while bpf(11, attributes := ctypes.create_string_buffer(struct.pack("III", at, 0, 0), 12)) == 0:
    at = struct.unpack_from("I", attributes, 4)[0]
    descriptor = bpf(13, ctypes.create_string_buffer(struct.pack("III", at, 0, 0), 12))
    if descriptor < 0:
        continue
    facts = ctypes.create_string_buffer(80)
    asked = struct.pack("IIQ", descriptor, 80, ctypes.addressof(facts))
    if bpf(15, ctypes.create_string_buffer(asked, len(asked))) == 0:
        name = facts.raw[64:80].split(b"\0")[0].decode()
        if not name.startswith("sd_"):
            print(f"BPF program {at} {name}")
    os.close(descriptor)
PYTHON
}

processes() { # programs that were built here, and what tests start beside them
  local link program
  for link in /proc/[0-9]*/exe; do
    program=$(readlink "$link" 2>/dev/null) || continue
    case $program in
      "$target"/* | */chromium | */prometheus | */valgrind* | */memcheck-* | */qemu-system-*)
        # The policy's field comes after the name, which is in brackets; 5 is SCHED_IDLE.
        local number=${link#/proc/} policy
        number=${number%/exe}
        policy=$(sed 's/.*) //' "/proc/$number/stat" 2>/dev/null | cut -d ' ' -f 39) || continue
        [ -z "${WITH_IDLE:-}" ] && [ "$policy" = 5 ] || printf 'process %s %s\n' "$number" "$program" ;;
    esac
  done
}

all() {
  settings
  controls
  mounts
  cgroups
  pins
  programs_of_bpf
  processes
  # A machine that has not made a namespace since it booted has no such folder.
  [ ! -d /run/netns ] || find /run/netns -mindepth 1 -printf 'network namespace %f\n'
  ip -o link | sed -n 's/^[0-9]*: \([^:@]*\).*/interface \1/p'
  tc qdisc | sed -n 's/^qdisc \([^ ]*\) .* dev \([^ ]*\) .*/qdisc \1 of \2/p'
  # Locks are files that stay, since a lock on a removed file locks nobody out.
  find /run -maxdepth 3 -path '/run/ratewright*' ! -name '*.lock' ! -path /run/ratewright ! -path '/run/ratewright/locks*' -printf 'file %p\n' 2>/dev/null
}

case $what in
  note)
    mkdir -p "$(dirname "$file")"
    all | LC_ALL=C sort -u >"$file"
    ;;
  compare)
    for _ in $(seq 10); do
      left=$(all | LC_ALL=C sort -u | LC_ALL=C comm -13 "$file" -)
      [ -n "$left" ] || exit 0
      sleep 1
    done
    printf 'left behind: %s\n' "${left//$'\n'/$'\nleft behind: '}" >&2
    exit 1
    ;;
  *)
    echo "usage: scripts/left_behind.sh note FILE | compare FILE" >&2
    exit 2
    ;;
esac
