#!/usr/bin/env bash
# Tries commands on a fresh machine: a minimal Debian with git, make and this machine's Rust toolchain, nothing else.
#
#   ci/fresh.sh [-s SUITE] [GOAL...]          as root; needs the package debootstrap; default: -s bookworm demo test
#   ci/fresh.sh [-s SUITE] -w WHEEL [TEST...] installs this wheel of the Python package where there is no compiler, no libfabric and
#                                             no Rust, and runs the package's tests, or these
#   ci/fresh.sh [-s SUITE] -p COMMAND...      runs programs that were built here, where nothing but the shared libraries is that they need
#
# Each run makes the system below a temporary directory, and removes it afterwards. Inside, make runs in a clone of the
# last commit, as on a machine that has never seen this project: packages are really missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
suite=bookworm wheel='' programs=no
while getopts s:w:p option; do
  case $option in
    s) suite=$OPTARG ;;
    w) wheel=$(realpath "$OPTARG") ;;
    p) programs=yes ;;
    *) exit 2 ;;
  esac
done
shift $((OPTIND - 1))
[ $# -gt 0 ] || [ -n "$wheel" ] || set -- demo test
if [ "$(id -u)" != 0 ] || ! command -v debootstrap >/dev/null; then
  echo "fresh: needs root and the package debootstrap" >&2
  exit 1
fi
# Mounts stay in a separate namespace, so that none is left behind and removing cannot reach through one.
if [ "${FRESH_INSIDE:-}" != yes ]; then
  root=$(mktemp -d)
  chmod 755 "$root"
  trap 'rm -rf --one-file-system "$root"' EXIT
  include=ca-certificates,git,make
  [ $programs = no ] || include=libfabric1,libhwloc15
  debootstrap --variant=minbase --include="$include" "$suite" "$root" >"$root.log" ||
    { tail -n 20 "$root.log" >&2; exit 1; }
  rm "$root.log"
  options=()
  if [ $programs = yes ]; then
    options=(-p)
  else
    git clone -q . "$root/unisono"
    [ -z "$wheel" ] || { cp "$wheel" "$root/" && options=(-w "$wheel"); }
  fi
  FRESH_INSIDE=yes FRESH_ROOT=$root unshare --mount ci/fresh.sh "${options[@]}" "$@"
  exit
fi
root=$FRESH_ROOT
if [ $programs = no ] && [ -z "$wheel" ]; then
  mkdir "$root/rust"
  mount --bind "$(rustc --print sysroot)" "$root/rust"
fi
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/tmp"
if [ $programs = yes ]; then
  # At the same paths.
  for directory in "$PWD" "$(ci/target.sh)"; do
    mkdir -p "$root$directory"
    mount --bind -o ro "$directory" "$root$directory"
  done
fi
# The way to the network is this machine's.
mkdir -p "$root/etc/ssl/certs"
cp /etc/resolv.conf /etc/hosts "$root/etc/"
cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
inside=(chroot "$root" env -i HOME=/root TERM="${TERM:-dumb}" CI=true PATH=/rust/bin:/usr/sbin:/usr/bin:/sbin:/bin
  PIP_CERT=/etc/ssl/certs/ca-certificates.crt)
[ $programs = no ] || exec "${inside[@]}" sh -c 'cd "$0" && exec "$@"' "$PWD" "$@" </dev/null
[ -n "$wheel" ] || exec "${inside[@]}" make -C /unisono "$@" </dev/null
"${inside[@]}" /unisono/ci/python.sh installed "/$(basename "$wheel")" "$@" </dev/null
if "${inside[@]}" sh -c 'command -v cc || command -v cargo || ldconfig -p | grep libfabric'; then
  echo "fresh: the wheel was to be tried without a compiler and libfabric, and one is there" >&2
  exit 1
fi
