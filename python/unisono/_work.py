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
    """A function that is called once, whichever thread comes first; the others wait for its end. If it raises, it is called again.

    What runs meanwhile, such as a finalizer, may ask for the result too: that is an error, not a wait for itself.
    """

    __slots__ = ("_call", "_lock", "_result", "_runs")

    def __init__(self, call: Callable[..., T]) -> None:
        self._call: Callable[..., T] | None = call
        self._result: Any = None
        self._runs = False
        self._lock = threading.RLock()

    @property
    def ended(self) -> bool:
        """Whether there is a result."""
        return self._call is None

    def __call__(self, *arguments: Any) -> T:
        """The result; ``arguments`` count for the first call only."""
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

    It advances without being waited for, and keeps its arrays alive until it has ended. Until then nobody may write to the arrays,
    or read its outputs. The results are in their places when `done` has returned ``True``, or `wait` has returned.

    It can be awaited in asyncio, as often as wanted. A task that is cancelled meanwhile leaves the operation as it is::

        work = group.all_reduce_async(gradients)
        total = await work
    """

    __slots__ = ("_finish", "_native")

    def __init__(self, native: _native.Work, finish: Callable[[Any], T]) -> None:
        self._native = native
        # Makes the result of what the native work returns.
        self._finish = Once(finish)

    def done(self) -> bool:
        """Whether the operation has ended, well or not. Never blocks."""
        if not self._native.is_done():
            return False
        if self._native.exception() is None:
            # What cannot be unpickled is for `wait` to raise.
            with contextlib.suppress(_native.Error):
                self._finish(self._native.wait())
        return True

    def wait(self, timeout: float | None = None) -> T:
        """Waits until the operation has ended, and returns what the call without ``_async`` returns.

        May be called again, and by several threads. ``timeout``, in seconds, bounds this wait only: the operation goes on, and its own
        timeout ends the world.

        Raises `unisono.Error` as that call does, and when ``timeout`` has passed.
        """
        return self._finish(self._native.wait(_checks.patience("wait", timeout)))

    def exception(self) -> BaseException | None:
        """The error of an operation that has ended; ``None`` if it has ended well or goes on."""
        return self._native.exception()

    def __await__(self) -> Generator[Any, None, T]:
        if not self._native.is_done():
            # A program that awaits has loaded asyncio; the others need not.
            import asyncio

            loop = asyncio.get_running_loop()
            future: asyncio.Future[None] = loop.create_future()

            def wake(_: _native.Work) -> None:
                # On a thread of the library.
                try:
                    loop.call_soon_threadsafe(_resolve, future)
                except RuntimeError:
                    # The loop is closed, and nobody waits any more.
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
