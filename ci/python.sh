#!/usr/bin/env bash
# The Python package: to work on it, and its tests that need no torch.
#
#   ci/python.sh develop [--release] [VENV]
#       builds the native module (by default with the profile dev, as `cargo test` does) and lays the package into
#       $target/python/site, as links to the sources; import it with PYTHONPATH, or from VENV, which is told of it
#   ci/python.sh test [ARGUMENT...]       the same, then the tests, by pytest with these arguments
#   ci/python.sh installed WHEEL [TEST...]   the tests, or these, with the package that the wheel installs into a new virtual environment
#   ci/python.sh check                    format and rules, by ruff
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
target=$(ci/target.sh)
site=$target/python/site
pytest=(-m pytest -q -rs -p no:cacheprovider --ignore python/tests/with_torch --ignore python/tests/clients)

develop() {
  # With an example, cargo chooses the features that it chooses for tests: what these link is not built a second time.
  local native build=(--workspace --lib --example all_reduce)
  if [ "${1:-}" = --release ]; then
    build=(-p unisono-python --release)
    shift
  fi
  native=$(ci/built.sh libunisono_native.so -q "${build[@]}")
  ln -sfn "$native" python/unisono/_native.abi3.so
  mkdir -p "$site"
  ln -sfn "$PWD/python/unisono" "$site/unisono"
  ln -sfn "$PWD/python/unisono_autoload" "$site/unisono_autoload"
  # What an installation says of itself: entry points are read there.
  python3 - python/pyproject.toml Cargo.toml "$site" <<'PYTHON'
import pathlib, sys, tomllib
project, workspace = (tomllib.loads(pathlib.Path(path).read_text()) for path in sys.argv[1:3])
version = workspace["workspace"]["package"]["version"]
info = pathlib.Path(sys.argv[3], f"unisono-{version}.dist-info")
info.mkdir(exist_ok=True)
(info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: unisono\nVersion: {version}\n")
groups = {"console_scripts": project["project"].get("scripts", {}), **project["project"].get("entry-points", {})}
lines = []
for group, entries in groups.items():
    lines += [f"[{group}]", *(f"{name} = {target}" for name, target in entries.items())]
(info / "entry_points.txt").write_text("\n".join(lines) + "\n")
PYTHON
  if [ $# -gt 0 ]; then
    "$1/bin/python" -c 'import sys, sysconfig; open(sysconfig.get_path("purelib") + "/unisono.pth", "w").write(sys.argv[1] + "\n")' "$site"
  fi
}

# The virtual environment $venv of this name; ends the script if it cannot be had.
need() { # NAME WHAT
  venv=$(ci/venv.sh "$1" "$2") || exit 0
}

case ${1:-} in
  develop)
    shift
    develop "$@"
    ;;
  test)
    shift
    need tests "the Python package's tests"
    ci/setup.sh build
    develop
    # Several at a time, since many mostly wait.
    PYTHONPATH=$site "$venv/bin/python" "${pytest[@]}" -n $(($(nproc) + 1)) --durations 10 python/tests "$@"
    ;;
  installed)
    wheel=$2
    shift 2
    [ $# -gt 0 ] || set -- python/tests
    need tests "the Python package's tests"
    # Not into that environment, which is shared with `test`.
    python3 -m venv --clear "$target/python/installed"
    installed=$target/python/installed/bin/python
    "$installed" -m pip install -q --disable-pip-version-check --no-index "$wheel"
    "$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
      > "$("$installed" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/tests.pth"
    "$installed" "${pytest[@]}" "$@"
    ;;
  check)
    need ruff "ruff, for format and rules of Python files"
    "$venv/bin/ruff" format --quiet --check python ci && "$venv/bin/ruff" check --quiet python ci
    ;;
  *)
    sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" >&2
    exit 2
    ;;
esac
