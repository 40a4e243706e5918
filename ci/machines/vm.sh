#!/usr/bin/env bash
# Runs a command in a small emulated machine, for topologies, memories and RDMA devices that this one has not.
#
#   ci/machines/vm.sh [OPTION...] DIR COMMAND [ARGS...]
#
#   -c CPUS       2
#   -m MIB        memory, 3072
#   -T SxCxT      sockets, cores of each and threads of each core, in place of -c; every socket is a NUMA node, with its share of the memory
#   -N NODES      the NUMA nodes, as CPUS:MIB with commas between: 0-1:1024,2:512,:512,3: (a node without CPUs, and one without memory)
#   -k ARGUMENTS  more of the kernel's command line: numa=off
#   -H PAGES      huge pages of 2 MiB, at /dev/hugepages
#   -r NODES      RDMA devices rxe0, rxe1, ..., each over its own NIC on the PCI bus of one of these NUMA nodes: 0,1
#   -s            one thread emulates all processors: quicker where several machines run at once, and ranks run in turn
#   -t SECONDS    how long the command may take, 600
#   -v            shows the console
#
# QEMU emulates the processor too, so that neither /dev/kvm nor root is needed; its speed says nothing about
# real hardware. Inside, this machine's file system is visible at the same paths (writes to it are lost), so
# that programs find their libraries; DIR is shared for reading and writing and is the working directory.
# The device rxe0 sits at 192.168.77.1, rxe1 at 192.168.79.1; beside them there is 192.168.78.1, without RDMA. Each RDMA device reaches
# itself only. COMMAND runs as root with the variables FI_*, UNISONO_* and RUST_* of the caller. Exit status: COMMAND's; 124 when it ran
# longer than SECONDS, 125 when the machine failed (its console is then printed).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/unisono-machines
export PATH=$PATH:/sbin:/usr/sbin

cpus=2 memory=3072 topology='' nodes='' arguments='' huge=0 rails='' accelerator=multi limit=600 verbose=0
while getopts c:m:T:N:k:H:r:st:v option; do
  case $option in
    c) cpus=$OPTARG ;;
    m) memory=$OPTARG ;;
    T) topology=$OPTARG ;;
    N) nodes=$OPTARG ;;
    k) arguments=$OPTARG ;;
    H) huge=$OPTARG ;;
    r) rails=$OPTARG ;;
    s) accelerator=single ;;
    t) limit=$OPTARG ;;
    v) verbose=1 ;;
    *) exit 2 ;;
  esac
done
shift $((OPTIND - 1))
[ $# -ge 2 ] || { sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2; exit 2; }
dir=$(readlink -e "$1")
shift

# The distribution's own kernel, downloaded and unpacked, not installed. (Cloud kernels lack rxe and 9p.)
kernel() {
  local meta=linux-image-amd64 version unpacked package
  if grep -q '^ID=ubuntu' /etc/os-release; then meta=linux-image-generic; fi
  version=$(apt-cache depends "$meta" | sed -n 's/.*Depends: linux-image-//p' | head -n 1)
  [ -n "$version" ] || { echo "vm: apt-cache knows no $meta; try apt-get update" >&2; return 125; }
  if [ "$(cat "$cache/version" 2>/dev/null)" = "$version" ]; then return; fi
  echo "vm: downloading the kernel $version" >&2
  mkdir -p "$cache"
  unpacked=$(mktemp -d "$cache/new.XXXXXX")
  set -- "linux-image-$version"
  if [ $meta = linux-image-generic ]; then set -- "$@" "linux-modules-$version" "linux-modules-extra-$version"; fi
  (cd "$unpacked" && apt-get -qq -o APT::Sandbox::User="$(id -un)" download "$@") || return 125
  for package in "$unpacked"/*.deb; do
    dpkg -x "$package" "$unpacked"
    rm "$package"
  done
  # Where /lib is a link to /usr/lib, newer packages carry the modules there.
  [ -e "$unpacked/lib" ] || ln -s usr/lib "$unpacked/lib"
  depmod -b "$unpacked" "$version"
  echo "$version" >"$unpacked/version"
  for old in "$cache"/{boot,lib,usr,etc,version}; do rm -rf "$old"; done
  mv "$unpacked"/{boot,lib,usr} "$cache/"
  mv "$unpacked/version" "$cache/"
  rm -rf "$unpacked"
}
# Several machines may start at once.
mkdir -p "$cache"
exec {lock}>"$cache/lock"
flock "$lock"
kernel
exec {lock}>&-
version=$(cat "$cache/version")

# The first file system: busybox, init.sh, the kernel modules in the order to load them, and the command.
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
root=$tmp/root
mkdir -p "$root/bin" "$root/modules"
cp /bin/busybox "$root/bin/"
for applet in sh mount mkdir insmod ip sleep uname cp sync poweroff chroot; do
  ln -s busybox "$root/bin/$applet"
done
install -m 755 "$here/init.sh" "$root/init"

modules() { modprobe -d "$cache" -S "$version" --show-depends "$1"; }
{
  for module in virtio_pci virtio_console virtio_net 9p 9pnet_virtio overlay dummy rdma_rxe rdma_ucm ib_uverbs; do
    modules "$module"
  done
  # rxe asks for these by name where the kernel has them as modules.
  for module in crc32_generic crc32c_generic; do modules "$module" 2>/dev/null || true; done
} | awk '$1 == "insmod" && !seen[$2]++ { print $2 }' >"$tmp/modules"
while read -r module; do
  name=$(basename "$module")
  case $name in
    *.xz) xz -dc "$module" >"$root/modules/${name%.xz}" ;;
    *.zst) zstd -qdc "$module" >"$root/modules/${name%.zst}" ;;
    *) cp "$module" "$root/modules/" ;;
  esac
  name=${name%.xz}
  echo "${name%.zst}" >>"$root/modules.order"
done <"$tmp/modules"

printf '%s=%q\n' WORK "$dir" HUGE "$huge" RAILS "${rails//,/ }" >"$root/settings"
{
  echo 'export HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'
  for name in $(compgen -e | grep -E '^(FI|UNISONO|RUST)_' || true); do printf 'export %s=%q\n' "$name" "${!name}"; done
  echo 'ulimit -l unlimited'
  printf 'cd %q && exec' "$dir"
  printf ' %q' "$@"
  echo
} >"$root/command"
(cd "$root" && find . | cpio --quiet -o -H newc) >"$tmp/initrd"

# The emulation has hyper-threads only where the processor says that it is one of Intel's. `pc` boots sooner, `q35` has several PCI buses.
chips=pc bus=pci.0
[ -z "$rails" ] || { chips=q35 bus=pcie.0; }
# String instructions go byte by byte here, and are not offered.
machine=(-machine "$chips" -accel "tcg,thread=$accelerator" -cpu "max,vendor=GenuineIntel,erms=off,fsrm=off")
if [ -n "$topology" ]; then
  IFS=x read -r sockets cores threads <<<"$topology"
  each=$((cores * threads)) cpus=$((sockets * cores * threads))
  machine+=(-smp "$cpus,sockets=$sockets,cores=$cores,threads=$threads")
  if [ -z "$nodes" ]; then
    for ((node = 0; node < sockets; node++)); do
      nodes+=${nodes:+,}$((node * each))-$((node * each + each - 1)):$((memory / sockets))
    done
  fi
else
  machine+=(-smp "$cpus")
fi
if [ -n "$nodes" ]; then
  memory=0 node=0
  for each in ${nodes//,/ }; do
    of=${each%:*} mib=${each#*:}
    if [ -n "$mib" ]; then
      machine+=(-object "memory-backend-ram,id=memory$node,size=${mib}M")
      memory=$((memory + mib))
    fi
    machine+=(-numa "node,nodeid=$node${of:+,cpus=$of}${mib:+,memdev=memory$node}")
    node=$((node + 1))
  done
fi
machine+=(-m "$memory")
rail=0
for node in ${rails//,/ }; do
  machine+=(-device "pxb-pcie,id=bus$rail,bus=pcie.0,bus_nr=$((64 + 64 * rail)),numa_node=$node"
    -device "pcie-root-port,id=port$rail,bus=bus$rail,chassis=$((rail + 1))"
    -netdev "user,id=net$rail,restrict=on"
    -device "virtio-net-pci,bus=port$rail,netdev=net$rail,mac=52:54:00:00:00:0$rail")
  rail=$((rail + 1))
done

# Output and exit status come back through two virtio ports; the serial console is kept for failures.
# QEMU 7.2 itself ends by SIGSEGV now and then, which says nothing about what runs inside: it is started once more then.
for attempt in 1 2; do
  status=0
  timeout --foreground "$limit" qemu-system-x86_64 \
    "${machine[@]}" \
    -nodefaults -display none -no-reboot \
    -kernel "$cache/boot/vmlinuz-$version" -initrd "$tmp/initrd" \
    -append "console=ttyS0 quiet panic=-1 mitigations=off no_timer_check $arguments" -serial "file:$tmp/console" \
    -device "virtio-serial-pci,bus=$bus" \
    -chardev file,id=out,path=/dev/stdout,append=on -device virtserialport,chardev=out,nr=1 \
    -chardev "file,id=status,path=$tmp/status" -device virtserialport,chardev=status,nr=2 \
    -fsdev local,id=root,path=/,security_model=none,readonly=on,multidevs=remap \
    -device "virtio-9p-pci,bus=$bus,fsdev=root,mount_tag=root" \
    -fsdev "local,id=work,path=$dir,security_model=none,multidevs=remap" \
    -device "virtio-9p-pci,bus=$bus,fsdev=work,mount_tag=work" </dev/null | cat || status=$?
  { [ $status = 139 ] && [ $attempt = 1 ] && [ ! -s "$tmp/status" ]; } || break
  echo "vm: QEMU ended by SIGSEGV; it is started once more" >&2
done
if [ $status = 124 ]; then
  echo "vm: not done within $limit s" >&2
elif [ $status = 0 ]; then
  read -r status <"$tmp/status" || status=125
else
  status=125
fi
if [ "$status" = 124 ] || [ "$status" = 125 ] || [ $verbose = 1 ]; then
  echo "vm: the console's last lines:"
  tail -n 40 "$tmp/console" || true
fi >&2
exit "$status"
