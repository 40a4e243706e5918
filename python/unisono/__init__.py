"""Collective communication by one-sided RDMA writes over libfabric."""

import os as _os

# Debian's libfabric loads libinfinipath, which would replace Python's handler of SIGINT: Ctrl-C would end the process without a
# KeyboardInterrupt. libinfinipath reads this variable when it is loaded.
_os.environ.setdefault("IPATH_NO_BACKTRACE", "1")

from unisono import _libfabric

_libfabric.load()

from unisono._files import Delivered
from unisono._group import Group, init
from unisono._native import VERSION as __version__
from unisono._native import Error
from unisono._work import Work

__all__ = ["Delivered", "Error", "Group", "Work", "__version__", "init"]
