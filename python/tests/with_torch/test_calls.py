"""Every call of c10d, through `torch.distributed`, against results computed by hand."""

import pytest
import torch
import torch.distributed as dist
from unisono.torch import ProcessGroup
from world import CLASSES, run

REDUCED = [
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8,
    torch.uint16, torch.uint32, torch.uint64,
]  # fmt: skip
MOVED = [*REDUCED, torch.bool, torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2]


def filled(dtype, shape, value):
    """A tensor of any dtype whose bytes depend on `value`."""
    if dtype.is_floating_point and dtype.itemsize == 1:
        return torch.full(shape, value, dtype=torch.uint8).view(dtype)
    if dtype is torch.bool:
        return torch.full(shape, value % 2, dtype=torch.uint8).view(torch.bool)
    return torch.full(shape, value, dtype=torch.float64).to(dtype)


def same_bytes(one, other):
    """True if two tensors have the same bytes."""
    assert one.dtype is other.dtype and one.shape == other.shape, (one, other)
    one, other = (
        tensor.clone(memory_format=torch.contiguous_format).view(torch.uint8) for tensor in (one, other)
    )
    return torch.equal(one, other)


def strided(tensor):
    """The same elements in memory that is not contiguous."""
    wide = (
        torch.zeros(*tensor.shape, 3, dtype=torch.uint8)
        .repeat_interleave(tensor.element_size(), -1)
        .view(tensor.dtype)
    )
    view = wide[..., 1]
    view.copy_(tensor)
    assert not view.is_contiguous() or view.numel() == 1
    return view


def everything(dtype, lay, shape=(3, 2), home=lambda tensor: tensor):
    """All calls that move elements, on tensors that `lay` makes and `home` reads."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    last, (many, wide) = ranks - 1, shape

    def equal(one, other):
        return same_bytes(home(one), other)

    def of(value):
        return lay(filled(dtype, shape, value))

    tensor = of(rank)
    dist.broadcast(tensor, src=last)
    assert equal(tensor, filled(dtype, shape, last))

    outputs = [of(9) for _ in range(ranks)]
    dist.all_gather(outputs, of(rank))
    assert all(equal(output, filled(dtype, shape, other)) for other, output in enumerate(outputs))

    uneven = [lay(filled(dtype, (other + 1, wide), 9)) for other in range(ranks)]
    dist.all_gather(uneven, lay(filled(dtype, (rank + 1, wide), rank)))
    assert all(equal(output, filled(dtype, (other + 1, wide), other)) for other, output in enumerate(uneven))

    wanted = torch.cat([filled(dtype, shape, other).view(torch.uint8) for other in range(ranks)]).view(dtype)
    output = lay(filled(dtype, (many * ranks, wide), 9))
    dist.all_gather_into_tensor(output, of(rank))
    assert equal(output, wanted)

    outputs = [of(9) for _ in range(ranks)] if rank == last else None
    dist.gather(of(rank), outputs, dst=last)
    assert outputs is None or all(
        equal(output, filled(dtype, shape, other)) for other, output in enumerate(outputs)
    )

    tensor = of(9)
    dist.scatter(tensor, [of(other + 5) for other in range(ranks)] if rank == last else None, src=last)
    assert equal(tensor, filled(dtype, shape, rank + 5))

    outputs = [lay(filled(dtype, ((other + 1) * wide,), 9)) for other in range(ranks)]
    dist.all_to_all(
        outputs, [lay(filled(dtype, ((rank + 1) * wide,), 10 * rank + other)) for other in range(ranks)]
    )
    assert all(
        equal(output, filled(dtype, ((other + 1) * wide,), 10 * other + rank))
        for other, output in enumerate(outputs)
    )

    output = lay(filled(dtype, (ranks, wide), 9))
    dist.all_to_all_single(output, lay(filled(dtype, (ranks, wide), rank)))
    assert all(equal(output[other], filled(dtype, (wide,), other)) for other in range(ranks))

    rows = [other + 1 for other in range(ranks)]
    output = lay(filled(dtype, (sum(rows), wide), 9))
    dist.all_to_all_single(
        output, lay(filled(dtype, ((rank + 1) * ranks, wide), rank)), rows, [rank + 1] * ranks
    )
    start = 0
    for other, some in enumerate(rows):
        assert equal(output[start : start + some], filled(dtype, (some, wide), other))
        start += some

    right, left, tensor = (rank + 1) % ranks, (rank - 1) % ranks, of(9)
    works = dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, of(rank), right), dist.P2POp(dist.irecv, tensor, left)]
    )
    for work in works:
        work.wait()
    assert equal(tensor, filled(dtype, shape, left))
    if not isinstance(dist.group.WORLD, ProcessGroup):
        return  # Torch's wrapper of a work has no sender.
    if rank == 0:
        senders = {dist.recv(tensor) for _ in range(1, ranks)}
        assert senders == set(range(1, ranks))
    else:
        dist.send(of(rank), dst=0)


def moved_in_all_ways():
    for dtype in MOVED:
        for lay in (lambda tensor: tensor, strided):
            everything(dtype, lay)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("kind", CLASSES)
def test_every_dtype_moves(ranks, kind):
    run(ranks, moved_in_all_ways, env={"UNISONO_TORCH_CLASS": kind})


def reductions():
    rank, ranks = dist.get_rank(), dist.get_world_size()
    ops = {
        dist.ReduceOp.SUM: lambda all: all.sum(0),
        dist.ReduceOp.PRODUCT: lambda all: all.prod(0),
        dist.ReduceOp.MIN: lambda all: all.amin(0),
        dist.ReduceOp.MAX: lambda all: all.amax(0),
        dist.ReduceOp.AVG: lambda all: (all.sum(0) / ranks).to(all.dtype),
    }
    values = torch.stack([(torch.arange(6) + other) % 3 + 1 for other in range(ranks)])
    for dtype in REDUCED:
        for op, oracle in ops.items():
            exact = values.to(torch.float64 if dtype.is_floating_point else torch.int64)
            wanted = oracle(exact).to(dtype)
            tensor = values[rank].to(dtype, copy=True)
            dist.all_reduce(tensor, op)
            assert torch.allclose(tensor.double(), wanted.double(), rtol=1e-2), (dtype, op, tensor, wanted)
            tensor = values[rank].to(dtype, copy=True)
            dist.reduce(tensor, dst=0, op=op)
            assert rank or torch.allclose(tensor.double(), wanted.double(), rtol=1e-2), (
                dtype,
                op,
                tensor,
                wanted,
            )
            one, whole = torch.zeros(6, dtype=dtype), values[rank].to(dtype).repeat(ranks)
            dist.reduce_scatter_tensor(one, whole, op)
            assert torch.allclose(one.double(), wanted.double(), rtol=1e-2), (dtype, op, one, wanted)
            lists = [values[rank].to(dtype)[: other + 1].clone() for other in range(ranks)]
            one = torch.zeros(rank + 1, dtype=dtype)
            dist.reduce_scatter(one, lists, op)
            assert torch.allclose(one.double(), wanted[: rank + 1].double(), rtol=1e-2), (
                dtype,
                op,
                one,
                wanted,
            )
    for op, oracle in (
        (dist.ReduceOp.BAND, lambda a, b: a & b),
        (dist.ReduceOp.BOR, lambda a, b: a | b),
        (dist.ReduceOp.BXOR, lambda a, b: a ^ b),
    ):
        tensor, wanted = values[rank].clone(), values[0].clone()
        for other in values[1:]:
            wanted = oracle(wanted, other)
        dist.all_reduce(tensor, op)
        assert torch.equal(tensor, wanted)


def test_every_reduction():
    for ranks in (1, 2, 3):
        run(ranks, reductions)


def truth_and_complex():
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mine = torch.tensor([True, rank == 0, False])
    for op, wanted in (
        (dist.ReduceOp.SUM, [True, True, False]),
        (dist.ReduceOp.MAX, [True, True, False]),
        (dist.ReduceOp.PRODUCT, [True, ranks == 1, False]),
        (dist.ReduceOp.MIN, [True, ranks == 1, False]),
    ):
        tensor = mine.clone()
        dist.all_reduce(tensor, op)
        assert tensor.tolist() == wanted, (op, tensor)
    tensor = torch.tensor([1 + 2j, 3 - 1j]) * (rank + 1)
    total = ranks * (ranks + 1) // 2
    dist.all_reduce(tensor)
    assert torch.equal(tensor, torch.tensor([1 + 2j, 3 - 1j]) * total)
    # Conjugates and negatives are views with a mark.
    tensor = (torch.tensor([1 + 2j]) * (rank + 1)).conj()
    out = [torch.zeros(1, dtype=torch.complex64) for _ in range(ranks)]
    dist.group.WORLD.allgather([out], [tensor]).wait()
    assert [value.item() for value in out] == [(1 - 2j) * (other + 1) for other in range(ranks)]
    tensor = torch._neg_view(torch.ones(2))
    dist.all_reduce(tensor)
    assert tensor.tolist() == [-ranks] * 2
    group = dist.group.WORLD
    tensor = torch.ones(3)
    group.allreduce([tensor], _factor(2.0 + rank)).wait()
    assert tensor.tolist() == [sum(2.0 + other for other in range(ranks))] * 3


def _factor(factor):
    options = dist.AllreduceOptions()
    options.reduceOp = dist._make_nccl_premul_sum(factor)
    return options


def test_truth_values_complex_numbers_and_factors():
    run(3, truth_and_complex)


def coalesced():
    rank, ranks = dist.get_rank(), dist.get_world_size()
    group, total = dist.group.WORLD, ranks * (ranks + 1) // 2
    tensors = [
        torch.full((4,), float(rank + 1)),
        torch.full((2, 2), rank + 1),
        strided(torch.full((3,), float(rank + 1))),
    ]
    group.allreduce_coalesced(tensors).wait()
    assert all((tensor == total).all() for tensor in tensors), tensors
    inputs = [torch.full((2,), rank), torch.full((3,), float(rank))]
    outputs = [torch.zeros(2 * ranks, dtype=torch.int64), torch.zeros(3 * ranks)]
    group.all_gather_single_coalesced(outputs, inputs).wait()
    assert outputs[0].tolist() == [other for other in range(ranks) for _ in range(2)]
    assert outputs[1].tolist() == [other for other in range(ranks) for _ in range(3)]
    lists = [[torch.zeros(2, dtype=torch.int64), torch.zeros(3)] for _ in range(ranks)]
    group.allgather_coalesced(lists, inputs).wait()
    assert all((part == other).all() for other, parts in enumerate(lists) for part in parts)
    outputs = [torch.zeros(2), torch.zeros(1, dtype=torch.int64)]
    group.reduce_scatter_single_coalesced(outputs, [torch.arange(2.0 * ranks), torch.arange(ranks)]).wait()
    assert outputs[0].tolist() == [ranks * (2.0 * rank + i) for i in range(2)] and outputs[1].tolist() == [
        ranks * rank
    ]
    with dist._coalescing_manager(group, async_ops=True) as manager:
        parts = [torch.full((3,), float(rank)) for _ in range(4)]
        for part in parts:
            dist.all_reduce(part)
    manager.wait()
    assert all((part == ranks * (ranks - 1) / 2).all() for part in parts)


def test_several_tensors_at_once():
    run(3, coalesced)


def sparse():
    rank, ranks = dist.get_rank(), dist.get_world_size()
    tensor = torch.sparse_coo_tensor([[0, rank + 1]], [[1.0, 2.0], [3.0, 4.0]], (ranks + 2, 2))
    dense = sum(
        torch.sparse_coo_tensor([[0, other + 1]], [[1.0, 2.0], [3.0, 4.0]], (ranks + 2, 2)).to_dense()
        for other in range(ranks)
    )
    dist.all_reduce(tensor)
    assert torch.equal(tensor.to_dense(), dense)
    empty = torch.sparse_coo_tensor(torch.zeros((1, 0)), torch.zeros(0), (4,))
    dist.all_reduce(empty)
    assert empty._nnz() == 0


def test_sparse_tensors_are_summed():
    run(3, sparse)


def objects():
    rank, ranks = dist.get_rank(), dist.get_world_size()
    everyone = [None] * ranks
    dist.all_gather_object(everyone, {"rank": rank, "text": "x" * rank})
    assert everyone == [{"rank": other, "text": "x" * other} for other in range(ranks)]
    shared = [("a", 1), None] if rank == 0 else [None, None]
    dist.broadcast_object_list(shared, src=0)
    assert shared == [("a", 1), None]
    out = [None]
    dist.scatter_object_list(out, [f"for {other}" for other in range(ranks)] if rank == 0 else None, src=0)
    assert out == [f"for {rank}"]
    gathered = [None] * ranks if rank == 0 else None
    dist.gather_object(rank, gathered, dst=0)
    assert gathered in (None, list(range(ranks)))
    if rank == 0:
        dist.send_object_list([1, "two"], dst=1)
    elif rank == 1:
        got = [None, None]
        assert dist.recv_object_list(got, src=0) == 0 and got == [1, "two"]


def test_objects():
    run(2, objects)
    run(3, objects)


MEBI = 1 << 20


def grown(call):
    """The most bytes by which this process's memory was larger during a call than before."""
    # Resets the peak to the resident memory of now (proc(5)).
    with open("/proc/self/clear_refs", "w") as peak:
        peak.write("5")
    before = resident("VmRSS")
    call()
    return resident("VmHWM") - before


def resident(field):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith(f"{field}:"))


def growth(size):
    """The growth of memory by each call on tensors of `size` bytes, and by one call on a tensor that is not contiguous."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    # Torch's allocator gives large memory back to the system at once.
    whole, part = torch.ones(size // 4), torch.ones(size // 4 // ranks)
    other, wide = torch.zeros_like(whole), torch.ones(size // 4, 2)
    parts = list(other.chunk(ranks))
    calls = {
        "all_reduce": lambda: dist.all_reduce(whole),
        "begun": lambda: dist.all_reduce(whole, async_op=True).wait(),
        "reduce": lambda: dist.reduce(whole, 0),
        "broadcast": lambda: dist.broadcast(whole, 0),
        "all_gather": lambda: dist.all_gather(parts, part),
        "all_gather_single": lambda: dist.all_gather_into_tensor(other, part),
        "gather": lambda: dist.gather(part, parts if rank == 0 else None, 0),
        "scatter": lambda: dist.scatter(part, parts if rank == 0 else None, 0),
        "reduce_scatter": lambda: dist.reduce_scatter(part, parts),
        "reduce_scatter_single": lambda: dist.reduce_scatter_tensor(part, whole),
        "all_to_all_single": lambda: dist.all_to_all_single(other, whole),
        "all_to_all": lambda: dist.all_to_all(list(whole.chunk(ranks)), parts),
        "messages": lambda: dist.send(whole, 1) if rank == 0 else dist.recv(whole, 0),
        "coalesced": lambda: dist.group.WORLD.allreduce_coalesced([whole, other]).wait(),
    }
    return {name: grown(call) for name, call in calls.items()}, grown(lambda: dist.all_reduce(wide[:, 0]))


def copies():
    size = 32 * MEBI
    # The first calls make the library's buffers.
    growth(MEBI)
    plain, staged = growth(size)
    assert all(bytes < size // 4 for bytes in plain.values()), plain
    assert staged > size * 9 // 10, staged


@pytest.mark.parametrize("provider", ["tcp", "shm"])
def test_no_contiguous_tensor_is_copied(provider):
    run(2, copies, env={"UNISONO_PROVIDER": provider})


def numbers_that_are_none():
    rank, ranks = dist.get_rank(), dist.get_world_size()
    one, each = torch.ones(1), [torch.ones(1) for _ in range(ranks)]
    for root in (-1, ranks):
        calls = {
            "broadcast": lambda root=root: dist.broadcast(one, root),
            "reduce": lambda root=root: dist.reduce(one, root),
            "gather": lambda root=root: dist.gather(one, None, root),
            "scatter": lambda root=root: dist.scatter(one, None, root),
            "send": lambda root=root: dist.group.WORLD.send([one], root, 0),
            "recv": lambda root=root: dist.group.WORLD.recv([one], root, 0),
        }
        for name, call in calls.items():
            with pytest.raises(ValueError, match=f"{name}: th.* rank {root}[;,].* ranks 0 to {ranks - 1}"):
                call()
    for tag in (-1, 1 << 32):
        with pytest.raises(ValueError, match=f"send: tag is {tag}; wanted a number from 0 to"):
            dist.send(one, (rank + 1) % ranks, tag=tag)
        with pytest.raises(ValueError, match=f"recv: tag is {tag}; wanted a number from 0 to"):
            dist.recv(one, (rank + 1) % ranks, tag=tag)
    # None of these calls has begun.
    dist.all_gather(each, torch.full((1,), float(rank)))
    assert [part.item() for part in each] == list(range(ranks))


def test_ranks_and_tags_that_are_none_are_refused_by_name():
    run(2, numbers_that_are_none, env={"UNISONO_TORCH_CLASS": "process-group"})


def outputs_that_share_memory():
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mine, last = torch.full((2,), float(rank + 1)), [float(ranks)] * 2
    for to in (torch.zeros(2), strided(torch.zeros(2))):
        dist.all_gather([to] * ranks, mine)
        assert to.tolist() == last
        to.zero_()
        dist.gather(mine, [to] * ranks if rank == 0 else None, 0)
        assert to.tolist() == (last if rank == 0 else [0.0, 0.0])
        work = dist.all_to_all(
            [to.zero_()] * ranks, [mine * (each + 1) for each in range(ranks)], async_op=True
        )
        work.wait()
        assert to.tolist() == [ranks * (rank + 1.0)] * 2
    # The outputs overlap: the last written values stay.
    whole = torch.zeros(ranks + 1)
    dist.all_gather([whole[each : each + 2] for each in range(ranks)], mine)
    assert whole.tolist() == [*(each + 1.0 for each in range(ranks)), float(ranks)]
    one = torch.ones(1)
    dist.all_reduce_coalesced([one, one, torch.ones(3)])
    assert one.tolist() == [ranks]


def test_outputs_that_share_memory_are_written_in_their_order():
    for kind in CLASSES:
        run(3, outputs_that_share_memory, env={"UNISONO_TORCH_CLASS": kind})
