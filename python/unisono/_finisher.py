"""The threads that run Python code for the library: they call callbacks, log, and free the objects that operations have kept alive.

They are threads of Python, without a native frame below the calls. So the interpreter can end them at any point when it ends. The end of
a thread with a native frame aborts the process.
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

# The kinds of calls. Calls of the first kind wait for nothing, and run in their order. The other two are callbacks of the program, which
# may wait for other operations, and these end only when their calls have run. Callbacks of operations that were begun outside of
# callbacks run one after the other, because the operations that they begin must have the same order on all ranks. Callbacks of operations
# that a callback has begun run at once, because that callback may wait for them.
SOON, IN_ORDER, NESTED = range(3)

# The end of the interpreter waits this many seconds for the threads, because the code that they run may itself wait.
_PATIENCE = 5.0

# The largest number of idle threads.
_SPARE = 2

# If a callback runs for this many seconds and waits for no operation that it has begun, it is assumed to wait for a callback behind it.
_LATE = 1.0

_Call = tuple[Callable[..., Any], Any]


def start(calls: "_native.Calls") -> None:
    """Starts the first thread. All threads end at exit."""
    global _threads
    _threads = _Threads(calls)
    _threads.begin()
    # The threads end after the process has left its worlds, because leaving may add calls.
    multiprocessing.util.Finalize(None, _threads.end, exitpriority=-999)


def callback(call: Callable[[], None]) -> tuple[Callable[[], None], int]:
    """The function to call for a callback of an operation that this thread has begun, and the kind of this call."""
    if not getattr(_local, "calls_back", False) or _threads is None:
        return call, IN_ORDER
    return _threads.nested(call), NESTED


class _Threads:
    """Threads that make the calls.

    One thread has the turn: it takes the calls, and makes those of the kind `SOON`. Before it makes a call of another kind, it gives the
    turn away, and starts a thread if no idle one can take it.
    """

    def __init__(self, calls: "_native.Calls") -> None:
        self._calls = calls
        self._turn = threading.Lock()
        # This lock protects the fields below.
        self._lock = threading.Lock()
        self._all: set[threading.Thread] = set()
        self._spare = 0
        # The thread that makes calls in order, the time when its present call began, and the calls that wait for it.
        self._caller: threading.Thread | None = None
        self._since = 0.0
        self._queue: deque[_Call] = deque()
        self._watched = False
        # The number of operations under way that callbacks have begun.
        self._nested = 0

    def begin(self) -> None:
        """Starts a thread."""
        thread = threading.Thread(target=self._run, name="unisono-python", daemon=True)
        thread.start()
        with self._lock:
            self._all.add(thread)
            self._spare += 1

    def end(self) -> None:
        """Makes all threads finish the remaining calls, and end."""
        _native.end_calls()
        until = time.monotonic() + _PATIENCE
        for thread in list(self._all):
            thread.join(max(0.0, until - time.monotonic()))

    def nested(self, call: Callable[[], None]) -> Callable[[], None]:
        """Returns the call of an operation that a callback has begun; it counts the operation."""
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
            # Free the call now, and not when the next one comes.
            del taken
            _local.calls_back = False
            with self._lock:
                if self._spare >= _SPARE:
                    self._all.discard(threading.current_thread())
                    return
                self._spare += 1

    def _take(self) -> Callable[[], None] | None:
        """Makes calls until one comes that may wait, and returns the function that this thread runs next; `None` at the end."""
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
                # When the interpreter ends, it starts no more threads.
                with contextlib.suppress(RuntimeError):
                    self.begin()
            return self._make_in_order if kind == IN_ORDER else partial(_make, call, arguments)
        # The next thread ends, too.
        _native.end_calls()
        return None

    def _make_in_order(self) -> None:
        """Makes the calls in the queue, until another thread takes this one's place."""
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
        """Begins to watch the thread that makes calls in order. The caller holds the lock."""
        if not self._watched:
            self._watched = True
            with contextlib.suppress(RuntimeError):
                threading.Thread(target=self._relieve, name="unisono-relief", daemon=True).start()

    def _relieve(self) -> None:
        """Takes the place of the thread that makes calls in order if its call may wait for a call behind it."""
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
# True for a thread that makes a call that may wait.
_local = threading.local()
