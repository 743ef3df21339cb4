#!/usr/bin/env bash
# Builds the .deb packages (scripts/packages.sh: twice, equal bytes, lintian), and in a fresh Debian guest installs,
# upgrades, removes and purges them; the guest must be as it was.
# usage: scripts/packages-test.sh [SERIES]      (a kernel series of scripts/guest.sh; default 6.1, Debian 12's)
#   BIN_DIR=DIR   packs the programs there instead of building the release profile
#   PACKAGES=DIR  takes the packages there instead of building any
set -euo pipefail
cd "$(dirname "$0")/.."
packages=${PACKAGES:-target/packages}
[ -n "${PACKAGES:-}" ] || scripts/packages.sh "$packages"
share=$(mktemp -d)
trap 'rm -rf "$share"' EXIT
mkdir "$share/first" "$share/second"
cp "$packages"/*.deb "$share/first/"
# The upgrade's packages: the same, under a higher version.
for file in "$packages"/*.deb; do
  tree=$(mktemp -d)
  dpkg-deb -R "$file" "$tree"
  sed -i 's/^Version: .*/&+upgrade/' "$tree/DEBIAN/control"
  dpkg-deb -Zgzip -z1 --root-owner-group -b "$tree" "$share/second" > /dev/null
  rm -rf "$tree"
done
cp deploy/guests/packages.sh "$share/run"
# Emulated, a guest has to measure time by its own instructions: it is too slow for rates of real time.
export GUEST_CLOCK=steady
GUEST_SECONDS=${GUEST_SECONDS:-900} scripts/guest.sh "${1:-6.1}" "$share"
