#!/usr/bin/env bash
# The Python package, for work on it.
#
#   ci/python.sh develop [VENV]     builds the native module with the profile dev, which `cargo test` shares, and lays the package
#                                   into $target/python/site, as links to the sources: import it with PYTHONPATH, or from VENV
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
mkdir -p "${CARGO_TARGET_DIR:-target}"
target=$(cd "${CARGO_TARGET_DIR:-target}" && pwd)
site=$target/python/site

develop() { # [VENV]
  cargo build -q -p unisono-python
  ln -sfn "$target/debug/libunisono_native.so" python/unisono/_native.abi3.so
  mkdir -p "$site"
  ln -sfn "$PWD/python/unisono" "$site/unisono"
  # What an installation says of itself: entry points are read there.
  python3 - python/pyproject.toml Cargo.toml "$site" <<'PYTHON'
import pathlib, sys, tomllib
project, workspace = (tomllib.loads(pathlib.Path(path).read_text()) for path in sys.argv[1:3])
version = workspace["workspace"]["package"]["version"]
info = pathlib.Path(sys.argv[3], f"unisono-{version}.dist-info")
info.mkdir(exist_ok=True)
(info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: unisono\nVersion: {version}\n")
groups = {"console_scripts": project["project"].get("scripts", {}), **project["project"].get("entry-points", {})}
text = "".join(
    f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in entries.items()) for group, entries in groups.items()
)
(info / "entry_points.txt").write_text(text)
PYTHON
  if [ $# -gt 0 ]; then
    "$1/bin/python" -c 'import sys, sysconfig; open(sysconfig.get_path("purelib") + "/unisono.pth", "w").write(sys.argv[1] + "\n")' "$site"
  fi
}

case ${1:-} in
  develop) shift; develop "$@" ;;
  *) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" >&2; exit 2 ;;
esac
