"""The end of a process that is a rank: it reports an uncaught exception to the other ranks, and leaves its worlds in good order."""

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
# True if leaving has failed and only this file has reported it.
_interrupted = False


def watch(world: _native.Group) -> None:
    """From now on, reports an uncaught exception of this process to the other ranks, and leaves the world when the process ends."""
    global _process
    _worlds[next(_made)] = world
    if _process == os.getpid():
        return
    _process = os.getpid()
    hook = sys.excepthook

    def tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if _process == os.getpid():
            abort(text_of(error))
        hook(kind, error, trace)

    sys.excepthook = tell
    if multiprocessing.parent_process() is not None:
        _report_child()
    # This runs at exit, also in children of multiprocessing, which do not run the functions of atexit.
    multiprocessing.util.Finalize(None, _leave, exitpriority=1)
    # This runs last, because a child of multiprocessing ends there.
    multiprocessing.util.Finalize(None, _set_status, exitpriority=-1000)


def text_of(error: BaseException) -> str:
    """The text of an exception that the other ranks get."""
    if isinstance(error, SystemExit) and error.__context__ is not None:
        # The program caught and printed the exception, and ends the process with this status.
        error = error.__context__
    return "".join(traceback.format_exception_only(error)).strip()


def is_good(error: BaseException) -> bool:
    """True if this exception ends a process without an error when the program does not catch it."""
    return isinstance(error, SystemExit) and not error.code


def _report_child() -> None:
    """Reports an exception that ends this child of multiprocessing to the other ranks when Python prints it: from Python 3.13 on, the
    exception is no longer there when the child ends."""
    print_exc = traceback.print_exc
    bootstrap = multiprocessing.process.BaseProcess._bootstrap.__code__  # type: ignore[attr-defined]

    def tell(*arguments: Any, **options: Any) -> None:
        error = sys.exc_info()[1]
        if error is not None and sys._getframe(1).f_code is bootstrap and _process == os.getpid():
            abort(text_of(error))
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
    # Before Python 3.13, a child of multiprocessing runs this while an exception ends it, and prints the exception later.
    ending = sys.exc_info()[1]
    if ending is not None and not is_good(ending) and multiprocessing.parent_process() is not None:
        abort(text_of(ending))
    worlds = list(_worlds.values())
    # Begin to leave all worlds before waiting for any: several ranks of a world may be in this process, and ranks that make several worlds
    # in threads make them in any order.
    for call in (_native.Group.begin_leave, _native.Group.leave):
        for world in worlds:
            _attempt(call, world)


def _attempt(call: Callable[[_native.Group], None], world: _native.Group) -> None:
    global _interrupted
    try:
        call(world)
    except KeyboardInterrupt as error:
        if not world.left:
            print(f"unisono: {world.abort(text_of(error))}", file=sys.stderr)
            _interrupted = True
    except RuntimeError as error:
        # If the world's errors have another class (of torch or Ray), a call has already raised this failure, unless it is late.
        if isinstance(error, _native.Error) or _native.late_failure() is not None:
            print(f"unisono: {error}", file=sys.stderr)


def _set_status() -> None:
    """Makes the process end with a status other than 0 if it left a world with a failure that no call had raised."""
    if _process != os.getpid():
        return
    if _native.late_failure() is None and not _interrupted:
        return
    # Find out what ends the process: the interpreter alone, or a function of multiprocessing.
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code is not multiprocessing.util._exit_function.__code__:  # type: ignore[attr-defined]
        frame = frame.f_back
    ends = None if frame is None else frame.f_back
    if ends is None:
        sys.stderr = _Failing(sys.stderr)
    elif sys.version_info < (3, 13):
        raise SystemExit(1)
    else:
        # Its status can no longer change, and it calls `os._exit` next.
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError, ValueError, OSError):
                stream.flush()
        os._exit(ends.f_locals.get("code") or 1)


class _Failing:
    """A stream that cannot be flushed. It makes the interpreter end with status 120, after all its other work at the end."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def flush(self) -> None:
        if self._stream is not None:
            self._stream.flush()
        raise OSError("this process left its world with a failure")
