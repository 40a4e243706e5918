"""Puts libfabric and its plug-ins and hwloc into a wheel, checks what it needs of a system, and gives it the tag that says so.

bundle_wheel.py WHEEL ENVIRONMENT HWLOC DIRECTORY BYTES: ENVIRONMENT is a virtual environment with the package mpich, whose libfabric
is taken, HWLOC what ci/hwloc.sh built; the wheel, of at most this many bytes, is written to DIRECTORY. Needs readelf.
"""

import base64
import ctypes
import hashlib
import importlib.metadata
import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

# The libraries that the loader finds on every system with glibc, as the manylinux policies list them.
EVERYWHERE = {"libc.so.6", "libm.so.6", "libgcc_s.so.1", "libpthread.so.0", "libdl.so.2", "librt.so.1"}
LOADER = re.compile(r"ld-linux.*\.so\.\d+")

OWN, LIBFABRIC, HWLOC = "MIT OR Apache-2.0", "BSD-2-Clause OR GPL-2.0-only", "BSD-3-Clause"
# What the wheel carries and the loader finds in it.
BUNDLED = {"libfabric.so.1", "libhwloc.so.15"}

NOTICE = """\
The package unisono is licensed under {own}; the texts stand beside this file.

This wheel carries libfabric {version} with its plug-ins in unisono/libs/, unchanged, in the build of the package mpich {mpich} of the
Python Package Index. Its sources are at https://github.com/ofiwg/libfabric, and its licence is
{bundled}:

{licence}

It also carries hwloc {hwloc} (https://www.open-mpi.org/projects/hwloc/), in a build of the distribution's sources without udev, libxml2
and PCI, unchanged. Its licence is {hwloc_licence}:

{hwloc_text}"""


def dynamic(path: pathlib.Path) -> tuple[set[str], list[str]]:
    """The libraries that an ELF file needs, and its RUNPATH and RPATH."""
    text = subprocess.run(["readelf", "-dW", path], check=True, capture_output=True, text=True).stdout
    needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", text))
    paths = re.findall(r"\((?:RUNPATH|RPATH)\).*\[(.*)\]", text)
    return needed, [directory for path in paths for directory in path.split(":")]


def glibc(path: pathlib.Path) -> tuple[int, int]:
    """The newest version of glibc that an ELF file needs."""
    text = subprocess.run(["readelf", "-VW", path], check=True, capture_output=True, text=True).stdout
    return max((int(major), int(minor)) for major, minor in re.findall(r"Name: GLIBC_(\d+)\.(\d+)", text))


def check(root: pathlib.Path) -> tuple[int, int]:
    """Checks the libraries of a wheel that was unpacked at ``root``; returns the glibc that they need."""
    native, libs = root / "unisono/_native.abi3.so", root / "unisono/libs"
    plugins = sorted((libs / "libfabric").iterdir())
    files = [native, *(libs / name for name in sorted(BUNDLED)), *plugins]
    for path in files:
        needed, directories = dynamic(path)
        foreign = {name for name in needed - EVERYWHERE - BUNDLED if not LOADER.fullmatch(name)}
        if path in plugins:
            # libfabric leaves a plug-in out that cannot be loaded.
            print(f"wheel: {path.name} works where there is {', '.join(sorted(foreign)) or 'nothing more'}")
        elif foreign:
            raise SystemExit(
                f"wheel: {path.name} needs {', '.join(sorted(foreign))}, which a system may lack"
            )
        strange = [directory for directory in directories if not directory.startswith("$ORIGIN")]
        if strange:
            raise SystemExit(f"wheel: {path.name} looks for libraries in {', '.join(strange)}")
    return max(glibc(path) for path in files)


def record(name: str, content: bytes) -> str:
    """The line of RECORD about a file."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(content)}\n"


def main(
    wheel: pathlib.Path, environment: pathlib.Path, hwloc: pathlib.Path, directory: pathlib.Path, most: int
) -> None:
    """Makes the wheel with libfabric and hwloc from the one without."""
    with zipfile.ZipFile(wheel) as plain:
        files = {name: plain.read(name) for name in plain.namelist()}
    info = next(name.partition("/")[0] for name in files if name.endswith(".dist-info/WHEEL"))
    source = environment / "lib/mpich"
    library = source / "libfabric.so.1"
    files["unisono/libs/libfabric.so.1"] = library.read_bytes()
    for plugin in sorted((source / "libfabric").glob("lib*-fi.so")):
        files[f"unisono/libs/libfabric/{plugin.name}"] = plugin.read_bytes()
    files["unisono/libs/libhwloc.so.15"] = (hwloc / "lib/libhwloc.so.15").read_bytes()
    version = ctypes.CDLL(str(library)).fi_version()
    mpich = importlib.metadata.distribution("mpich")
    licences = [path for path in mpich.files or [] if path.name == "LICENSE.ofi"]
    notice = NOTICE.format(
        own=OWN,
        bundled=LIBFABRIC,
        version=f"{version >> 16}.{version & 0xFFFF}",
        mpich=mpich.version,
        licence=licences[0].read_text(),
        hwloc=re.findall(r"Version: (\S+)", (hwloc / "lib/pkgconfig/hwloc.pc").read_text())[0],
        hwloc_licence=HWLOC,
        hwloc_text=(hwloc / "COPYING").read_text(),
    )
    files[f"{info}/licenses/NOTICE"] = notice.encode()
    own, both = (
        f"License-Expression: {OWN}\n",
        f"License-Expression: ({OWN}) AND ({LIBFABRIC}) AND {HWLOC}\nLicense-File: NOTICE\n",
    )
    files[f"{info}/METADATA"] = files[f"{info}/METADATA"].replace(own.encode(), both.encode())
    with tempfile.TemporaryDirectory() as root:
        for name, content in files.items():
            path = pathlib.Path(root, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        needed = check(pathlib.Path(root))
    tags = wheel.stem.split("-")
    platform = "manylinux_{}_{}_{}".format(*needed, tags[-1].removeprefix("linux_"))
    metadata = files[f"{info}/WHEEL"].decode()
    files[f"{info}/WHEEL"] = metadata.replace(tags[-1], platform).encode()
    del files[f"{info}/RECORD"]
    lines = "".join(record(name, content) for name, content in files.items())
    files[f"{info}/RECORD"] = f"{lines}{info}/RECORD,,\n".encode()
    path = directory / ("-".join([*tags[:-1], platform]) + ".whl")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as bundled:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if ".so" in name else 0o100644) << 16
            bundled.writestr(entry, content)
    size = path.stat().st_size
    print(f"wheel: {path}, {size / 1e6:.1f} MB")
    if size > most:
        raise SystemExit(f"wheel: it has {size} bytes, {most} are allowed")


if __name__ == "__main__":
    main(*map(pathlib.Path, sys.argv[1:5]), int(sys.argv[5]))
