#!/usr/bin/env bash
# Packs all crates as `cargo publish` would, and builds what the packages hold, examples too: a file that is missing in one fails here.
# Cargo's own verification would take the crates that a crate depends on as an earlier run packed them, from its cache.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
target=$(ci/target.sh)
packages=$target/package unpacked=$target/package/unpacked
rm -rf "$packages"
for pack in "publish --dry-run" package; do
  said=$(cargo $pack --workspace --no-verify --allow-dirty 2>&1) || { echo "$said"; exit 1; }
done
mkdir "$unpacked"
printf '[workspace]\nmembers = ["*"]\nresolver = "3"\n[patch.crates-io]\n' > "$unpacked/Cargo.toml"
for crate in "$packages"/*.crate; do
  name=$(basename "$crate" .crate)
  echo "$name: $(tar -tzf "$crate" | wc -l) files, $(($(wc -c < "$crate") / 1024)) KiB"
  tar -xmzf "$crate" -C "$unpacked"
  echo "${name%-[0-9]*} = { path = \"$name\" }" >> "$unpacked/Cargo.toml"
done
cp Cargo.lock "$unpacked"
cargo check --quiet --manifest-path "$unpacked/Cargo.toml" --target-dir "$target" --workspace --bins --lib --examples
