"""Calls with several tensors of a rank, which torch's wrappers never make. They behave as with Gloo."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

# The reductions of two tensors to one.
_TWO: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": torch.add,
    "avg": torch.add,
    "premulsum": torch.add,
    "product": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
    "band": torch.bitwise_and,
    "bor": torch.bitwise_or,
    "bxor": torch.bitwise_xor,
}
# Torch cannot reduce these; sums of signed integers have the same bits.
_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


def check_alike(call: str, tensors: Sequence[Tensor]) -> None:
    """Raises an error if tensors that need one type and shape differ."""
    first = tensors[0]
    for index, tensor in enumerate(tensors):
        if (
            tensor.dtype is not first.dtype
            or tensor.shape != first.shape
            or tensor.layout is not first.layout
        ):
            raise ValueError(
                f"{call}: tensor 0 is of shape {tuple(first.shape)} and {first.dtype}, and tensor {index} of {tuple(tensor.shape)} "
                f"and {tensor.dtype}; all must be of one shape, dtype and layout"
            )


def reduced(tensors: Sequence[Tensor], op: str) -> Tensor:
    """Reduces the tensors of a rank to one, in new memory."""
    first, *others = (tensor.detach() for tensor in tensors)
    total = first.clone() if first.is_sparse else first.clone(memory_format=torch.contiguous_format)
    for other in others:
        total = _reduced(total, other, op)
    return total


def _reduced(one: Tensor, other: Tensor, op: str) -> Tensor:
    signed = _SIGNED.get(one.dtype)
    if signed is None:
        return _TWO[op](one, other)
    # With its first bit changed, an unsigned number is ordered as a signed one.
    lowest = torch.iinfo(signed).min if op in ("min", "max") else 0
    parts = (tensor.contiguous().view(signed) ^ lowest for tensor in (one, other))
    return (_TWO[op](*parts) ^ lowest).view(one.dtype)


def root_tensor(call: str, opts: Any, count: int) -> int:
    """The place of the root's tensor among those of a rank."""
    index: int = opts.rootTensor
    if not 0 <= index < count:
        raise ValueError(f"{call}: the root tensor is {index}; wanted a number from 0 to {count - 1}")
    return index
