#!/usr/bin/env bash
# Runs the tests with packages that use collectives: Ray, Dask, Lightning, accelerate and torchft, which go once into a virtual environment in the
# user's cache directory, beside torch's. SKIPPED if they cannot be had.
#
#   ci/clients.sh                    all of them side by side, since they mostly wait for processes to start
#   ci/clients.sh ARGUMENT...        pytest with these arguments
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
venv=$(ci/venv.sh clients "the tests with Ray, Dask, Lightning, accelerate and torchft") || exit 0
ci/python.sh develop
PYTHONPATH=$(ci/target.sh)/python/site
export PYTHONPATH
tests() { "$venv/bin/python" -m pytest -q -rs -p no:cacheprovider -W ignore::DeprecationWarning "$@"; }
folder=python/tests/clients
if [ $# -gt 0 ]; then
  tests $folder "$@"
  exit
fi
told=$(mktemp -d)
trap 'rm -rf "$told"' EXIT
for name in ray ray_train torchft; do
  tests $folder/test_$name.py >"$told/$name" 2>&1 &
  running+=($!)
done
status=0
tests $folder/test_dask.py $folder/test_trainers.py || status=$?
for each in "${running[@]}"; do wait "$each" || status=$?; done
cat "$told"/*
exit $status
