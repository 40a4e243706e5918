"""The end of a process that is a rank: others are told of an uncaught exception, and worlds are left in good order."""

import contextlib
import itertools
import multiprocessing.process
import multiprocessing.util
import os
import sys
import traceback
import weakref
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

from unisono import _native

# The worlds of this process.
_worlds: "weakref.WeakValueDictionary[int, _native.Group]" = weakref.WeakValueDictionary()
_made = itertools.count()
_process = 0
# Whether leaving has failed in a way that only this file has told.
_interrupted = False


def watch(world: _native.Group) -> None:
    """Tells the other ranks of an uncaught exception in this process; leaves the world when the process ends."""
    global _process
    _worlds[next(_made)] = world
    if _process == os.getpid():
        return
    _process = os.getpid()
    hook = sys.excepthook

    def tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if _process == os.getpid():
            abort(told(error))
        hook(kind, error, trace)

    sys.excepthook = tell
    if multiprocessing.parent_process() is not None:
        _hear_of_child()
    # Runs at exit, also in children of multiprocessing, which do not run atexit's functions.
    multiprocessing.util.Finalize(None, _leave, exitpriority=1)
    # Last, because a child of multiprocessing ends there.
    multiprocessing.util.Finalize(None, _set_status, exitpriority=-1000)


def told(error: BaseException) -> str:
    """What the other ranks are told of an exception."""
    if isinstance(error, SystemExit) and error.__context__ is not None:
        # It was caught and told, and ends the process by its status.
        error = error.__context__
    return "".join(traceback.format_exception_only(error)).strip()


def is_good(error: BaseException) -> bool:
    """Whether an exception that nobody catches ends a process well."""
    return isinstance(error, SystemExit) and not error.code


def _hear_of_child() -> None:
    """Tells the others of an exception that ends this child of multiprocessing, when it is printed: from Python 3.13 on nothing of it is
    left at the end."""
    print_exc = traceback.print_exc
    bootstrap = multiprocessing.process.BaseProcess._bootstrap.__code__  # type: ignore[attr-defined]

    def tell(*arguments: Any, **options: Any) -> None:
        error = sys.exc_info()[1]
        if error is not None and sys._getframe(1).f_code is bootstrap and _process == os.getpid():
            abort(told(error))
        print_exc(*arguments, **options)

    traceback.print_exc = tell


def abort(why: str) -> None:
    """Ends the worlds of this process with this reason."""
    for world in list(_worlds.values()):
        if not world.left:
            world.abort(why)


def _leave() -> None:
    if _process != os.getpid():
        return
    # Before Python 3.13, a child of multiprocessing comes here while an exception ends it, and prints that later.
    ending = sys.exc_info()[1]
    if ending is not None and not is_good(ending) and multiprocessing.parent_process() is not None:
        abort(told(ending))
    worlds = list(_worlds.values())
    # All at once: several ranks of a world may be in this process, and ranks that make several worlds in threads make them in any order.
    for call in (_native.Group.begin_leave, _native.Group.leave):
        for world in worlds:
            _attempt(call, world)


def _attempt(call: Callable[[_native.Group], None], world: _native.Group) -> None:
    global _interrupted
    try:
        call(world)
    except KeyboardInterrupt as error:
        if not world.left:
            print(f"unisono: {world.abort(told(error))}", file=sys.stderr)
            _interrupted = True
    except RuntimeError as error:
        # With its own class, a failure that a call has raised before is known.
        if isinstance(error, _native.Error) or _native.late_failure() is not None:
            print(f"unisono: {error}", file=sys.stderr)


def _set_status() -> None:
    """Has the process end with a status other than 0 if it left a world with a failure that no call had raised."""
    if _process != os.getpid():
        return
    if _native.late_failure() is None and not _interrupted:
        return
    # What ends the process: the interpreter alone, or a function of multiprocessing.
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code is not multiprocessing.util._exit_function.__code__:  # type: ignore[attr-defined]
        frame = frame.f_back
    ends = None if frame is None else frame.f_back
    if ends is None:
        sys.stderr = _Failing(sys.stderr)
    elif sys.version_info < (3, 13):
        raise SystemExit(1)
    else:
        # It takes no other status any more, and calls `os._exit` next.
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError, ValueError, OSError):
                stream.flush()
        os._exit(ends.f_locals.get("code") or 1)


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
