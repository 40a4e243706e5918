#!/bin/sh
# The first process of the machine that run.sh starts, run by busybox from the initial file system.
# /settings says where WORK is, /modules.order which modules to load, /command what to run.
mkdir -p /proc /sys /dev /lower /upper /root
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
. /settings
r=
say() {
  read -r seconds _ <$r/proc/uptime
  echo "init: ${seconds}s $*" >$r/dev/ttyS0
}
finish() {
  say "exit status $1"
  echo "$1" >$r/dev/vport0p2
  sync
  poweroff -f
}
while read -r module; do
  insmod "/modules/$module" || say "insmod $module failed"
done </modules.order
until [ -c /dev/vport0p1 ] && [ -c /dev/vport0p2 ]; do sleep 0.02; done
say "kernel $(uname -r), modules loaded"

# The host's tree, read-only, with a file system in memory over it; WORK is shared for writing too.
options=trans=virtio,version=9p2000.L,msize=512000
mount -t 9p -o "ro,cache=loose,$options" root /lower || finish 125
mount -t tmpfs -o size=75% tmpfs /upper || finish 125
mkdir /upper/data /upper/work
mount -t overlay -o lowerdir=/lower,upperdir=/upper/data,workdir=/upper/work overlay /root || finish 125
mount -t 9p -o "cache=mmap,$options" work "/root$WORK" || finish 125
for d in proc sys dev; do mount --move /$d /root/$d; done
r=/root
mkdir -p $r/dev/shm $r/dev/pts
mount -t tmpfs none $r/dev/shm
mount -t devpts none $r/dev/pts
mount -t tmpfs none $r/run

# soft-RoCE over an Ethernet device that leads nowhere: the link reaches itself.
ip link set lo up
[ -e $r/sys/class/net/dummy0 ] || ip link add dummy0 type dummy
ip link set dummy0 mtu 4200 up
ip addr add 192.168.77.1/24 dev dummy0
# A network without RDMA beside it, as clusters have one by which ranks meet.
ip link add dummy1 type dummy
ip link set dummy1 up
ip addr add 192.168.78.1/24 dev dummy1
chroot $r rdma link add rxe0 type rxe netdev dummy0 || finish 125
say "rxe0 is up"

cp /command $r/run/command
chroot $r /bin/bash /run/command <$r/dev/null >$r/dev/vport0p1 2>&1
finish $?
