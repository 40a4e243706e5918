"""Different types of one length: if ranks give different types, the error names both; equal types are one type."""

import random
from functools import partial

import numpy as np
import pytest
import unisono
from ranks import alone
from unisono import _arrays

_arrays.load()
ml_dtypes = pytest.importorskip("ml_dtypes", reason="numpy has types of 8 bits only with ml_dtypes")

SEED = random.randrange(10**6)
# By bytes of an element.
ALIKE = {
    1: ["bool", "uint8", "int8", "S1", "V1", *(f"float8_{kind}" for kind in ("e4m3fn", "e4m3fnuz", "e5m2", "e3m4"))],
    2: ["int16", "uint16", "float16", "bfloat16", ">i2", ">f2", "S2", "V2"],
    4: ["int32", "uint32", "float32", ">i4", ">f4", "S4", "U1", "V4", "i2,i2", "i2,u2", "f2,f2"],
    8: [
        "int64", "uint64", "float64", "complex64", ">f8", ">c8", "M8[s]", "M8[ms]", "M8[25s]", "M8[60s]", "M8[m]", "M8", "m8[s]", "m8[ns]", "S8", "U2",
        "V8", "i4,f4", "f4,i4", "(2,)f4,", "i4,i4",
    ],
    16: ["complex128", "longdouble", "S16", "U4", "V16", "f8,f8", ">c16"],
}  # fmt: skip


def named(name):
    """The type of numpy or ml_dtypes with this name."""
    own = getattr(ml_dtypes, name, None) if name.startswith(("float8", "bfloat")) else None
    return np.dtype(own or name)


def word(dtype):
    """The name of a type in errors; `None` for a type that they name by a hash."""
    names = {"float16": "f16", "float32": "f32", "float64": "f64", "bfloat16": "bf16"} | {
        f"{sign}int{bits}": f"{sign[:1] or 'i'}{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
    }
    if dtype.names is not None:
        return None
    if dtype.kind in "SU" or dtype.type is np.void or not dtype.isnative:
        return dtype.str.lstrip("|<")
    return names.get(dtype.name, dtype.name)


def test_types_of_one_length_have_different_codes():
    for size, names in ALIKE.items():
        types = [named(name) for name in names]
        assert {dtype.itemsize for dtype in types} == {size}
        codes = {_arrays.elements("a test", dtype).element: dtype for dtype in types}
        assert len(codes) == len(types), codes


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (np.dtype("longlong"), np.dtype("int64")),
        (np.dtype("<f4"), np.dtype("=f4")),
        (np.dtype([("a", "i4"), ("b", "f4")], align=True), np.dtype([("a", "<i4"), ("b", "f4")])),
        (np.dtype((np.record, [("a", "i4")])), np.dtype([("a", "i4")])),
        (np.dtype("i4", metadata={"unit": "m"}), np.dtype("i4")),
        (np.dtype("M8[1000ms]"), np.dtype("M8[s]")),
        (np.dtype("m8[7000000as]"), np.dtype("m8[7ps]")),
    ],
    ids=str,
)
def test_types_that_are_equal_have_one_code(one, other):
    # Without the cached result of an equal type.
    codes = set()
    for dtype in (one, other):
        _arrays._elements.clear()
        codes.add(_arrays.elements("a test", dtype).element)
    assert len(codes) == 1 and one == other


def differ(group, pair, call, elements):
    """The failure of two ranks whose calls have different types."""
    dtype = pair[group.rank]
    mine, block = np.zeros(elements * group.size, dtype), np.zeros(elements, dtype)
    other = 1 - group.rank
    calls = {
        "broadcast": lambda: group.broadcast(mine),
        "all_gather": lambda: group.all_gather(block),
        "all_gather of lengths": lambda: group.all_gather(block, lengths=[elements] * group.size),
        "gather": lambda: group.gather(block),
        "scatter": lambda: group.scatter(mine, block),
        "all_to_all": lambda: group.all_to_all(mine),
        "all_to_all of lengths": lambda: group.all_to_all(
            mine, send_lengths=[elements] * 2, recv_lengths=[elements] * 2
        ),
        "all_gather later": lambda: group.all_gather_async(block).wait(),
        "message": lambda: group.recv(block, 0) if group.rank else group.send(block, 1),
        "message later": lambda: group.send_async(block, 1).wait() if group.rank == 0 else group.recv_async(block).wait(),
        "send_recv": lambda: group.send_recv(block, other, block.copy(), other),
    }  # fmt: skip
    with pytest.raises(unisono.Error) as raised:
        calls[call]()
        group.barrier()
        # By then, the failure of a message that no rank has received is known.
        group.barrier()
    return str(raised.value)


CALLS = [
    "broadcast", "all_gather", "all_gather of lengths", "gather", "scatter", "all_to_all", "all_to_all of lengths",
    "all_gather later", "message", "message later", "send_recv",
]  # fmt: skip


@pytest.mark.parametrize("elements", [3, 50_000], ids=["few", "many"])
@pytest.mark.parametrize("call", CALLS)
def test_ranks_that_give_other_types_are_told_both(call, elements):
    choose = random.Random(f"{SEED} {call} {elements}")
    types = [named(name) for name in choose.sample(ALIKE[choose.choice([1, 2, 4, 8, 16])], 2)]
    one, other = alone(2, partial(differ, pair=types, call=call, elements=elements))
    about = f"seed {SEED}: {types}: {one}"
    assert one == other, about
    for dtype in types:
        wanted = word(dtype)
        assert (wanted or "type #") in one, about


def reduced(group, types):
    with pytest.raises(unisono.Error) as raised:
        group.all_reduce(np.ones(4, types[group.rank]), "sum")
    return str(raised.value)


@pytest.mark.parametrize(
    ("types", "named"),
    [(("bool", "uint8"), ("bool", "u8")), (("float64", "complex64"), ("f64", "complex64"))],
    ids=str,
)
def test_reductions_of_other_types_are_told_both(types, named):
    for direction in (1, -1):
        pair, names = types[::direction], named[::direction]
        output = alone(2, partial(reduced, types=pair))
        for text in output:
            assert all(f"rank {rank} calls all_reduce({name}, " in text for rank, name in enumerate(names))


def lengths(group):
    with pytest.raises(unisono.Error) as raised:
        group.all_reduce(np.ones(3 + group.rank, "complex64"))
    return str(raised.value)


def test_elements_are_counted_in_the_callers_type():
    for text in alone(2, lengths):
        assert "all_reduce(complex64, sum): rank 0 has 3 elements, rank 1 has 4 elements" in text


def interchangeable(group):
    first = group.rank == 0
    # Bytes are one type in all objects that hold them.
    got = group.broadcast(bytearray(b"abcd") if first else np.zeros(4, "u1"))
    assert bytes(got) == b"abcd"
    got = group.broadcast(np.frombuffer(b"abcd", "u1") if first else memoryview(bytearray(4)))
    assert bytes(got) == b"abcd"
    for name in ["M8[ns]", "S5", "U3", "V3", "i4,f8", "?", "c8", ">f4"]:
        dtype = np.dtype(name)
        raw = np.arange(4 * dtype.itemsize, dtype="u1") % 2
        mine = raw.view(dtype) if first else np.zeros(4, dtype)
        assert group.broadcast(mine).tobytes() == raw.tobytes()
        assert (group.all_gather(mine[:1]) == mine[:1]).all()
        if first and group.size > 1:
            group.send(mine, 1)
        elif group.rank == 1:
            out = np.zeros(4, dtype)
            group.recv(out, 0)
            assert out.tobytes() == raw.tobytes()


def test_types_that_are_one_are_served(world):
    world.run(interchangeable)
