#!/usr/bin/env bash
# Boots one of Debian's cloud kernels in QEMU with a minimal Debian, runs a script there as root, and
# passes on what it prints and its exit status. Uses KVM where a kernel boots with it, else emulation.
# usage: scripts/guest.sh SERIES FOLDER     (SERIES: 6.1, 6.12, 7.1, or newest of Debian's)
#   FOLDER is /mnt/share in the guest, read-only; the guest runs FOLDER/run.
#   GUEST_SECONDS=N   ends the guest after so long (default 600)
#   GUEST_NET=ARGS    more arguments for QEMU, such as a network interface
#   GUEST_MEMORY=MB   the guest's memory (default 2048)
#   GUEST_CPUS=N      its processors (default 2)
#   GUEST_CLOCK=steady   without KVM, the guest's clock counts its instructions, one a nanosecond:
#                     what it measures does not depend on how busy the machine is
set -euo pipefail
[ $# = 2 ] || { echo "usage: $0 SERIES FOLDER" >&2; exit 2; }
series=$1 share=$(realpath "$2")
cd "$(dirname "$0")/.."
cache=$PWD/target/guest
mkdir -p "$cache/apt/lists/partial" "$cache/apt/cache/archives/partial"
say() { printf 'guest: %s\n' "$*" >&2; }

# Two guests may start at once; only one fetches and builds.
exec 9> "$cache/lock"
flock 9

# Debian's archives, in a state of apt's of our own: the machine's sources stay as they are.
key=/usr/share/keyrings/debian-archive-keyring.gpg
for suite in "debian bookworm" "debian-security bookworm-security" "debian trixie-backports"; do
  echo "deb [signed-by=$key] http://deb.debian.org/$suite main"
done > "$cache/apt/sources.list"
apt=(-o "Dir::Etc::sourcelist=$cache/apt/sources.list" -o Dir::Etc::sourceparts=/dev/null
  -o "Dir::State::lists=$cache/apt/lists" -o "Dir::Cache=$cache/apt/cache")

# The newest kernel of the series that Debian has; unpacked, not installed.
kernel=$cache/linux-$series
if [ ! -d "$kernel/boot" ]; then
  apt-get "${apt[@]}" update -qq
  case $series in newest) wanted='[0-9]+\.[0-9]+' ;; *) wanted=${series//./\\.} ;; esac
  package=$(apt-cache "${apt[@]}" pkgnames linux-image- |
    grep -E "^linux-image-$wanted\.[0-9][^~]*-cloud-amd64$" | sort -V | tail -1)
  [ -n "$package" ] || { say "Debian has no cloud kernel of series $series"; exit 1; }
  say "fetching $package"
  rm -rf "$kernel" "$kernel.new"
  mkdir -p "$kernel.new"
  # Debian's newer kernels come in parts: the image proper and the modules.
  parts=$(apt-cache "${apt[@]}" depends --important "$package" |
    sed -n 's/.*Depends: \(linux-\(base\|binary\|modules\)-[0-9].*\)/\1/p')
  # shellcheck disable=SC2086
  (cd "$kernel.new" && apt-get "${apt[@]}" -o APT::Sandbox::User=root download -qq "$package" $parts)
  for part in "$kernel.new"/*.deb; do dpkg-deb -x "$part" "$kernel.new"; done
  rm "$kernel.new"/*.deb
  if [ ! -d "$kernel.new/lib/modules" ]; then
    mkdir -p "$kernel.new"/{lib,boot}
    mv "$kernel.new/usr/lib/modules" "$kernel.new/lib/"
    for image in "$kernel.new"/lib/modules/*/vmlinuz; do
      release=${image%/vmlinuz}
      mv "$image" "$kernel.new/boot/vmlinuz-${release##*/}"
    done
  fi
  mv "$kernel.new" "$kernel"
fi
release=$(cd "$kernel/lib/modules" && echo *)
[ -e "$kernel/lib/modules/$release/modules.dep" ] || depmod -b "$kernel" "$release"

root=$cache/root.ext4
if [ ! -e "$root" ]; then
  say "building a minimal Debian"
  mmdebstrap --quiet --variant=minbase \
    --include=systemd,systemd-sysv,dbus,iproute2,kmod,procps,libelf1,zlib1g,python3-minimal,bpftool,curl,iputils-ping,ethtool,tcpdump,openssl \
    bookworm "$cache/root.tar"
  rm -rf "$cache/root"
  mkdir "$cache/root"
  tar -C "$cache/root" -xf "$cache/root.tar"
  rm -f "$cache/root.tar" "$cache/root/etc/resolv.conf"
  : > "$cache/root/etc/machine-id"
  mkdir -p "$cache/root/mnt/share" "$cache/root/lib/modules"
  mke2fs -q -t ext4 -d "$cache/root" "$root.new" 2G
  rm -rf "$cache/root"
  mv "$root.new" "$root"
fi

# An initramfs with the few modules that lead to the disks.
initramfs=$cache/initramfs-$series
if [ ! -e "$initramfs" ]; then
  tree=$(mktemp -d)
  mkdir -p "$tree"/{bin,dev,proc,sys,root,modules}
  cp /bin/busybox "$tree/bin/"
  modprobe -d "$kernel" -S "$release" --show-depends -a virtio_pci virtio_blk virtio_net overlay ext4 |
    sed -n 's/^insmod //p' | awk '!seen[$1]++ {print $1}' > "$tree/modules/list"
  while read -r module; do cp "$module" "$tree/modules/"; done < "$tree/modules/list"
  sed -i 's|.*/||' "$tree/modules/list"
  cat > "$tree/init" << 'INIT'
#!/bin/busybox sh
busybox mount -t devtmpfs dev /dev
busybox mount -t proc proc /proc
busybox mount -t sysfs sys /sys
while read -r module; do busybox insmod "/modules/$module"; done < /modules/list
for i in 1 2 3 4 5 6 7 8 9 10; do [ -b /dev/vdc ] && break; busybox sleep 0.2; done
busybox mount -t ext4 /dev/vda /root
busybox mount -t ext4 -o ro /dev/vdb /root/mnt/share
busybox mount -t ext4 -o ro /dev/vdc /root/lib/modules
unit=/root/etc/systemd/system
busybox mkdir -p $unit/multi-user.target.wants
busybox cat > $unit/guest-run.service << 'UNIT'
[Unit]
After=multi-user.target
[Service]
Type=oneshot
StandardOutput=file:/dev/ttyS1
StandardError=inherit
Environment=HOME=/root
ExecStart=/bin/sh -c '/mnt/share/run; echo "guest exit $?"'
ExecStopPost=/bin/systemctl poweroff --force
UNIT
busybox ln -s ../guest-run.service $unit/multi-user.target.wants/guest-run.service
busybox umount /dev /sys /proc
exec busybox switch_root /root /sbin/init
INIT
  chmod +x "$tree/init"
  (cd "$tree" && find . | cpio -o -H newc --quiet | gzip -1) > "$initramfs.new"
  mv "$initramfs.new" "$initramfs"
  rm -rf "$tree"
fi
# Some machines have a /dev/kvm with which no kernel gets past its first lines.
if [ ! -e "$cache/accel" ]; then
  if timeout 20 qemu-system-x86_64 -accel kvm -cpu max -m 512 -display none -no-reboot -nodefaults \
    -kernel "$kernel/boot/vmlinuz-$release" -append panic=-1 < /dev/null > /dev/null 2>&1; then
    echo kvm > "$cache/accel"
  else
    echo tcg > "$cache/accel"
  fi
fi
accel="-accel $(cat "$cache/accel")"
case ${GUEST_CLOCK:-} in
  '') ;;
  steady) [ "$accel" != "-accel tcg" ] || accel="-accel tcg,thread=single -icount shift=0,sleep=off" ;;
  *) say "GUEST_CLOCK is steady or unset"; exit 2 ;;
esac
modules=$cache/modules-$series.ext4
if [ ! -e "$modules" ]; then
  mke2fs -q -t ext4 -d "$kernel/lib/modules" "$modules.new" 400M > /dev/null
  mv "$modules.new" "$modules"
fi
flock -u 9

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
size=$(( $(du -sm "$share" | cut -f1) * 5 / 4 + 64 ))
mke2fs -q -t ext4 -d "$share" "$work/share.ext4" "${size}M" > "$work/mke2fs"
disk() { echo "-drive file=$1,format=raw,if=virtio,snapshot=on"; }
: > "$work/out"
# shellcheck disable=SC2046,SC2086
timeout "${GUEST_SECONDS:-600}" qemu-system-x86_64 \
  $accel -cpu max -smp "${GUEST_CPUS:-2}" -m "${GUEST_MEMORY:-2048}" -nographic -no-reboot -nodefaults \
  -kernel "$kernel/boot/vmlinuz-$release" -initrd "$initramfs" \
  -append "console=ttyS0 panic=-1 systemd.getty_auto=no" \
  $(disk "$root") $(disk "$work/share.ext4") $(disk "$modules") \
  -device virtio-rng-pci ${GUEST_NET:-} \
  -serial "file:$work/console" -serial "file:$work/out" < /dev/null > "$work/qemu" 2>&1 || true
tr -d '\r' < "$work/out" | grep -v '^guest exit [0-9]*$' || true
status=$(tr -d '\r' < "$work/out" | sed -n 's/^guest exit \([0-9]*\)$/\1/p' | tail -1)
if [ -z "$status" ]; then
  say "the guest ended without a result; its console and QEMU said:"
  tail -20 "$work/console" "$work/qemu" >&2 2> /dev/null || true
  exit 125
fi
exit "$status"
