"""A device made of main memory, whose copies run as late as allowed: only when a thread waits for them.

A stream is a list of steps, in order. Nothing runs before a thread waits for an event; then only the steps run that
this event needs. So a program that did not wait for a copy sees the old contents. A copy to or from memory that was
freed meanwhile is noted in `FAULTS`.
"""

import ctypes
import threading
import time
import weakref
from collections.abc import Callable

import torch
import torch.distributed as dist
from unisono.torch import _devices

# The delay, in seconds, after which the thread that waits for copies finds them done.
DELAY = 0.0
# The faults.
FAULTS: list[str] = []


class Stream:
    """Steps, in order."""

    def __init__(self) -> None:
        self.to_do: list[Callable[[], None] | None] = []
        self.done = 0
        self._lock = threading.RLock()

    def wait_event(self, event: "Event") -> None:
        """See `unisono.torch._devices.Stream`."""
        self.add(event.synchronize)

    def add(self, do: Callable[[], None]) -> None:
        """Adds a step after all others."""
        self.to_do.append(do)

    def run(self, until: int) -> None:
        """Runs the first `until` steps."""
        while self.done < until:
            # Do not wait for ever: another thread may hold the lock and wait for a stream of this thread, after the step for which this one waits.
            if not self._lock.acquire(timeout=0.001):
                continue
            try:
                if self.done < until:
                    do, self.to_do[self.done] = self.to_do[self.done], None
                    do()
                    self.done += 1
            finally:
                self._lock.release()


class Event:
    """A place in a stream."""

    def __init__(self, stream: Stream) -> None:
        self.stream, self.place = stream, len(stream.to_do)

    def query(self) -> bool:
        """See `unisono.torch._devices.Event`."""
        return self.stream.done >= self.place

    def synchronize(self) -> None:
        """See `unisono.torch._devices.Event`."""
        if threading.current_thread().name == "unisono-staging":
            time.sleep(DELAY)
        self.stream.run(self.place)


# The stream on which tests work.
CURRENT = Stream()


# A type of device that torch leaves for others to define.
NAME = torch.device("privateuseone", 0)


class Late(torch.Tensor):
    """A tensor that reports that it is on this device."""

    is_cpu = property(lambda _: False)
    device = property(lambda _: NAME)
    __torch_function__ = torch._C._disabled_torch_function_impl


# The storages of such tensors, by address.
_STORAGES: dict[int, "weakref.ref[torch.UntypedStorage]"] = {}


def is_here(tensor: torch.Tensor) -> bool:
    """True if this memory is on the device."""
    storage = tensor.untyped_storage()
    known = _STORAGES.get(storage.data_ptr())
    return known is not None and known() is storage


class Device:
    """The device."""

    def __init__(self) -> None:
        self.pinned_now = self.pinned_most = 0

    def pinned(self, size: int) -> torch.Tensor:
        """See `unisono.torch._devices.Device`."""
        memory = torch.full((size,), 0xAA, dtype=torch.uint8)
        self.pinned_now += size
        self.pinned_most = max(self.pinned_most, self.pinned_now)
        weakref.finalize(memory.untyped_storage(), self._free, size)
        return memory

    def _free(self, size: int) -> None:
        self.pinned_now -= size

    def stream(self) -> Stream:
        """See `unisono.torch._devices.Device`."""
        return Stream()

    def now(self) -> Event:
        """See `unisono.torch._devices.Device`."""
        return Event(CURRENT)

    def mark(self, stream: Stream) -> Event:
        """See `unisono.torch._devices.Device`."""
        return Event(stream)

    def follow(self, event: Event) -> None:
        """See `unisono.torch._devices.Device`."""
        CURRENT.wait_event(event)

    def copy(self, stream: Stream, target: torch.Tensor, source: torch.Tensor) -> None:
        """See `unisono.torch._devices.Device`."""
        if not (target.is_contiguous() and source.is_contiguous()):
            stream.add(lambda: _devices.copy(as_cpu(target), as_cpu(source)))
            return
        assert target.nbytes == source.nbytes
        places = [_place(tensor) for tensor in (target, source)]
        size = target.nbytes

        def do() -> None:
            addresses = [place() for place in places]
            if None in addresses:
                FAULTS.append(f"a copy of {size} bytes after its memory was freed")
            else:
                ctypes.memmove(*addresses, size)

        stream.add(do)

    def future(self) -> torch.futures.Future:
        """See `unisono.torch._devices.Device`."""
        return torch.futures.Future()

    def resolve(self, future: torch.futures.Future, value: object, events: list[Event]) -> None:
        """See `unisono.torch._devices.Device`."""
        for event in events:
            self.follow(event)
        future.set_result(value)


def _place(tensor: torch.Tensor) -> Callable[[], int | None]:
    """The address of this memory when a copy runs, or `None` if it has been freed."""
    address, storage = tensor.data_ptr(), tensor.untyped_storage()
    if not is_here(tensor):
        # Freed pinned memory is not used again before its copies have run.
        return lambda storage=storage: address
    alive = weakref.ref(storage)
    return lambda: address if alive() is not None else None


DEVICE = Device()


# The backend supports it in groups that are made from now on.
_devices.DEVICES[NAME.type] = lambda _: DEVICE
dist.Backend.backend_capability["unisono"].append(NAME.type)


def as_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as an ordinary tensor."""
    return tensor.detach()


def put(values: torch.Tensor) -> Late:
    """A tensor on this device, which the current stream fills later."""
    tensor = torch.empty_like(values, memory_format=torch.contiguous_format)
    tensor.view(-1).view(torch.uint8).fill_(0x55)
    storage = tensor.untyped_storage()
    _STORAGES[storage.data_ptr()] = weakref.ref(storage)
    return write(view(tensor), values)


def view(tensor: torch.Tensor) -> Late:
    """A view of a tensor on this device, on this device."""
    return tensor.as_subclass(Late)


def write(tensor: Late, values: torch.Tensor) -> Late:
    """Makes the current stream fill a tensor."""
    CURRENT.add(lambda: as_cpu(tensor).copy_(values))
    return tensor


def read(tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
    """A function that returns the contents that the current stream reads here, after it has run."""
    seen: list[torch.Tensor] = []
    CURRENT.add(lambda: seen.append(as_cpu(tensor).clone()))
    event = Event(CURRENT)

    def get() -> torch.Tensor:
        event.synchronize()
        return seen[0]

    return get
