"""The threads that run code of Python's for the library: they call back, log, and free what operations have kept alive.

They are threads of Python's, and call and free without a native frame below: wherever they are when the interpreter ends, that can end
them. The end of a thread with a native frame aborts the process.
"""

import contextlib
import multiprocessing.util
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from unisono import _native

# The kinds of calls. Those of the first kind wait for nothing and are made in their order. What callbacks of a program do is unknown:
# they may wait for other operations, which end only if their own calls are made. Those of operations that were begun outside of
# callbacks are made one after the other, since what they begin must come in the same order on all ranks; those of operations that a
# callback has begun are made at once, since it may wait for them.
SOON, IN_ORDER, NESTED = range(3)

# How long the end of the interpreter waits for them, in seconds: what they run may itself be waiting.
_PATIENCE = 5.0

# The most threads that have nothing to do.
_SPARE = 2

# After how many seconds a callback that waits for nothing that it has begun is taken to wait for one of those behind it.
_LATE = 1.0

_Call = tuple[Callable[..., Any], Any]


def start(calls: "_native.Calls") -> None:
    """Starts the first thread; all end at exit."""
    global _threads
    _threads = _Threads(calls)
    _threads.begin()
    # After worlds are left, which may have more to tell.
    multiprocessing.util.Finalize(None, _threads.end, exitpriority=-999)


def callback(call: Callable[[], None]) -> tuple[Callable[[], None], int]:
    """What to call for a callback of an operation that this thread has begun, and which kind of call it is."""
    if not getattr(_local, "calls_back", False) or _threads is None:
        return call, IN_ORDER
    return _threads.nested(call), NESTED


class _Threads:
    """Threads that make the calls.

    One has the turn: it takes the calls, and makes those of the kind `SOON`. It gives the turn away before it makes another, and sees
    to it that there is a thread to take it.
    """

    def __init__(self, calls: "_native.Calls") -> None:
        self._calls = calls
        self._turn = threading.Lock()
        # What follows.
        self._lock = threading.Lock()
        self._all: set[threading.Thread] = set()
        self._spare = 0
        # The thread that makes calls in order, since when the present one runs, and those that wait for it.
        self._caller: threading.Thread | None = None
        self._since = 0.0
        self._queue: deque[_Call] = deque()
        self._watched = False
        # How many operations that callbacks have begun have not ended.
        self._nested = 0

    def begin(self) -> None:
        """Starts a thread."""
        thread = threading.Thread(target=self._run, name="unisono-python", daemon=True)
        thread.start()
        with self._lock:
            self._all.add(thread)
            self._spare += 1

    def end(self) -> None:
        """Has all threads do what is left to do, and end."""
        _native.end_calls()
        until = time.monotonic() + _PATIENCE
        for thread in list(self._all):
            thread.join(max(0.0, until - time.monotonic()))

    def nested(self, call: Callable[[], None]) -> Callable[[], None]:
        """The call of an operation that a callback has begun."""
        with self._lock:
            self._nested += 1

        def ended() -> None:
            with self._lock:
                self._nested -= 1
            call()

        return ended

    def _run(self) -> None:
        while True:
            with self._turn:
                taken = self._take()
            if taken is None:
                return
            _local.calls_back = True
            taken()
            # Freed now, and not when the next one comes.
            del taken
            _local.calls_back = False
            with self._lock:
                if self._spare >= _SPARE:
                    self._all.discard(threading.current_thread())
                    return
                self._spare += 1

    def _take(self) -> Callable[[], None] | None:
        """Makes calls until one comes that may wait, and returns what this thread does next; `None` at the end."""
        call: Any
        arguments: Any
        for call, arguments, kind in self._calls:
            if kind == SOON:
                _make(call, arguments)
                del call, arguments
                continue
            with self._lock:
                if kind == IN_ORDER:
                    self._queue.append((call, arguments))
                    del call, arguments
                    if self._caller is not None:
                        self._watch()
                        continue
                    self._caller = threading.current_thread()
                self._spare -= 1
                last = self._spare == 0
            if last:
                # Where the interpreter ends there are no more threads.
                with contextlib.suppress(RuntimeError):
                    self.begin()
            return self._make_in_order if kind == IN_ORDER else partial(_make, call, arguments)
        # For the next thread.
        _native.end_calls()
        return None

    def _make_in_order(self) -> None:
        """Makes the calls that wait, unless another thread takes this one's place."""
        while True:
            with self._lock:
                if self._caller is not threading.current_thread():
                    return
                if not self._queue:
                    self._caller = None
                    return
                call = self._queue.popleft()
                self._since = time.monotonic()
            _make(*call)
            del call

    def _watch(self) -> None:
        """Begins to watch the thread that makes calls in order; with the lock."""
        if not self._watched:
            self._watched = True
            with contextlib.suppress(RuntimeError):
                threading.Thread(target=self._relieve, name="unisono-relief", daemon=True).start()

    def _relieve(self) -> None:
        """Takes the place of the thread that makes calls in order if that may wait for one of those behind it."""
        while True:
            time.sleep(_LATE / 4)
            with self._lock:
                if not self._queue:
                    self._watched = False
                    return
                if self._nested == 0 and time.monotonic() - self._since >= _LATE:
                    self._watched = False
                    self._caller = threading.current_thread()
                    self._since = time.monotonic()
                    if len(self._queue) > 1:
                        self._watch()
                    break
        _local.calls_back = True
        self._make_in_order()


def _make(call: Callable[..., Any] | None, arguments: Any) -> None:
    try:
        if call is not None:
            call(*arguments)
    except BaseException as error:  # noqa: BLE001
        _native.unraisable(error, call)


_threads: _Threads | None = None
# Whether a thread makes a call that may wait.
_local = threading.local()
