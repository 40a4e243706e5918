"""Calls of objects, whose sizes only their owners know.

Plain values are sent in the encoding of the Rust library, so a program in Rust can receive them too. Other values are pickled, if the call
or ``init`` asks for it. Unpickling runs code that the sender chose, so ranks must trust each other.
"""

from __future__ import annotations

import pickle as _pickle
from collections.abc import Callable, Sequence
from typing import Any

from unisono import _checks, _native
from unisono._handle import Handle, beginning, nothing


class Objects(Handle):
    """The calls of objects."""

    def broadcast_object(
        self, value: Any = None, root: int = 0, *, pickle: bool | None = None, timeout: float | None = None
    ) -> Any:
        """Returns rank ``root``'s value on every rank. The other ranks do not use ``value``.

        ``None``, ``bool``, ``int``, ``float``, ``complex``, ``str``, ``bytes``, ``bytearray``, numpy's scalars, and lists, tuples, sets,
        frozensets and dicts of these are plain: every rank, the root too, gets a value of the same types. Other values, also of classes
        derived from these, need ``pickle=True`` on all ranks; docs/python.md says why it is not the default. ``pickle=None`` means the
        value that ``init`` got.

        A value that cannot be sent is a `unisono.Error` on all ranks that should have received it, and the group still works. Otherwise
        the call raises the same errors as `all_reduce`::

            settings = group.broadcast_object({"rate": 0.1} if group.rank == 0 else None)
        """
        call = "broadcast_object"
        root, timeout = _checks.rooted(call, root, self.size, timeout)
        pickled = self._pickled(pickle)
        given = _packed(value, pickled) if self.rank == root else None
        # The root decodes the same bytes as the other ranks, so a later change to its value does not matter.
        finish = lambda got: self._unpacked(call, got, root, pickled)
        return self._result(_native.broadcast_object(self._native, given, root, timeout), finish)

    broadcast_object_async = beginning(broadcast_object)

    def gather_object(
        self, value: Any, root: int = 0, *, pickle: bool | None = None, timeout: float | None = None
    ) -> list[Any] | None:
        """Returns the list of all ranks' values, in the order of ranks, on rank ``root``, and ``None`` on the other ranks. See
        `broadcast_object` for values and errors."""
        call = "gather_object"
        root, timeout = _checks.rooted(call, root, self.size, timeout)
        pickled = self._pickled(pickle)
        given = _packed(value, pickled)
        native = _native.gather_object(self._native, given, root, timeout)
        return self._result(native, self._lister(call, pickled))

    gather_object_async = beginning(gather_object)

    def all_gather_object(
        self, value: Any, *, pickle: bool | None = None, timeout: float | None = None
    ) -> list[Any]:
        """Returns the list of all ranks' values, in the order of ranks, on every rank. See `broadcast_object` for values and errors."""
        call = "all_gather_object"
        timeout = _checks.timeout(call, timeout)
        pickled = self._pickled(pickle)
        given = _packed(value, pickled)
        native = _native.all_gather_object(self._native, given, timeout)
        return self._result(native, self._lister(call, pickled))

    all_gather_object_async = beginning(all_gather_object)

    def scatter_object(
        self,
        values: Sequence[Any] | None = None,
        root: int = 0,
        *,
        pickle: bool | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Returns this rank's value from rank ``root``'s ``values``, which has one value for each rank. See `broadcast_object` for values
        and errors."""
        call = "scatter_object"
        root, timeout = _checks.rooted(call, root, self.size, timeout)
        pickled = self._pickled(pickle)
        given = None
        if self.rank == root and values is not None:
            given = [_packed(value, pickled) for value in values]
        finish = lambda got: self._unpacked(call, got, root, pickled)
        return self._result(_native.scatter_object(self._native, given, root, timeout), finish)

    scatter_object_async = beginning(scatter_object)

    def send_object(
        self, value: Any, to: int, tag: int = 0, *, pickle: bool | None = None, timeout: float | None = None
    ) -> None:
        """Sends a value to a rank, which receives it by `recv_object` with the same tag. See `broadcast_object` for values and errors."""
        call = "send_object"
        to, tag, timeout = _checks.sending(call, to, self.size, tag, timeout)
        given = _packed(value, self._pickled(pickle))
        return self._result(_native.send_object(self._native, given, to, tag, timeout), nothing)

    send_object_async = beginning(send_object)

    def recv_object(
        self,
        source: int | None = None,
        tag: int = 0,
        *,
        pickle: bool | None = None,
        timeout: float | None = None,
    ) -> tuple[Any, int]:
        """Receives a value from rank ``source`` or, if that is ``None``, from any rank. Returns the value and its sender. See
        `broadcast_object` for values and errors."""
        call = "recv_object"
        source, tag, timeout = _checks.receiving(call, source, self.size, tag, timeout)
        pickled = self._pickled(pickle)
        finish = lambda got: (self._unpacked(call, got[0], got[1], pickled), got[1])
        return self._result(_native.recv_object(self._native, source, tag, timeout), finish)

    recv_object_async = beginning(recv_object)

    def _pickled(self, pickle: bool | None) -> bool:
        return self._pickle if pickle is None else pickle

    def _unpacked(self, call: str, got: Any, rank: int, pickled: bool) -> Any:
        """Decodes a received value. If some ranks ask for pickle and others do not, their calls differ, and the world ends."""
        if isinstance(got, _native.Pickled) != pickled:
            how = ("without pickle", "with pickle")
            raise _native.Error(
                self._native.abort(
                    f"{call}: rank {rank} calls it {how[not pickled]}, rank {self.rank} {how[pickled]}; all ranks must ask "
                    "for pickle alike"
                )
            )
        if not pickled:
            return got
        try:
            return _pickle.loads(got.data)
        except Exception as error:
            raise _native.Error(
                f"{call}: the object of rank {rank} cannot be unpickled: {type(error).__name__}: {error}"
            ) from error

    def _lister(self, call: str, pickled: bool) -> Callable[[Any], Any]:
        def opened(got: list[Any] | None) -> list[Any] | None:
            if got is None:
                return got
            return [self._unpacked(call, each, rank, pickled) for rank, each in enumerate(got)]

        return opened


def _packed(value: Any, pickled: bool) -> Any:
    """The form in which a value is sent. If a value cannot be sent, this is an `Unsendable`, with the reason for all ranks of the call."""
    if not pickled:
        return value
    try:
        return _native.Pickled(_pickle.dumps(value, _pickle.HIGHEST_PROTOCOL))
    except Exception as error:  # noqa: BLE001
        return _native.Unsendable(f"it cannot be pickled: {type(error).__name__}: {error}")
