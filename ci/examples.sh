#!/usr/bin/env bash
# Runs every example with 1, 2 and 3 ranks over TCP on this machine; each checks its own results. What they print with 4
# ranks is checked by cli/tests/command_line/examples.rs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# As `cargo test` has built them.
unisono=$(ci/built.sh unisono --workspace --bins --examples --profile test)
examples=$(dirname "$unisono")/examples
written=$(mktemp -d)
trap 'rm -rf "$written"' EXIT
passed=0 failed=0
shopt -s nullglob
for source in examples/*.rs examples/*/main.rs files/examples/*.rs; do
  name=$(basename "${source%/main.rs}" .rs)
  for ranks in 1 2 3; do
    begun=$SECONDS
    if output=$(cd "$written" && timeout 120 "$unisono" run -n "$ranks" --provider tcp -- "$examples/$name" 2>&1); then
      echo "ok       example $name, $ranks ranks ($((SECONDS - begun)) s)"
      passed=$((passed + 1))
    else
      echo "example $name, $ranks ranks ... FAILED with status $?"
      echo "$output"
      failed=$((failed + 1))
    fi
  done
done
echo "examples: $passed passed, $failed failed"
[ $failed = 0 ] && [ $passed -gt 0 ]
