"""PyTorch's dtypes and reductions, and what the library calls them."""

import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from unisono import _types
from unisono._types import Moved, Reduction

# What the library calls each reduction, by the number that is its hash: the one cheap thing to ask of a `ReduceOp`.
_NAMES = {
    ReduceOp.SUM: "sum",
    ReduceOp.AVG: "avg",
    ReduceOp.PRODUCT: "product",
    ReduceOp.MIN: "min",
    ReduceOp.MAX: "max",
    ReduceOp.BAND: "band",
    ReduceOp.BOR: "bor",
    ReduceOp.BXOR: "bxor",
    ReduceOp.PREMUL_SUM: "premulsum",
}
PREMUL_SUM = int(ReduceOp.PREMUL_SUM)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


_ALL = [dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)]

# The reductions that there are, by the code of the operation in PyTorch and the dtype.
REDUCTIONS: dict[tuple[int, torch.dtype], Reduction] = {
    (int(op), dtype): found
    for op, name in _NAMES.items()
    for dtype in _ALL
    if (found := _types.reduction(_name(dtype), name)) is not None
}

# How tensors of each dtype are moved.
MOVED = {dtype: _types.moved(_name(dtype), dtype.itemsize) for dtype in _ALL}

# The kinds of calls that the native module runs by itself (`run_plain`): reductions without a factor, by their code, and moves. Complex
# numbers are not among them, since a conjugate may only say that it is one.
PLAIN: dict[tuple[int | None, torch.dtype], Reduction] = {
    (code, dtype): kind
    for (code, dtype), kind in [
        *REDUCTIONS.items(),
        *(((None, dtype), Reduction(kind.element, 0)) for dtype, kind in MOVED.items()),
    ]
    if code != PREMUL_SUM and not dtype.is_complex
}


# How tensors of real numbers are moved that are a view of complex ones.
_PARTS = {dtype.to_real(): Moved(kind.element, 1) for dtype, kind in MOVED.items() if dtype.is_complex}


def moved(tensor: torch.Tensor) -> Moved:
    """How a tensor is moved."""
    return _PARTS[tensor.dtype] if are_parts(tensor) and _torch_made_parts() else MOVED[tensor.dtype]


def are_parts(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a view of complex numbers as real ones."""
    base = tensor._base
    return base is not None and base.is_complex() and not tensor.is_complex()


def _torch_made_parts() -> bool:
    """Whether the call of `torch.distributed` that runs was given complex numbers: it gives most of these to a backend as real ones. What
    callers view as real numbers themselves is as good as any."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        # The decorator of these calls.
        if frame.f_globals.get("__name__") == "torch.distributed.c10d_logger":
            given = frame.f_locals
            return _has_complex([*given.get("args", ()), *given.get("kwargs", {}).values()])
        # These two have no such decorator, alone and in a batch.
        if frame.f_code in _MESSAGES:
            return _has_complex(_message_given(frame))
        frame = frame.f_back
    return False


_MESSAGES = (dist.isend.__code__, dist.irecv.__code__)


def _message_given(frame: Any) -> Any:
    """What `isend` or `irecv`, whose frame this is, was given."""
    made, caller = frame.f_locals["tensor"], frame.f_back.f_locals
    if "relevant_args" in frame.f_locals:
        return frame.f_locals["relevant_args"]
    # Torch 2.8 does not keep it: what its caller does not hold itself, it has made of complex numbers.
    if frame.f_back.f_code is dist.batch_isend_irecv.__code__ and "p2p_op" in caller:
        return caller["p2p_op"].tensor
    return made if any(value is made for value in caller.values()) else made._base


def _has_complex(given: Any) -> bool:
    if isinstance(given, torch.Tensor):
        return given.is_complex()
    return isinstance(given, list | tuple) and any(map(_has_complex, given))


def operation(op: object) -> str:
    """What the library calls a reduction."""
    return _NAMES.get(getattr(op, "op", op), str(op))


def no_reduction(call: str, op: object, dtype: torch.dtype) -> ValueError:
    """The error of a reduction that there is not."""
    return _types.no_reduction(call, operation(op), _name(dtype), dtype)
