#!/usr/bin/env bash
# Runs every fuzz target for UNISONO_FUZZ_SECONDS (30), by cargo-fuzz and a nightly toolchain. What it finds lies in fuzz/artifacts.
set -euo pipefail
cd "$(dirname "$0")/.."
skip() { echo "SKIPPED: make fuzz: $1"; exit 0; }
cargo +nightly --version > /dev/null 2>&1 || skip "there is no nightly toolchain (rustup toolchain install nightly)"
cargo fuzz --version > /dev/null 2>&1 || skip "there is no cargo-fuzz (cargo install cargo-fuzz)"
cargo +nightly fuzz build
for target in $(cargo +nightly fuzz list); do
    # What is found on the way is kept apart from the corpus that is committed.
    found=fuzz/target/corpus/$target
    mkdir -p "$found"
    cargo +nightly fuzz run "$target" "$found" "fuzz/corpus/$target" -- \
        -max_total_time="${UNISONO_FUZZ_SECONDS:-30}" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1
done
