"""How calls on tensors of a device are cut into chunks, each an operation of the library on pinned memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from torch import Tensor

from unisono import _native
from unisono._codes import COLLECTIVES, SIZES
from unisono.torch._memory import Memory, Piece

# A chunk's bytes of each operand, the same on all ranks. It is large enough that the fixed cost of a chunk is low, and small
# enough that copies begin and end early; not measured on a GPU.
CHUNK = 4 << 20
# Operands begin at multiples of this in pinned memory; it is a multiple of each element's size.
_ALIGNED = 64


def _codes(*names: str) -> list[int]:
    return [COLLECTIVES[name] for name in names]


_IN_PLACE = _codes("all_reduce", "reduce")
# The collectives whose input, and those whose output, has a block for each rank.
_INPUT_BLOCKS = _codes("scatter", "reduce_scatter", "all_to_all")
_OUTPUT_BLOCKS = _codes("all_gather", "gather", "all_to_all")


class Cut(NamedTuple):
    """A chunk of a call."""

    # The bytes of pinned memory.
    size: int
    # The copies from the device before the operation, and to it after: the offset in pinned memory, and the device's memory.
    reads: list[tuple[int, Tensor]]
    writes: list[tuple[int, Tensor]]
    # Begins the operation, given the address of the pinned memory and what keeps it alive.
    begin: Callable[[int, Any], _native.Work]


class Chunks(NamedTuple):
    """All chunks of a call."""

    count: int
    cut: Callable[[int], Cut]


class Collective(NamedTuple):
    """A collective, as the native module is called."""

    group: _native.Group
    code: int
    # Type, operation, factor and root.
    described: tuple[int, int, float, int]
    operands: tuple[Piece | list[Piece] | None, Piece | list[Piece] | None]
    lengths: tuple[list[int], list[int]] | None
    coalesced: bool
    seconds: float | None

    def begin(self, keep: Any) -> _native.Work:
        """Begins it."""
        operation = (self.code, *self.described, *self.operands, self.lengths, self.coalesced)
        return self.group.collective(False, *operation, self.seconds, keep)


def whole(begin: Callable[[Any], _native.Work]) -> Chunks:
    """A call on main memory: one chunk, without copies."""
    return Chunks(1, lambda _: Cut(0, [], [], lambda _, keep: begin(keep)))


def of_collective(call: Collective, memory: Memory, rank: int, ranks: int) -> Chunks:
    """A collective. Chunk n has bytes n * width to (n + 1) * width of each block, so that each chunk is a separate collective."""
    size = SIZES[call.described[0] & 0xFF]
    per_rank = (call.code in _INPUT_BLOCKS, call.code in _OUTPUT_BLOCKS)
    given, wanted = (
        None if operand is None else _blocks(memory.views(operand), ranks if many else 1, lengths, size)
        for operand, many, lengths in zip(call.operands, per_rank, call.lengths or ((), ()), strict=True)
    )
    # The root of a broadcast sends from the operand that is an output on other ranks.
    source = call.code == COLLECTIVES["broadcast"] and rank == call.described[3]
    in_place = call.code in _IN_PLACE and given is not None and wanted is not None
    longest = max(sum(map(len, block)) for blocks in (given, wanted) for block in blocks or ())
    width = max(_ALIGNED, CHUNK // (ranks if any(per_rank) else 1) // _ALIGNED * _ALIGNED)
    if call.lengths and call.code == COLLECTIVES["all_to_all"]:
        # A rank knows only its lengths, so ranks would not agree on the number of chunks.
        width = max(_ALIGNED, longest)

    def cut(number: int) -> Cut:
        start, stop = number * width, (number + 1) * width
        reads: list[tuple[int, Tensor]] = []
        writes: list[tuple[int, Tensor]] = []
        end, inputs = _lay(given, start, stop, 0, reads)
        if in_place:
            first, outputs = 0, inputs
            writes.extend(reads)
        else:
            first = end + -end % _ALIGNED
            end, outputs = _lay(wanted, start, stop, first, reads if source else writes)
        lengths = None
        if call.lengths:
            lengths = tuple(
                [part // size for part in parts] if of else []
                for parts, of in zip((inputs, outputs), call.lengths, strict=True)
            )

        def begin(address: int, keep: Any) -> _native.Work:
            operands = (
                None if given is None else (address, sum(inputs)),
                None if wanted is None else (address + first, sum(outputs)),
            )
            return call._replace(operands=operands, lengths=lengths, coalesced=False).begin(keep)

        return Cut(end, reads, writes, begin)

    return Chunks(max(1, -(-longest // width)), cut)


def of_message(
    begin: Callable[[Piece, Any], _native.Work], memory: Memory, piece: Piece, sends: bool
) -> Chunks:
    """A message: each chunk is a separate message."""
    (view,) = memory.views(piece)

    def cut(number: int) -> Cut:
        part = view[number * CHUNK : (number + 1) * CHUNK]
        moves = [(0, part)]
        reads, writes = (moves, []) if sends else ([], moves)
        return Cut(len(part), reads, writes, lambda address, keep: begin((address, len(part)), keep))

    return Chunks(max(1, -(-len(view) // CHUNK)), cut)


def _blocks(views: list[Tensor], count: int, lengths: list[int] | tuple[()], size: int) -> list[list[Tensor]]:
    """Cuts consecutive memory into this many blocks, of these lengths in elements, or all of one length."""
    total = sum(map(len, views))
    rest = deque(views)
    blocks = []
    for left in [length * size for length in lengths] or [total // count] * count:
        block = []
        while left > 0:
            part = rest[0][:left]
            rest[0] = rest[0][len(part) :]
            if not len(rest[0]):
                rest.popleft()
            block.append(part)
            left -= len(part)
        blocks.append(block)
    return blocks


def _lay(
    blocks: list[list[Tensor]] | None, start: int, stop: int, at: int, moves: list[tuple[int, Tensor]]
) -> tuple[int, list[int]]:
    """Places bytes `start` to `stop` of each block one after the other from `at`; returns the end, and the bytes of each block."""
    sizes = []
    for block in blocks or ():
        before = at
        for part in _window(block, start, stop):
            moves.append((at, part))
            at += len(part)
        sizes.append(at - before)
    return at, sizes


def _window(block: list[Tensor], start: int, stop: int) -> Iterator[Tensor]:
    """Bytes `start` to `stop` of consecutive memory."""
    for view in block:
        part = view[max(start, 0) : max(stop, 0)]
        if len(part):
            yield part
        start, stop = start - len(view), stop - len(view)
