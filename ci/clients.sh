#!/usr/bin/env bash
# Runs the tests with packages that use collectives: Ray, Dask, Lightning and accelerate, which go once into a virtual environment in the
# user's cache directory, beside torch's. SKIPPED if they cannot be had.
#
#   ci/clients.sh [ARGUMENT...]      with these arguments for pytest
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
venv=$(ci/venv.sh clients "the tests with Ray, Dask, Lightning and accelerate") || exit 0
ci/python.sh develop
PYTHONPATH=$(ci/target.sh)/python/site
export PYTHONPATH
exec "$venv/bin/python" -m pytest -q -rs -p no:cacheprovider python/tests/clients "$@"
