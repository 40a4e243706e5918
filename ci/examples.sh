#!/usr/bin/env bash
# Runs every example with 1, 2 and 3 ranks over TCP on this machine; each checks its own results.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
cargo build --workspace --bins --examples
built=$(cd "${CARGO_TARGET_DIR:-target}" && pwd)/debug
passed=0 failed=0
shopt -s nullglob
for source in examples/*.rs; do
  name=$(basename "$source" .rs)
  for ranks in 1 2 3; do
    if output=$(timeout 120 "$built/unisono" run -n "$ranks" --provider tcp -- "$built/examples/$name" 2>&1); then
      echo "example $name, $ranks ranks ... ok"
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
