#!/usr/bin/env bash
# The tests of the backend of torch.distributed: the package's own, then PyTorch's tests of backends, which its wheel carries. With the
# newest torch, then with the oldest that is supported.
#
#   ci/torch.sh [RANKS...]     PyTorch's tests with so many ranks; 2 and 4 if none are named, 2 with the oldest torch
#
# Torch goes once into virtual environments in the user's cache directory. SKIPPED if it cannot be had.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
tests() { # ENVIRONMENT RANKS...
  local venv
  venv=$(ci/venv.sh "$1") || {
    echo "SKIPPED: $1: it cannot be had from the package index for this interpreter, or does not run here; see the reason above"
    return 0
  }
  shift
  "$venv/bin/python" -m pytest -q -rs -p no:cacheprovider python/tests/with_torch
  local ranks
  for ranks; do
    "$venv/bin/python" python/tests/with_torch/suite.py --ranks "$ranks"
  done
}
ci/python.sh develop
PYTHONPATH=$(cd "${CARGO_TARGET_DIR:-target}" && pwd)/python/site
export PYTHONPATH
export TORCH_CPP_LOG_LEVEL=FATAL
[ $# -gt 0 ] || set -- 2 4
tests torch "$@"
tests torch-oldest 2
