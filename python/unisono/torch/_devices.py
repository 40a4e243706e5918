"""Devices whose tensors are staged through main memory.

A device gives what staging needs of it: pinned memory, streams on which copies run in their order, and events that mark a place in a
stream. `DEVICES` has a class for each type of device that is served.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor


def copy(target: Tensor, source: Tensor) -> None:
    """Copies, on any thread: one made in inference mode is written in that mode alone, which is a thread's."""
    with torch.inference_mode(target.is_inference()):
        target.copy_(source, non_blocking=True)


class Event(Protocol):
    """A place in a stream."""

    def query(self) -> bool:
        """Whether all that the stream had before has been done."""

    def synchronize(self) -> None:
        """Waits for that."""


class Stream(Protocol):
    """Copies that run one after the other, beside those of other streams."""

    def wait_event(self, event: Any) -> None:
        """What comes later on this stream runs after this event."""


class Device(Protocol):
    """A device."""

    def pinned(self, size: int) -> Tensor:
        """Main memory of this many bytes that the device copies from and to. What is dropped is used again after its copies."""

    def stream(self) -> Any:
        """A stream beside the caller's."""

    def now(self) -> Any:
        """The event of all that the caller's current stream has so far."""

    def mark(self, stream: Any) -> Any:
        """The event of all that a stream has so far; a thread can wait for it."""

    def follow(self, event: Any) -> None:
        """What comes later on the caller's current stream runs after this event."""

    def copy(self, stream: Any, target: Tensor, source: Tensor) -> None:
        """Copies on a stream; returns at once."""

    def future(self) -> torch.futures.Future:
        """A future of tensors on this device."""

    def resolve(self, future: torch.futures.Future, value: Any, events: Sequence[Any]) -> None:
        """Completes a future; a thread that waits for it has its current stream wait for these events."""


class Cuda:
    """A GPU of CUDA, or of ROCm, which torch calls CUDA too. Pinned memory comes from torch's cache, which keeps what was freed."""

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


# By the type of device; what makes it for one of them.
DEVICES: dict[str, Callable[[torch.device], Device]] = {"cuda": Cuda}


def types() -> list[str]:
    """The types of devices that this process has and that are served. Torch takes a backend's device for one that there is."""
    return ["cpu", *(kind for kind in DEVICES if kind != "cuda" or _has_gpu())]


@cache
def _has_gpu() -> bool:
    # Asks without making a context, so that the process may fork; every group would ask again.
    return torch.cuda.device_count() > 0


@cache
def device_of(device: torch.device) -> Device | None:
    """The device of this name, or `None` if its type is not served."""
    kind = DEVICES.get(device.type)
    return kind(device) if kind is not None else None
