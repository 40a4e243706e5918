#!/usr/bin/env bash
# Builds the Python package's wheel for arm64, and tries it with Debian's Python for arm64 on emulated processors (QEMU's user mode): doctor
# and two ranks over shared memory and TCP.
#
#   ci/arm64.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
ci/setup.sh build python emulator
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
ci/wheel.sh dev "$work/wheels" aarch64
python3 -m zipfile -e "$work"/wheels/*.whl "$work/site"

# A Python of that architecture, and what it needs, beside this system's packages.
mkdir -p "$work"/{lists,cache/archives}/partial "$work/parts" "$work/root"
echo 'deb [arch=arm64] http://deb.debian.org/debian stable main' >"$work/parts/debian.list"
: >"$work/status"
packages=(-qq -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$work/parts" -o Dir::State::Lists="$work/lists"
  -o Dir::State::status="$work/status" -o Dir::Cache="$work/cache" -o APT::Architecture=arm64 -o APT::Architectures::=arm64
  -o APT::Install-Recommends=false -o Debug::NoLocking=true -o APT::Sandbox::User="$(id -un)")
apt-get "${packages[@]}" update
apt-get "${packages[@]}" -y install --download-only python3 >/dev/null
for package in "$work"/cache/archives/*.deb; do dpkg -x "$package" "$work/root"; done
# As the package usrmerge makes it, once it is configured.
[ -e "$work/root/lib" ] || ln -s usr/lib "$work/root/lib"
export PYTHONPATH=$work/site
python=(qemu-aarch64-static -L "$work/root" "$(ls "$work"/root/usr/bin/python3.[0-9]* | head -n 1)")

said=$("${python[@]}" -m unisono doctor || true)
if grep -q 'does not describe its processors' <<<"$said" || ! grep -q 'ok *hwloc' <<<"$said"; then
  echo "FAILED   arm64: hwloc does not read this machine"
  echo "$said"
  exit 1
fi
export UNISONO_WORLD_SIZE=2
for provider in shm tcp; do
  export UNISONO_PROVIDER=$provider UNISONO_STORE=file://$work/$provider
  mkdir "$work/$provider"
  UNISONO_RANK=0 "${python[@]}" python/tests/without_numpy.py >/dev/null &
  UNISONO_RANK=1 "${python[@]}" python/tests/without_numpy.py >/dev/null && wait $! ||
    { echo "FAILED   arm64: two ranks over $provider"; exit 1; }
  echo "ok       arm64: two ranks over $provider"
done
