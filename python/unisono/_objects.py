"""Calls of objects, whose sizes only their owners know.

Plain values travel as they are, and a program in Rust can take them too. Any other is pickled, if the call or ``init`` asks for it:
unpickling runs whatever the sender wrote, so it is for ranks that trust each other.
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
        """Returns rank ``root``'s value on every rank; ``value`` is not used on the others.

        ``None``, ``bool``, ``int``, ``float``, ``complex``, ``str``, ``bytes``, ``bytearray``, numpy's scalars, and lists, tuples, sets,
        frozensets and dicts of these travel as they are: every rank, the root too, gets a value of the same types. Others, also of classes
        that are derived from these, need ``pickle=True``, on all ranks alike: see docs/python.md for why it is not the default.
        ``pickle=None`` is as ``init`` was told.

        A value that cannot be sent is a `unisono.Error` on all ranks that should have received it, and the group still works. Otherwise
        raises as `all_reduce`::

            settings = group.broadcast_object({"rate": 0.1} if group.rank == 0 else None)
        """
        call = "broadcast_object"
        root, timeout = _checks.rooted(call, root, self.size, timeout)
        pickled = self._pickled(pickle)
        given = _packed(value, pickled) if self.rank == root else None
        # The root gets what arrives at the others, which a change to the value meanwhile would not change.
        finish = lambda got: self._unpacked(call, got, root, pickled)
        return self._result(_native.broadcast_object(self._native, given, root, timeout), finish)

    broadcast_object_async = beginning(broadcast_object)

    def gather_object(
        self, value: Any, root: int = 0, *, pickle: bool | None = None, timeout: float | None = None
    ) -> list[Any] | None:
        """Returns the list of all ranks' values, in the order of ranks, on rank ``root``, and ``None`` on the others. As
        `broadcast_object`."""
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
        """Returns the list of all ranks' values, in the order of ranks, on every rank. As `broadcast_object`."""
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
        """Returns the value of rank ``root``'s ``values`` that belongs to this rank: there is one for each. As `broadcast_object`."""
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
        """Sends a value to a rank, which receives it by `recv_object` with the same tag. As `broadcast_object`."""
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
        """Receives a value from a rank or, if ``source`` is ``None``, from any. Returns it and its sender. As `broadcast_object`."""
        call = "recv_object"
        source, tag, timeout = _checks.receiving(call, source, self.size, tag, timeout)
        pickled = self._pickled(pickle)
        finish = lambda got: (self._unpacked(call, got[0], got[1], pickled), got[1])
        return self._result(_native.recv_object(self._native, source, tag, timeout), finish)

    recv_object_async = beginning(recv_object)

    def _pickled(self, pickle: bool | None) -> bool:
        return self._pickle if pickle is None else pickle

    def _unpacked(self, call: str, got: Any, rank: int, pickled: bool) -> Any:
        """The value of what has arrived. Ranks that do not ask for pickle alike differ in their calls: that ends the world."""
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
    """What travels for a value. If it cannot be made, all ranks of the call are to be told."""
    if not pickled:
        return value
    try:
        return _native.Pickled(_pickle.dumps(value, _pickle.HIGHEST_PROTOCOL))
    except Exception as error:  # noqa: BLE001
        return _native.Unsendable(f"it cannot be pickled: {type(error).__name__}: {error}")
