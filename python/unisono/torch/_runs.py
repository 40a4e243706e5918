"""Runs calls: at once by the native group, or staged for tensors of a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

from unisono import _native
from unisono.torch._chunks import Chunks, Collective, of_collective, of_message, whole
from unisono.torch._memory import Memory, Piece
from unisono.torch._profile import UNRECORDED, is_profiled, recorded
from unisono.torch._staging import Order, Staging
from unisono.torch._types import PLAIN, are_parts
from unisono.torch._work import Done, Work

DONE = Done()


class Runs:
    """Runs calls. A class that mixes this in sets the attributes."""

    # The native group; its calls have the group's timeout.
    _group: _native.Group
    _ranks: int
    _rank: int
    # The group's prefix of torch's store.
    _store: torch.distributed.Store
    # The backend's name.
    _called: str
    # The works that were begun since start_coalescing.
    _batch: list[Work] | None = None
    _calls_made = 0
    # `None` until a tensor of a device comes.
    _staging: Staging | None = None

    def _plain(self, code: int, given: Tensor | None, wanted: Tensor, opts: Any) -> Work | None:
        """Lets the native module run a call from torch's objects, if it is a call that most programs make."""
        if is_profiled() or self._batch is not None or self._staging is not None:
            return None
        if wanted._base is not None and are_parts(wanted):
            return None
        begun = self._group.run_plain(code, given, wanted, opts, PLAIN)
        if begun is False:
            return None
        self._calls_made += 1
        return DONE if begun is True else Work((begun,), [wanted])

    def _run(
        self,
        code: int,
        described: tuple[int, int, float, int],
        pieces: tuple[Piece | list[Piece] | None, Piece | list[Piece] | None],
        memory: Memory,
        outputs: Any,
        opts: Any,
        lengths: tuple[list[int], list[int]] | None = None,
        coalesced: bool = False,
    ) -> Work:
        with recorded(f"{self._called}:{memory.call}", memory.keep) if is_profiled() else UNRECORDED:
            self._calls_made += 1
            seconds, keep = _seconds(opts.timeout), memory.keep
            waits = not opts.asyncOp and self._batch is None
            if memory.device is not None or self._is_staging():
                call = Collective(self._group, code, described, pieces, lengths, coalesced, seconds)
                if memory.device is None:
                    chunks = whole(call.begin)
                else:
                    chunks = of_collective(call, memory, self._rank, self._ranks)
                work = self._staged(Order("collective"), chunks, memory, outputs)
                if waits:
                    work.wait()
                return self._batched(work)
            # Unpacking them in the call costs more.
            element, op, factor, root = described
            given, wanted = pieces
            native = self._group.collective(
                waits, code, element, op, factor, root, given, wanted, lengths, coalesced, seconds, keep
            )
            if native is not None:
                return self._batched(Work((native,), outputs, memory.copy_back if memory.back else None))
            if memory.back:
                memory.copy_back()
            return DONE

    def _is_staging(self) -> bool:
        """True if calls must queue, because an earlier call waits for a device."""
        return self._staging is not None and self._staging.busy

    def _staged(self, order: Order, chunks: Chunks, memory: Memory, outputs: Any) -> Work:
        """Begins a call that waits for a device, or for a call that does."""
        self._staging = self._staging or Staging()
        finish = memory.copy_back if memory.back and memory.device is None else None
        return Work((self._staging.begin(order, chunks, memory),), outputs, finish)

    def _message(
        self,
        order: Order,
        begin: Callable[[Piece, Any], _native.Work],
        piece: Piece,
        memory: Memory,
        tensor: Tensor,
    ) -> Work:
        """Begins a message."""
        with recorded(f"{self._called}:{memory.call}", [tensor]) if is_profiled() else UNRECORDED:
            if memory.device is not None:
                work = self._staged(
                    order, of_message(begin, memory, piece, order.kind == "send"), memory, [tensor]
                )
            elif self._is_staging():
                work = self._staged(order, whole(lambda keep: begin(piece, keep)), memory, [tensor])
            else:
                work = Work((begin(piece, memory.keep),), [tensor], memory.copy_back if memory.back else None)
            return self._batched(work)

    def _batched(self, work: Work) -> Work:
        if self._batch is not None:
            self._batch.append(work)
        return work

    # Several calls at once.

    def start_coalescing(self, device: torch.device | None = None) -> None:
        """Collects the operations that begin from now on into one work."""
        self._batch = []

    def end_coalescing(self, device: torch.device | None = None) -> Work:
        """The work of all operations since `start_coalescing`."""
        works, self._batch = self._batch or [], None
        return together(works, [output for work in works for output in work.result()])

    _start_coalescing = start_coalescing
    _end_coalescing = end_coalescing


def together(works: Sequence[Work], outputs: Any) -> Work:
    """One work of several operations."""
    if len(works) == 1:
        works[0]._outputs = outputs
        return works[0]
    finishes = [work._complete for work in works if work._finish is not None]

    def finish() -> None:
        for each in finishes:
            each()

    return Work([native for work in works for native in work._natives], outputs, finish if finishes else None)


def _seconds(timeout: timedelta) -> float | None:
    """A timeout, or `None` for torch's "not set", which is negative, and for its "default", which is 0."""
    return timeout.total_seconds() if timeout.days >= 0 and timeout else None
