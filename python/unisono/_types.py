"""Maps the names of element types and reductions that numpy, PyTorch and jax share to the library's codes."""

from typing import NamedTuple

from unisono import _native
from unisono._codes import DTYPES, OPERATIONS

# The types that the library reduces, and the library's names of them.
REDUCED = {
    "float16": "f16",
    "bfloat16": "bf16",
    "float32": "f32",
    "float64": "f64",
    "int8": "i8",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "uint8": "u8",
    "uint16": "u16",
    "uint32": "u32",
    "uint64": "u64",
}
# Complex numbers are pairs of these.
_PAIRS = {"complex32": "f16", "complex64": "f32", "complex128": "f64"}
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
# The reductions that work on the bits of integers.
_BITWISE = ("band", "bor", "bxor")
# The reductions that work on each part of a pair separately.
_LINEAR = ("sum", "avg", "premulsum")


# Other names of reductions, in numpy, torch and MPI.
_ALIASES = {"prod": "product", "mean": "avg", "average": "avg"}


class Reduction(NamedTuple):
    """A reduction of a type, in the library's codes."""

    element: int
    op: int


class Moved(NamedTuple):
    """How the library moves elements of a type: the code of its element, and the number of these for one element."""

    element: int
    elements: int


def _alias(dtype: str, of: str) -> int:
    """The code of a type that the library moves as another type. Ranks compare both types."""
    return DTYPES[of] | _native.alias(dtype) << 8


def reduction(dtype: str, op: str) -> Reduction | None:
    """The reduction ``op`` (the library's name) of this type, or `None` if it is not defined."""
    if dtype == "bool":
        return Reduction(_alias("bool", "u8"), OPERATIONS[_TRUTH[op]]) if op in _TRUTH else None
    if op in OPERATIONS and (dtype not in _PAIRS or op in _LINEAR):
        of = REDUCED.get(dtype) or _PAIRS.get(dtype)
        if of is not None and not (of[0] in "fb" and op in _BITWISE):
            return Reduction(_alias(dtype, of) if dtype in _PAIRS else DTYPES[of], OPERATIONS[op])
    return None


def moved(dtype: str, itemsize: int) -> Moved:
    """How the library moves elements of this type, which have ``itemsize`` bytes. It moves types that it does not know as bytes.
    ``dtype`` is the name of the type, or a text that distinguishes it from others.
    """
    if dtype in REDUCED:
        return Moved(DTYPES[REDUCED[dtype]], 1)
    if dtype in _PAIRS:
        return Moved(_alias(dtype, _PAIRS[dtype]), 2)
    return Moved(_alias(dtype, "u8"), itemsize)


def no_reduction(call: str, op: str, dtype: str, shown: object) -> ValueError:
    """The error of a reduction that is not defined."""
    able = sorted(name for name in OPERATIONS if reduction(dtype, name) is not None)
    if able:
        return ValueError(f"{call}: {op} is not defined for {shown}; there are {', '.join(able)}")
    return ValueError(
        f"{call}: {shown} cannot be reduced; convert it to float32 or another dtype first. It can be broadcast, gathered, "
        "scattered and sent as it is"
    )


def operation(call: str, op: str) -> tuple[str, float]:
    """The library's name of an operation, and its factor: ``"sum"``, ``"max"``, ``"premulsum(0.5)"``."""
    name, bracket, factor = op.partition("(")
    name = _ALIASES.get(name, name)
    if name in OPERATIONS and (name == "premulsum") == bool(bracket):
        try:
            return name, float(factor.removesuffix(")")) if bracket else 1.0
        except ValueError:
            pass
    names = [name for name in OPERATIONS if name != "premulsum"]
    raise ValueError(
        f"{call}: there is no operation {op!r}; there are {', '.join(names)} and premulsum(FACTOR)"
    )
