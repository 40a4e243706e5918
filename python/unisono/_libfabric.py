"""Loads the native module, and with it libfabric.

The loader takes the first of these: the library that UNISONO_LIBFABRIC names, a library in a directory of LD_LIBRARY_PATH, the library of
this package in ``libs/``, and the system's library.
"""

import os

VARIABLE = "UNISONO_LIBFABRIC"
"""Names a libfabric.so.1 to use instead of all others."""

SONAME = "libfabric.so.1"

INSTALL = (
    "install libfabric1 (Debian, Ubuntu), libfabric (Fedora, RHEL, Arch, conda-forge) or libfabric1 (openSUSE), "
    f"or name a {SONAME} with {VARIABLE}"
)


def load() -> None:
    """Loads the native module. If a library is missing, raises ImportError, which says what to do."""
    path = os.environ.get(VARIABLE)
    if path:
        _preload(path)
    try:
        import unisono._native  # noqa: F401
    except ImportError as error:
        if "libfabric" in str(error):
            raise ImportError(f"unisono cannot load libfabric: {error}; {INSTALL}") from error
        raise


def _preload(path: str) -> None:
    """Loads the library at ``path``, so that the native module finds it by its name."""
    import ctypes

    try:
        library = ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_GLOBAL)
    except OSError as error:
        raise ImportError(f"{VARIABLE}={path} cannot be loaded: {error}") from error
    try:
        known = ctypes.CDLL(SONAME, mode=os.RTLD_NOW | os.RTLD_NOLOAD)
    except OSError:
        raise ImportError(f"{VARIABLE}={path} is not a {SONAME}: it has another name") from None
    if known._handle != library._handle:
        raise ImportError(f"{VARIABLE}={path} comes too late: this process has loaded another {SONAME}")
