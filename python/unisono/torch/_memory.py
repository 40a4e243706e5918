"""The memory of tensors.

The library reads and writes contiguous tensors in main memory where they lie. All others are staged: it works on a contiguous copy,
and the result is copied back. A tensor is never reinterpreted.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

# Address and bytes, as the native module takes them.
Piece = tuple[int, int]


def is_flat(tensor: Tensor) -> bool:
    """Whether the library can work on this tensor where it lies."""
    return (
        tensor.is_cpu
        and tensor.layout is torch.strided
        and tensor.is_contiguous()
        and not tensor.is_neg()
        and not tensor.is_conj()
    )


def check(call: str, tensor: Tensor) -> None:
    """Raises the error of a tensor that cannot be communicated."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{call}: a tensor is wanted, not {type(tensor).__name__}")
    if tensor.layout is not torch.strided:
        raise ValueError(
            f"{call}: a tensor of layout {tensor.layout} is not served; only all_reduce with SUM takes sparse tensors (COO). "
            "Use to_dense()"
        )
    if not tensor.is_cpu:
        raise ValueError(
            f"{call}: a tensor on {tensor.device} is not served by this group; move it with .cpu(), or use the backend of that "
            f"device too: init_process_group('cpu:unisono,{tensor.device.type}:...')"
        )


class Memory:
    """The memory of one call's tensors."""

    __slots__ = ("back", "call", "keep")

    def __init__(self, call: str) -> None:
        self.call = call
        # What must live until the call has ended.
        self.keep: list[Tensor] = []
        # Outputs that are staged, with their copies.
        self.back: list[tuple[Tensor, Tensor]] = []

    def read(self, tensor: Tensor) -> Piece:
        """The memory of a tensor that is only read."""
        if not is_flat(tensor):
            check(self.call, tensor)
            tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
        self.keep.append(tensor)
        return tensor.data_ptr(), tensor.nbytes

    def write(self, tensor: Tensor) -> Piece:
        """The memory of a tensor that is written, and may be read before."""
        if not is_flat(tensor):
            check(self.call, tensor)
            if any(
                size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
            ):
                raise ValueError(
                    f"{self.call}: elements of the output of shape {tuple(tensor.shape)} share memory (an expanded tensor); "
                    "give it memory of its own with .contiguous()"
                )
            copy = tensor.detach().resolve_conj().resolve_neg().contiguous()
            self.back.append((tensor.detach(), copy))
            tensor = copy
        self.keep.append(tensor)
        return tensor.data_ptr(), tensor.nbytes

    def read_all(self, tensors: Iterable[Tensor]) -> list[Piece]:
        """The memory of several tensors that are only read."""
        return [self.read(tensor) for tensor in tensors]

    def write_all(self, tensors: Iterable[Tensor]) -> list[Piece]:
        """The memory of several tensors that are written."""
        return [self.write(tensor) for tensor in tensors]

    def copy_back(self) -> None:
        """Copies the results of staged outputs to where they belong."""
        for tensor, copy in self.back:
            tensor.copy_(copy)


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
