"""Calls of a group's methods with several tensors of a rank, and coalesced calls with one tensor twice, behave as with Gloo."""

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceOptions,
    BroadcastOptions,
    ReduceOptions,
)
from world import CLASSES, run

OPS = dist.ReduceOp


def full(value, size=3, dtype=torch.float32):
    return torch.full((size,), value).to(dtype)


def lists(tensors):
    return [lists(each) if isinstance(each, list) else each.tolist() for each in tensors]


def all_reduce(tensors, op=OPS.SUM):
    opts = AllreduceOptions()
    opts.reduceOp = op
    work = dist.group.WORLD.allreduce(tensors, opts)
    work.wait()
    assert lists(work.get_future().wait()) == lists(tensors)
    return lists(tensors)


def broadcast(tensors, root=0, tensor=0):
    opts = BroadcastOptions()
    opts.rootRank, opts.rootTensor = root, tensor
    dist.group.WORLD.broadcast(tensors, opts).wait()
    return lists(tensors)


def all_gather(tensors, ranks):
    outputs = [[torch.zeros_like(tensor) for tensor in tensors] * ranks for _ in tensors]
    work = dist.group.WORLD.allgather(outputs, tensors, AllgatherOptions())
    work.wait()
    if len(tensors) > 1:
        assert lists(work.get_future().wait()) == lists(outputs)
    return lists(outputs)


def results(size):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mine = [full(1 + rank, size), full(10 * (1 + rank), size), full(-3, size)]

    def fresh(count=3, dtype=torch.float32):
        return [tensor.clone().to(dtype) for tensor in mine[:count]]

    twice = full(rank + 1, size)
    overlap = torch.arange(size + 1.0) + rank
    got = {
        **{f"two {op}": all_reduce(fresh(2), op) for op in (OPS.SUM, OPS.MIN, OPS.MAX)},
        **{f"three {dtype}": all_reduce(fresh(3, dtype)) for dtype in (torch.float64, torch.int32, torch.int8)},
        "product": all_reduce(fresh(2, torch.int64), OPS.PRODUCT),
        "one twice": all_reduce([twice, twice]),
        **{
            f"broadcast {root} {tensor}": broadcast(fresh(), root, tensor) for root in range(ranks) for tensor in range(3)
        },
        **{f"gathered {count}": all_gather(fresh(count), ranks) for count in (1, 2, 3)},
    }  # fmt: skip
    sparse = [torch.sparse_coo_tensor([[rank]], [1.0], (ranks,), check_invariants=False) for _ in range(2)]
    dist.group.WORLD.allreduce(sparse, AllreduceOptions()).wait()
    got["sparse"] = [each.to_dense().tolist() for each in sparse]

    def coalesced(tensors):
        dist.all_reduce_coalesced(tensors)
        return lists(tensors)

    got["coalesced twice"] = coalesced([twice, full(5, size), twice])
    got["coalesced overlap"] = (coalesced([overlap[:size], overlap[1:]]), overlap.tolist())
    outputs = [[torch.zeros(size)] * 2 for _ in range(ranks)]
    dist.all_gather_coalesced(outputs, [full(rank, size), full(10, size)])
    got["gathered in one output"] = lists(outputs)
    whole = torch.zeros(size * ranks)
    dist.group.WORLD.allgather_into_tensor_coalesced([whole, whole], [full(rank, size), twice]).wait()
    got["into one output"] = whole.tolist()
    part, parts = torch.zeros(size), torch.arange(float(ranks * size))
    dist.group.WORLD.reduce_scatter_tensor_coalesced([part, part], [parts, parts + 1]).wait()
    got["scattered to one output"] = part.tolist()
    with dist._coalescing_manager():
        for _ in range(2):
            dist.all_reduce(twice)
    got["one after the other"] = twice.tolist()
    return got


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("size", [3, 6_000])
def test_several_tensors_are_as_gloo_has_them(ranks, size):
    wanted = run(ranks, results, size, backend="gloo")
    for kind in CLASSES:
        assert run(ranks, results, size, env={"UNISONO_TORCH_CLASS": kind}) == wanted


def more_types():
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for dtype in (torch.uint8, torch.uint16, torch.uint32, torch.uint64):
        top = torch.iinfo(dtype).max

        def pair(top=top, dtype=dtype):
            return [torch.tensor([rank, 7, top]).to(dtype), torch.tensor([3, top, 1]).to(dtype)]

        def wanted(*numbers, dtype=dtype):
            return [torch.tensor(numbers).to(dtype).tolist()] * 2

        if dtype is torch.uint64:
            # Not all of them are numbers of torch's.
            def pair(dtype=dtype):
                return [torch.tensor(part).view(dtype) for part in ([rank, 7, -1], [3, -1, 1])]

            def wanted(*numbers, dtype=dtype):
                signed = [number - 2**64 if number >= 2**63 else number for number in numbers]
                return [torch.tensor(signed).view(dtype).tolist()] * 2

        bits = top + 1
        total = [sum(range(ranks)) + 3 * ranks, ranks * (7 + top) % bits, ranks * (top + 1) % bits]
        if dtype is torch.uint64:
            total, top = [sum(range(ranks)) + 3 * ranks, 6 * ranks, 0], 2**64 - 1
        assert all_reduce(pair()) == wanted(*total), dtype
        assert all_reduce(pair(), OPS.MAX) == wanted(max(3, ranks - 1), top, top), dtype
        assert all_reduce(pair(), OPS.MIN) == wanted(0, 7, 1), dtype
        assert all_reduce(pair(), OPS.BOR) == wanted(3, top, top), dtype
    truth = [torch.tensor([rank == 0, False]), torch.tensor([False, True])]
    assert all_reduce(truth) == [[True, True]] * 2
    # The mean over ranks of the sums, and one tensor is not contiguous.
    strided = torch.zeros(6)
    strided[::2] = float(rank)
    assert all_reduce([strided[::2], full(1)], OPS.AVG) == [[(ranks - 1) / 2 + 1] * 3] * 2
    assert strided.tolist() == [(ranks - 1) / 2 + 1, 0] * 3
    numbers = [torch.full((2,), 1 + 1j), torch.full((2,), 2 - 3j)]
    assert all_reduce(numbers) == [[ranks * (3 - 2j)] * 2] * 2
    view = torch.zeros(6)
    assert broadcast([view[::2], full(rank + 5)], 1, 1) == [[6.0] * 3] * 2
    assert broadcast([view[::2], full(0)], 0, 0) == [[6.0] * 3] * 2


@pytest.mark.parametrize("kind", CLASSES)
def test_several_tensors_of_other_types(kind):
    run(2, more_types, env={"UNISONO_TORCH_CLASS": kind})


def refused():
    group, (one, two) = dist.group.WORLD, (full(1), full(2))
    wrong = {
        "shape": lambda: group.allreduce([one, full(1, 4)], AllreduceOptions()),
        "float64": lambda: group.allreduce([one, full(1, dtype=torch.float64)], AllreduceOptions()),
        "root tensor is 2": lambda: broadcast([one, two], 0, 2),
        "root tensor is -1": lambda: broadcast([one, two], 0, -1),
        "root tensor is 1": lambda: broadcast([one], 0, 1),
        "2 lists of": lambda: group.allgather([[one, two]] * 2, [one, two], AllgatherOptions()),
        "one tensor is wanted": lambda: group.reduce([one, two], ReduceOptions()),
    }
    for words, call in wrong.items():
        with pytest.raises(ValueError, match=words):
            call()
    opts = ReduceOptions()
    opts.rootTensor = 1
    with pytest.raises(ValueError, match="root tensor is 1; wanted a number from 0 to 0"):
        group.reduce([one], opts)
    assert one.tolist() == [1] * 3
    dist.all_reduce(one)
    assert one.tolist() == [dist.get_world_size()] * 3


@pytest.mark.parametrize("kind", CLASSES)
def test_wrong_lists_of_tensors_are_told_before_anything_begins(kind):
    run(2, refused, env={"UNISONO_TORCH_CLASS": kind})
