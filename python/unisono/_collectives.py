"""Collectives of arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

from unisono import _checks
from unisono._arrays import Array, ArrayLike, Operand, elements, movement, new, read, reduction, write
from unisono._codes import COLLECTIVES
from unisono._handle import Handle, beginning
from unisono._work import Work

# The lengths of blocks of the input and of the output.
_Lengths: TypeAlias = tuple[list[int], list[int]]


class Collectives(Handle):
    """The collectives."""

    # Reductions.

    def all_reduce(
        self, array: ArrayLike, op: str = "sum", *, out: ArrayLike | None = None, timeout: float | None = None
    ) -> Array:
        """Reduces the arrays of all ranks, element by element. Every rank gets the result.

        ``op`` is ``"sum"``, ``"product"``, ``"min"``, ``"max"``, ``"avg"`` or, for integers and truth values, ``"band"``, ``"bor"`` or
        ``"bxor"``. ``"premulsum(0.5)"`` first multiplies this rank's array by this factor, which may differ between ranks. The sum of
        truth values is "or", their product is "and". Complex numbers have sum, average and premulsum.

        The arrays must have the same type and number of elements on all ranks. Returns ``out``, or a new array with the shape of
        ``array``. With ``out=array`` the result replaces the array::

            group.all_reduce(gradients, "avg", out=gradients)

        Raises `ValueError` or `TypeError` if an argument is wrong, and `unisono.Error` if the ranks' calls differ, ``timeout`` (in
        seconds; by default the group's) passes, or the group has failed.
        """
        given, wanted = _pair("all_reduce", array, out)
        if wanted is None:
            wanted = new("all_reduce", given.shape, given.dtype)
        described = reduction("all_reduce", given.dtype, op)
        return self._collective("all_reduce", described, 0, given, wanted, None, timeout, out)

    all_reduce_async = beginning(all_reduce)

    def reduce(
        self,
        array: ArrayLike,
        op: str = "sum",
        root: int = 0,
        *,
        out: ArrayLike | None = None,
        timeout: float | None = None,
    ) -> Array | None:
        """Works like `all_reduce`, but only rank ``root`` gets the result. The other ranks get ``None`` and do not use ``out``."""
        root = _checks.rank("reduce", "root", root, self.size)
        at_root = self.rank == root
        given, wanted = _pair("reduce", array, out if at_root else None)
        if at_root and wanted is None:
            wanted = new("reduce", given.shape, given.dtype)
        described = reduction("reduce", given.dtype, op)
        return self._collective("reduce", described, root, given, wanted, None, timeout, out)

    reduce_async = beginning(reduce)

    def reduce_scatter(
        self,
        array: ArrayLike,
        op: str = "sum",
        *,
        out: ArrayLike | None = None,
        lengths: Sequence[int] | None = None,
        timeout: float | None = None,
    ) -> Array:
        """Reduces the arrays of all ranks and cuts the result along the first dimension. Every rank gets one block.

        The blocks have equal lengths, or ``lengths`` has one length for each rank, the same list on all ranks. Returns ``out``, or a
        new array: for an array of shape ``(ranks * k, ...)``, it has shape ``(k, ...)``. Otherwise this call works like `all_reduce`.
        """
        call = "reduce_scatter"
        given = read(call, array)
        described = reduction(call, given.dtype, op)
        blocks = None if lengths is None else self._rows(call, "lengths", lengths)
        known: _Lengths | None = None if blocks is None else (self._blocks(call, given, blocks), [])
        if blocks is not None and sum(blocks) != given.shape[0]:
            raise ValueError(
                f"{call}: the lengths {blocks} add up to {sum(blocks)}, and the array has the length {given.shape[0]}"
            )
        if out is not None:
            wanted = _output(call, given, out)
        else:
            rows = self._share(call, given) if blocks is None else blocks[self.rank]
            wanted = new(call, (rows, *given.shape[1:]), given.dtype)
        return self._collective("reduce_scatter", described, 0, given, wanted, known, timeout, out)

    reduce_scatter_async = beginning(reduce_scatter)

    # From one rank to all.

    def broadcast(self, array: ArrayLike, root: int = 0, *, timeout: float | None = None) -> Any:
        """Copies rank ``root``'s array into the array of every other rank, and returns ``array``.

        The arrays must have the same type and number of elements on all ranks. Raises the same errors as `all_reduce`. See
        `broadcast_tensors` for arrays whose shape only the root knows.
        """
        root = _checks.rank("broadcast", "root", root, self.size)
        at_root = self.rank == root
        operand = read("broadcast", array) if at_root else write("broadcast", array, False)
        described = movement("broadcast", operand.dtype)
        return self._collective("broadcast", described, root, None, operand, None, timeout, array)

    broadcast_async = beginning(broadcast)

    def scatter(
        self,
        array: ArrayLike | None,
        out: ArrayLike,
        root: int = 0,
        *,
        lengths: Sequence[int] | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Cuts rank ``root``'s array into one block for each rank. Every rank gets its block in ``out``, which the call returns.

        The blocks have equal lengths, or ``lengths`` has their lengths along the first dimension, one for each rank. Only the root uses
        ``array`` and the values of ``lengths``, but either all ranks give lengths or none does. Raises the same errors as `all_reduce`.
        See `scatter_tensor` for blocks whose shape only the root knows.
        """
        call = "scatter"
        root = _checks.rank(call, "root", root, self.size)
        known: _Lengths | None
        if self.rank == root:
            given = read(call, array)
            wanted = _output(call, given, out)
            blocks = None if lengths is None else self._rows(call, "lengths", lengths)
            known = None if blocks is None else (self._blocks(call, given, blocks), [])
        else:
            given, wanted = None, write(call, out, False)
            known = None if lengths is None else ([], [])
        described = movement(call, wanted.dtype)
        return self._collective("scatter", described, root, given, wanted, known, timeout, out)

    scatter_async = beginning(scatter)

    # From all ranks.

    def all_gather(
        self,
        array: ArrayLike,
        *,
        out: ArrayLike | None = None,
        lengths: Sequence[int] | None = None,
        timeout: float | None = None,
    ) -> Array:
        """Gathers the arrays of all ranks on every rank, in the order of ranks.

        Returns ``out``, or a new array of shape ``(ranks, *array.shape)``. ``lengths`` has the lengths of the ranks' arrays along the
        first dimension, the same list on all ranks. With it, the result is the concatenation of the arrays, of shape
        ``(sum(lengths), *array.shape[1:])``. In place, ``array`` is this rank's block of ``out``::

            table[group.rank] = row
            group.all_gather(table[group.rank], out=table)

        Raises the same errors as `all_reduce`. See `all_gather_tensor` for lengths that the ranks do not know.
        """
        given = read("all_gather", array)
        wanted, known = self._gathered("all_gather", given, out, lengths)
        described = movement("all_gather", given.dtype)
        return self._collective("all_gather", described, 0, given, wanted, known, timeout, out)

    all_gather_async = beginning(all_gather)

    def gather(
        self,
        array: ArrayLike,
        root: int = 0,
        *,
        out: ArrayLike | None = None,
        lengths: Sequence[int] | None = None,
        timeout: float | None = None,
    ) -> Array | None:
        """Works like `all_gather`, but only rank ``root`` gets the result. The other ranks get ``None``, and do not use ``out`` and the
        values of ``lengths``. Either all ranks give lengths or none does.
        """
        root = _checks.rank("gather", "root", root, self.size)
        given = read("gather", array)
        known: _Lengths | None
        wanted: Operand | None
        if self.rank == root:
            wanted, known = self._gathered("gather", given, out, lengths)
        else:
            wanted, known = None, None if lengths is None else ([], [])
        described = movement("gather", given.dtype)
        return self._collective("gather", described, root, given, wanted, known, timeout, out)

    gather_async = beginning(gather)

    def all_to_all(
        self,
        array: ArrayLike,
        *,
        out: ArrayLike | None = None,
        send_lengths: Sequence[int] | None = None,
        recv_lengths: Sequence[int] | None = None,
        timeout: float | None = None,
    ) -> Array:
        """Sends one block of the array to every rank: rank r gets the r-th block of each rank's array, in the order of ranks.

        The blocks are cut along the first dimension. They have equal lengths, or ``send_lengths`` has the lengths of the blocks that this
        rank sends and ``recv_lengths`` those of the blocks that it receives. Returns ``out``, or a new array with the shape of ``array``;
        with ``recv_lengths`` its first dimension is their sum. With ``out=array`` the result replaces the array. Raises the same errors
        as `all_reduce`.
        """
        call = "all_to_all"
        given, wanted = _pair(call, array, out)
        known: _Lengths | None
        if send_lengths is None and recv_lengths is None:
            known, shape = None, given.shape
            self._share(call, given)
        elif send_lengths is None or recv_lengths is None:
            raise ValueError(f"{call}: give both send_lengths and recv_lengths, or neither")
        else:
            sends = self._rows(call, "send_lengths", send_lengths)
            receives = self._rows(call, "recv_lengths", recv_lengths)
            known = (self._blocks(call, given, sends), self._blocks(call, given, receives))
            shape = (sum(receives), *given.shape[1:])
        if wanted is None:
            wanted = new(call, shape, given.dtype)
        described = movement(call, given.dtype)
        return self._collective("all_to_all", described, 0, given, wanted, known, timeout, out)

    all_to_all_async = beginning(all_to_all)

    # Nothing.

    def barrier(self, *, timeout: float | None = None) -> None:
        """Returns when all ranks have called it. Raises the same errors as `all_reduce`."""
        return self._collective("barrier", (0, 0, 1.0), 0, None, None, None, timeout, None)

    barrier_async = beginning(barrier)

    # How they run.

    def _collective(
        self,
        call: str,
        described: tuple[int, int, float],
        root: int,
        given: Operand | None,
        wanted: Operand | None,
        lengths: _Lengths | None,
        timeout: float | None,
        out: Any,
    ) -> Any:
        """Makes a call. Its result is ``out``, or the array of the operand that the call writes."""
        if timeout is not None:
            timeout = _checks.timeout(call, timeout)
        element, op, factor = described
        code = COLLECTIVES[call]
        source = None if given is None else given.view
        target = None if wanted is None else wanted.view
        keep = (source, target)
        begun = self._native.collective(
            self._waits, code, element, op, factor, root, source, target, lengths, False, timeout, keep
        )
        return _result(wanted, out) if begun is None else Work(begun, lambda _: _result(wanted, out))

    def _gathered(
        self, call: str, given: Operand, out: Any, lengths: Sequence[int] | None
    ) -> tuple[Operand, _Lengths | None]:
        """The operand that gathers the blocks of all ranks, and the lengths of these blocks."""
        known: _Lengths | None
        shape: tuple[int, ...]
        if lengths is None:
            known, shape = None, (self.size, *given.shape)
        else:
            rows = self._rows(call, "lengths", lengths)
            known = ([], self._blocks(call, given, rows))
            if given.shape[0] != rows[self.rank]:
                raise ValueError(
                    f"{call}: the input has {given.shape[0]} elements along its first dimension, and this rank's length is "
                    f"{rows[self.rank]}"
                )
            shape = (sum(rows), *given.shape[1:])
        wanted = new(call, shape, given.dtype) if out is None else _output(call, given, out)
        return wanted, known

    def _share(self, call: str, given: Operand) -> int:
        """The length of equal blocks along the first dimension."""
        rows = given.shape[0] if given.shape else 1
        if rows % self.size or not given.shape:
            raise ValueError(
                f"{call}: an array of shape {given.shape} cannot be cut into {self.size} blocks of equal length along its first "
                "dimension; give lengths"
            )
        return rows // self.size

    def _rows(self, call: str, name: str, lengths: Sequence[int]) -> list[int]:
        """Returns a length for each rank."""
        rows = _checks.numbers(call, name, lengths)
        if len(rows) != self.size:
            raise ValueError(f"{call}: the {name} are {rows}; wanted one for each of {self.size} ranks")
        return rows

    def _blocks(self, call: str, given: Operand, rows: list[int]) -> list[int]:
        """Lengths along the first dimension, in the library's elements."""
        if not given.shape:
            raise ValueError(f"{call}: an array without dimensions has no lengths")
        described = elements(call, given.dtype)
        row = math.prod(given.shape[1:])
        if sum(rows) * row * described.itemsize > _checks.LENGTH:
            raise ValueError(f"{call}: the lengths {rows} are together more than can be addressed")
        return [length * described.elements * row for length in rows]


def _result(wanted: Operand | None, out: Any) -> Any:
    if wanted is None:
        return None
    if wanted.target is not None:
        wanted.finish()
    return wanted.array if out is None else out


def _pair(call: str, array: Any, out: Any) -> tuple[Operand, Operand | None]:
    """An input and an output, which may be the same array."""
    if out is None:
        return read(call, array), None
    if out is array:
        both = write(call, out, True)
        return both, both
    given = read(call, array)
    return given, _output(call, given, out)


def _output(call: str, given: Operand, out: Any) -> Operand:
    wanted = write(call, out, False)
    if wanted.dtype != given.dtype:
        raise ValueError(f"{call}: the array has elements of {given.dtype} and the output of {wanted.dtype}")
    return wanted
