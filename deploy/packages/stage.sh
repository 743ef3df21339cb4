#!/usr/bin/env bash
# Lays out one package's files as they are installed: what its .deb and its .rpm hold.
# usage: stage.sh PACKAGE DESTDIR BIN_DIR
set -euo pipefail
[ $# = 3 ] || { echo "usage: $0 PACKAGE DESTDIR BIN_DIR" >&2; exit 2; }
package=$1 dest=$2 bin=$3
root=$(cd "$(dirname "$0")/../.." && pwd)
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
doc=/usr/share/doc/$package

put() { # put MODE FILE PATH
  install -D -m "$1" "$2" "$dest$3"
}

program() { # program NAME: it, its pages and its completions
  "$bin/$1" --write-pages "$made/$1"
  put 755 "$bin/$1" "/usr/bin/$1"
  local page
  for page in "$made/$1"/man1/*.1; do
    put 644 "$page" "/usr/share/man/man1/${page##*/}"
  done
  local completions=$made/$1/completions
  put 644 "$completions/$1.bash" "/usr/share/bash-completion/completions/$1"
  put 644 "$completions/$1.fish" "/usr/share/fish/vendor_completions.d/$1.fish"
  put 644 "$completions/_$1" "/usr/share/zsh/vendor-completions/_$1"
}

unit() {
  put 644 "$root/deploy/systemd/$1.service" "/lib/systemd/system/$1.service"
}

example() { # example NAME PROGRAM ARGUMENT...
  local name=$1 run=$2; shift 2
  "$bin/$run" "$@" > "$made/$name"
  put 644 "$made/$name" "$doc/examples/$name"
}

case $package in
  ratewright-allocator)
    program ratewright-allocator
    unit ratewright-allocator
    unit ratewright-relay
    put 644 "$root/deploy/systemd/ratewright-allocator.sysusers.conf" \
      /usr/lib/sysusers.d/ratewright-allocator.conf
    example allocator.toml ratewright-allocator example-config
    example relay.toml ratewright-allocator relay example-config
    put 644 "$root/docs/operating/allocator.md" "$doc/allocator.md"
    put 644 "$root/docs/operating/relay.md" "$doc/relay.md"
    install -d -m 755 "$dest/etc/ratewright"
    ;;
  ratewright-endpointd)
    program ratewright-endpointd
    unit ratewright-endpointd
    example endpointd.toml ratewright-endpointd example-config
    put 644 "$root/docs/operating/endpointd.md" "$doc/endpointd.md"
    install -d -m 755 "$dest/etc/ratewright"
    ;;
  ratewright-cli)
    program ratewright
    put 644 "$root/docs/topology-file.md" "$doc/topology-file.md"
    ;;
  *) echo "$0: no package $package" >&2; exit 2 ;;
esac
