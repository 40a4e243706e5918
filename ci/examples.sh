#!/usr/bin/env bash
# Runs every example with 1, 2 and 3 ranks over TCP on this machine, as many at a time as there are cores, since most of a run is the start of
# its processes; each checks its own results. What they print with 4 ranks is checked by cli/tests/command_line/examples.rs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [ "${1:-}" = --example ]; then # WRITTEN UNISONO PROGRAM RANKS
  name=$(basename "$4") begun=$SECONDS status=0
  folder=$(mktemp -d "$2/XXXXXX")
  output=$(cd "$folder" && timeout 120 "$3" run -n "$5" --provider tcp -- "$4" 2>&1) || status=$?
  if [ $status = 0 ]; then
    echo "ok       example $name, $5 ranks ($((SECONDS - begun)) s)"
  else
    printf 'example %s, %s ranks ... FAILED with status %s\n%s\n' "$name" "$5" "$status" "$output"
  fi
  exit $status
fi

# As `cargo test` has built them.
unisono=$(ci/built.sh unisono --workspace --bins --examples --profile test)
examples=$(dirname "$unisono")/examples
written=$(mktemp -d)
trap 'rm -rf "$written"' EXIT
shopt -s nullglob
runs=()
for source in examples/*.rs examples/*/main.rs files/examples/*.rs; do
  for ranks in 1 2 3; do
    runs+=("$written" "$unisono" "$examples/$(basename "${source%/main.rs}" .rs)" "$ranks")
  done
done
[ ${#runs[@]} -gt 0 ]
printf '%s\0' "${runs[@]}" | xargs -0 -n 4 -P "$(nproc)" ci/examples.sh --example || { echo "examples: some failed"; exit 1; }
echo "examples: $((${#runs[@]} / 4)) passed"
