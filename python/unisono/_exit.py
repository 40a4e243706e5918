"""The end of a process that is a rank: others are told of an uncaught exception, and worlds are left in good order."""

import multiprocessing.util
import os
import sys
import traceback
import weakref
from types import TracebackType
from typing import Any

from unisono import _native

# The worlds of this process.
_worlds: "weakref.WeakSet[_native.Group]" = weakref.WeakSet()
_process = 0


def watch(world: _native.Group) -> None:
    """Tells the other ranks of an uncaught exception in this process; leaves the world when the process ends."""
    global _process
    _worlds.add(world)
    if _process == os.getpid():
        return
    _process = os.getpid()
    hook = sys.excepthook

    def tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if _process == os.getpid():
            abort(told(kind, error))
        hook(kind, error, trace)

    sys.excepthook = tell
    # Runs at exit, also in children of multiprocessing, which do not run atexit's functions.
    multiprocessing.util.Finalize(None, _leave, exitpriority=1)
    # Last, because the end of a child of multiprocessing is an exception there.
    multiprocessing.util.Finalize(None, _set_status, exitpriority=-1000)


def told(kind: type[BaseException], error: BaseException | None) -> str:
    """What the other ranks are told of an exception."""
    return "".join(traceback.format_exception_only(kind, error)).strip()


def abort(why: str) -> None:
    """Ends the worlds of this process with this reason."""
    for world in list(_worlds):
        if not world.left:
            world.abort(why)


def _leave() -> None:
    if _process != os.getpid():
        return
    for world in list(_worlds):
        try:
            world.leave()
        except RuntimeError as error:
            # With a class of its own, a failure that a call has raised before is known.
            if isinstance(error, _native.Error) or _native.late_failure() is not None:
                print(f"unisono: {error}", file=sys.stderr)


def _set_status() -> None:
    """Has the process end with a status other than 0 if it left a world with a failure that no call had raised."""
    if _process != os.getpid():
        return
    _native.end_thread()
    if _native.late_failure() is None:
        return
    if multiprocessing.parent_process() is not None:
        raise SystemExit(1)
    sys.stderr = _Failing(sys.stderr)


class _Failing:
    """A stream that cannot be flushed: the interpreter then ends with status 120, after all that it does at its end."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def flush(self) -> None:
        if self._stream is not None:
            self._stream.flush()
        raise OSError("this process left its world with a failure")
