"""Collectives of arrays, with numpy as the oracle."""

import array
import ctypes
import functools
import mmap
import os
from typing import Any

import numpy as np
import pytest
import unisono
from numpy.typing import NDArray
from ranks import Ranks
from unisono import Group

SEED = int(np.random.SeedSequence().entropy) % 2**32  # type: ignore[arg-type]

FLOATS = ["float16", "float32", "float64"]
INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
COMPLEX = ["complex64", "complex128"]
OPERATIONS = {"sum": np.add, "product": np.multiply, "min": np.minimum, "max": np.maximum}
BITWISE = {"band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor}
SHAPES = [(), (0,), (1,), (7,), (3, 0, 2), (4, 5), (2, 3, 130)]

Arrays = list[NDArray[Any]]


def drawn(rng: np.random.Generator, size: int, shape: tuple[int, ...], dtype: str) -> Arrays:
    """The arrays of all ranks: small whole numbers, whose sum is the same in every order."""
    kind = np.dtype(dtype).kind
    low = 0 if kind in "ub" else -3
    high = 2 if kind == "b" else 4
    arrays = [np.asarray(rng.integers(low, high, shape)).astype(dtype) for _ in range(size)]
    if kind == "c":
        arrays = [np.asarray(each + 1j * rng.integers(-3, 4, shape), dtype) for each in arrays]
    return arrays


def reduced(arrays: Arrays, op: str) -> NDArray[Any]:
    """The reduction of the arrays by numpy."""
    if op == "avg":
        total = functools.reduce(np.add, arrays)
        mean = total / len(arrays) if total.dtype.kind in "fc" else np.trunc(total / len(arrays))
        return np.asarray(mean, arrays[0].dtype)
    return functools.reduce((OPERATIONS | BITWISE)[op], arrays)


def same(result: Any, wanted: NDArray[Any], tolerance: float = 0) -> None:
    """Asserts that a result is this array."""
    assert isinstance(result, np.ndarray), type(result)
    assert (result.dtype, result.shape) == (wanted.dtype, wanted.shape)
    np.testing.assert_allclose(result, wanted, rtol=tolerance)


def cases() -> list[tuple[str, str]]:
    """All types with the operations that are defined for them."""
    numbers = [(dtype, op) for dtype in FLOATS + INTEGERS for op in [*OPERATIONS, "avg"]]
    bits = [(dtype, op) for dtype in [*INTEGERS, "bool"] for op in BITWISE]
    return numbers + bits + [(dtype, op) for dtype in COMPLEX for op in ("sum", "avg")]


def reduce_everything(group: Group, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for number, (dtype, op) in enumerate(cases()):
        shape = SHAPES[number % len(SHAPES)]
        inputs = drawn(rng, group.size, shape, dtype)
        mine, before = inputs[group.rank], inputs[group.rank].copy()
        wanted = reduced(inputs, op)
        near = 1e-3 if op == "avg" else 0
        same(group.all_reduce(mine, op), wanted, near)
        np.testing.assert_array_equal(mine, before)
        out = np.empty_like(mine)
        assert group.all_reduce(mine, op, out=out) is out
        same(out, wanted, near)
        root = number % group.size
        result = group.reduce(mine, op, root)
        if group.rank == root:
            same(result, wanted, near)
        else:
            assert result is None
        assert group.all_reduce(mine, op, out=mine) is mine
        same(mine, wanted, near)
        rows = drawn(rng, group.size, (2 * group.size, 3), dtype)
        block = slice(2 * group.rank, 2 * group.rank + 2)
        same(group.reduce_scatter(rows[group.rank], op), reduced(rows, op)[block], near)


def truth(group: Group, seed: int) -> None:
    rng = np.random.default_rng(seed)
    inputs = drawn(rng, group.size, (50,), "bool")
    mine = inputs[group.rank]
    for op, oracle in {"sum": np.any, "max": np.any, "product": np.all, "min": np.all}.items():
        same(group.all_reduce(mine, op), oracle(inputs, axis=0))


def other_names(group: Group) -> None:
    mine = np.array([group.rank + 1.0])
    everyone = [np.array([rank + 1.0]) for rank in range(group.size)]
    for _ in range(2):
        same(group.all_reduce(mine, "prod"), reduced(everyone, "product"))
        same(group.all_reduce(mine, "mean"), reduced(everyone, "avg"))
    # Each rank has another factor.
    total = sum((rank + 1.0) * (rank + 0.5) for rank in range(group.size))
    same(group.all_reduce(mine, f"premulsum({group.rank + 0.5})"), np.array([total]))


def move_everything(group: Group, seed: int) -> None:
    rng = np.random.default_rng(seed)
    size, rank = group.size, group.rank
    types = ["float64", "int8", "complex64", "bool", ">i4", "datetime64[s]", "S5", [("a", "i2"), ("b", "f8")]]
    for number, shape in enumerate(SHAPES):
        for dtype in types:
            plain = [np.asarray(rng.integers(0, 100, shape)) for _ in range(size)]
            arrays = [each.astype("S5" if dtype == "S5" else "i8").astype(dtype) for each in plain]
            root, mine = number % size, arrays[rank]
            stacked = np.stack(arrays).astype(dtype)
            np.testing.assert_array_equal(group.all_gather(mine), stacked)
            gathered = group.gather(mine, root)
            assert (gathered is None) == (rank != root)
            if gathered is not None:
                assert gathered.dtype == stacked.dtype
                np.testing.assert_array_equal(gathered, stacked)
            copy = mine.copy()
            assert group.broadcast(copy, root) is copy
            np.testing.assert_array_equal(copy, arrays[root])
            out = np.zeros(shape, dtype)
            assert group.scatter(stacked if rank == root else None, out, root) is out
            np.testing.assert_array_equal(out, mine)
            table = np.stack([arrays[(rank + other) % size] for other in range(size)]).astype(dtype)
            exchanged = group.all_to_all(table)
            assert exchanged.dtype == mine.dtype
            wanted = np.stack([arrays[(rank + other) % size] for other in range(size)])
            np.testing.assert_array_equal(exchanged, wanted)
            assert group.all_to_all(table, out=table) is table
            np.testing.assert_array_equal(table, wanted)


def uneven(group: Group, seed: int) -> None:
    rng = np.random.default_rng(seed)
    size, rank = group.size, group.rank
    for dtype in ("float32", "complex128", "bool"):
        lengths = [int(length) for length in rng.integers(0, 4, size)]
        arrays = [drawn(rng, 1, (length, 3), dtype)[0] for length in lengths]
        mine, whole = arrays[rank], np.concatenate(arrays)
        same(group.all_gather(mine, lengths=lengths), whole)
        root = int(rng.integers(size))
        result = group.gather(mine, root, lengths=lengths if rank == root else ())
        if result is not None:
            same(result, whole)
        assert (result is None) == (rank != root)
        out = np.empty_like(mine)
        group.scatter(whole if rank == root else None, out, root, lengths=lengths)
        same(out, mine)
        if dtype != "bool":
            inputs = drawn(rng, size, whole.shape, dtype)
            start = sum(lengths[:rank])
            block = reduced(inputs, "sum")[start : start + lengths[rank]]
            same(group.reduce_scatter(inputs[rank], lengths=lengths), block)
        table = rng.integers(0, 4, (size, size))
        sent = [[drawn(rng, 1, (n, 2), dtype)[0] for n in row] for row in table]
        result = group.all_to_all(
            np.concatenate(sent[rank]), send_lengths=list(table[rank]), recv_lengths=list(table[:, rank])
        )
        same(result, np.concatenate([row[rank] for row in sent]))


def strided(group: Group, seed: int) -> None:
    rng = np.random.default_rng(seed)
    size, rank = group.size, group.rank
    inputs = drawn(rng, size, (6, 8), "float64")
    mine = inputs[rank]
    total = reduced(inputs, "sum")
    views = [np.s_[::2], np.s_[:, 1], np.s_[::-1, ::3], np.s_[1:1]]
    for view in views:
        same(group.all_reduce(mine[view]), total[view])
        target = mine.copy()
        group.all_reduce(target[view], out=target[view])
        wanted = mine.copy()
        wanted[view] = total[view]
        np.testing.assert_array_equal(target, wanted)
        target = mine.T.copy("F")
        assert group.all_reduce_async(mine.T, out=target).wait() is target
        same(target, total.T)
        column = np.zeros((6, 8))
        source = mine if rank == 0 else column
        group.broadcast(source[view])
        np.testing.assert_array_equal(source[view], inputs[0][view])
    unaligned = np.frombuffer(bytearray(8 * 5 + 1), "f8", 5, 1)
    unaligned[:] = rank
    same(group.all_reduce(unaligned), np.full(5, sum(range(size)), "f8"))
    group.all_reduce(unaligned, out=unaligned)
    same(unaligned, np.full(5, sum(range(size)), "f8"))
    # This rank's block of the output as the input.
    table = np.zeros((size, 4))
    table[rank] = rank
    group.all_gather(table[rank], out=table)
    np.testing.assert_array_equal(table, np.repeat(np.arange(float(size)), 4).reshape(size, 4))


class OnlyDlpack:
    """An array with DLPack only."""

    def __init__(self, whole: NDArray[Any]) -> None:
        self.whole = whole

    def __dlpack__(self, **options: Any) -> Any:
        return self.whole.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.whole.__dlpack_device__()


def other_objects(group: Group) -> None:
    size, rank = group.size, group.rank
    total = sum(range(size))
    numbers = array.array("d", [rank, 1])
    same(group.all_reduce(numbers), np.array([total, size], "f8"))
    assert group.all_reduce(numbers, out=numbers) is numbers and list(numbers) == [total, size]
    c = (ctypes.c_int32 * 3)(rank, 1, 2)
    group.all_reduce(c, out=c)
    assert list(c) == [total, size, 2 * size]
    text = bytearray(b"abc" if rank == 0 else b"---")
    assert group.broadcast(text) is text and text == b"abc"
    assert bytes(group.all_gather(b"%d" % rank).reshape(-1)) == b"".join(b"%d" % r for r in range(size))
    dlpack = OnlyDlpack(np.full(3, float(rank)))
    same(group.all_reduce(dlpack), np.full(3, float(total)))
    same(group.all_reduce(rank), np.array(total))
    same(group.all_reduce(0.5), np.array(size / 2))
    same(group.all_reduce(np.float32(rank)), np.array(total, "f4"))
    same(group.all_gather(memoryview(numbers)[:1]), np.full((size, 1), float(total)))
    # Memory cannot be resized while an operation works on it.
    grown = bytearray(1000)
    work = group.all_reduce_async(grown, out=grown)
    try:
        grown.extend(b"more")
        assert work.done()
    except BufferError:
        pass
    work.wait()
    work = None
    registered = group.buffer((2, 3), "f4")
    assert not registered.any()
    registered += rank
    same(group.all_reduce(registered, out=registered), np.full((2, 3), total, "f4"))


def memory_from_outside(group: Group) -> None:
    """An array in a memfd is reduced in place, with sizes that the ranks of a host read directly, and with smaller ones."""
    rank, size, offset = group.rank, group.size, mmap.PAGESIZE
    for shape in [(), 3, (50, 20), (300, 500)]:
        count = int(np.prod(shape))
        file = os.memfd_create("from outside", os.MFD_ALLOW_SEALING)
        os.ftruncate(file, offset + 8 * count + 100)
        mapped = mmap.mmap(file, 0)
        elements = np.frombuffer(mapped, "f8", count, offset)
        elements[:] = np.arange(count) + rank
        array = group.buffer_from(file, shape, offset=offset)
        os.close(file)
        same(array.reshape(count), elements)
        wanted = size * np.arange(count, dtype="f8") + sum(range(size))
        same(group.all_reduce(array, out=array).reshape(count), wanted)
        same(elements, wanted)
    with open("/dev/null", "r+b") as file, pytest.raises(unisono.Error, match="memfd"):
        group.buffer_from(file, 4)
    with pytest.raises(ValueError, match="-1 is not a file descriptor"):
        group.buffer_from(-1, 4)
    with pytest.raises(TypeError, match="buffer_from: elements of object"):
        group.buffer_from(0, 4, "O")


@pytest.fixture
def seed() -> int:
    print(f"seed {SEED}")
    return SEED


def test_reductions_are_numpys(world: Ranks, seed: int) -> None:
    world.run(reduce_everything, seed)


def test_truth_values_are_combined(world: Ranks, seed: int) -> None:
    world.run(truth, seed)


def test_operations_have_other_names_and_factors(world: Ranks) -> None:
    world.run(other_names)


def test_every_type_is_moved(world: Ranks, seed: int) -> None:
    world.run(move_everything, seed)


def test_lengths_may_differ(world: Ranks, seed: int) -> None:
    world.run(uneven, seed)


def test_what_is_not_contiguous_is_staged(world: Ranks, seed: int) -> None:
    world.run(strided, seed)


def test_objects_with_memory_are_arrays(world: Ranks) -> None:
    world.run(other_objects)


def bfloat16(group: Group) -> None:
    import ml_dtypes

    mine = np.full(5, group.rank + 0.5, ml_dtypes.bfloat16)
    result = group.all_reduce(mine)
    assert result.dtype == mine.dtype and result.tolist() == [group.size * group.size / 2] * 5
    assert group.all_gather(mine).dtype == mine.dtype


def test_memory_from_outside_serves_as_a_buffer(world: Ranks) -> None:
    world.run(memory_from_outside)


def test_bfloat16_is_reduced(world: Ranks) -> None:
    pytest.importorskip("ml_dtypes", reason="numpy has bfloat16 only with ml_dtypes")
    world.run(bfloat16)


def test_a_program_can_be_a_world_alone() -> None:
    with unisono.init(rank=0, size=1, timeout=5, provider="tcp") as group:
        assert (group.rank, group.size, group.members) == (0, 1, [0])
        assert repr(group) == "<unisono.Group world: rank 0 of 1>"
        same(group.all_reduce(np.arange(3)), np.arange(3))
    assert repr(group) == "<unisono.Group closed: rank 0 of 1>"
    with pytest.raises(unisono.Error, match="left"):
        group.barrier()
