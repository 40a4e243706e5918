#!/usr/bin/env bash
# The tests of tensors on a GPU, with a wheel of this package, on a machine that has a GPU of CUDA and need have no compiler or libfabric.
#
#   ci/gpu.sh WHEEL [PYTHON]
#
# PYTHON (python3) must have a torch for CUDA, numpy and pytest: `pip install torch numpy pytest`, 3 GB. Several ranks share one GPU.
# Prints how long an all_reduce takes beside Gloo's. SKIPPED where there is no such torch or no GPU.
set -euo pipefail
wheel=$(realpath "$1")
python=$(command -v "${2:-python3}")
cd "$(dirname "${BASH_SOURCE[0]}")/.."
"$python" -c 'import pytest, numpy, torch, sys; sys.exit(not torch.cuda.is_available())' || {
  echo "SKIPPED: tensors on a GPU: $python has no torch with CUDA, numpy and pytest, or there is no GPU"
  exit 0
}
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
"$python" -m pip install -q --disable-pip-version-check --no-index --no-deps --target "$site" "$wheel"
export PYTHONPATH=$site
"$python" -m pytest -q -rs -p no:cacheprovider python/tests/with_torch/test_devices.py
for backend in unisono gloo; do
  "$python" -m torch.distributed.run --nproc-per-node 2 python/tests/with_torch/gpu_speed.py "$backend"
done
