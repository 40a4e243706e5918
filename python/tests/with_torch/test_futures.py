"""Futures of works: when they are done, their values, and waits in their callbacks."""

import threading
import time

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from world import CLASSES, run

# Longer than any step here takes.
LONG = 30


def both(ranks, body, *args):
    """Runs a body with either class of group."""
    for kind in CLASSES:
        run(ranks, body, *args, env={"UNISONO_TORCH_CLASS": kind})


def one(size=4):
    return dist.all_reduce(torch.ones(size), async_op=True)


def done():
    ranks = dist.get_world_size()
    for size in (4, 100_000):
        for _ in range(50):
            work = one(size)
            work.wait()
            assert work.get_future().done()
            work = one(size)
            future = work.get_future()
            seen = []
            then = future.then(lambda ended, seen=seen: seen.append(ended.value()[0][0].item()))
            work.wait()
            assert future.done()
            then.wait()
            assert seen == [ranks]


def test_futures_are_done_when_wait_has_returned():
    both(2, done)


def callbacks_that_wait():
    ranks = dist.get_world_size()
    # Operations that a callback begins may come before or after others, so each callback has a separate group.
    groups = [dist.new_group() for _ in range(6)]

    def first(group):
        def more(ended):
            total = ended.value()[0]

            def sums(count):
                return [dist.all_reduce(total.clone(), group=group, async_op=True) for _ in range(count)]

            # The callback waits for works and futures that it has begun, in each way.
            one, two, three = sums(3)
            one.wait()
            second = two.get_future().wait()[0]
            third = three.get_future().then(lambda _: sums(1)[0].get_future().wait()[0])
            return second, third.wait(), three.get_future().wait()[0]

        return dist.all_reduce(torch.ones(4), group=group, async_op=True).get_future().then(more)

    for future in [first(group) for group in groups]:
        assert [total[0].item() for total in future.wait()] == [ranks**2] * 3


def test_a_callback_may_wait_for_works_and_futures():
    both(3, callbacks_that_wait)


def own_work():
    work = one()
    again = threading.Event()
    future = work.get_future()
    then = future.then(lambda _: work.wait() and again.set())
    if dist.get_rank() == 0:
        work.wait()
    then.wait()
    assert again.wait(LONG) and work.get_future().done()


def test_a_callback_may_wait_for_its_own_work():
    both(2, own_work)


def waits_for_a_later_one():
    if dist.get_rank() > 0:
        # Rank 0 sets its callback before its work ends.
        time.sleep(0.5)
        for work in [one(), one()]:
            work.wait()
        return
    later = []
    begun = threading.Event()
    first = one().get_future().then(lambda _: begun.wait(LONG) and later[0].wait()[0][0].item())
    later.append(one().get_future())
    begun.set()
    assert first.wait() == dist.get_world_size()


def test_a_callback_may_wait_for_a_work_that_was_begun_later():
    run(2, waits_for_a_later_one)


def values():
    rank, ranks = dist.get_rank(), dist.get_world_size()
    outputs = [torch.zeros(2) for _ in range(ranks)]
    work = dist.all_gather(outputs, torch.full((2,), float(rank)), async_op=True)
    value = work.get_future().wait()
    assert [part.tolist() for part in value] == [[float(each)] * 2 for each in range(ranks)]
    # Torch wraps the work of a backend, and hides its result.
    if hasattr(work, "_natives"):
        assert all(one is other for one, other in zip(work.result(), outputs, strict=True))
    to = outputs if rank == 0 else None
    value = dist.gather(torch.full((2,), float(rank)), to, 0, async_op=True).get_future().wait()
    given = [[float(each)] * 2 for each in range(ranks)] if rank == 0 else []
    assert [part.tolist() for part in value] == given


def test_the_futures_of_all_gather_and_gather_are_flat_lists():
    both(3, values)


def power_sgd():
    torch.manual_seed(5)
    model = torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(6)))
    # One bucket: with several, torch runs their callbacks in any order, and each begins more operations.
    model = torch.nn.parallel.DistributedDataParallel(model)
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    torch.manual_seed(dist.get_rank())
    for _ in range(8):
        optimizer.zero_grad()
        model(torch.randn(4, 32)).square().mean().backward()
        optimizer.step()
    mine = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    whole = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(whole, mine)
    assert mine.isfinite().all() and all(torch.equal(each, mine) for each in whole)


@pytest.mark.parametrize("ranks", [2, 3])
def test_ddp_with_power_sgd(ranks):
    run(ranks, power_sgd)
