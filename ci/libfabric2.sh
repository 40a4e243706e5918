#!/usr/bin/env bash
# Runs the transport's conformance suite and the tests of ranks as processes, as they were built against this
# machine's libfabric, with libfabric 2 in its place: the shared library that the PyPI package mpich carries; and,
# since the same package has it, the test of MPICH's launcher. With names of suites, these instead.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

ci/setup.sh build
venv=$(ci/venv.sh mpich "test-libfabric2") || exit 0
version=$("$venv/bin/python" - "$venv/lib/mpich/libfabric.so.1" <<'PYTHON'
import ctypes, sys
version = ctypes.CDLL(sys.argv[1]).fi_version()
print(f"{version >> 16}.{version & 0xffff}")
PYTHON
)
suites=(conformance processes transfers)
[ $# -eq 0 ] || suites=("$@")
programs=$(ci/test-binaries.sh "${suites[@]}")

# Memory that ranks share is not libfabric's.
export UNISONO_TEST_PROVIDERS=tcp
export LD_LIBRARY_PATH=$venv/lib/mpich${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
for program in $programs; do
  loaded=$(ldd "$program" | sed -n 's/.*libfabric\.so\.1 => \(.*\) (.*/\1/p')
  if [ "${version%%.*}" != 2 ] || [ "$loaded" != "$venv/lib/mpich/libfabric.so.1" ]; then
    echo "libfabric2: wanted libfabric 2 from $venv, but $program loads $version from ${loaded:-nowhere}" >&2
    exit 1
  fi
  echo "libfabric2: $(basename "$program") with libfabric $version"
  "$program"
done
[ $# -eq 0 ] || exit 0
commands=$(ci/test-binaries.sh command_line)
PATH=$venv/bin:$PATH UNISONO_TEST_LAUNCHERS=mpiexec.hydra "$commands" launchers:: --show-output
