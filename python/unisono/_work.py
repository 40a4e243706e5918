"""Operations under way."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from unisono import _checks, _native

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")


class Once(Generic[T]):
    """A function that only the first thread calls; the other threads wait for its result. If it raises, the next thread calls it again.

    Code that runs during the call, such as a finalizer, may ask for the result too: it gets an error, because it would wait for itself.
    """

    __slots__ = ("_call", "_lock", "_result", "_runs")

    def __init__(self, call: Callable[..., T]) -> None:
        self._call: Callable[..., T] | None = call
        self._result: Any = None
        self._runs = False
        self._lock = threading.RLock()

    @property
    def ended(self) -> bool:
        """True if there is a result."""
        return self._call is None

    def __call__(self, *arguments: Any) -> T:
        """Returns the result. Only the first call uses ``arguments``."""
        with self._lock:
            if self._runs:
                raise _native.Error("Work: code that runs while its result is made waits for that result")
            if self._call is not None:
                self._runs = True
                try:
                    self._result = self._call(*arguments)
                    self._call = None
                finally:
                    self._runs = False
        return self._result  # type: ignore[no-any-return]


class Work(Generic[T]):
    """An operation that this rank has begun.

    It makes progress even if no thread waits for it, and keeps its arrays alive until it has ended. Until then the program must not write
    to the arrays or read the outputs. The results are complete when `done` has returned ``True``, or `wait` has returned.

    In asyncio, a program can await it, also several times. If the task is cancelled, the operation goes on::

        work = group.all_reduce_async(gradients)
        total = await work
    """

    __slots__ = ("_finish", "_native")

    def __init__(self, native: _native.Work, finish: Callable[[Any], T]) -> None:
        self._native = native
        # Makes the result from the return value of the native work.
        self._finish = Once(finish)

    def done(self) -> bool:
        """Returns true if the operation has ended, with or without an error. Never blocks."""
        if not self._native.is_done():
            return False
        if self._native.exception() is None:
            # If unpickling fails, `wait` raises the error.
            with contextlib.suppress(_native.Error):
                self._finish(self._native.wait())
        return True

    def wait(self, timeout: float | None = None) -> T:
        """Waits until the operation has ended, and returns the result of the call without ``_async``.

        Several threads may call it, also several times. ``timeout``, in seconds, limits only this wait: the operation goes on until its
        timeout, which ends the world.

        Raises `unisono.Error` if that call would, and if ``timeout`` has passed.
        """
        return self._finish(self._native.wait(_checks.patience("wait", timeout)))

    def exception(self) -> BaseException | None:
        """Returns the error of an operation that has ended, or ``None`` if it has ended without an error or is under way."""
        return self._native.exception()

    def __await__(self) -> Generator[Any, None, T]:
        if not self._native.is_done():
            # A program that awaits has loaded asyncio. Other programs need not load it.
            import asyncio

            loop = asyncio.get_running_loop()
            future: asyncio.Future[None] = loop.create_future()

            def wake(_: _native.Work) -> None:
                # A thread of the library runs this.
                try:
                    loop.call_soon_threadsafe(_resolve, future)
                except RuntimeError:
                    # The loop is closed, so no task waits any more.
                    pass

            self._native.on_end(wake)
            yield from future
        return self.wait()

    def __repr__(self) -> str:
        if not self._native.is_done():
            state = "under way"
        else:
            error = self._native.exception()
            state = "done" if error is None else f"failed: {error}"
        return f"<unisono.Work {state}>"


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
