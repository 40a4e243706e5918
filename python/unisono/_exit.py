"""The end of a process that is a rank: others are told of an uncaught exception, and worlds are left in good order."""

import multiprocessing.util
import os
import sys
import traceback
import weakref
from types import TracebackType

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
        except _native.Error as error:
            print(f"unisono: {error}", file=sys.stderr)
        except RuntimeError:
            # A failure that a call has raised before.
            pass
