#!/usr/bin/env bash
# Builds the Python package's source distribution and from it the wheel into $target/wheels, with libfabric and its plug-ins and hwloc
# inside, for glibc 2.28 and later, and checks what it needs of a system.
#
#   ci/wheel.sh [PROFILE [DIRECTORY [ARCHITECTURE]]]     release, into $target/wheels, for this machine's architecture (x86_64, aarch64);
#                                                        dev is quick to build, and may be larger than a wheel should be
#
# Zig's C compiler, from PyPI, compiles and links for either architecture with glibc's own list of what each version has; the Rust
# toolchain needs its standard library for the architecture (`rustup target add aarch64-unknown-linux-gnu`). The libfabric is the one that the
# PyPI package mpich carries.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
profile=${1:-release} arch=${3:-$(uname -m)}
case $arch in
  x86_64) headers=x86 ;;
  aarch64) headers=aarch64 ;;
  *) echo "wheel: there are wheels for x86_64 and aarch64, not for $arch" >&2; exit 2 ;;
esac
triple=$arch-unknown-linux-gnu
ci/setup.sh build python
[ -d "$(rustc --print sysroot)/lib/rustlib/$triple" ] || rustup -q target add "$triple" ||
  { echo "wheel: the Rust toolchain has no standard library for $triple" >&2; exit 1; }
target=$(ci/target.sh)
wheels=${2:-$target/wheels}
tools=$(ci/venv.sh wheel) mpich=$(basename "$(ci/venv.sh mpich)")
# One word, for libtool.
zig=$target/wheel/zig
mkdir -p "$target/wheel"
printf '#!/bin/sh\nexec "%s" -m ziglang "$@"\n' "$tools/bin/python" >"$zig"
chmod +x "$zig"
own=$(echo "$tools"/lib/python3*/site-packages/ziglang/lib)
hwloc=$(CC="$zig cc -target $arch-linux-gnu.2.28" AR="$zig ar" RANLIB="$zig ranlib" ci/hwloc.sh "$arch")
libfabric=$target/wheel/$arch/$mpich
[ -d "$libfabric" ] || "$tools/bin/pip" download -q --disable-pip-version-check --no-deps --only-binary=:all: \
  --platform "manylinux_2_28_$arch" -d "$libfabric" "${mpich/-/==}"

# What is linked with: names and versions as the oldest libfabric has them, and the headers that are installed here.
prefix=$target/wheel/$arch
mkdir -p "$prefix/lib/pkgconfig" "$prefix/include/rdma"
cp "$(pkg-config --variable=includedir libfabric)"/rdma/{fabric,fi_*}.h "$prefix/include/rdma/"
cat >"$prefix/libfabric.c" <<'C'
void fi_version(void) {}
void fi_strerror(void) {}
void fi_fabric(void) {}
void fi_getinfo(void) {}
void fi_freeinfo(void) {}
void fi_dupinfo(void) {}
C
cat >"$prefix/libfabric.map" <<'MAP'
FABRIC_1.0 { global: fi_version; fi_strerror; local: *; };
FABRIC_1.1 { global: fi_fabric; } FABRIC_1.0;
FABRIC_1.3 { global: fi_getinfo; fi_freeinfo; fi_dupinfo; } FABRIC_1.1;
MAP
"$zig" cc -target "$arch-linux-gnu.2.28" -shared -Wl,-soname,libfabric.so.1 "-Wl,--version-script=$prefix/libfabric.map" \
  -o "$prefix/lib/libfabric.so" "$prefix/libfabric.c"
cat >"$prefix/lib/pkgconfig/libfabric.pc" <<PC
libdir=$prefix/lib
Name: libfabric
Description: libfabric, to link with
Version: $(pkg-config --modversion libfabric)
Cflags: -I$prefix/include
Libs: -L$prefix/lib -lfabric
PC

rm -rf "$wheels/plain" "$wheels"/unisono-*_"$arch".whl "$prefix/source"
mkdir -p "$wheels" "$prefix/source"
ci/sdist.sh "$wheels"
tar -xzf "$wheels"/unisono-*.tar.gz -C "$prefix/source" --strip-components=1
# libclang reads Zig's headers, too. What debuggers need would be stripped anyway.
c=$own/libc/include
CARGO_PROFILE_DEV_DEBUG=0 BINDGEN_EXTRA_CLANG_ARGS="-isystem $c/$headers-linux-gnu -isystem $c/generic-glibc -isystem $c/$headers-linux-any -isystem $c/any-linux-any -isystem $own/include" \
  PKG_CONFIG_LIBDIR=$prefix/lib/pkgconfig:$hwloc/lib/pkgconfig PKG_CONFIG_ALLOW_CROSS=1 PATH=$tools/bin:$PATH \
  "$tools/bin/maturin" build --quiet --zig --target "$triple" --compatibility manylinux_2_28 --profile "$profile" \
  --manifest-path "$prefix/source/python/Cargo.toml" --target-dir "$target" --out "$wheels/plain"
most=10000000
[ "$profile" = release ] || most=100000000
"$tools/bin/python" ci/bundle_wheel.py "$wheels"/plain/*.whl "$libfabric"/*.whl "$hwloc" "$wheels" "$most"
rm -r "$wheels/plain"
