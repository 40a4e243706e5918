"""Calls of tensors whose types and shapes only their owners know."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from unisono import _checks, _native
from unisono._arrays import Array, ArrayLike, described, taken
from unisono._handle import Handle, beginning, nothing


class Tensors(Handle):
    """The calls of tensors."""

    # Lists of tensors.

    def send_tensors(
        self, arrays: Iterable[ArrayLike], to: int, tag: int = 0, *, timeout: float | None = None
    ) -> None:
        """Sends arrays of any shapes to a rank, which receives them by `recv_tensors` with the same tag.

        The arrays must have one of the twelve numeric types of 8 to 64 bits that the library reduces; another type is a `TypeError`. The
        library copies the arrays once, and the program may change them when `send_tensors_async` returns. Otherwise this call works like
        `send`::

            if group.rank == 0:
                group.send_tensors([weights, biases], to=1)
            elif group.rank == 1:
                (weights, biases), sender = group.recv_tensors()
        """
        call = "send_tensors"
        to, tag, timeout = _checks.sending(call, to, self.size, tag, timeout)
        given = [described(call, array) for array in arrays]
        return self._result(_native.send_tensors(self._native, given, to, tag, timeout), nothing)

    send_tensors_async = beginning(send_tensors)

    def recv_tensors(
        self, source: int | None = None, tag: int = 0, *, timeout: float | None = None
    ) -> tuple[list[Array], int]:
        """Receives a list of arrays from rank ``source`` or, if that is ``None``, from any rank. Returns the list and the sender."""
        call = "recv_tensors"
        source, tag, timeout = _checks.receiving(call, source, self.size, tag, timeout)
        finish = lambda got: (_all_taken(got[0]), got[1])
        return self._result(_native.recv_tensors(self._native, source, tag, timeout), finish)

    recv_tensors_async = beginning(recv_tensors)

    def broadcast_tensors(
        self, arrays: Iterable[ArrayLike] | None = None, root: int = 0, *, timeout: float | None = None
    ) -> list[Array]:
        """Returns rank ``root``'s list of arrays, of any shapes, on every rank. The other ranks do not use ``arrays``. See `send_tensors`
        for types and errors."""
        call = "broadcast_tensors"
        root, timeout = _checks.rooted(call, root, self.size, timeout)
        given = None
        if self.rank == root and arrays is not None:
            given = [described(call, array) for array in arrays]
        return self._result(_native.broadcast_tensors(self._native, given, root, timeout), _all_taken)

    broadcast_tensors_async = beginning(broadcast_tensors)

    def gather_tensors(
        self, arrays: Iterable[ArrayLike], root: int = 0, *, timeout: float | None = None
    ) -> list[list[Array]] | None:
        """Returns the lists of arrays of all ranks, in the order of ranks, on rank ``root``, and ``None`` on the other ranks. The lists may
        differ in length, and the arrays in type and shape. See `send_tensors` for types and errors."""
        call = "gather_tensors"
        root, timeout = _checks.rooted(call, root, self.size, timeout)
        given = [described(call, array) for array in arrays]
        return self._result(_native.gather_tensors(self._native, given, root, timeout), _lists)

    gather_tensors_async = beginning(gather_tensors)

    def all_gather_tensors(
        self, arrays: Iterable[ArrayLike], *, timeout: float | None = None
    ) -> list[list[Array]]:
        """Works like `gather_tensors`, but every rank gets the result."""
        call = "all_gather_tensors"
        timeout = _checks.timeout(call, timeout)
        given = [described(call, array) for array in arrays]
        return self._result(_native.all_gather_tensors(self._native, given, timeout), _lists)

    all_gather_tensors_async = beginning(all_gather_tensors)

    # One tensor, whose parts are on the ranks.

    def scatter_tensor(
        self,
        array: ArrayLike | None = None,
        root: int = 0,
        *,
        axis: int = 0,
        indices: Sequence[int] | None = None,
        blocks: tuple[int, int] | None = None,
        timeout: float | None = None,
    ) -> Array:
        """Splits rank ``root``'s array and returns this rank's part. The other ranks need not know type and shape.

        By default the array is split along ``axis`` (a negative axis counts from the last), as ``numpy.array_split`` does: into parts whose
        lengths differ by at most 1. With ``indices``, it is split before each of them; there must be one index fewer than ranks. With
        ``blocks`` (rows, columns), a matrix is split into a grid of blocks, row by row. See `send_tensors` for types and errors.
        """
        call = "scatter_tensor"
        root, timeout = _checks.rooted(call, root, self.size, timeout)
        given = described(call, array) if self.rank == root and array is not None else None
        split = _split(call, given, axis, indices, blocks)
        return self._result(_native.scatter_tensor(self._native, given, split, root, timeout), taken)

    scatter_tensor_async = beginning(scatter_tensor)

    def gather_tensor(
        self,
        part: ArrayLike,
        root: int = 0,
        *,
        axis: int = 0,
        blocks: tuple[int, int] | None = None,
        timeout: float | None = None,
    ) -> Array | None:
        """Joins the parts of all ranks, in the order of ranks, into one array on rank ``root``. The other ranks get ``None``.

        By default the parts are concatenated along ``axis``, in which they may differ in length. With ``blocks`` (rows, columns), they are
        the blocks of a matrix, row by row. Raises `ValueError` on all ranks if the parts do not fit together; the group still works. See
        `send_tensors` for types and other errors.
        """
        call = "gather_tensor"
        root, timeout = _checks.rooted(call, root, self.size, timeout)
        given = described(call, part)
        split = _split(call, given, axis, None, blocks)
        finish = lambda got: None if got is None else taken(got)
        return self._result(_native.gather_tensor(self._native, given, split, root, timeout), finish)

    gather_tensor_async = beginning(gather_tensor)

    def all_gather_tensor(
        self,
        part: ArrayLike,
        *,
        axis: int = 0,
        blocks: tuple[int, int] | None = None,
        timeout: float | None = None,
    ) -> Array:
        """Works like `gather_tensor`, but every rank gets the result::

        everything = group.all_gather_tensor(numpy.arange(group.rank))
        """
        call = "all_gather_tensor"
        timeout = _checks.timeout(call, timeout)
        given = described(call, part)
        split = _split(call, given, axis, None, blocks)
        return self._result(_native.all_gather_tensor(self._native, given, split, timeout), taken)

    all_gather_tensor_async = beginning(all_gather_tensor)


def _all_taken(got: list[Any]) -> list[Array]:
    return [taken(each) for each in got]


def _lists(got: list[list[Any]] | None) -> Any:
    return None if got is None else [_all_taken(each) for each in got]


def _split(
    call: str,
    given: tuple[int, tuple[int, ...], Any] | None,
    axis: int,
    indices: Sequence[int] | None,
    blocks: tuple[int, int] | None,
) -> _native.Split:
    axis = _checks.whole(call, "axis", axis, -_checks.SIGNED)
    if axis < 0:
        # Only a rank that has an array uses the axis.
        dimensions = -axis if given is None else len(given[1])
        if axis < -dimensions:
            raise ValueError(
                f"{call}: axis is {axis}, and the array has {dimensions} dimension{'s' * (dimensions != 1)}"
            )
        axis += dimensions
    before = None if indices is None else _checks.numbers(call, "indices", indices, -_checks.SIGNED)
    grid = None if blocks is None else _checks.numbers(call, "blocks", blocks)
    if grid is not None and len(grid) != 2:
        raise ValueError(f"{call}: blocks are {grid}; wanted the numbers of rows and columns of blocks")
    return {"axis": axis, "indices": before, "blocks": None if grid is None else (grid[0], grid[1])}
