"""Tools that watch torch's dispatcher see the calls of both classes, and the calls have the same results."""

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from world import CLASSES, newer, run


class Seen(TorchDispatchMode):
    """The operators of c10d that were called."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "c10d":
            self.names.append(function._opname)
        return function(*args, **(kwargs or {}))


def _calls(rank, ranks):
    """The calls and their result tensors, by the operator that the tool sees."""
    mine = torch.full((2 * ranks,), float(rank + 1))
    each = [torch.zeros(2 * ranks) for _ in range(ranks)]
    whole, part = torch.zeros(2 * ranks * ranks), torch.zeros(2)
    of_root = each if rank == 0 else None
    return {
        "allreduce_": (lambda: dist.all_reduce(mine), [mine]),
        "broadcast_": (lambda: dist.broadcast(mine, 1), [mine]),
        "reduce_": (lambda: dist.reduce(mine, 0), [mine] if rank == 0 else []),
        "allgather_": (lambda: dist.all_gather(each, mine), each),
        "_allgather_base_": (lambda: dist.all_gather_into_tensor(whole, mine), [whole]),
        "gather_": (lambda: dist.gather(mine, of_root, 0), of_root or []),
        "scatter_": (lambda: dist.scatter(mine, of_root, 0), [mine]),
        "reduce_scatter_": (lambda: dist.reduce_scatter(part, list(mine.split(2))), [part]),
        "_reduce_scatter_base_": (lambda: dist.reduce_scatter_tensor(part, mine), [part]),
        "alltoall_": (lambda: dist.all_to_all(each, [tensor + rank for tensor in each]), each),
        "alltoall_base_": (lambda: dist.all_to_all_single(whole, whole + rank), [whole]),
        "barrier": (lambda: dist.barrier(), []),
        "send" if rank == 0 else "recv_": (
            lambda: dist.send(mine, 1) if rank == 0 else dist.recv(mine, 0),
            [mine],
        ),
    }


def watched():
    rank, ranks = dist.get_rank(), dist.get_world_size()
    plain = {
        name: (call(), [tensor.tolist() for tensor in left])[1]
        for name, (call, left) in _calls(rank, ranks).items()
    }
    for name, (call, left) in _calls(rank, ranks).items():
        with Seen() as seen:
            call()
        assert seen.names == [name]
        assert [tensor.tolist() for tensor in left] == plain[name], name
    tensor = torch.ones(3)
    with Seen() as seen:
        work = dist.all_reduce(tensor, async_op=True)
        assert work.get_future().wait()[0].tolist() == [ranks] * 3
    assert seen.names == ["allreduce_"]
    with FakeTensorMode():
        dist.all_reduce(torch.ones(3))
    # This has sent nothing.
    dist.all_reduce(tensor)
    assert tensor.tolist() == [ranks**2] * 3


@newer
def test_dispatch_modes_see_what_is_called():
    for kind in CLASSES:
        run(2, watched, env={"UNISONO_TORCH_CLASS": kind})


def counted():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.debug import CommDebugMode

    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    with CommDebugMode() as counts:
        model(torch.ones(2, 8)).sum().backward()
    assert {str(name): count for name, count in counts.get_comm_counts().items()} == {
        "c10d._allgather_base_": 1,
        "c10d._reduce_scatter_base_": 1,
    }


@newer
def test_comm_debug_mode_counts_the_collectives_of_fsdp():
    for kind in CLASSES:
        run(2, counted, env={"UNISONO_TORCH_CLASS": kind})
