"""Messages of arrays between two ranks."""

from __future__ import annotations

from typing import Any

from unisono import _native
from unisono._arrays import ArrayLike, elements, read, write
from unisono._work import Work


class Messages:
    """The messages. A class that mixes this in sets the attributes."""

    _native: _native.Group
    size: int

    def send(self, array: ArrayLike, to: int, tag: int = 0, *, timeout: float | None = None) -> None:
        """Sends an array to a rank, which receives it by `recv` with the same tag; returns when the array may be changed.

        Messages between two ranks with one tag arrive in the order in which they were sent. Raises `ValueError` or `TypeError` if an
        argument is wrong, and `unisono.Error` if the receiver takes another type or length, ``timeout`` (in seconds; by default the
        group's) passes, two ranks wait for each other, or the group has failed.
        """
        self.send_async(array, to, tag, timeout=timeout).wait()

    def send_async(
        self, array: ArrayLike, to: int, tag: int = 0, *, timeout: float | None = None
    ) -> Work[None]:
        """Begins a `send`."""
        given = read("send", array)
        dtype = elements("send", given.dtype).dtype
        _check("send", to, tag)
        native = self._native.send_async(dtype, given.view, to, tag, timeout, given.view)
        return Work(native, lambda _: None)

    def recv(
        self, out: ArrayLike, source: int | None = None, tag: int = 0, *, timeout: float | None = None
    ) -> int:
        """Receives an array into ``out``, which has the sender's type and number of elements: from a rank or, if ``source`` is ``None``,
        from any. Returns the sender. Raises as `send`; see `recv_tensors` for arrays whose shape only the sender knows.
        """
        return self.recv_async(out, source, tag, timeout=timeout).wait()

    def recv_async(
        self, out: ArrayLike, source: int | None = None, tag: int = 0, *, timeout: float | None = None
    ) -> Work[int]:
        """Begins a `recv`."""
        wanted = write("recv", out, False)
        dtype = elements("recv", wanted.dtype).dtype

        def finish(sender: Any) -> int:
            wanted.finish()
            return int(sender)

        _check("recv", source, tag)
        native = self._native.recv_async(dtype, wanted.view, source, tag, timeout, wanted.view)
        return Work(native, finish)

    def send_recv(
        self,
        array: ArrayLike,
        to: int,
        out: ArrayLike,
        source: int | None = None,
        tag: int = 0,
        *,
        timeout: float | None = None,
    ) -> int:
        """Sends an array to one rank and receives one into ``out`` from another, or the same, at the same time. Returns the sender.

        To go on meanwhile, begin a `recv_async` and a `send_async`.
        """
        _check("send_recv", to, tag)
        if to >= self.size:
            # Before anything is received.
            raise ValueError(f"send_recv: there is no rank {to}; there are ranks 0 to {self.size - 1}")
        receiving = self.recv_async(out, source, tag, timeout=timeout)
        self.send_async(array, to, tag, timeout=timeout).wait()
        return receiving.wait()


def _check(call: str, rank: int | None, tag: int) -> None:
    if rank is not None and rank < 0:
        raise ValueError(f"{call}: there is no rank {rank}; ranks are counted from 0")
    if not 0 <= tag < 1 << 32:
        raise ValueError(f"{call}: the tag is {tag}; it must be from 0 to {(1 << 32) - 1}")
