"""Messages of arrays between two ranks."""

from __future__ import annotations

from typing import Any

from unisono import _checks, _native
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
        element = elements("send", given.dtype).element
        to, tag = _checks.rank("send", "to", to, self.size), _checks.tag("send", tag)
        timeout = _checks.timeout("send", timeout)
        native = self._native.send_async(element, given.view, to, tag, timeout, given.view)
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
        element = elements("recv", wanted.dtype).element

        def finish(sender: Any) -> int:
            wanted.finish()
            return int(sender)

        source, tag = _checks.source("recv", source, self.size), _checks.tag("recv", tag)
        timeout = _checks.timeout("recv", timeout)
        native = self._native.recv_async(element, wanted.view, source, tag, timeout, wanted.view)
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

        The two may share memory: what is sent is the array as it was before. To go on meanwhile, begin a `recv_async` and a
        `send_async`, of arrays that share none. Raises as `send`; if one of the two is wrong, neither has begun.
        """
        call = "send_recv"
        to, source = _checks.rank(call, "to", to, self.size), _checks.source(call, source, self.size)
        tag, timeout = _checks.tag(call, tag), _checks.timeout(call, timeout)
        given, wanted = read(call, array), write(call, out, False)
        sent, received = ((elements(call, each.dtype).element, each.view) for each in (given, wanted))
        keep = (given.view, wanted.view)
        sending, receiving = self._native.send_recv_async(sent, to, received, source, tag, timeout, keep)
        sending.wait()
        sender = int(receiving.wait())
        wanted.finish()
        return sender
