#!/usr/bin/env bash
# The short suite, inside a machine of the table: prepares it, lets doctor look at it, runs a small bench, and then among 4 ranks over
# each provider all collectives checked, registered buffers, pinning and a death (tests/processes/machine.rs).
#
#   ci/machines/suite.sh UNISONO PROCESSES PREPARATIONS PROVIDERS DOCTOR      the two programs, and three columns of the table
set -euo pipefail
unisono=$1 processes=$2 preparations=$3 providers=$4 doctor=$5
# Empty: below the mount lies the directory of the machine that emulates this one.
as=()
without() { mount -t tmpfs -o ro none "$1"; }
for preparation in $preparations; do
  case $preparation in
    cpus=*)
      group=/sys/fs/cgroup/suite
      echo +cpuset >/sys/fs/cgroup/cgroup.subtree_control
      mkdir "$group"
      echo "${preparation#cpus=}" >"$group/cpuset.cpus"
      echo $$ >"$group/cgroup.procs"
      ;;
    # Root may always trace; others as the system says.
    yama=*) echo "${preparation#yama=}" >/proc/sys/kernel/yama/ptrace_scope; as=(setpriv --reuid=65534 --regid=65534 --clear-groups) ;;
    no-sys) without /sys ;;
    no-proc) without /proc ;;
    *) echo "FAILED   the table knows no '$preparation'"; exit 1 ;;
  esac
done
# rxe's completion queues are small (ci/verbs.sh), and so is the machine.
export FI_UNIVERSE_SIZE=32 UNISONO_TEST_PROVIDERS=${providers// /,}
status=0
said=$("${as[@]}" "$unisono" doctor --provider "${providers%% *}" 2>&1) || { status=1; echo "FAILED   doctor: status $?"; echo "$said"; }
[[ $said =~ $doctor ]] || { status=1; echo "FAILED   doctor does not say '$doctor':"; echo "$said"; }
"${as[@]}" "$unisono" bench all_reduce --ranks 2 --no-raw -b 8 -e 64K -f 64 -n 2 -w 1 || { status=1; echo "FAILED   bench: status $?"; }
"${as[@]}" "$processes" "a machine's short suite" || status=1
if [[ $preparations == *yama=1* ]]; then
  said=$("${as[@]}" "$processes" "ranks read each other's memory" 2>&1) || status=1
  [[ $said != *SKIPPED* ]] || { status=1; echo "FAILED   ranks may read each other's memory, and do not:"; }
  echo "$said"
fi
exit $status
