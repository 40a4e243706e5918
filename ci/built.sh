#!/usr/bin/env bash
# Builds by cargo and prints where one of the files that it made lies, whichever directory, profile and target were set.
#
#   ci/built.sh FILE ARGUMENTS...     FILE is its name: unisono, libunisono_native.so; the arguments are those of `cargo build`
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
file=$1
shift
messages=$(cargo build --message-format=json-render-diagnostics "$@")
path=$(sed -nE "s/.*\"(executable\":|filenames\":\[)(.*,)?\"(([^\"\\\\]|\\\\.)*\/$file)\".*/\3/p" <<<"$messages" | tail -n 1)
[ -n "$path" ] || { echo "built: cargo made no $file" >&2; exit 1; }
# %b takes what JSON escapes, but for quotes.
printf '%b\n' "${path//\\\"/\"}"
