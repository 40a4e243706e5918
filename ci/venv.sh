#!/usr/bin/env bash
# Prints the virtual environment that has a tool or library from PyPI in the version that this project uses, and makes it first if
# there is none: ci/venv.sh mpich|maturin|ruff|tests. Fails with pip's reason if it cannot be had.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
case ${1:-} in
  mpich) packages=(mpich==5.0.2) ;; # libfabric 2, and MPICH's launcher
  maturin) packages=(maturin==1.16.0) ;;
  ruff) packages=(ruff==0.17.6) ;;
  tests) packages=(pytest==9.0.2 numpy) ;; # numpy as new as the interpreter allows
  *) echo "venv: unknown environment '${1:-}' (mpich, maturin, ruff or tests)" >&2; exit 2 ;;
esac
mkdir -p "${CARGO_TARGET_DIR:-target}"
# By the version, so that another one is installed anew.
pinned=${packages[0]}
venv=$(cd "${CARGO_TARGET_DIR:-target}" && pwd)/${pinned/==/-}
if [ ! -e "$venv/complete" ]; then
  ci/setup.sh python >&2
  rm -rf "$venv"
  python3 -m venv "$venv"
  "$venv/bin/pip" install -q --disable-pip-version-check --only-binary :all: "${packages[@]}" >&2
  touch "$venv/complete"
fi
echo "$venv"
