#!/usr/bin/env bash
# Builds the Python package's source distribution into a directory.
#
#   ci/sdist.sh DIRECTORY
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
tools=$(ci/venv.sh wheel)
rm -f "$1"/unisono-*.tar.gz
"$tools/bin/maturin" sdist --manifest-path python/Cargo.toml --out "$1"
# As cargo does when it packs a crate: what the manifests say of tests and benches, which are the repository's, is left out.
"$tools/bin/python" - "$1"/unisono-*.tar.gz <<'PYTHON'
import io, pathlib, re, sys, tarfile

path = pathlib.Path(sys.argv[1])
whole = io.BytesIO(path.read_bytes())
with tarfile.open(fileobj=whole) as given, tarfile.open(path, "w:gz") as packed:
    for member in given:
        content = given.extractfile(member).read()
        if pathlib.PurePath(member.name).name == "Cargo.toml":
            content = re.sub(rb"(?ms)^(?:#[^\n]*\n)*\[\[(?:test|bench)\]\]\n.*?(?=^#|^\[|\Z)", b"", content)
            member.size = len(content)
        packed.addfile(member, io.BytesIO(content))
PYTHON
