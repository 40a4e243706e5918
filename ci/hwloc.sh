#!/usr/bin/env bash
# Builds hwloc for the wheel from the distribution's own source package, and prints where it is: without udev, libxml2, PCI and plug-ins,
# so that it needs nothing but the C library, and without what only debuggers read. It is built once for each architecture.
#
#   prefix=$(CC=... AR=... ci/hwloc.sh x86_64|aarch64)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
target=$(ci/target.sh)
prefix=$target/hwloc-$1
if [ -e "$prefix/COPYING" ]; then
  echo "$prefix"
  exit
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# A failure ends it, whatever the make that calls it was told.
unset MAKEFLAGS
{
  ci/source.sh hwloc "$work"
  cd "$work"
  off=(libudev libxml2 pci cairo opencl cuda nvml rsmi levelzero gl doxygen)
  ./configure --quiet --host="$1-linux-gnu" --prefix="$prefix" --enable-static=no --enable-plugins=no "${off[@]/#/--disable-}" \
    CFLAGS=-O2 LDFLAGS=-Wl,-s
  make -s -C include install
  make -s -j"$(nproc)" -C hwloc install
  make -s install-hwlocpkgconfigDATA
  cp COPYING "$prefix/"
} >"$prefix.log" 2>&1 || {
  tail -n 20 "$prefix.log" >&2
  echo "hwloc: it could not be built; $prefix.log has all" >&2
  exit 1
}
echo "$prefix"
