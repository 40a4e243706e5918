"""Puts libfabric and its plug-ins and hwloc into a wheel, checks what it needs of a system, and gives it the tag that says so.

bundle_wheel.py WHEEL MPICH HWLOC DIRECTORY BYTES: MPICH is a wheel of the package mpich for the same architecture, whose libfabric is
taken, HWLOC what ci/hwloc.sh built; the documentation is added, and the wheel, of at most this many bytes, is written to DIRECTORY. Needs readelf.
"""

import base64
import hashlib
import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

# The oldest glibc that a wheel runs with: that of RHEL 8, Debian 10 and Ubuntu 20.04.
OLDEST = (2, 28)
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


def debugged(path: pathlib.Path) -> bool:
    """Whether an ELF file has what only debuggers read."""
    text = subprocess.run(["readelf", "-SW", path], check=True, capture_output=True, text=True).stdout
    return re.search(r"\] \.(?:z?debug_|symtab\b)", text) is not None


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
        if debugged(path):
            raise SystemExit(f"wheel: {path.name} has symbols for debuggers, which make it larger")
        strange = [directory for directory in directories if not directory.startswith("$ORIGIN")]
        if strange:
            raise SystemExit(f"wheel: {path.name} looks for libraries in {', '.join(strange)}")
    needed, path = max((glibc(path), path) for path in files)
    if needed > OLDEST:
        raise SystemExit(f"wheel: {path.name} needs glibc {needed}, {OLDEST} is the oldest to run with")
    return needed


def record(name: str, content: bytes) -> str:
    """The line of RECORD about a file."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(content)}\n"


def main(
    wheel: pathlib.Path, mpich: pathlib.Path, hwloc: pathlib.Path, directory: pathlib.Path, most: int
) -> None:
    """Makes the wheel with libfabric and hwloc from the one without."""
    with zipfile.ZipFile(wheel) as plain:
        files = {name: plain.read(name) for name in plain.namelist()}
    info = next(name.partition("/")[0] for name in files if name.endswith(".dist-info/WHEEL"))
    files["unisono/libs/libhwloc.so.15"] = (hwloc / "lib/libhwloc.so.15").read_bytes()
    with zipfile.ZipFile(mpich) as other:
        for name in other.namelist():
            path = pathlib.PurePath(name)
            if path.match("lib/mpich/libfabric.so.1"):
                files["unisono/libs/libfabric.so.1"] = other.read(name)
            elif path.match("lib/mpich/libfabric/lib*-fi.so"):
                files[f"unisono/libs/libfabric/{path.name}"] = other.read(name)
            elif path.match("licenses/LICENSE.ofi"):
                licence = other.read(name).decode()
    # It stands alone in the library, whose function that tells it only runs on its own architecture.
    version = set(re.findall(rb"\0(\d+\.\d+\.\d+)\0", files["unisono/libs/libfabric.so.1"]))
    notice = NOTICE.format(
        own=OWN,
        bundled=LIBFABRIC,
        version=" or ".join(sorted(found.decode() for found in version)),
        mpich=mpich.name.split("-")[1],
        licence=licence,
        hwloc=re.findall(r"Version: (\S+)", (hwloc / "lib/pkgconfig/hwloc.pc").read_text())[0],
        hwloc_licence=HWLOC,
        hwloc_text=(hwloc / "COPYING").read_text(),
    )
    files[f"{info}/licenses/NOTICE"] = notice.encode()
    shared = info.replace(".dist-info", ".data/data/share/doc/unisono")
    for page in [*pathlib.Path("docs").glob("*.md"), pathlib.Path("CHANGELOG.md")]:
        files[f"{shared}/{page.name}"] = page.read_bytes()
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
    platform = re.sub(r"^(?:manylinux_\d+_\d+|linux)_", "manylinux_{}_{}_".format(*needed), tags[-1])
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
