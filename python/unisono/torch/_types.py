"""PyTorch's dtypes and reductions, and what the library calls them."""

from typing import NamedTuple

import torch
from torch.distributed import ReduceOp

from unisono._codes import DTYPES, OPERATIONS

_BYTE = DTYPES["u8"]

# The dtypes that the library reduces.
_REDUCED = {
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float32: "f32",
    torch.float64: "f64",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.uint8: "u8",
    torch.uint16: "u16",
    torch.uint32: "u32",
    torch.uint64: "u64",
}
# Complex numbers are pairs of these.
_PAIRS = {torch.complex32: "f16", torch.complex64: "f32", torch.complex128: "f64"}

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

# Truth values are 0 or 1: sum and max are or, product and min are and.
_TRUTH = {
    "sum": "max",
    "max": "max",
    "bor": "max",
    "product": "min",
    "min": "min",
    "band": "min",
    "bxor": "bxor",
}
# What can be done with pairs, each part for itself.
_LINEAR = ("sum", "avg", "premulsum")


class Reduction(NamedTuple):
    """A reduction of a dtype, in the library's codes."""

    dtype: int
    op: int


def _reductions() -> dict[tuple[int, torch.dtype], Reduction]:
    table = {}
    for op, name in _NAMES.items():
        for dtype, of in _REDUCED.items():
            if not (dtype.is_floating_point and name in ("band", "bor", "bxor")):
                table[int(op), dtype] = Reduction(DTYPES[of], OPERATIONS[name])
        if name in _LINEAR:
            for dtype, of in _PAIRS.items():
                table[int(op), dtype] = Reduction(DTYPES[of], OPERATIONS[name])
        if name in _TRUTH:
            table[int(op), torch.bool] = Reduction(_BYTE, OPERATIONS[_TRUTH[name]])
    return table


# The reductions that there are, by the code of the operation in PyTorch and the dtype.
REDUCTIONS = _reductions()


class Moved(NamedTuple):
    """How tensors of a dtype are moved: the library's dtype, and how many of its elements one element is."""

    dtype: int
    elements: int


# All that is not here moves as bytes.
MOVED = {
    **{dtype: Moved(DTYPES[name], 1) for dtype, name in _REDUCED.items()},
    **{dtype: Moved(DTYPES[name], 2) for dtype, name in _PAIRS.items()},
    torch.bool: Moved(_BYTE, 1),
}


def moved(dtype: torch.dtype) -> Moved:
    """How tensors of this dtype are moved."""
    return MOVED.get(dtype) or Moved(_BYTE, dtype.itemsize)


def no_reduction(call: str, op: object, dtype: torch.dtype) -> ValueError:
    """The error of a reduction that there is not."""
    name = _NAMES.get(getattr(op, "op", op), str(op))
    if dtype in _REDUCED or dtype in _PAIRS or dtype is torch.bool:
        able = sorted({_NAMES[ReduceOp.RedOpType(code)] for code, of in REDUCTIONS if of is dtype})
        return ValueError(f"{call}: {name} is not defined for {dtype}; there are {', '.join(able)}")
    return ValueError(
        f"{call}: {dtype} cannot be reduced; convert it to float32 or another dtype first. It can be broadcast, gathered, "
        "scattered and sent as it is"
    )
