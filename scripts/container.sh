#!/usr/bin/env bash
# Builds the container images of allocator and endpointd, twice, and fails unless both times gave the
# same image. Pulls none: the root file system is Debian's libraries and what our packages install.
# usage: scripts/container.sh [OUT]      (default: target/container; OCI archives)
#   BIN_DIR=DIR  packs the programs there instead of building the release profile
set -euo pipefail
cd "$(dirname "$0")/.."
out=$(realpath -m "${1:-target/container}")
say() { printf 'container: %s\n' "$*"; }

# One clock for all that is packed: the last commit's.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH LC_ALL=C.UTF-8 TZ=UTC
umask 022
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -1)
suite=$(. /etc/os-release && echo "${VERSION_CODENAME:?}")

bin=$(scripts/release.sh)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# A store of its own: nothing of the machine's is read or left behind.
store=(--root "$work/store" --runroot "$work/run" --storage-driver vfs)

libraries() { # libraries PROGRAM...: Debian packages of the libraries that programs need
  ldd "$@" | sed -n 's/.* => \(\/[^ ]*\) .*/\1/p' | sort -u | xargs -n1 realpath |
    xargs dpkg-query -S 2> /dev/null | sed 's/:.*//' | sort -u | paste -sd,
}

layout() { # layout FOLDER PACKAGE...: an image's root file system
  local folder=$1 package program
  shift
  mkdir -p "$folder"
  for package in "$@"; do
    deploy/packages/stage.sh "$package" "$folder" "$bin"
  done
  # Nobody reads a manual or starts a unit in the image.
  rm -rf "$folder"/usr/share/{man,bash-completion,fish,zsh} "$folder"/lib/systemd "$folder"/usr/lib/sysusers.d
  local programs=("$folder"/usr/bin/*)
  for program in "${programs[@]}"; do strip --strip-unneeded "$program"; done
  # The libraries' packages as files: their scripts would want a shell. Their names and versions stay
  # in /var/lib/dpkg/status, where scanners look.
  mmdebstrap --quiet --variant=extract --include="libc6,$(libraries "${programs[@]}")" --format=tar \
    --dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/lib/*/gconv/*' \
    "$suite" "$work/base.tar" 2> "$work/mmdebstrap.log" || { cat "$work/mmdebstrap.log" >&2; return 1; }
  # Devices and the machine's own files are the runtime's business.
  tar -C "$folder" -xf "$work/base.tar" --exclude='./dev/*' --exclude=./etc/hostname \
    --exclude=./etc/resolv.conf --exclude='./etc/apt' --exclude='./var/lib/apt' --exclude='./var/cache'
  printf 'root:x:0:0:root:/root:/usr/sbin/nologin\nratewright-allocator:x:65532:65532:Ratewright rate allocator:/:/usr/sbin/nologin\n' \
    > "$folder/etc/passwd"
  printf 'root:x:0:\nratewright-allocator:x:65532:\n' > "$folder/etc/group"
  printf 'hosts: files dns\n' > "$folder/etc/nsswitch.conf"
}

build() { # build NAME FOLDER ARCHIVE
  find "$2" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
  buildah "${store[@]}" build --quiet --isolation chroot --format oci --timestamp "$SOURCE_DATE_EPOCH" \
    --label "org.opencontainers.image.version=$version" \
    --tag "ratewright/$1:$version" --file "deploy/container/$1.Containerfile" "$2" > /dev/null
  rm -f "$3"
  buildah "${store[@]}" push --quiet "ratewright/$1:$version" "oci-archive:$3:ratewright/$1:$version"
  # The next build starts from nothing.
  buildah "${store[@]}" rmi --all --force > /dev/null
}

digest() { # digest ARCHIVE: of the image's manifest
  tar -xOf "$1" index.json | sed -n 's/.*"digest":"\([^"]*\)".*/\1/p'
}

mkdir -p "$out"
for image in allocator endpointd; do
  digests=()
  for turn in first second; do
    layout "$work/$image-$turn" "ratewright-$image" ratewright-cli
    build "$image" "$work/$image-$turn" "$out/$image.$turn"
    rm -rf "$work/$image-$turn"
    digests+=("$(digest "$out/$image.$turn")")
  done
  [ -n "${digests[0]}" ] && [ "${digests[0]}" = "${digests[1]}" ] || {
    echo "container: $image differs when built twice: ${digests[*]}" >&2; exit 1; }
  mv "$out/$image.first" "$out/ratewright-$image-$version.tar"
  rm "$out/$image.second"
  say "ratewright-$image-$version.tar: built twice, $(($(stat -c %s "$out/ratewright-$image-$version.tar") / 1048576)) MiB, ${digests[0]:0:19}"
done
