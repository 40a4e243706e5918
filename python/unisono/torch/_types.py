"""PyTorch's dtypes and reductions, and the library's names of them."""

import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from unisono import _types
from unisono._types import Moved, Reduction

# The library's names of reductions, by the hash of a `ReduceOp`, which is the only cheap value of it.
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

# All reductions, by the code of the operation in PyTorch and the dtype.
REDUCTIONS: dict[tuple[int, torch.dtype], Reduction] = {
    (int(op), dtype): found
    for op, name in _NAMES.items()
    for dtype in _ALL
    if (found := _types.reduction(_name(dtype), name)) is not None
}

# The library's types for moving tensors of each dtype.
MOVED = {dtype: _types.moved(_name(dtype), dtype.itemsize) for dtype in _ALL}

# The kinds of calls that `run_plain` of the native module accepts: reductions without a factor, by their code, and moves. Complex
# numbers are not among them, because a conjugate tensor may only be marked as one.
PLAIN: dict[tuple[int | None, torch.dtype], Reduction] = {
    (code, dtype): kind
    for (code, dtype), kind in [
        *REDUCTIONS.items(),
        *(((None, dtype), Reduction(kind.element, 0)) for dtype, kind in MOVED.items()),
    ]
    if code != PREMUL_SUM and not dtype.is_complex
}


# The library's types for moving tensors of real numbers that are views of complex ones.
_PARTS = {dtype.to_real(): Moved(kind.element, 1) for dtype, kind in MOVED.items() if dtype.is_complex}


def moved(tensor: torch.Tensor) -> Moved:
    """The library's type for moving a tensor."""
    return _PARTS[tensor.dtype] if are_parts(tensor) and _torch_made_parts() else MOVED[tensor.dtype]


def are_parts(tensor: torch.Tensor) -> bool:
    """Returns true if a tensor is a view of complex numbers as real ones."""
    base = tensor._base
    return base is not None and base.is_complex() and not tensor.is_complex()


def _torch_made_parts() -> bool:
    """Returns true if the running call of `torch.distributed` got complex numbers: it gives most of these to a backend as real ones.
    Numbers that callers themselves view as real are real."""
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
    """The tensor that `isend` or `irecv`, whose frame this is, got."""
    made, caller = frame.f_locals["tensor"], frame.f_back.f_locals
    if "relevant_args" in frame.f_locals:
        return frame.f_locals["relevant_args"]
    # Torch 2.8 does not keep the tensor: if its caller does not hold it, torch has made it from complex numbers.
    if frame.f_back.f_code is dist.batch_isend_irecv.__code__ and "p2p_op" in caller:
        return caller["p2p_op"].tensor
    return made if any(value is made for value in caller.values()) else made._base


def _has_complex(given: Any) -> bool:
    if isinstance(given, torch.Tensor):
        return given.is_complex()
    return isinstance(given, list | tuple) and any(map(_has_complex, given))


def operation(op: object) -> str:
    """The library's name of a reduction."""
    return _NAMES.get(getattr(op, "op", op), str(op))


def no_reduction(call: str, op: object, dtype: torch.dtype) -> ValueError:
    """The error of a reduction that does not exist."""
    return _types.no_reduction(call, operation(op), _name(dtype), dtype)
