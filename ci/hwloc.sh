#!/usr/bin/env bash
# Builds hwloc for the wheel from the distribution's own source package, and prints where it is: without udev, libxml2, PCI and plug-ins,
# so that it needs nothing but the C library. It is built once.
#
#   prefix=$(ci/hwloc.sh)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
target=$(ci/target.sh)
prefix=$target/hwloc
if [ -e "$prefix/COPYING" ]; then
  echo "$prefix"
  exit
fi
command -v apt-get >/dev/null || { echo "hwloc: there is no apt-get here, by which its source is found" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/parts" "$work/lists/partial" "$work/source"
# The distribution's own lists of packages, of sources this time.
for list in /etc/apt/sources.list /etc/apt/sources.list.d/{debian,ubuntu}.sources; do
  [ ! -e "$list" ] || sed 's/^Types: .*/Types: deb-src/; s/^deb /deb-src /' "$list" >"$work/parts/$(basename "$list")"
done
sources=(-qq -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$work/parts" -o Dir::State::Lists="$work/lists"
  -o APT::Sandbox::User="$(id -un)")
{
  # A list of old style is no part unless its name ends so.
  [ ! -e "$work/parts/sources.list" ] || mv "$work/parts/sources.list" "$work/parts/all.list"
  apt-get "${sources[@]}" update
  (cd "$work/source" && apt-get "${sources[@]}" source --download-only hwloc)
  tar -xf "$work"/source/hwloc_*.orig.tar.* -C "$work/source" --strip-components=1
  cd "$work/source"
  off=(libudev libxml2 pci cairo opencl cuda nvml rsmi levelzero gl doxygen)
  ./configure --quiet --prefix="$prefix" --enable-static=no --enable-plugins=no "${off[@]/#/--disable-}"
  make -s -C include install
  make -s -j"$(nproc)" -C hwloc install
  make -s install-hwlocpkgconfigDATA
  cp COPYING "$prefix/"
} >"$target/hwloc.log" 2>&1 || {
  tail -n 20 "$target/hwloc.log" >&2
  echo "hwloc: it could not be built; $target/hwloc.log has all" >&2
  exit 1
}
echo "$prefix"
