"""The memory of tensors.

The library reads and writes contiguous tensors in main memory directly. For other tensors it works on a contiguous copy, and this module
copies the result back. It never reinterprets a tensor. Tensors of a device go through `_staging`.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from unisono.torch._devices import DEVICES, Device, copy, device_of

# An address and a number of bytes, for the native module.
Piece = tuple[int, int]


def is_flat(tensor: Tensor) -> bool:
    """Returns true if the library can work on this tensor's memory directly."""
    return (
        tensor.is_cpu
        and tensor.layout is torch.strided
        and tensor.is_contiguous()
        and not tensor.is_neg()
        and not tensor.is_conj()
    )


def check(call: str, tensor: Tensor) -> Device | None:
    """The device of a tensor that is not in main memory. Raises the error of a tensor that cannot be communicated."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{call}: a tensor is wanted, not {type(tensor).__name__}")
    if tensor.layout is not torch.strided:
        raise ValueError(
            f"{call}: a tensor of layout {tensor.layout} is not served; only all_reduce with SUM takes sparse tensors (COO). "
            "Use to_dense()"
        )
    if tensor.is_cpu:
        return None
    device = device_of(tensor.device)
    if device is None:
        raise ValueError(
            f"{call}: a tensor on {tensor.device} is not served; tensors on cpu and {' and '.join(DEVICES)} are. Move it with .cpu(), "
            f"or use the backend of that device too: init_process_group('cpu:unisono,{tensor.device.type}:...')"
        )
    return device


class Memory:
    """The memory of one call's tensors."""

    __slots__ = ("away", "back", "call", "device", "keep")

    def __init__(self, call: str) -> None:
        self.call = call
        # Tensors that must live until the call has ended.
        self.keep: list[Tensor] = []
        # Outputs that are not contiguous, with their copies.
        self.back: list[tuple[Tensor, Tensor]] = []
        # The device, and the number of tensors on it.
        self.device: Device | None = None
        self.away = 0

    def read(self, tensor: Tensor) -> Piece:
        """The memory of a tensor that the call only reads."""
        if not is_flat(tensor):
            tensor = self._contiguous(tensor)
        self.keep.append(tensor)
        return tensor.data_ptr(), tensor.nbytes

    def write(self, tensor: Tensor) -> Piece:
        """The memory of a tensor that the call writes, and may read first."""
        if not is_flat(tensor):
            flat = self._contiguous(tensor)
            if any(
                size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
            ):
                raise ValueError(
                    f"{self.call}: elements of the output of shape {tuple(tensor.shape)} share memory (an expanded tensor); "
                    "give it its own memory with .contiguous()"
                )
            if flat.data_ptr() != tensor.data_ptr() or tensor.is_neg() or tensor.is_conj():
                self.back.append((tensor.detach(), flat))
            tensor = flat
        self.keep.append(tensor)
        return tensor.data_ptr(), tensor.nbytes

    def _contiguous(self, tensor: Tensor) -> Tensor:
        device = check(self.call, tensor)
        if device is not None:
            if self.device not in (None, device):
                raise ValueError(
                    f"{self.call}: one tensor is on {tensor.device} and another on another device; all must be on one device"
                )
            self.device, self.away = device, self.away + 1
        return tensor.detach().resolve_conj().resolve_neg().contiguous()

    def read_all(self, tensors: Iterable[Tensor]) -> list[Piece]:
        """The memory of several tensors that the call only reads."""
        return [self.read(tensor) for tensor in tensors]

    def write_all(self, tensors: Iterable[Tensor]) -> list[Piece]:
        """The memory of several tensors that the call writes. Tensors that share memory are written one after the other, as with Gloo."""
        tensors, kept, copied = list(tensors), len(self.keep), len(self.back)
        pieces = [self.write(tensor) for tensor in tensors]
        if self.device is not None or not _share_memory(pieces):
            return pieces
        del self.keep[kept:], self.back[copied:]
        parts = [tensor.detach() for tensor in tensors]
        apart = [
            part.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format) for part in parts
        ]
        self.back.extend(zip(parts, apart, strict=True))
        return [self.write(each) for each in apart]

    def copy_back(self) -> None:
        """Copies results to where they belong."""
        for tensor, result in self.back:
            copy(tensor, result)

    def views(self, operand: Piece | list[Piece]) -> list[Tensor]:
        """The bytes of an operand on a device."""
        if self.away < len(self.keep):
            raise ValueError(
                f"{self.call}: some tensors are on the cpu and others not; all must be on one device"
            )
        tensors = sorted(self.keep, key=Tensor.data_ptr)
        places = [tensor.data_ptr() for tensor in tensors]

        def view(address: int, size: int) -> Tensor:
            index = bisect_right(places, address) - 1
            # One tensor may lie inside another.
            while address + size > places[index] + tensors[index].nbytes:
                index -= 1
            start = address - places[index]
            return tensors[index].view(-1).view(torch.uint8)[start : start + size]

        return [view(*piece) for piece in ([operand] if isinstance(operand, tuple) else operand)]


def _share_memory(pieces: Sequence[Piece]) -> bool:
    ordered = sorted(piece for piece in pieces if piece[1] > 0)
    return any(address + size > after for (address, size), (after, _) in pairwise(ordered))


def blocks(pieces: Sequence[Piece], ranks: int) -> list[Piece]:
    """The blocks of all ranks, each one after the other: the first rank's of all pieces, the second's of all pieces, and so on."""
    return [
        (address + rank * (size // ranks), size // ranks) for rank in range(ranks) for address, size in pieces
    ]


def same_dtype(call: str, tensors: Sequence[Tensor]) -> torch.dtype:
    """The dtype of all these tensors."""
    if not tensors:
        raise ValueError(f"{call}: the list of tensors is empty")
    dtype = tensors[0].dtype
    for tensor in tensors:
        if tensor.dtype is not dtype:
            raise ValueError(
                f"{call}: all tensors must have one dtype; these have {dtype} and {tensor.dtype}"
            )
    return dtype
