"""Messages of arrays between two ranks."""

from __future__ import annotations

from typing import Any

from unisono import _checks
from unisono._arrays import ArrayLike, elements, read, write
from unisono._handle import Handle, beginning, nothing


class Messages(Handle):
    """The messages."""

    def send(self, array: ArrayLike, to: int, tag: int = 0, *, timeout: float | None = None) -> None:
        """Sends an array to a rank, which receives it by `recv` with the same tag. Returns when the program may change the array.

        Messages from one rank to another with one tag arrive in the order in which they were sent. Raises `ValueError` or `TypeError` if
        an argument is wrong, and `unisono.Error` if the receiver expects another type or length, ``timeout`` (in seconds; by default the
        group's) passes, two ranks wait for each other, or the group has failed.
        """
        given = read("send", array)
        element = elements("send", given.dtype).element
        to, tag, timeout = _checks.sending("send", to, self.size, tag, timeout)
        view = given.view
        return self._result(self._native.send_async(element, view, to, tag, timeout, view), nothing)

    send_async = beginning(send)

    def recv(
        self, out: ArrayLike, source: int | None = None, tag: int = 0, *, timeout: float | None = None
    ) -> int:
        """Receives an array into ``out`` from rank ``source`` or, if that is ``None``, from any rank. ``out`` must have the sender's type
        and number of elements. Returns the sender. Raises the same errors as `send`. See `recv_tensors` for arrays whose shape only the
        sender knows.
        """
        wanted = write("recv", out, False)
        element = elements("recv", wanted.dtype).element

        def finish(sender: Any) -> int:
            wanted.finish()
            return int(sender)

        source, tag, timeout = _checks.receiving("recv", source, self.size, tag, timeout)
        view = wanted.view
        return self._result(self._native.recv_async(element, view, source, tag, timeout, view), finish)

    recv_async = beginning(recv)

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
        """Sends an array to a rank and at the same time receives one into ``out`` from another rank, or from the same. Returns the sender.

        The two arrays may share memory: the call sends the contents that ``array`` had before. To compute meanwhile, use `recv_async` and
        `send_async` with arrays that share no memory. Raises the same errors as `send`; if an argument is wrong, neither message has begun.
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
