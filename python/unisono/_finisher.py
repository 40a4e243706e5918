"""The thread that runs code of Python's for the library: it calls back, logs, and frees what operations have kept alive.

It is a thread of Python's, and calls and frees without a native frame below: wherever it is when the interpreter ends, that can end it.
The end of a thread with a native frame aborts the process.
"""

import multiprocessing.util
import threading
from collections.abc import Callable
from typing import Any

from unisono import _native

# How long the end of the interpreter waits for it, in seconds: what it runs may be in a wait of its own.
_PATIENCE = 5.0


def start(calls: _native.Calls) -> None:
    """Starts the thread, which ends at exit."""
    thread = threading.Thread(target=_run, args=(calls,), name="unisono-python", daemon=True)
    thread.start()
    # After worlds are left, which may have more to tell.
    multiprocessing.util.Finalize(None, _end, (thread,), exitpriority=-999)


def _run(calls: _native.Calls) -> None:
    call: Callable[..., Any] | None
    arguments: Any
    for call, arguments in calls:
        try:
            if call is not None:
                call(*arguments)
        except BaseException as error:  # noqa: BLE001
            _native.unraisable(error, call)
        # Freed now, and not when the next one comes.
        del call, arguments


def _end(thread: threading.Thread) -> None:
    _native.end_calls()
    thread.join(_PATIENCE)
