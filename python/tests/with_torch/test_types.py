"""Different types of one length: if ranks give different types, the error names both."""

import random
from itertools import groupby

import pytest
import torch
import torch.distributed as dist
from test_failures import failure
from unisono.torch import _types
from world import CLASSES, run

SEED = random.randrange(10**6)
# The types by the bytes of an element, with their names in errors.
NAMES = {
    torch.bool: "bool", torch.uint8: "u8", torch.int8: "i8", torch.float8_e4m3fn: "float8_e4m3fn",
    torch.float8_e5m2: "float8_e5m2", torch.float8_e4m3fnuz: "float8_e4m3fnuz", torch.float8_e5m2fnuz: "float8_e5m2fnuz",
    torch.int16: "i16", torch.float16: "f16", torch.bfloat16: "bf16", torch.uint16: "u16",
    torch.int32: "i32", torch.float32: "f32", torch.complex32: "complex32", torch.uint32: "u32",
    torch.int64: "i64", torch.float64: "f64", torch.complex64: "complex64", torch.uint64: "u64",
    torch.complex128: "complex128",
}  # fmt: skip
ALIKE = [list(types) for _, types in groupby(NAMES, lambda dtype: dtype.itemsize)][:-1]


def test_all_types_have_different_codes():
    codes = {kind.element: dtype for dtype, kind in _types.MOVED.items()}
    assert len(codes) == len(_types.MOVED)
    for (_, dtype), kind in _types.REDUCTIONS.items():
        assert kind.element == _types.MOVED[dtype].element, dtype


def calls(dtype, strided):
    """The calls that move tensors of a type."""
    rank, ranks = dist.get_rank(), dist.get_world_size()

    def of(count):
        zeros = torch.zeros(count * dtype.itemsize * (1 + strided), dtype=torch.uint8).view(dtype)
        return zeros[::2] if strided else zeros

    block, whole, blocks = of(5), of(5 * ranks), [of(5) for _ in range(ranks)]
    at_root = rank == 0
    return {
        "broadcast": lambda: dist.broadcast(block, 0),
        "broadcast later": lambda: dist.broadcast(block, 0, async_op=True).wait(),
        "all_gather": lambda: dist.all_gather(blocks, block),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(whole, block),
        "gather": lambda: dist.gather(block, blocks if at_root else None, 0),
        "scatter": lambda: dist.scatter(block, blocks if at_root else None, 0),
        "all_to_all": lambda: dist.all_to_all([of(5) for _ in range(ranks)], blocks),
        "all_to_all_single": lambda: dist.all_to_all_single(of(5 * ranks), whole),
        "message": lambda: dist.recv(block, 0) if rank else dist.send(block, 1),
        "batch": lambda: [
            work.wait()
            for work in dist.batch_isend_irecv(
                [dist.P2POp(dist.irecv, block, 0) if rank else dist.P2POp(dist.isend, block, 1)]
            )
        ],
    }


CALLS = [
    "broadcast", "broadcast later", "all_gather", "all_gather_into_tensor", "all_to_all", "all_to_all_single", "gather", "scatter",
    "message", "batch",
]  # fmt: skip


def differ(types, call, strided):
    def both():
        calls(types[dist.get_rank()], strided)[call]()
        dist.barrier()
        dist.barrier()

    return failure(both)


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("call", CALLS)
def test_ranks_that_give_other_types_are_told_both(kind, call):
    choose = random.Random(f"{SEED} {kind} {call}")
    types, strided = choose.sample(choose.choice(ALIKE), 2), choose.random() < 0.5
    one, other = run(2, differ, types, call, strided, env={"UNISONO_TORCH_CLASS": kind})
    about = f"seed {SEED}: {types}: {one}"
    assert one == other and all(NAMES[dtype] in one for dtype in types), about


def reduced(types, call):
    tensor = torch.ones(4, dtype=types[dist.get_rank()])
    into = torch.ones(2, dtype=tensor.dtype)
    calls = {
        "all_reduce": lambda: dist.all_reduce(tensor, dist.ReduceOp.MAX),
        "reduce": lambda: dist.reduce(tensor, 0, dist.ReduceOp.MAX),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(into, tensor, dist.ReduceOp.MAX),
        "all_reduce_coalesced": lambda: dist.all_reduce_coalesced([tensor, into], dist.ReduceOp.MAX),
    }

    def both():
        calls[call]()
        dist.barrier()

    return failure(both)


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("call", ["all_reduce", "reduce", "reduce_scatter", "all_reduce_coalesced"])
def test_reductions_of_other_types_are_told_both(kind, call):
    for types in ([torch.bool, torch.uint8], [torch.uint8, torch.bool]):
        output = run(2, reduced, types, call, env={"UNISONO_TORCH_CLASS": kind})
        for text in output:
            assert all(
                f"rank {rank} calls {call}({NAMES[dtype]}, max" in text for rank, dtype in enumerate(types)
            )


def complex_and_real(call):
    """The failure of a rank that gives complex numbers where the other gives as many bytes of real ones: torch forwards both in the same form."""
    rank = dist.get_rank()
    dtype, count = (torch.complex64, 2) if rank == 0 else (torch.float32, 4)
    one, two = torch.ones(count, dtype=dtype), torch.ones(2 * count, dtype=dtype)
    parts = [one.clone(), one.clone()]
    other = 1 - rank
    calls = {
        "all_reduce": lambda: dist.all_reduce(one),
        "all_reduce later": lambda: dist.all_reduce(one[:], async_op=True).wait(),
        "all_reduce_coalesced": lambda: dist.all_reduce_coalesced([one, two]),
        "reduce": lambda: dist.reduce(one, 0),
        "broadcast": lambda: dist.broadcast(one, 1),
        "all_gather": lambda: dist.all_gather(parts, one),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(output_tensor=two, input_tensor=one),
        "scatter": lambda: dist.scatter(one, parts if rank == 0 else None),
        "all_to_all": lambda: dist.all_to_all(parts, [one, one]),
        "all_to_all_single": lambda: dist.all_to_all_single(two, two.clone()),
        "message": lambda: dist.recv(one, other) if rank == 0 else dist.send(one, other),
        "message later": lambda: (dist.irecv if rank == 0 else dist.isend)(one, other).wait(),
        "batch": lambda: [
            work.wait()
            for work in dist.batch_isend_irecv(
                [dist.P2POp(dist.irecv if rank == 0 else dist.isend, one, other)]
            )
        ],
    }

    def both():
        calls[call]()
        dist.barrier()
        dist.barrier()

    return failure(both)


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize(
    "call",
    [
        "all_reduce", "all_reduce later", "all_reduce_coalesced", "reduce", "broadcast", "all_gather", "all_gather_into_tensor",
        "scatter", "all_to_all", "all_to_all_single", "message", "message later", "batch",
    ],
)  # fmt: skip
def test_complex_numbers_are_no_real_ones(kind, call):
    for text in run(2, complex_and_real, call, env={"UNISONO_TORCH_CLASS": kind}):
        assert "complex64" in text and "f32" in text, text


MESSAGES = ("at once", "later", "batch")


def message(tensor, how):
    """Sends a tensor from rank 0 to rank 1."""
    sends, other = dist.get_rank() == 0, 1 - dist.get_rank()
    begin = dist.isend if sends else dist.irecv
    if how == "at once":
        (dist.send if sends else dist.recv)(tensor, other)
    elif how == "later":
        begin(tensor, other).wait()
    else:
        for work in dist.batch_isend_irecv([dist.P2POp(begin, tensor, other)]):
            work.wait()


def own_views():
    """Real views that the caller makes of complex numbers are real numbers."""
    rank = dist.get_rank()
    one = torch.full((3,), rank + 1j)
    real = torch.view_as_real(one) if rank == 0 else torch.zeros(3, 2)
    dist.broadcast(real, 0)
    assert torch.equal(real, torch.tensor([[0.0, 1.0]] * 3))
    dist.all_reduce(real)
    assert torch.equal(real, torch.tensor([[0.0, 2.0]] * 3))
    # The same for messages, which can begin in three ways.
    for dtype in (torch.complex64, torch.float32):
        sent = torch.full((3,), 2 + 3j) if dtype.is_complex else torch.view_as_real(torch.full((3,), 2 + 3j))
        for begin in MESSAGES:
            for end in MESSAGES:
                got = torch.zeros(3, 2) if dtype == torch.float32 else torch.zeros(3, dtype=dtype)
                message(sent if rank == 0 else got, begin if rank == 0 else end)
                if rank == 1:
                    assert torch.equal(got, sent), (dtype, begin, end)
    # Complex numbers on all ranks.
    z = torch.full((3,), 1 + 2j)
    dist.all_reduce(z[1:])
    assert z.tolist() == [1 + 2j, 2 + 4j, 2 + 4j]
    parts = [torch.zeros(2, dtype=torch.complex64) for _ in range(2)]
    dist.all_gather(parts, torch.full((2,), complex(rank, 1)))
    assert [part.tolist() for part in parts] == [[1j, 1j], [1 + 1j, 1 + 1j]]


@pytest.mark.parametrize("kind", CLASSES)
def test_views_of_complex_numbers_as_real_ones_are_real(kind):
    run(2, own_views, env={"UNISONO_TORCH_CLASS": kind})


def interchangeable():
    rank = dist.get_rank()
    for dtype in NAMES:
        tensor = torch.full((3 * dtype.itemsize,), rank == 0, dtype=torch.uint8).view(dtype)
        dist.broadcast(tensor, 0)
        whole = torch.zeros(6 * dtype.itemsize, dtype=torch.uint8).view(dtype)
        dist.all_gather_into_tensor(whole, tensor)
        assert whole.view(torch.uint8).tolist() == [1] * 6 * dtype.itemsize
    # Objects are sent as bytes.
    things = [None, None]
    dist.all_gather_object(things, {"rank": rank})
    assert things == [{"rank": 0}, {"rank": 1}]


@pytest.mark.parametrize("kind", CLASSES)
def test_types_that_are_one_are_served(kind):
    run(2, interchangeable, env={"UNISONO_TORCH_CLASS": kind})
