#!/usr/bin/env bash
# Installs what is missing on this machine, by Debian's package names, and says why each is wanted.
#
#   ci/setup.sh [build] [check] [python] [hosts] [machines] [emulator] [judges] [roots] [slurm]
#
# build: what the library needs to compile. check: rustfmt and clippy. python: virtual environments, for
# the libraries taken from PyPI. hosts: hosts made of namespaces. machines: the emulated
# machines of ci/machines. emulator: another architecture's programs. judges: a simulator of
# networks. roots: other releases of Debian. slurm: the cluster of ci/slurm. Nothing is
# installed, and nobody is asked for a password, where everything is there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# What is there is judged by use, not by package, so that other distributions pass where they have it.
have_cc() { command -v cc && echo 'int main(void) { return 0; }' | cc -x c - -o /dev/null; }
have_pkg_config() { command -v pkg-config; }
have_libfabric() { pkg-config --exists libfabric; }
have_hwloc() { pkg-config --atleast-version 2.1 hwloc; }
have_udev() { have_hwloc && echo 'int main(void) { return 0; }' | cc -x c - -o /dev/null $(pkg-config --static --libs hwloc); }
have_libclang() { # the library, and the compiler's own headers that it reads (stddef.h)
  local lib=/usr/lib lib64=/usr/lib64
  { [ -n "${LIBCLANG_PATH:-}" ] || compgen -G "$lib/llvm-*/lib/libclang*.so*" ||
    compgen -G "$lib/*-linux-gnu/libclang*.so*" || compgen -G "$lib64/libclang*.so*"; } &&
    { compgen -G "$lib/llvm-*/lib/clang/*/include/stddef.h" || compgen -G "$lib/clang/*/include/stddef.h"; }
}
have_venv() { python3 -c 'import ensurepip, venv'; }
have_qemu() { command -v qemu-system-x86_64; }
have_cxx() { command -v c++; }
have_simgrid() { echo '#include <simgrid/s4u.hpp>' | c++ -std=c++17 -x c++ -fsyntax-only -; }
have_emulator() { command -v qemu-aarch64-static; }
have_busybox() { [ -x /bin/busybox ] && ! { ldd /bin/busybox | grep '=>'; }; }
have_cpio() { command -v cpio; }
have_kmod() { PATH=$PATH:/sbin:/usr/sbin command -v modprobe; }
have_ip() { PATH=$PATH:/sbin:/usr/sbin command -v ip; }
have_unshare() { command -v unshare && command -v nsenter; }
have_rdma() { PATH=$PATH:/sbin:/usr/sbin command -v rdma; }
have_verbs() { compgen -G '/usr/lib/*/libibverbs/librxe-rdmav*.so'; }
have_slurm() { PATH=$PATH:/usr/sbin command -v slurmctld && PATH=$PATH:/usr/sbin command -v slurmd && command -v srun; }
have_munge() { PATH=$PATH:/usr/sbin command -v munged; }
have_sshd() { PATH=$PATH:/usr/sbin command -v sshd && command -v ssh && command -v ssh-keygen; }
have_pmix() { compgen -G '/usr/lib/*/pmix2/lib/libpmix.so*' || compgen -G '/usr/lib/*/libpmix.so*'; }
have_ps() { command -v ps && command -v pgrep; }
have_debootstrap() { PATH=$PATH:/sbin:/usr/sbin command -v debootstrap; }
have_zstd() { command -v zstd; }
have_xz() { command -v xz; }

# Ends the script, before anything is installed, without a Rust toolchain that is new enough.
rust() {
  local wanted tool version
  wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
  for tool in cargo rustc; do
    version=$("$tool" --version 2>/dev/null | cut -d ' ' -f 2) || {
      echo "setup: there is no $tool that runs on the PATH; install Rust $wanted or later (https://rustup.rs), then try again" >&2
      exit 1
    }
    # The older of the two comes first; 1.88.0-nightly is 1.88.
    [ "$(printf '%s\n' "$wanted" "${version%%-*}" | sort -V | head -n 1)" = "$wanted" ] || {
      echo "setup: $(command -v "$tool") is $version, and Rust $wanted or later is needed: rustup update (https://rustup.rs), then try again" >&2
      exit 1
    }
  done
}

missing=() # packages
need() { # PACKAGE TEST WHY
  if ! "$2" >/dev/null 2>&1; then
    [ ${#missing[@]} -gt 0 ] || echo "setup: missing on this machine:"
    printf '  %-22s %s\n' "$1" "$3"
    missing+=("$1")
  fi
}

[ $# -gt 0 ] || set -- build
for what; do
  case $what in
    build)
      rust
      need gcc have_cc "links the programs and compiles libfabric's inline functions"
      need libc6-dev have_cc "the C library's headers"
      need pkg-config have_pkg_config "finds libfabric"
      need libfabric-dev have_libfabric "the fabric library that moves the bytes, with its headers"
      need libhwloc-dev have_hwloc "describes sockets, NUMA nodes, caches and NICs, and binds memory"
      need libudev-dev have_udev "what hwloc is linked with"
      need libclang-dev have_libclang "reads libfabric's headers to make the bindings (bindgen)"
      ;;
    check)
      for tool in fmt:rustfmt clippy:clippy; do
        cargo "${tool%:*}" --version >/dev/null 2>&1 || rustup component add "${tool#*:}" || {
          echo "setup: cargo ${tool%:*} is missing; install the toolchain's component ${tool#*:}" >&2
          exit 1
        }
      done
      ;;
    python)
      need python3-venv have_venv "a virtual environment under target/ for libraries from PyPI"
      ;;
    hosts)
      need iproute2 have_ip "makes the hosts' interfaces and rules"
      need util-linux have_unshare "makes the hosts' namespaces"
      need openssh-server have_sshd "by which unisono run reaches the hosts"
      need openssh-client have_sshd "by which unisono run reaches the hosts"
      ;;
    machines)
      need qemu-system-x86 have_qemu "emulates small machines, with soft-RoCE"
      need busybox-static have_busybox "starts such a machine"
      need cpio have_cpio "packs its first file system"
      need kmod have_kmod "finds the kernel modules it loads"
      need xz-utils have_xz "unpacks the kernel's modules"
      need zstd have_zstd "unpacks the kernel's modules"
      need iproute2 have_rdma "sets up the emulated link (rdma link add)"
      need ibverbs-providers have_verbs "the soft-RoCE driver of libibverbs"
      ;;
    slurm)
      need slurmctld have_slurm "gives jobs their hosts"
      need slurmd have_slurm "starts ranks on each host"
      need slurm-client have_slurm "srun, salloc and sbatch"
      need munge have_munge "proves to the parts of Slurm who speaks"
      need libpmix-dev have_pmix "srun --mpi=pmix, which looks for its library by this name"
      need openssh-server have_sshd "by which MPI's launchers reach other hosts"
      need openssh-client have_sshd "by which MPI's launchers reach other hosts"
      need iproute2 have_ip "makes the hosts' interfaces"
      need util-linux have_unshare "makes the hosts' namespaces"
      need procps have_ps "finds the processes of a cluster"
      need python3-venv have_venv "virtual environments for the launchers of MPI"
      ;;
    emulator)
      need qemu-user-static have_emulator "runs programs for arm64"
      ;;
    judges)
      need g++ have_cxx "compiles what replays schedules"
      need libsimgrid-dev have_simgrid "simulates networks, as another judge than the cost model"
      ;;
    roots)
      need debootstrap have_debootstrap "makes a root of another release of Debian"
      need util-linux have_unshare "mounts in a separate namespace"
      ;;
    *)
      echo "setup: unknown set of packages '$what' (build, check, python, hosts, machines, emulator, judges, roots or slurm)" >&2
      exit 2
      ;;
  esac
done
[ ${#missing[@]} -gt 0 ] || exit 0

command -v apt-get >/dev/null || {
  echo "setup: there is no apt-get here; install what Debian calls: ${missing[*]}" >&2
  exit 1
}
as_root=()
if [ "$(id -u)" != 0 ]; then
  command -v sudo >/dev/null || {
    echo "setup: installing needs root and there is no sudo; as root: apt-get install ${missing[*]}" >&2
    exit 1
  }
  as_root=(sudo)
fi
echo "setup: installing with apt-get: ${missing[*]}"
"${as_root[@]}" apt-get update -q ||
  echo "setup: apt-get update failed, see above; going on with the lists of packages that are there" >&2
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}" || {
  echo "setup: apt-get could not install: ${missing[*]}" >&2
  exit 1
}
