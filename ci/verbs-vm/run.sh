#!/usr/bin/env bash
# Runs a command in a small emulated machine that has a soft-RoCE device, for machines whose kernel has none.
#
#   ci/verbs-vm/run.sh [-c CPUS] [-m MIB] [-t SECONDS] [-v] DIR COMMAND [ARGS...]
#
# QEMU emulates the processor too, so that neither /dev/kvm nor root is needed; its speed says nothing about
# real hardware. Inside, this machine's file system is visible at the same paths (writes to it are lost), so
# that programs find their libraries; DIR is shared for reading and writing and is the working directory.
# The device rxe0 sits at 192.168.77.1; beside it there is 192.168.78.1, without RDMA. COMMAND runs as root with
# the variables FI_*, UNISONO_* and RUST_* of the caller. Exit status: COMMAND's; 124 when it ran longer than
# SECONDS, 125 when the machine failed (its console is then printed).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/unisono-verbs-vm
export PATH=$PATH:/sbin:/usr/sbin

cpus=2 memory=3072 limit=600 verbose=0
while getopts c:m:t:v option; do
  case $option in
    c) cpus=$OPTARG ;;
    m) memory=$OPTARG ;;
    t) limit=$OPTARG ;;
    v) verbose=1 ;;
    *) exit 2 ;;
  esac
done
shift $((OPTIND - 1))
[ $# -ge 2 ] || { sed -n '2,/^set /s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2; }
dir=$(readlink -e "$1")
shift

# The distribution's own kernel, downloaded and unpacked, not installed. (Cloud kernels lack rxe and 9p.)
kernel() {
  local meta=linux-image-amd64 version unpacked package
  if grep -q '^ID=ubuntu' /etc/os-release; then meta=linux-image-generic; fi
  version=$(apt-cache depends "$meta" | sed -n 's/.*Depends: linux-image-//p' | head -n 1)
  [ -n "$version" ] || { echo "verbs-vm: apt-cache knows no $meta; try apt-get update" >&2; return 125; }
  if [ "$(cat "$cache/version" 2>/dev/null)" = "$version" ]; then return; fi
  echo "verbs-vm: downloading the kernel $version" >&2
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
kernel
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
  for module in virtio_pci virtio_console 9p 9pnet_virtio overlay dummy rdma_rxe rdma_ucm ib_uverbs; do
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

printf 'WORK=%q\n' "$dir" >"$root/settings"
{
  echo 'export HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'
  for name in $(compgen -e | grep -E '^(FI|UNISONO|RUST)_' || true); do printf 'export %s=%q\n' "$name" "${!name}"; done
  echo 'ulimit -l unlimited'
  printf 'cd %q && exec' "$dir"
  printf ' %q' "$@"
  echo
} >"$root/command"
(cd "$root" && find . | cpio --quiet -o -H newc) >"$tmp/initrd"

# Output and exit status come back through two virtio ports; the serial console is kept for failures.
status=0
timeout --foreground "$limit" qemu-system-x86_64 \
  -accel tcg,thread=multi -cpu max -smp "$cpus" -m "$memory" \
  -nodefaults -display none -no-reboot \
  -kernel "$cache/boot/vmlinuz-$version" -initrd "$tmp/initrd" \
  -append "console=ttyS0 quiet panic=-1 mitigations=off" -serial "file:$tmp/console" \
  -device virtio-serial-pci \
  -chardev file,id=out,path=/dev/stdout,append=on -device virtserialport,chardev=out,nr=1 \
  -chardev "file,id=status,path=$tmp/status" -device virtserialport,chardev=status,nr=2 \
  -fsdev local,id=root,path=/,security_model=none,readonly=on,multidevs=remap \
  -device virtio-9p-pci,fsdev=root,mount_tag=root \
  -fsdev "local,id=work,path=$dir,security_model=none,multidevs=remap" \
  -device virtio-9p-pci,fsdev=work,mount_tag=work </dev/null | cat || status=$?
if [ $status = 124 ]; then
  echo "verbs-vm: not done within $limit s" >&2
elif [ $status = 0 ]; then
  read -r status <"$tmp/status" || status=125
else
  status=125
fi
if [ "$status" = 124 ] || [ "$status" = 125 ] || [ $verbose = 1 ]; then
  echo "verbs-vm: the console's last lines:"
  tail -n 40 "$tmp/console" || true
fi >&2
exit "$status"
