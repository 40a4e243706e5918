"""The import of the package: versions, signals, and the libfabric that it loads."""

import importlib.metadata
import pathlib
import shutil
import signal
import subprocess
import sys

import pytest
import unisono
from conftest import Run

LOADED = """
import unisono
print(*{line.split()[-1] for line in open("/proc/self/maps") if "fabric" in line and ".so" in line}, sep="\\n")
"""


def loaded(python: Run, **variables: str) -> set[str]:
    """The paths of the libfabrics that an import loads."""
    done = python("-c", LOADED, set=variables)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.fixture
def other(python: Run, tmp_path: pathlib.Path) -> pathlib.Path:
    """Another libfabric.so.1 than the one that is loaded without a variable: a copy of it."""
    (usual,) = loaded(python)
    return pathlib.Path(shutil.copy(usual, tmp_path / "libfabric.so.1"))


def test_version_is_the_installed_packages() -> None:
    assert unisono.__version__ == importlib.metadata.version("unisono")


def test_types_are_there() -> None:
    package = pathlib.Path(unisono.__file__).parent
    assert (package / "py.typed").exists() and (package / "_native.pyi").exists()


def test_library_of_the_variable_wins(python: Run, other: pathlib.Path) -> None:
    elsewhere = other.rename(other.with_name("libfabric-of-the-site.so"))
    assert loaded(python, UNISONO_LIBFABRIC=str(elsewhere)) == {str(elsewhere)}


def test_library_of_the_search_path_wins(python: Run, other: pathlib.Path) -> None:
    assert loaded(python, LD_LIBRARY_PATH=str(other.parent)) == {str(other)}


def test_library_of_the_variable_beats_the_search_path(python: Run, other: pathlib.Path) -> None:
    elsewhere = shutil.copy(other, other.with_name("libfabric-of-the-site.so"))
    variables = {"UNISONO_LIBFABRIC": str(elsewhere), "LD_LIBRARY_PATH": str(other.parent)}
    assert loaded(python, **variables) == {str(elsewhere)}


@pytest.mark.parametrize("path", ["/nowhere/libfabric.so.1", "/", "/proc/self/cmdline"])
def test_path_that_does_not_load_is_named(python: Run, path: str) -> None:
    done = python("-c", "import unisono", set={"UNISONO_LIBFABRIC": path})
    assert done.returncode == 1
    assert f"ImportError: UNISONO_LIBFABRIC={path} cannot be loaded: " in done.stderr


def test_another_library_is_refused(python: Run) -> None:
    done = python("-c", "import unisono", set={"UNISONO_LIBFABRIC": "libm.so.6"})
    assert "ImportError: UNISONO_LIBFABRIC=libm.so.6 is not a libfabric.so.1" in done.stderr


def test_library_that_comes_too_late_is_refused(python: Run, other: pathlib.Path) -> None:
    elsewhere = shutil.copy(other, other.with_name("libfabric-of-the-site.so"))
    program = f"import ctypes; ctypes.CDLL({str(other)!r}); import unisono"
    done = python("-c", program, set={"UNISONO_LIBFABRIC": str(elsewhere)})
    assert f"ImportError: UNISONO_LIBFABRIC={elsewhere} comes too late" in done.stderr


def test_broken_libfabric_says_what_to_do(python: Run, tmp_path: pathlib.Path) -> None:
    (tmp_path / "libfabric.so.1").write_bytes(b"no library")
    done = python("-c", "import unisono", set={"LD_LIBRARY_PATH": str(tmp_path)})
    assert (
        "ImportError: unisono cannot load libfabric: " in done.stderr and "install libfabric1" in done.stderr
    )


def test_ctrl_c_interrupts_python_after_the_import() -> None:
    program = """
import sys, time, unisono
try:
    print("ready", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    sys.exit(7)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 7
