#!/usr/bin/env bash
# The transports' and the engine's tests under sanitizers, as far as the nightly toolchain at hand allows: AddressSanitizer works with
# the standard library as it comes; ThreadSanitizer needs one that is built with it (rust-src), or it takes every lock that was
# waited for, and every end of an Arc, for a race; Miri, which runs no C, interprets what has none.
set -euo pipefail
cd "$(dirname "$0")/.."
skip() { echo "SKIPPED: $1: $2"; }
nightly() { cargo +nightly "$@"; }
host=$(rustc -vV | sed -n 's/^host: //p')
if ! nightly --version > /dev/null 2>&1; then
    skip "make sanitize" "there is no nightly toolchain (rustup toolchain install nightly)"
    exit 0
fi
target=$(ci/target.sh)
source=$(rustc +nightly --print sysroot)/lib/rustlib/src/rust/library/Cargo.lock

# What each runs: of the library what has no provider under it.
tests() {
    "$@" -p unisono-transport --lib
    "$@" -p unisono-transport --test conformance
    "$@" -p unisono-engine -p unisono-rendezvous --lib
    "$@" -p unisono --lib -- group::tests::work group::tests::wakers
}

echo "== AddressSanitizer"
# libfabric's and the loader's own leaks are not ours to find.
export ASAN_OPTIONS=detect_leaks=0
RUSTFLAGS=-Zsanitizer=address CARGO_TARGET_DIR="$target/sanitize/address" \
    tests nightly test --target "$host"

if [ -f "$source" ]; then
    echo "== ThreadSanitizer"
    RUSTFLAGS=-Zsanitizer=thread CARGO_TARGET_DIR="$target/sanitize/thread" \
        tests nightly test -Zbuild-std --target "$host"
else
    skip ThreadSanitizer "there is no rust-src (rustup component add rust-src --toolchain nightly)"
fi

if nightly miri --version > /dev/null 2>&1 && [ -f "$source" ]; then
    echo "== Miri"
    # Proptest reads a file of old failures, and Miri is some thousand times slower than the machine.
    MIRIFLAGS=-Zmiri-disable-isolation PROPTEST_CASES=4 CARGO_TARGET_DIR="$target/sanitize/miri" \
        nightly miri test -p unisono-engine -p unisono-rendezvous --lib -- flow:: routes:: failure_latch:: \
        --skip runs_are_cut_and_put_together
else
    skip Miri "it is not there (rustup component add miri rust-src --toolchain nightly)"
fi
