"""Makes libraries of CUDA that torch loads and, without a GPU, does not call: so that 3 GB of them need not be downloaded.

    cuda_stubs.py FOLDER     torch's folder of libraries, where they are laid too

Each has what torch's libraries want of it, by name and version; whatever is called ends the process. Needs binutils and a C compiler.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

# What is CUDA's, among what is not defined.
OURS = re.compile(r"(cu|nv|nccl|CUPTI)", re.IGNORECASE)


def output(*command: str) -> str:
    """What a command prints."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def is_there(folder: Path, name: str) -> bool:
    """Whether torch finds it: beside its own, or in a package of NVIDIA's. The driver's is not asked for without a GPU."""
    return (
        name == "libcuda.so.1" or (folder / name).exists() or any(folder.glob(f"../../nvidia/*/lib/{name}"))
    )


def main(folder: Path) -> None:
    """Makes a library for each that is needed and is neither here nor in the system."""
    libraries = [path for path in folder.iterdir() if ".so" in path.name]
    needed = {
        name
        for path in libraries
        for name in re.findall(r"NEEDED.*\[(.*)\]", output("readelf", "-d", str(path)))
    }
    missing = sorted(name for name in needed if OURS.match(name[3:]) and not is_there(folder, name))
    wanted: dict[str, set[str]] = {name: set() for name in missing}
    for path in libraries:
        for line in output("nm", "-D", "--undefined-only", str(path)).splitlines():
            symbol, _, version = line.split()[-1].partition("@")
            if version in wanted:
                wanted[version].add(symbol)
            elif not version and missing and OURS.match(symbol):
                # Any library may have it.
                wanted[missing[0]].add("unversioned " + symbol)
    for name, symbols in wanted.items():
        plain = {symbol.split()[-1] for symbol in symbols}
        versioned = sorted(symbol for symbol in symbols if " " not in symbol)
        with tempfile.TemporaryDirectory() as work:
            source, script = Path(work, "stub.s"), Path(work, "versions")
            source.write_text("".join(f".globl {s}\n.type {s},@function\n{s}: ud2\n" for s in sorted(plain)))
            script.write_text(f"{name} {{ global: {'; '.join(versioned)}; }};\n" if versioned else "")
            versions = [f"-Wl,--version-script={script}"] if versioned else []
            subprocess.run(
                [
                    "cc",
                    "-shared",
                    "-nostdlib",
                    f"-Wl,-soname,{name}",
                    *versions,
                    "-o",
                    str(folder / name),
                    str(source),
                ],
                check=True,
            )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
