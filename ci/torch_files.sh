#!/usr/bin/env bash
# PyTorch's own test files that write "gloo", on Gloo and on unisono under that name, as a table (python/tests/torch_files/run.py). Its wheel
# lacks these files: they come from Debian's source package, once, into the user's cache directory. SKIPPED if they cannot be had.
#
#   ci/torch_files.sh [--ranks RANKS...] [-k NAME] [FILE...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
what="PyTorch's files that write gloo"
venv=$(ci/venv.sh torch "$what") || exit 0
suite=trixie
source=${XDG_CACHE_HOME:-$HOME/.cache}/unisono/pytorch-$suite
if [ ! -e "$source/complete" ]; then
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  if ! ci/source.sh pytorch "$work/all" "$suite" >"$work/told" 2>&1; then
    echo "SKIPPED: $what: the source of Debian's package pytorch cannot be had: $(tail -n 1 "$work/told")"
    exit 0
  fi
  rm -rf "$source"
  mkdir -p "$source"
  mv "$work/all/test" "$source"
  touch "$source/complete"
fi
ci/python.sh develop
PYTHONPATH=$(ci/target.sh)/python/site
export PYTHONPATH
"$venv/bin/python" python/tests/torch_files/run.py "$source/test" "$@"
