"""Devices whose tensors are staged through main memory.

A device provides pinned memory, streams on which copies run in their order, and events that mark a place in a
stream. `DEVICES` has a class for each supported type of device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor


def copy(target: Tensor, source: Tensor) -> None:
    """Copies on any thread. A tensor made in inference mode can be written only in that mode, which belongs to a thread."""
    with torch.inference_mode(target.is_inference()):
        target.copy_(source, non_blocking=True)


class Event(Protocol):
    """A place in a stream."""

    def query(self) -> bool:
        """Returns true if the stream has finished all work before this place."""

    def synchronize(self) -> None:
        """Waits until the stream has finished all work before this place."""


class Stream(Protocol):
    """Copies that run one after the other, beside those of other streams."""

    def wait_event(self, event: Any) -> None:
        """Makes later work on this stream wait for this event."""


class Device(Protocol):
    """A device."""

    def pinned(self, size: int) -> Tensor:
        """Main memory of this many bytes for copies from and to the device. Dropped memory is used again after its copies."""

    def stream(self) -> Any:
        """A stream other than the caller's."""

    def now(self) -> Any:
        """The event after all work that the caller's current stream has so far."""

    def mark(self, stream: Any) -> Any:
        """The event after all work that a stream has so far; a thread can wait for it."""

    def follow(self, event: Any) -> None:
        """Makes later work on the caller's current stream wait for this event."""

    def copy(self, stream: Any, target: Tensor, source: Tensor) -> None:
        """Copies on a stream; returns at once."""

    def future(self) -> torch.futures.Future:
        """A future of tensors on this device."""

    def resolve(self, future: torch.futures.Future, value: Any, events: Sequence[Any]) -> None:
        """Completes a future; a thread that waits for it makes its current stream wait for these events."""


class Cuda:
    """A GPU of CUDA, or of ROCm, which torch calls CUDA too. Pinned memory comes from torch's cache, which keeps freed memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def pinned(self, size: int) -> Tensor:
        """See `Device`."""
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)

    def stream(self) -> Any:
        """See `Device`."""
        return torch.cuda.Stream(self._device)

    def now(self) -> Any:
        """See `Device`."""
        if torch.cuda.is_current_stream_capturing():
            raise ValueError(
                "unisono: a CUDA graph is being captured; calls go through the host, which a graph cannot hold. Call outside of it"
            )
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        return event

    def mark(self, stream: Any) -> Any:
        """See `Device`."""
        event = torch.cuda.Event(blocking=True)
        event.record(stream)
        return event

    def follow(self, event: Any) -> None:
        """See `Device`."""
        torch.cuda.current_stream(self._device).wait_event(event)

    def copy(self, stream: Any, target: Tensor, source: Tensor) -> None:
        """See `Device`."""
        with torch.cuda.stream(stream):
            copy(target, source)

    def future(self) -> torch.futures.Future:
        """See `Device`."""
        return torch.futures.Future(devices=[self._device])

    def resolve(self, future: torch.futures.Future, value: Any, events: Sequence[Any]) -> None:
        """See `Device`."""
        # The future takes the event of the stream that is current here.
        stream = self.stream()
        with ExitStack() as current:
            current.enter_context(torch.cuda.stream(stream))
            for event in events:
                stream.wait_event(event)
            future.set_result(value)


# The constructors of devices, by the type of the device.
DEVICES: dict[str, Callable[[torch.device], Device]] = {"cuda": Cuda}


def types() -> list[str]:
    """The supported types of devices that this process has. Torch assumes that each device type of a backend exists."""
    return ["cpu", *(kind for kind in DEVICES if kind != "cuda" or _has_gpu())]


@cache
def _has_gpu() -> bool:
    # This makes no context, so that the process may fork. The result is kept, because every group asks.
    return torch.cuda.device_count() > 0


@cache
def device_of(device: torch.device) -> Device | None:
    """The device of this name, or `None` if its type is not supported."""
    kind = DEVICES.get(device.type)
    return kind(device) if kind is not None else None
