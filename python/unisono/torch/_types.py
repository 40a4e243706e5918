"""PyTorch's dtypes and reductions, and what the library calls them."""

import torch
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
        *(((None, dtype), Reduction(kind.dtype, 0)) for dtype, kind in MOVED.items()),
    ]
    if code != PREMUL_SUM and not dtype.is_complex
}


def moved(dtype: torch.dtype) -> Moved:
    """How tensors of this dtype are moved."""
    return MOVED[dtype]


def no_reduction(call: str, op: object, dtype: torch.dtype) -> ValueError:
    """The error of a reduction that there is not."""
    name = _NAMES.get(getattr(op, "op", op), str(op))
    return _types.no_reduction(call, name, _name(dtype), dtype)
