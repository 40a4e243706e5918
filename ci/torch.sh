#!/usr/bin/env bash
# The tests of the backend of torch.distributed: the package's own, then PyTorch's tests of backends, which its wheel carries.
#
#   ci/torch.sh [RANKS...]     PyTorch's tests with so many ranks; 2 and 4 if none are named
#
# Torch goes once into a virtual environment in the user's cache directory. SKIPPED if it cannot be had.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
venv=$(ci/venv.sh torch) || {
  echo "SKIPPED: torch: it cannot be had from the package index; see pip's reason above"
  exit 0
}
ci/python.sh develop
PYTHONPATH=$(cd "${CARGO_TARGET_DIR:-target}" && pwd)/python/site
export PYTHONPATH
export TORCH_CPP_LOG_LEVEL=FATAL
"$venv/bin/python" -m pytest -q -rs -p no:cacheprovider python/tests/with_torch
[ $# -gt 0 ] || set -- 2 4
for ranks; do
  "$venv/bin/python" python/tests/with_torch/suite.py --ranks "$ranks"
done
