"""PyTorch's works: operations under way."""

import contextlib
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import Work as _Work

from unisono._finisher import SOON, callback
from unisono._work import Once

# Torch's value for the default timeout.
_DEFAULT = timedelta(0)


class Work(_Work):
    """An operation under way, or several that end together."""

    # A function that runs after the operations have ended and before the program sees the results; and the error that it has raised.
    _finish: Once | None = None
    _raised: BaseException | None = None
    # The future that the program asked for, and the function that completes it once.
    _future: torch.futures.Future | None = None
    _resolve: Callable[[], None] | None = None

    def __init__(
        self, natives: Sequence[Any], outputs: Any, finish: Callable[[], None] | None = None
    ) -> None:
        _Work.__init__(self)
        self._natives = natives
        self._outputs = outputs
        if finish is not None:
            self._finish = Once(self._guarded(finish))
            # Run it also if no thread waits.
            self._on_end(lambda: None)

    def wait(self, timeout: timedelta = _DEFAULT) -> bool:
        """Waits until the operation has ended; `timeout` limits this wait, not the operation."""
        seconds = timeout.total_seconds() if timeout else None
        try:
            for native in self._natives:
                native.wait(seconds if seconds is None or seconds > 0 else None)
            if self._finish is not None:
                self._complete()
        finally:
            if self._future is not None:
                self._settle()
        if self._raised is not None:
            raise self._raised
        return True

    def _complete(self) -> None:
        if self._finish is not None:
            self._finish()

    def _guarded(self, finish: Callable[[], None]) -> Callable[[], None]:
        def guarded() -> None:
            try:
                finish()
            except Exception as error:  # noqa: BLE001
                self._raised = error

        return guarded

    def _on_end(self, call: Callable[[], None], kind: int = SOON) -> None:
        """Calls `call`, a call of this kind, when all operations have ended and the results are complete."""
        waiting = iter(self._natives)

        def go_on(_: Any = None) -> None:
            native = next(waiting, None)
            if native is not None:
                native.on_end(go_on, kind)
                return
            if self._finish is not None and self.exception() is None:
                self._complete()
            call()

        go_on()

    def is_completed(self) -> bool:
        """Returns true if the operation has ended, with or without an error."""
        return all(native.is_done() for native in self._natives) and (
            self._finish is None or self._finish.ended
        )

    def is_success(self) -> bool:
        """Returns true if it has ended without an error."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        """The error of an operation that has ended."""
        errors = (native.exception() for native in self._natives)
        return next((error for error in errors if error is not None), self._raised)

    def result(self) -> list[torch.Tensor]:
        """The outputs of an operation that has ended."""
        return self._outputs

    def synchronize(self) -> None:
        """Waits until the operation has ended."""
        self.wait()

    def get_future(self) -> torch.futures.Future:
        """The future of the outputs, the same at every call. It is done when `wait` has returned; if no thread waits, a thread of the library
        completes it, and runs the callbacks of `then`."""
        if self._future is None:
            self._promise()
        return self._future  # type: ignore[return-value]

    def _promise(self) -> None:
        """Makes the future."""
        staged = [native for native in self._natives if getattr(native, "device", None) is not None]
        device = staged[0].device if staged else None
        ended: torch.futures.Future = torch.futures.Future() if device is None else device.future()
        # The thread that takes this completes the future.
        due = [ended]

        def resolve() -> None:
            try:
                due.pop()
            except IndexError:
                return
            if self.exception() is not None:
                ended.set_result([])
            elif device is None:
                ended.set_result(self._outputs)
            else:
                device.resolve(ended, self._outputs, [native.event for native in staged if native.event])
            self._resolve = None

        def outputs(_: torch.futures.Future) -> list[torch.Tensor]:
            error = self.exception()
            if error is not None:
                raise error
            return self._outputs

        # For C++, an exception raised in `then` is an error, but an exception that is set on a future is a value.
        future = ended.then(outputs)
        self._resolve, self._future = resolve, future
        if self.is_completed():
            resolve()
        else:
            self._on_end(*callback(resolve))

    def _settle(self) -> None:
        """Completes the future of an operation that has ended, or waits for the thread that does."""
        resolve, future = self._resolve, self._future
        if resolve is not None and future is not None and self.is_completed():
            resolve()
            # The work has the same error.
            with contextlib.suppress(Exception):
                future.wait()

    def source_rank(self) -> int:
        """The sender of a received message."""
        return self._natives[0].wait()

    _source_rank = source_rank


class Done(Work):
    """An operation that has ended without an error."""

    def __init__(self, outputs: Any = ()) -> None:
        super().__init__((), outputs)

    def wait(self, timeout: timedelta = _DEFAULT) -> bool:
        """Returns at once."""
        return True
