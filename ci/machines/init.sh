#!/bin/sh
# The first process of the machine that vm.sh starts, run by busybox from the initial file system.
# /settings says where WORK is, how many HUGE pages there are and on which NUMA nodes the RAILS; /modules.order which modules to load, /command what to run.
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
mkdir -p $r/dev/shm $r/dev/pts $r/dev/hugepages
mount -t tmpfs none $r/dev/shm
mount -t hugetlbfs none $r/dev/hugepages
mount -t cgroup2 none $r/sys/fs/cgroup
echo "$HUGE" >$r/proc/sys/vm/nr_hugepages
mount -t devpts none $r/dev/pts
mount -t tmpfs none $r/run
# libfabric reads the kernel's symbols twice in each process, seconds under emulation; what it looks for is of GPUs.
mount -o bind $r/dev/null $r/proc/kallsyms

ip link set lo up
# soft-RoCE over Ethernet devices that lead nowhere: the link reaches itself.
link() { # DEVICE RDMA-DEVICE ADDRESS MTU
  ip link set "$1" mtu "$4" up
  ip addr add "$3/24" dev "$1"
  chroot $r rdma link add "$2" type rxe netdev "$1" || finish 125
}
if [ -n "$RAILS" ]; then
  rail=0
  for node in $RAILS; do
    # By the address that vm.sh gives it: the order of names is the kernel's.
    for device in "$r"/sys/class/net/*; do
      read -r mac <"$device/address"
      [ "$mac" != 52:54:00:00:00:0$rail ] || link "${device##*/}" rxe$rail 192.168.$((77 + 2 * rail)).1 1500
    done
    rail=$((rail + 1))
  done
else
  [ -e $r/sys/class/net/dummy0 ] || ip link add dummy0 type dummy
  link dummy0 rxe0 192.168.77.1 4200
fi
# A network without RDMA beside it, as clusters have one by which ranks meet.
ip link add dummy1 type dummy
ip link set dummy1 up
ip addr add 192.168.78.1/24 dev dummy1
say "links are up"

cp /command $r/run/command
chroot $r /bin/bash /run/command <$r/dev/null >$r/dev/vport0p1 2>&1
finish $?
