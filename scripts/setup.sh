#!/usr/bin/env bash
# Installs what a build, the lab and the tests need on Debian or Ubuntu; does nothing where it is there.
# usage: scripts/setup.sh [WHAT]
#   run: build and lab; check: also what `make check` and `make test` need; valgrind, page, monitoring, licences:
#   also what these parts of `make nightly` need; dpdk: also what the feature `dpdk` is built with; mutants: also
#   cargo-mutants; guests: also what boots other kernels; packages: also what builds and checks packages;
#   container: also what builds and runs container images; kubernetes: what checks the manifests; ec2: what checks
#   deploy/aws
set -euo pipefail
what=${1:-run}

say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }

# One at a time: dpkg refuses a second installation, and parts of `make nightly` run side by side. Those that build
# programs by cargo take minutes, and no package beyond the others'.
if [ -w /run/lock ] && [ -z "${SETUP_IS_LOCKED:-}" ] && [ "$what" != licences ] && [ "$what" != mutants ]; then
  SETUP_IS_LOCKED=1 exec flock --close /run/lock/ratewright-setup "$0" "$@"
fi

command -v cargo >/dev/null || die "no Rust toolchain: install one from https://rustup.rs, then run this again"

# package -> a file or command that shows that it is there
missing=()
need() { # need PACKAGE CHECK...
  local package=$1; shift
  "$@" >/dev/null 2>&1 || missing+=("$package")
}
need clang          command -v clang
need libelf-dev     test -e /usr/include/libelf.h
need zlib1g-dev     test -e /usr/include/zlib.h
need pkg-config     command -v pkg-config
need make           command -v make
need gcc            command -v cc
need libc6-dev      test -e /usr/include/stdlib.h
need linux-libc-dev test -e /usr/include/linux/bpf.h
need protobuf-compiler command -v protoc
need iproute2       command -v tc
need git            command -v git
if [ "$what" != run ]; then
  need python3      command -v python3
  need openssl      command -v openssl
fi
if [ "$what" = valgrind ]; then
  need valgrind     command -v valgrind
  need libc6-dbg    test -d /usr/lib/debug/.build-id
fi
if [ "$what" = page ]; then
  need nodejs       command -v node
  need npm          command -v npm
  need chromium     command -v chromium
fi
if [ "$what" = monitoring ]; then
  need prometheus   command -v promtool
fi
if [ "$what" = dpdk ]; then
  need libdpdk-dev  pkg-config --exists libdpdk
  need libclang-dev sh -c 'ldconfig -p | grep -q "libclang-.*\.so "'
  need iputils-ping command -v ping
fi

if [ "$what" = guests ] || [ "$what" = packages ]; then
  need qemu-system-x86 command -v qemu-system-x86_64
  need mmdebstrap   command -v mmdebstrap
  need busybox-static test -x /bin/busybox
  need kmod         command -v depmod
  need cpio         command -v cpio
  need e2fsprogs    command -v mke2fs
  need binutils     command -v strip
  need debian-archive-keyring test -e /usr/share/keyrings/debian-archive-keyring.gpg
fi
if [ "$what" = packages ]; then
  need dpkg-dev     command -v dpkg-buildpackage
  need debhelper    command -v dh
  need lintian      command -v lintian
  need rpm          command -v rpmbuild
  need rpmlint      command -v rpmlint
fi

if [ "$what" = container ]; then
  need mmdebstrap   command -v mmdebstrap
  need binutils     command -v strip
  need buildah      command -v buildah
  need podman       command -v podman
  need runc         command -v runc
  need curl         command -v curl
fi
if [ "$what" = kubernetes ]; then
  need python3-venv python3 -c 'import ensurepip'
  need kubernetes-client command -v kubectl
fi
if [ "$what" = ec2 ]; then
  need python3-venv python3 -c 'import ensurepip'
  need curl         command -v curl
  need openssl      command -v openssl
fi

if [ ${#missing[@]} -gt 0 ]; then
  command -v apt-get >/dev/null || die "please install these with your package manager: ${missing[*]}"
  sudo=
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || die "run as root, or install these first: ${missing[*]}"
    sudo=sudo
  fi
  say "installing ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  $sudo apt-get update -qq
  $sudo apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

if [ "$what" != run ]; then
  # Built once, kept by cargo in its own bin folder.
  tools=(cargo-nextest)
  [ "$what" != licences ] || tools+=(cargo-deny)
  [ "$what" != mutants ] || tools+=(cargo-mutants)
  for tool in "${tools[@]}"; do
    if ! command -v "$tool" >/dev/null && [ ! -x "${CARGO_HOME:-$HOME/.cargo}/bin/$tool" ]; then
      say "building $tool (once)"
      cargo install --quiet --locked "$tool" --target-dir "${TMPDIR:-/tmp}/ratewright-tools-$(id -u)"
    fi
  done
fi

make_venv() { # make_venv NAME REQUIREMENTS [STEP]: Python tools; STEP adds to the folder before it counts as made
  venv=${CARGO_TARGET_DIR:-target}/$1-venv
  if ! cmp -s "$2" "$venv/requirements.txt"; then
    say "making $venv (once)"
    python3 -m venv "$venv"
    "$venv/bin/pip" install -q -r "$2"
    ${3:-true}
    cp "$2" "$venv/requirements.txt"
  fi
}

cloud_init_schema() { # out of its package, which is not installed
  folder=$(mktemp -d)
  chmod 755 "$folder"
  (cd "$folder" && apt-get download -qq cloud-init && dpkg -x cloud-init_*.deb .)
  cp "$folder/usr/lib/python3/dist-packages/cloudinit/config/schemas/schema-cloud-config-v1.json" "$venv/"
  rm -rf "$folder"
}

if [ "$what" = ec2 ]; then
  make_venv ec2 deploy/aws/requirements.txt cloud_init_schema
fi
if [ "$what" = kubernetes ]; then
  make_venv kubernetes deploy/kubernetes/requirements.txt
fi
