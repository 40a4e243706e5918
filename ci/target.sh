#!/usr/bin/env bash
# Prints the directory into which cargo builds, and makes it: cargo knows what CARGO_TARGET_DIR, CARGO_BUILD_TARGET_DIR and its
# configuration files say. Where there is no cargo, nothing is built, and it is target/.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
target=$PWD/target
if command -v cargo >/dev/null; then
  metadata=$(cargo metadata --format-version 1 --no-deps)
  target=$(sed -nE 's/.*"target_directory":"(([^"\\]|\\.)*)".*/\1/p' <<<"$metadata")
  # %b takes what JSON escapes, but for quotes.
  target=$(printf '%b' "${target//\\\"/\"}")
  [ -n "$target" ] || { echo "target: cargo metadata names no target directory" >&2; exit 1; }
fi
mkdir -p "$target"
echo "$target"
