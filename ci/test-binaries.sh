#!/usr/bin/env bash
# Builds the integration tests named and prints where their programs are, one a line.
#
#   ci/test-binaries.sh NAME...        (a file tests/NAME.rs of any package of the workspace)
set -euo pipefail
targets=()
for name; do targets+=(--test "$name"); done
messages=$(cargo test --workspace --no-run --message-format=json-render-diagnostics "${targets[@]}")
for name; do
  program=$(sed -n "s/.*\"kind\":\[\"test\"\].*\"name\":\"$name\".*\"executable\":\"\([^\"]*\)\".*/\1/p" <<<"$messages")
  [ -n "$program" ] || { echo "test-binaries: cargo built no test '$name'" >&2; exit 1; }
  echo "$program"
done
