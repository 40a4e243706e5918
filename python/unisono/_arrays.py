"""The memory of arrays: numpy's arrays, and objects with the buffer protocol or DLPack.

The library reads and writes contiguous memory in row-major order directly. Any other array is staged: the library works on a copy, and
this module copies the result back. It never reinterprets memory as another type.

If numpy is installed, this module treats all arrays as numpy's. Otherwise it accepts contiguous objects with the buffer protocol.
"""

from __future__ import annotations

import struct
import sys
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from unisono import _native, _types
from unisono._codes import DTYPES
from unisono._native import View

if TYPE_CHECKING:
    import numpy

# The arguments that a call accepts: numpy's arrays, objects with the buffer protocol or DLPack and, as inputs, numbers.
ArrayLike: TypeAlias = Any
# The result that a call makes: an array of numpy's or, if numpy is not installed, a memoryview.
Array: TypeAlias = "numpy.ndarray[Any, Any]"

_numpy: Any = None


class _NoArray:
    """Stands for numpy's array if numpy is not installed."""


_ndarray: Any = _NoArray

# DLPack's numbers of the kinds of memory that are main memory, also if CUDA or ROCm has pinned it.
_IN_MAIN_MEMORY = (1, 3, 11)
_DEVICES = {2: "cuda", 4: "opencl", 7: "vulkan", 8: "metal", 10: "rocm", 13: "cuda managed", 14: "oneapi"}

# Types of memory without numpy: names by kind and size, and the formats that `memoryview` uses.
_KINDS = dict.fromkeys("bhilqn", "int") | dict.fromkeys("BHILQN", "uint") | dict.fromkeys("efd", "float")
_FORMATS = {
    "int8": "b", "int16": "h", "int32": "i", "int64": "q", "uint8": "B", "uint16": "H", "uint32": "I", "uint64": "Q",
    "float16": "e", "float32": "f", "float64": "d", "bool": "?",
}  # fmt: skip

# numpy's marks of a type that has no byte order, or the byte order of this host.
_NATIVE = "=|" + ("<" if sys.byteorder == "little" else ">")

# The names of types by the library's codes.
_RECEIVED = {DTYPES[of]: name for name, of in _types.REDUCED.items()}


def load() -> None:
    """Loads numpy if it is installed. The import of this package does not, because programs without arrays import it too."""
    global _numpy, _ndarray
    if _numpy is None:
        try:
            import numpy
        except ImportError:
            return
        _numpy, _ndarray = numpy, numpy.ndarray


class Elements(NamedTuple):
    """How the library moves elements of a type: the code of its element, the number of these for one element, and the bytes of one."""

    element: int
    elements: int
    itemsize: int


_elements: dict[Any, Elements] = {}
_reductions: dict[tuple[Any, str], tuple[int, int, float]] = {}


def _name(dtype: Any) -> str:
    """The name of a type; empty if the type has another byte order than this host."""
    if isinstance(dtype, str):
        return dtype
    return str(dtype.name) if dtype.isnative else ""


# The units of times that are fractions of a second, in powers of 1000.
_SECONDS = ["s", "ms", "us", "ns", "ps", "fs", "as"]


def _described(dtype: Any) -> str:
    """A text that distinguishes a type from others; it is the same for equal types."""
    if isinstance(dtype, str):
        return dtype
    if dtype.names is not None:
        fields = ((name, *dtype.fields[name][:2]) for name in dtype.names)
        parts = [f"{name!r} {_described(of)} at {offset}" for name, of, offset in fields]
        return f"{{{', '.join(parts)}}} of {dtype.itemsize}"
    if dtype.subdtype is not None:
        of, shape = dtype.subdtype
        return f"{_described(of)} {shape}"
    if not dtype.isnative or dtype.type in (_numpy.bytes_, _numpy.str_, _numpy.void):
        # The names of these types give their length in bits.
        return str(dtype.str).lstrip(_NATIVE)
    if dtype.kind not in "mM":
        return str(dtype.name)
    unit, many = _numpy.datetime_data(dtype)
    # numpy holds 1000 ms equal to a second.
    while many % 1000 == 0 and unit in _SECONDS[1:]:
        unit, many = _SECONDS[_SECONDS.index(unit) - 1], many // 1000
    name = str(dtype.name).partition("[")[0]
    return name if unit == "generic" else f"{name}[{many if many > 1 else ''}{unit}]"


def elements(call: str, dtype: Any) -> Elements:
    """How the library moves elements of this type."""
    known = _elements.get(dtype)
    if known is None:
        if isinstance(dtype, str):
            itemsize = struct.calcsize(_FORMATS[dtype])
        elif dtype.hasobject:
            raise TypeError(f"{call}: elements of {dtype} are Python objects; use the calls of objects")
        else:
            itemsize = dtype.itemsize
        moved = _types.moved(_described(dtype), itemsize)
        known = _elements[dtype] = Elements(moved.element, moved.elements, itemsize)
    return known


def movement(call: str, dtype: Any) -> tuple[int, int, float]:
    """Type, operation and factor of a call that reduces nothing, in the library's codes."""
    return elements(call, dtype).element, 0, 1.0


def reduction(call: str, dtype: Any, op: str) -> tuple[int, int, float]:
    """Type, operation and factor of a reduction in the library's codes."""
    known = _reductions.get((dtype, op))
    if known is not None:
        return known
    if not isinstance(op, str):
        raise TypeError(f"{call}: op is {op!r}; wanted a name, such as 'sum'")
    elements(call, dtype)
    name = _name(dtype)
    plain, factor = _types.operation(call, op)
    found = _types.reduction(name, plain)
    if found is None:
        raise _types.no_reduction(call, plain, name, dtype)
    if "(" not in op:
        _reductions[dtype, op] = (*found, factor)
    return *found, factor


class Operand:
    """An array of a call, in the form that the library accepts."""

    __slots__ = ("array", "dtype", "target", "view")

    def __init__(self, array: Any, view: View, dtype: Any, target: Any = None) -> None:
        self.array = array
        self.view = view
        self.dtype = dtype
        # The array into which a staged result is copied.
        self.target = target

    @property
    def shape(self) -> tuple[int, ...]:
        """The length of each dimension."""
        shape: tuple[int, ...] = self.array.shape
        return shape

    def finish(self) -> None:
        """Copies a staged result to where it belongs."""
        if self.target is not None:
            self.target[...] = self.array


def read(call: str, given: ArrayLike) -> Operand:
    """The operand of an array that the call only reads."""
    if type(given) is not _ndarray:
        given = _adopted(call, given, False)
        if _numpy is None:
            return _plain(call, given, False)
    if not given.flags.carray:
        given = _numpy.require(given, requirements=("C", "A"))
    return Operand(given, _view(given, False), given.dtype)


def write(call: str, given: ArrayLike, filled: bool) -> Operand:
    """The operand of an array that the call writes; if it is ``filled``, the call reads it first."""
    array = given
    if type(array) is not _ndarray:
        array = _adopted(call, array, True)
        if _numpy is None:
            return _plain(call, array, True)
    flags = array.flags
    if flags.carray:
        return Operand(array, _view(array, True), array.dtype)
    if not flags.writeable:
        raise ValueError(f"{call}: the output is read-only")
    if any(size > 1 and stride == 0 for size, stride in zip(array.shape, array.strides, strict=True)):
        raise ValueError(
            f"{call}: elements of the output of shape {array.shape} share memory; give it its own memory with .copy()"
        )
    copy = array.copy() if filled else _numpy.empty(array.shape, array.dtype)
    return Operand(copy, _view(copy, True), array.dtype, array)


def new(call: str, shape: tuple[int, ...], dtype: Any) -> Operand:
    """The operand of a new array with unspecified contents."""
    if _numpy is not None:
        try:
            array = _numpy.empty(shape, dtype)
        except (MemoryError, ValueError) as error:
            kind = MemoryError if isinstance(error, MemoryError) else ValueError
            raise kind(f"{call}: an array of shape {shape} and {dtype} cannot be made: {error}") from None
        return Operand(array, _view(array, True), dtype)
    size = 1
    for length in shape:
        size *= length
    each = elements(call, dtype)
    memory: Any = memoryview(bytearray(size * each.itemsize))
    # An array without elements has no shape here, because `memoryview` cannot cast it.
    array = memory.cast(_FORMATS[dtype], shape) if size else memory.cast(_FORMATS[dtype])
    return Operand(array, View(array, True), dtype)


def described(call: str, given: ArrayLike) -> tuple[int, tuple[int, ...], Any]:
    """The code of an array's type, its shape and its bytes, for calls that send type and shape to their receivers."""
    operand = read(call, given)
    array, dtype = operand.array, operand.dtype
    elements(call, dtype)
    name = _name(dtype)
    if name not in _types.REDUCED:
        raise TypeError(
            f"{call}: elements of {dtype} cannot be sent with their type; convert them, for instance to int8 or float64, or use the "
            "calls of objects with pickle=True"
        )
    contents = array.cast("B") if _numpy is None and array.nbytes else array.reshape(-1).view("u1")
    return DTYPES[_types.REDUCED[name]], operand.shape, contents


def taken(got: tuple[int, list[int], _native.Buffer]) -> Array:
    """A new array of received data: the code of its type, its shape and its memory."""
    code, shape, memory = got
    name = _RECEIVED[code]
    if _numpy is None:
        plain: Any = memoryview(memory)
        return plain.cast(_FORMATS[name], shape) if len(memory) else plain.cast(_FORMATS[name])
    try:
        dtype = _numpy.dtype(name)
    except TypeError:
        # The type is bfloat16, and ml_dtypes is not loaded.
        dtype = _bfloat16()
    return _numpy.frombuffer(memory, dtype).reshape(shape)


def _bfloat16() -> Any:
    """numpy's type for bfloat16 or, without ml_dtypes, an integer type for its bits."""
    try:
        import ml_dtypes
    except ImportError:
        return _numpy.dtype("uint16")
    return _numpy.dtype(ml_dtypes.bfloat16)


def _view(array: Any, writable: bool) -> View:
    try:
        return View(array, writable)
    except (ValueError, BufferError):
        # The buffer protocol has no name for this type, or the array has no dimensions: the view is of its bytes.
        return View(array.reshape(-1).view("u1"), writable)


def _plain(call: str, memory: memoryview, writable: bool) -> Operand:
    kind = memory.format.lstrip("@=" + ("<" if sys.byteorder == "little" else ">"))
    name = "bool" if kind == "?" else f"{_KINDS.get(kind, '')}{8 * memory.itemsize}"
    if name not in _FORMATS:
        raise TypeError(
            f"{call}: elements of the format {memory.format!r} are served only where numpy is installed"
        )
    try:
        return Operand(memory, View(memory, writable), name)
    except ValueError as error:
        raise ValueError(f"{call}: {error}") from None


def _adopted(call: str, given: Any, writable: bool) -> Any:
    """The array of an object that is not exactly numpy's array; it has the same memory if it is ``writable``."""
    if isinstance(given, _ndarray):
        if isinstance(given, _numpy.ma.MaskedArray):
            raise TypeError(
                f"{call}: a masked array is not served, since its mask would be lost; use .filled() or .data"
            )
        return given
    device = getattr(given, "__dlpack_device__", None)
    if device is not None:
        kind, number = device()
        if kind not in _IN_MAIN_MEMORY:
            name = _DEVICES.get(kind, f"of DLPack's kind {kind:d}")
            raise TypeError(
                f"{call}: this {type(given).__name__} is on a device ({name}, number {number}), and only main memory is served; "
                "copy it there first"
            )
    if _numpy is None:
        try:
            return memoryview(given)
        except TypeError:
            raise _unserved(call, given, "an object with the buffer protocol") from None
    if not writable and isinstance(given, (bool, int, float, complex, _numpy.generic)):
        return _numpy.asarray(given)
    try:
        # The array is writable if the object is.
        return _numpy.asarray(memoryview(given))
    except (TypeError, ValueError, BufferError, NotImplementedError, RuntimeError):
        pass
    if device is not None:
        try:
            return _numpy.from_dlpack(given)
        except (TypeError, ValueError, BufferError, NotImplementedError, RuntimeError):
            pass
    if not writable and hasattr(given, "__array__"):
        # This may be a copy.
        return _numpy.asarray(given)
    raise _unserved(call, given, "an array of numpy's, or an object with the buffer protocol or DLPack")


def _unserved(call: str, given: Any, wanted: str) -> TypeError:
    return TypeError(f"{call}: {wanted} is wanted, not {type(given).__name__}")
