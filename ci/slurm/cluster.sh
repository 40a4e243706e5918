#!/usr/bin/env bash
# A Slurm cluster of namespaces on this machine, as root: `login` with slurmctld and munged, and nodes n1, n2, ... with slurmd and sshd. Each node has
# its own network interface with an address, host name, /tmp and /dev/shm.
#
#   ci/slurm/cluster.sh up DIRECTORY NODES [NAME=PATH...]   DIRECTORY: empty; PATH can be seen in the cluster as /mnt/NAME
#   ci/slurm/cluster.sh in DIRECTORY COMMAND...             runs a command on `login`, in /mnt, which all nodes share
#   ci/slurm/cluster.sh down DIRECTORY
#
# All processes are in one PID namespace and all files on one tmpfs of its mount namespace: both end with its first process.
set -euo pipefail
self=$(realpath "${BASH_SOURCE[0]}")
export PATH=$PATH:/usr/sbin:/sbin

up() { # NODES NAME=PATH...: the first process of the cluster
  local nodes=$1 i
  shift
  hostname login
  mount -t tmpfs -o mode=1777 tmpfs /mnt
  for shared; do
    if [ -d "${shared#*=}" ]; then mkdir "/mnt/${shared%%=*}"; else touch "/mnt/${shared%%=*}"; fi
    mount --bind "${shared#*=}" "/mnt/${shared%%=*}"
  done
  mkdir -m 755 /mnt/cluster /mnt/cluster/{etc,state,log,run,slurm,ssh}
  ip link set lo up
  ip link add name switch type bridge
  ip address add 10.97.0.254/24 dev switch
  ip link set switch up
  # What the cluster needs in /etc lies over what is there.
  { echo 127.0.0.1 localhost && echo 10.97.0.254 login && for i in $(seq "$nodes"); do echo "10.97.0.$i n$i"; done; } >/mnt/cluster/etc/hosts
  { cat /etc/passwd && echo 'stranger:x:2001:2001::/mnt:/bin/bash'; } >/mnt/cluster/etc/passwd
  { cat /etc/group && echo 'stranger:x:2001:'; } >/mnt/cluster/etc/group
  for i in hosts passwd group; do mount --bind "/mnt/cluster/etc/$i" "/etc/$i"; done
  mount -t tmpfs -o mode=700 tmpfs /root
  mkdir -m 700 /root/.ssh
  ssh-keygen -q -t ed25519 -N '' -f /root/.ssh/id_ed25519
  cp /root/.ssh/id_ed25519.pub /root/.ssh/authorized_keys
  printf '%s\n' 'StrictHostKeyChecking no' 'UserKnownHostsFile /dev/null' 'LogLevel ERROR' >/root/.ssh/config
  ssh-keygen -q -t ed25519 -N '' -f /mnt/cluster/ssh/key
  printf '%s\n' 'HostKey /mnt/cluster/ssh/key' 'StrictModes no' 'UsePAM no' 'PidFile none' 'PermitRootLogin yes' >/mnt/cluster/ssh/config
  mkdir -p /run/munge /run/sshd
  mount -t tmpfs -o mode=755 tmpfs /run/munge
  mount -t tmpfs -o mode=755 tmpfs /run/sshd
  head -c 1024 /dev/urandom >/mnt/cluster/etc/munge.key
  chmod 400 /mnt/cluster/etc/munge.key
  chmod 711 /mnt/cluster/run
  munged --force --key-file=/mnt/cluster/etc/munge.key --log-file=/mnt/cluster/log/munged \
    --pid-file=/mnt/cluster/run/munged --seed-file=/mnt/cluster/run/seed --num-threads=2
  configuration "$nodes" >/mnt/cluster/slurm/slurm.conf
  # Named, because the plugin is chosen by what is mounted below /sys otherwise, where a node has nothing.
  echo CgroupPlugin=cgroup/v1 >/mnt/cluster/slurm/cgroup.conf
  mkdir -p /etc/slurm
  mount --bind /mnt/cluster/slurm /etc/slurm
  slurmctld -c
  for i in $(seq "$nodes"); do
    mkfifo "/mnt/cluster/run/linked.n$i" "/mnt/cluster/run/apart.n$i"
    unshare --mount --net --uts --ipc --propagation private bash "$self" node "$i" >"/mnt/cluster/log/n$i" 2>&1 &
    read -r <"/mnt/cluster/run/apart.n$i"
    ip link add "to-n$i" type veth peer name eth0 netns $!
    ip link set "to-n$i" master switch up
    echo >"/mnt/cluster/run/linked.n$i"
  done
  for i in $(seq 100); do
    [ "$(sinfo -h -N -t idle | wc -l)" = "$nodes" ] && break
    sleep 0.1
  done
  [ "$(sinfo -h -N -t idle | wc -l)" = "$nodes" ]
}

node() { # NUMBER: the first process of a node
  hostname "n$1"
  mount -t sysfs sysfs /sys
  mount -t tmpfs -o mode=1777 tmpfs /dev/shm
  mount -t tmpfs -o mode=1777 tmpfs /tmp
  echo >"/mnt/cluster/run/apart.n$1"
  read -r <"/mnt/cluster/run/linked.n$1"
  ip link set lo up
  ip address add "10.97.0.$1/24" dev eth0
  ip link set eth0 up
  /usr/sbin/sshd -f /mnt/cluster/ssh/config
  mkdir "/mnt/cluster/run/spool.n$1"
  exec slurmd -D -N "n$1"
}

configuration() { # NODES
  cat <<END
ClusterName=test
SlurmctldHost=login(10.97.0.254)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
JobAcctGatherType=jobacct_gather/none
SlurmctldPidFile=/mnt/cluster/run/slurmctld
SlurmdPidFile=/mnt/cluster/run/slurmd.%n
SlurmdSpoolDir=/mnt/cluster/run/spool.%n
StateSaveLocation=/mnt/cluster/state
SlurmctldLogFile=/mnt/cluster/log/slurmctld
SlurmdLogFile=/mnt/cluster/log/slurmd.%n
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=2
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
SrunPortRange=61000-62000
NodeName=n[1-$1] NodeAddr=10.97.0.[1-$1] CPUs=2 Sockets=1 CoresPerSocket=2 ThreadsPerCore=1 RealMemory=4000 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES:8
END
}

case ${1:-} in
  up)
    directory=$2
    setsid unshare --mount --net --uts --ipc --pid --mount-proc --fork --kill-child --propagation private \
      bash "$self" inside "$@" >"$directory/log" 2>&1 </dev/null &
    echo $! >"$directory/pid"
    for _ in $(seq 300); do
      [ ! -e "$directory/ready" ] || exit 0
      kill -0 "$(cat "$directory/pid")" 2>/dev/null || break
      sleep 0.1
    done
    echo "cluster: it did not start:" >&2
    tail -n 20 "$directory/log" >&2
    exit 1
    ;;
  inside)
    directory=$3
    shift 3
    up "$@" || { tail -n 5 /mnt/cluster/log/*; exit 1; }
    touch "$directory/ready"
    exec sleep infinity
    ;;
  node) node "$2" ;;
  in)
    pid=$(ps -o pid= --ppid "$(cat "$2/pid")" | head -n 1)
    shift 2
    # shellcheck disable=SC2016
    exec nsenter --target "${pid// /}" --mount --net --uts --ipc --pid env HOME=/root bash -c 'cd /mnt && exec "$@"' - "$@"
    ;;
  down)
    kill -KILL "$(cat "$2/pid")" 2>/dev/null || :
    rm -f "$2"/{pid,ready,log}
    ;;
  *)
    sed -n '2,9s/^# \?//p' "$self"
    exit 2
    ;;
esac
