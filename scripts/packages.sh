#!/usr/bin/env bash
# Builds the .deb and .rpm packages of allocator, endpointd and cli, twice, and fails unless both
# times gave the same bytes; then has lintian and rpmlint look at them.
# usage: scripts/packages.sh [OUT]      (default: target/packages)
#   BIN_DIR=DIR  packs the programs there instead of building the release profile
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
out=$(realpath -m "${1:-target/packages}")
say() { printf 'packages: %s\n' "$*"; }

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -1)
packed=$(dpkg-parsechangelog -l deploy/packages/debian/changelog -S Version)
[ "$version" = "$packed" ] || {
  echo "packages: Cargo.toml has $version, deploy/packages/debian/changelog $packed" >&2; exit 1; }
# One clock for all that is packed: the last commit's.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH LC_ALL=C.UTF-8 TZ=UTC
umask 022

BIN_DIR=$(scripts/release.sh)
export BIN_DIR STAGE=$root/deploy/packages/stage.sh

build() { # build FOLDER
  rm -rf "$1"
  mkdir -p "$1/source" "$1/rpm"
  cp -r deploy/packages/debian "$1/source/debian"
  (cd "$1/source" && dpkg-buildpackage -b -us -uc -d > "$1/deb.log" 2>&1) ||
    { tail -20 "$1/deb.log" >&2; return 1; }
  rpmbuild -bb --quiet --define "_topdir $1/rpm" --define "_rpmdir $1" \
    --define "_rpmfilename %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm" \
    --define "_buildhost localhost" --define "_binary_payload w9.xzdio" \
    --define "version_ $version" --define "stage $STAGE" --define "bin_dir $BIN_DIR" \
    deploy/packages/ratewright.spec > "$1/rpm.log" 2>&1 ||
    { tail -20 "$1/rpm.log" >&2; return 1; }
}

first=$out/first second=$out/second
build "$first"
build "$second"
rm -f "$out"/*.deb "$out"/*.rpm
for file in "$first"/*.deb "$first"/*.rpm; do
  name=${file##*/}
  cmp "$file" "$second/$name" || { echo "packages: $name differs when built twice" >&2; exit 1; }
  cp "$file" "$out/"
done
rm -rf "$first" "$second"
say "built twice, the same bytes:"
(cd "$out" && sha256sum -- *.deb *.rpm | cut -c1-16,65-)

lintian --fail-on error,warning --suppress-tags-from-file deploy/packages/lintian.ignore \
  "$out"/*.deb
say "lintian: no error, no warning"
rpmlint --config deploy/packages/rpmlint.toml "$out"/*.rpm
