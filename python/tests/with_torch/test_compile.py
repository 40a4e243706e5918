"""torch.compile beside collectives: a call has the same result inside and outside of a compiled function."""

import pytest
import torch
import torch.distributed as dist
from world import CLASSES, run


def _calls():
    """Functions of a tensor that call a collective, by name."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % ranks, (rank - 1) % ranks

    def all_reduce(x):
        y = x * 2
        dist.all_reduce(y)
        return y + 1

    def all_reduce_async(x):
        y = x * 2
        work = dist.all_reduce(y, async_op=True)
        work.wait()
        return y + 1

    def all_reduce_future(x):
        y = x * 2
        return dist.all_reduce(y, async_op=True).get_future().wait()[0] + 1

    def broadcast(x):
        y = x * 2
        dist.broadcast(y, 1)
        return y + 1

    def reduce(x):
        y = x * 2
        dist.reduce(y, 0)
        return y + 1 if rank == 0 else x

    def all_gather(x):
        parts = [torch.empty_like(x) for _ in range(ranks)]
        dist.all_gather(parts, x * 2)
        return parts[0] + parts[-1]

    def all_gather_single(x):
        whole = torch.empty(ranks * 4)
        dist.all_gather_into_tensor(whole, x * 2)
        return whole + 1

    def gather(x):
        parts = [torch.empty_like(x) for _ in range(ranks)] if rank == 0 else None
        dist.gather(x * 2, parts, 0)
        return parts[-1] + 1 if rank == 0 else x

    def scatter(x):
        y = torch.empty_like(x)
        dist.scatter(y, [x * 2, x * 3][:ranks] if rank == 0 else None, 0)
        return y + 1

    def reduce_scatter(x):
        y = torch.empty(4 // ranks)
        dist.reduce_scatter_tensor(y, x * 2)
        return y + 1

    def all_to_all(x):
        y = torch.empty_like(x)
        dist.all_to_all_single(y, x * 2)
        return y + 1

    def messages(x):
        y = torch.empty_like(x)
        works = [dist.isend(x * 2, right), dist.irecv(y, left)]
        for work in works:
            work.wait()
        return y + 1

    def blocking_messages(x):
        y = x * 2
        if rank == 0:
            dist.send(y, 1)
        elif rank == 1:
            dist.recv(y, 0)
        return y + 1

    def barrier(x):
        y = x * 2
        dist.barrier()
        return y + 1

    return {name: call for name, call in locals().items() if callable(call)}


def compiled():
    torch.set_num_threads(1)
    given = torch.arange(4.0) + dist.get_rank()
    for name, call in _calls().items():
        wanted = call(given)
        torch._dynamo.reset()
        twice = torch.compile(call, backend="eager")
        for _ in range(2):
            assert torch.equal(twice(given), wanted), name


def models():
    torch.set_num_threads(1)
    gradients = []
    for make in (
        torch.nn.parallel.DistributedDataParallel,
        lambda model: torch.compile(torch.nn.parallel.DistributedDataParallel(model), backend="aot_eager"),
        lambda model: torch.nn.parallel.DistributedDataParallel(torch.compile(model, backend="aot_eager")),
    ):
        torch.manual_seed(7)
        plain = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))
        model = make(plain)
        torch.manual_seed(dist.get_rank())
        for _ in range(3):
            model(torch.randn(4, 8)).square().mean().backward()
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in plain.parameters()]))
        torch._dynamo.reset()
    assert torch.allclose(gradients[0], gradients[1]) and torch.allclose(gradients[0], gradients[2])


@pytest.mark.parametrize("body", [compiled, models])
def test_beside_torch_compile(body):
    for kind in CLASSES:
        run(2, body, env={"UNISONO_TORCH_CLASS": kind})
