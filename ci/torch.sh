#!/usr/bin/env bash
# The tests of the backend of torch.distributed: the package's own, then PyTorch's tests of backends, which its wheel carries. With the
# newest torch, then with the oldest that is supported.
#
#   ci/torch.sh                    all of them, PyTorch's with 2 ranks, with 4 as "gloo", and with 2 as "gloo" with the oldest torch
#   ci/torch.sh --suite RANKS...   PyTorch's tests with this many ranks alone, by both names, with the newest torch
#
# Torch goes once into virtual environments in the user's cache directory. SKIPPED if it cannot be had.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
tests() { # ENVIRONMENT OWN RANKS[gloo]...
  local venv own=$2 ranks
  venv=$(ci/venv.sh "$1" "PyTorch's tests with $1") || return 0
  shift 2
  [ "$own" = no ] || "$venv/bin/python" -m pytest -q -rs -p no:cacheprovider python/tests/with_torch
  for ranks; do
    case $ranks in
      *gloo) "$venv/bin/python" python/tests/with_torch/suite.py --ranks "${ranks%gloo}" --as-gloo ;;
      *) "$venv/bin/python" python/tests/with_torch/suite.py --ranks "$ranks" ;;
    esac
  done
}
ci/python.sh develop
PYTHONPATH=$(ci/target.sh)/python/site
export PYTHONPATH
export TORCH_CPP_LOG_LEVEL=FATAL
if [ "${1:-}" = --suite ]; then
  shift
  tests torch no "$@" "${@/%/gloo}"
else
  tests torch own 2 4gloo
  tests torch-oldest own 2gloo
fi
