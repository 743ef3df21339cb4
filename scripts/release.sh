#!/usr/bin/env bash
# Builds the programs that packages and images hold, by the release profile, and prints their folder. With
# BIN_DIR=DIR it builds nothing and prints that.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ -z "${BIN_DIR:-}" ]; then
  # Paths of this machine are nobody else's business.
  RUSTFLAGS="${RUSTFLAGS:-} --remap-path-prefix=$PWD=/usr/src/ratewright \
--remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/usr/src/cargo" \
    cargo build --quiet --locked --release --target-dir target/packages-build \
    -p ratewright-allocator -p ratewright-endpointd -p ratewright-cli --bins
  BIN_DIR=target/packages-build/release
fi
realpath "$BIN_DIR"
