#!/usr/bin/env bash
# Builds the Python package's wheel into $target/wheels, with libfabric and its plug-ins and hwloc inside, and checks what it needs of a system.
#
#   ci/wheel.sh [PROFILE [DIRECTORY]]     release, into $target/wheels; dev is quick to build, and may be larger than a wheel should be
#
# The libfabric is the one that the PyPI package mpich carries, of the same processor architecture: run this on an arm64 machine to have
# a wheel for arm64. The oldest glibc that the wheel runs with is at least the one of the machine that builds it; the wheel's tag says it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
profile=${1:-release}
ci/setup.sh build python
target=$(ci/target.sh)
wheels=${2:-$target/wheels}
maturin=$(ci/venv.sh maturin) mpich=$(ci/venv.sh mpich) hwloc=$(ci/hwloc.sh)
rm -rf "$wheels"
export PKG_CONFIG_PATH=$hwloc/lib/pkgconfig${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}
"$maturin/bin/maturin" build --quiet --profile "$profile" --manifest-path python/Cargo.toml --target-dir "$target" \
  --out "$wheels/plain"
most=10000000
[ "$profile" = release ] || most=100000000
"$mpich/bin/python" ci/bundle_wheel.py "$wheels"/plain/*.whl "$mpich" "$hwloc" "$wheels" "$most"
rm -r "$wheels/plain"
