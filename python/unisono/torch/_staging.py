"""Calls on tensors of a device: staged through pinned memory in chunks, so that copies, wire and reduction overlap.

A chunk is copied from the device on a side stream. A thread of the group waits for the event of that copy, and begins the operation of
the library on the chunk. When that has ended, the thread that completes futures enqueues the copy to the device, on another side
stream. A call has ended when the operations of all its chunks have ended. A thread that waits for it makes its current stream wait for
the copies.

Collectives begin in the order in which they were called, and so do messages of one peer and tag. So calls on tensors in main memory
queue here too while one of a device waits.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, NamedTuple

import torch.distributed as dist
from torch import Tensor

from unisono import _native
from unisono._finisher import SOON
from unisono.torch import _chunks
from unisono.torch._chunks import Chunks, Cut
from unisono.torch._devices import Device
from unisono.torch._memory import Memory

# The most chunks of pinned memory of calls that follow each other; a single call may have a larger chunk.
_CHUNKS_IN_FLIGHT = 4


class Order(NamedTuple):
    """The calls that a call follows: those before it of the same kind, peer and tag. A receive from any rank follows those of its tag."""

    kind: str
    tag: int = 0
    peer: int | None = 0


class _Chunk:
    """A chunk under way."""

    __slots__ = ("cut", "pinned", "ready")

    def __init__(self, cut: Cut, pinned: Tensor | None) -> None:
        self.cut, self.pinned, self.ready = cut, pinned, False


class Operation:
    """A call under way, with the interface of a native work."""

    def __init__(self, staging: Staging, order: Order, chunks: Chunks, memory: Memory) -> None:
        self.device: Device | None = memory.device
        # The event after the device's copies of the results.
        self.event: Any = None
        self._staging, self._order, self._chunks, self._memory = staging, order, chunks, memory
        self._entry = self.device.now() if self.device is not None else None
        self._number = 0
        # The next chunk to be copied, and those that wait to begin.
        self._next: Cut | None = None
        self._waiting: deque[_Chunk] = deque()
        self._copied = self._begun = self._ended = 0
        self._writes = False
        self._chain: _Chain
        self._peer: int | None = None
        self._error: BaseException | None = None
        self._done = threading.Event()
        self._callbacks: list[Callable[[Operation], None]] | None = []

    def is_done(self) -> bool:
        """Returns true if the call has ended, with or without an error, and its results are complete."""
        return self._done.is_set() and (self.event is None or self.event.query())

    def wait(self, seconds: float | None = None) -> int | None:
        """Waits until the library's part has ended. The caller's current stream waits for the copies to the device."""
        if not self._done.wait(seconds):
            raise dist.DistBackendError(
                f"unisono: Timed out waiting {round((seconds or 0) * 1000)}ms: the operation has not ended; it goes on"
            )
        if self._error is not None:
            raise self._error
        if self.device is not None and self.event is not None:
            self.device.follow(self.event)
        return self._peer

    def exception(self) -> BaseException | None:
        """The error of a call that has ended."""
        return self._error

    def on_end(self, call: Callable[[Any], None], kind: int = SOON) -> None:
        """Calls `call` when the library's part has ended, as a call of this kind."""
        if kind != SOON:
            wanted = call

            def call(operation: Operation) -> None:
                _native.call_soon(wanted, (operation,), kind)

        with self._staging.lock:
            if self._callbacks is not None:
                self._callbacks.append(call)
                return
        call(self)

    def _announce(self) -> None:
        with self._staging.lock:
            callbacks, self._callbacks = self._callbacks or [], None
        self._done.set()
        for call in callbacks:
            call(self)


class _Chain:
    """Calls of one order: those that have not begun all their chunks, and the bytes of pinned memory of all."""

    def __init__(self) -> None:
        self.calls: deque[Operation] = deque()
        self.used = 0


class _Streams:
    """The side streams of a device."""

    def __init__(self, device: Device) -> None:
        self.out, self.back = device.stream(), device.stream()


class Staging:
    """The calls of one group that are staged, or wait for staged calls."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._chains: dict[Order, _Chain] = {}
        self._streams: dict[Device, _Streams] = {}
        self._calls = 0
        # Calls that have not begun all their chunks, and those that have not ended.
        self._queued = 0
        self._open: set[Operation] = set()
        self._over: list[Operation] = []
        # The events for which the thread waits, and the functions that it runs then with the lock. They keep the memory of their calls alive.
        self._events: SimpleQueue[tuple[Any, Operation, Callable[[], None]] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    @property
    def busy(self) -> bool:
        """True if a call waits to begin, so that others must queue."""
        return self._queued > 0

    def begin(self, order: Order, chunks: Chunks, memory: Memory) -> Operation:
        """Begins a call; returns at once."""
        call = Operation(self, order, chunks, memory)
        with self.lock:
            self._calls += 1
            call._number = self._calls
            call._chain = self._chains.setdefault(order, _Chain())
            call._chain.calls.append(call)
            self._queued += 1
            self._open.add(call)
            self._advance()
        self._tell()
        return call

    def drain(self, seconds: float) -> None:
        """Waits until all calls have ended, with or without an error, at most `seconds` for each."""
        with self.lock:
            calls = list(self._open)
        for call in calls:
            call._done.wait(seconds)

    def close(self) -> None:
        """Ends the calls that have not begun, and the thread."""
        with self.lock:
            for call in list(self._open):
                self._fail(
                    call, dist.DistBackendError("unisono: the group was destroyed before this call had begun")
                )
            self._advance()
        self._tell()
        self._events.put(None)

    # The following methods run with the lock.

    def _advance(self) -> None:
        while any(self._go_on(order, chain) for order, chain in list(self._chains.items())):
            pass

    def _go_on(self, order: Order, chain: _Chain) -> bool:
        """Advances a chain as far as possible; returns true if a call has left it, so that others may begin."""
        for call in chain.calls:
            while self._copies_next(call):
                pass
            if call._copied < call._chunks.count:
                break
        left = False
        while chain.calls and self._may_begin(order, call := chain.calls[0]):
            while call._waiting and call._waiting[0].ready and not _needs_peer(call):
                self._begin(call, call._waiting.popleft())
            if call._begun < call._chunks.count and call._error is None:
                break
            chain.calls.popleft()
            self._queued -= 1
            left = True
        if not chain.calls and not chain.used:
            self._chains.pop(order, None)
        return left

    def _may_begin(self, order: Order, call: Operation) -> bool:
        return not any(
            other.kind == order.kind == "recv" and other.tag == order.tag and None in (other.peer, order.peer)
            and chain.calls and chain.calls[0]._number < call._number
            for other, chain in self._chains.items() if other != order
        )  # fmt: skip

    def _copies_next(self, call: Operation) -> bool:
        """Begins to copy the next chunk from the device, if there is one and pinned memory for it."""
        if call._error is not None or call._copied == call._chunks.count:
            return False
        try:
            cut = call._next = call._next or call._chunks.cut(call._copied)
            used = call._chain.used
            if used and used + cut.size > _CHUNKS_IN_FLIGHT * _chunks.CHUNK:
                return False
            chunk = _Chunk(cut, call.device.pinned(cut.size) if call.device is not None else None)
            call._next, call._copied = None, call._copied + 1
            call._chain.used += cut.size
            call._waiting.append(chunk)
            if call.device is None or not cut.reads:
                chunk.ready = True
                return True
            out = self._stream(call.device).out
            if call._copied == 1:
                out.wait_event(call._entry)
            for at, view in cut.reads:
                call.device.copy(out, chunk.pinned[at : at + len(view)], view)
            self._after(call.device.mark(out), call, lambda: setattr(chunk, "ready", True))
        except Exception as error:  # noqa: BLE001
            self._fail(call, error)
        return True

    def _begin(self, call: Operation, chunk: _Chunk) -> None:
        call._begun += 1
        address, keep = (
            (chunk.pinned.data_ptr(), chunk.pinned) if chunk.pinned is not None else (0, call._memory.keep)
        )
        try:
            native = chunk.cut.begin(address, keep)
        except Exception as error:  # noqa: BLE001
            self._free(call, chunk)
            self._fail(call, error)
        else:
            native.on_end(lambda native: self._has_ended(call, chunk, native))

    def _after(self, event: Any, call: Operation, do: Callable[[], None]) -> None:
        """Runs `do` for a call after an event of a device, on the thread that waits for events."""
        self._events.put((event, call, do))
        if self._thread is None:
            self._thread = threading.Thread(target=self._wait_for_events, name="unisono-staging", daemon=True)
            self._thread.start()

    def _copy_back(self, call: Operation, chunk: _Chunk) -> None:
        """Makes the device copy the results of a chunk to their places, and after the last chunk marks the end."""
        call._ended += 1
        last = call._ended == call._chunks.count
        if call.device is not None and chunk.cut.writes:
            back = self._stream(call.device).back
            if not call._writes:
                call._writes = True
                back.wait_event(call._entry)
            for at, view in chunk.cut.writes:
                call.device.copy(back, view, chunk.pinned[at : at + len(view)])
            if last:
                for tensor, copy in call._memory.back:
                    call.device.copy(back, tensor, copy)
            call.event = call.device.mark(back)
            self._after(call.event, call, lambda: self._free(call, chunk))
        else:
            self._free(call, chunk)
        if last:
            self._end(call)

    def _free(self, call: Operation, chunk: _Chunk) -> None:
        """Frees the pinned memory of a chunk."""
        call._chain.used -= chunk.cut.size
        chunk.pinned = None

    def _fail(self, call: Operation, error: BaseException) -> None:
        if call in self._open:
            call._error = error
            call._chain.used -= sum(chunk.cut.size for chunk in call._waiting)
            call._waiting.clear()
            self._end(call)

    def _end(self, call: Operation) -> None:
        self._open.discard(call)
        self._over.append(call)

    def _stream(self, device: Device) -> _Streams:
        if device not in self._streams:
            self._streams[device] = _Streams(device)
        return self._streams[device]

    # The following methods run without the lock.

    def _tell(self) -> None:
        """Runs the callbacks of the calls that have ended."""
        with self.lock:
            over, self._over = self._over, []
        for call in over:
            call._announce()

    def _wait_for_events(self) -> None:
        """The thread that waits for devices."""
        while (next := self._events.get()) is not None:
            event, call, do = next
            error: Exception | None = None
            try:
                event.synchronize()
            except Exception as raised:  # noqa: BLE001
                error = raised
            with self.lock:
                do()
                if error is not None:
                    self._fail(call, error)
                self._advance()
            self._tell()
            del event, call, do, next

    def _has_ended(self, call: Operation, chunk: _Chunk, native: _native.Work) -> None:
        """The library's operation on a chunk has ended; on the thread that completes futures."""
        error = native.exception()
        with self.lock:
            if error is None and call._error is None:
                try:
                    call._peer = native.wait()
                    self._copy_back(call, chunk)
                except Exception as raised:  # noqa: BLE001
                    error = raised
            else:
                self._free(call, chunk)
            if error is not None:
                self._fail(call, error)
            self._advance()
        self._tell()


def _needs_peer(call: Operation) -> bool:
    """True if a receive from any rank waits for its first chunk; the sender of that chunk sends the others."""
    return call._order.peer is None and call._begun > 0 and call._ended == 0
