"""Asynchronous calls, with `wait` and with asyncio."""

import asyncio
import gc
import threading
import time
import weakref
from typing import Any

import numpy as np
import pytest
import unisono
from ranks import Ranks
from unisono import Group, Work


def every_call_later(group: Group) -> None:
    size, rank = group.size, group.rank
    total = sum(range(size))
    mine, rows = np.full(4, float(rank)), np.full((size, 2), float(rank))
    works: list[tuple[Work[Any], Any]] = [
        (group.all_reduce_async(mine), [total] * 4),
        (group.reduce_async(mine, "max"), [size - 1] * 4 if rank == 0 else None),
        (group.reduce_scatter_async(rows), [[total] * 2]),
        (group.broadcast_async(mine.copy(), size - 1), [size - 1] * 4),
        (group.scatter_async(np.arange(size) if rank == 0 else None, np.zeros((), "i8")), rank),
        (group.all_gather_async(rank), list(range(size))),
        (group.gather_async(rank), list(range(size)) if rank == 0 else None),
        (group.all_to_all_async(rows), [[r] * 2 for r in range(size)]),
        (group.barrier_async(), None),
        (group.broadcast_object_async({"a": rank}), {"a": 0}),
        (group.all_gather_object_async(rank), list(range(size))),
        (group.gather_object_async(rank), list(range(size)) if rank == 0 else None),
        (group.scatter_object_async(list(range(size)) if rank == 0 else None), rank),
    ]
    for work, wanted in works:
        got = work.wait()
        assert work.done() and work.exception() is None and work.wait() is got
        assert repr(work) == "<unisono.Work done>"
        assert (got.tolist() if isinstance(got, np.ndarray) else got) == wanted


def staged_results_are_there_when_done(group: Group) -> None:
    table = np.zeros((1000, 2))
    table[:, 0] = group.rank
    work = group.all_reduce_async(table[:, 0], out=table[:, 1])
    deadline = time.monotonic() + 20
    while not work.done():
        assert time.monotonic() < deadline
    assert (table[:, 1] == sum(range(group.size))).all()


def dropped_works_end(group: Group) -> None:
    for _ in range(20):
        group.all_reduce_async(np.ones(10_000))
    gc.collect()
    assert group.all_reduce(1) == group.size


class Memory(bytearray):
    """Memory with weak references, which show whether it still exists."""


def what_only_sends_is_kept(group: Group) -> None:
    size, rank = group.size, group.rank
    calls = [
        lambda array: group.gather_async(array, 0),
        lambda array: group.reduce_async(array, "max", 0),
    ]
    for call in calls:
        memory = Memory(100_000)
        array = np.frombuffer(memory, "u1")
        array[:] = rank
        lives = weakref.ref(memory)
        if rank == 0:
            # The others have begun it long before.
            time.sleep(0.2)
        work = call(array)
        del array, memory
        if rank != 0:
            time.sleep(0.1)
            assert lives() is not None
        got = work.wait()
        if rank == 0:
            assert (got.reshape(-1, 100_000) == np.arange(size)[:, None]).all() or (got == size - 1).all()


async def many(group: Group) -> None:
    size = group.size
    works = [group.all_reduce_async(np.full(1000, float(number))) for number in range(30)]

    async def one(number: int) -> None:
        assert (await works[number] == number * size).all()

    await asyncio.gather(*(one(number) for number in range(30)))
    # Again, and by several tasks.
    again = await asyncio.gather(*(asyncio.ensure_future(one(3)) for _ in range(3)))
    assert again == [None] * 3


async def cancelled(group: Group) -> None:
    out = np.zeros(3)
    work = group.recv_async(out, (group.rank - 1) % group.size, 9)

    async def waits() -> int:
        return await work

    task = asyncio.create_task(waits())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(waits(), 0.01)
    assert not work.done()
    group.barrier()
    group.send(np.full(3, 5.0), (group.rank + 1) % group.size, 9)
    # The operation went on.
    assert await work == (group.rank - 1) % group.size and out.tolist() == [5] * 3


def awaits(group: Group) -> None:
    asyncio.run(many(group))
    asyncio.run(cancelled(group))
    # The loop is closed before the operation has ended.
    out = np.zeros(1)
    work = group.recv_async(out, (group.rank - 1) % group.size)

    async def leave() -> None:
        waiting = asyncio.create_task(wait())
        await asyncio.sleep(0)
        waiting.cancel()

    async def wait() -> None:
        await work

    asyncio.run(leave())
    group.send(np.ones(1), (group.rank + 1) % group.size)
    assert work.wait() == (group.rank - 1) % group.size


def waits_can_be_bounded(group: Group) -> None:
    out = np.zeros(3)
    work = group.recv_async(out, (group.rank - 1) % group.size)
    assert repr(work) == "<unisono.Work under way>"
    with pytest.raises(unisono.Error, match="Timed out waiting 10ms"):
        work.wait(0.01)
    assert work.exception() is None
    group.barrier()
    group.send(np.ones(3), (group.rank + 1) % group.size)
    assert work.wait() == (group.rank - 1) % group.size


def threads_wait_together(group: Group) -> None:
    work = group.all_reduce_async(np.full(5, 1.0))
    results: list[Any] = []
    threads = [threading.Thread(target=lambda: results.append(work.wait())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4 and all(result is results[0] for result in results)


def test_every_call_has_a_form_that_begins_it(world: Ranks) -> None:
    world.run(every_call_later)


def test_staged_results_are_there_when_done(world: Ranks) -> None:
    world.run(staged_results_are_there_when_done)


def test_works_that_are_dropped_end(world: Ranks) -> None:
    world.run(dropped_works_end)


def test_an_array_that_is_only_sent_lives_until_the_end(world: Ranks) -> None:
    world.run(what_only_sends_is_kept)


def test_asyncio_awaits_works(world: Ranks) -> None:
    world.run(awaits)


def test_a_wait_can_be_bounded(world: Ranks) -> None:
    world.run(waits_can_be_bounded)


def test_threads_wait_for_one_work(world: Ranks) -> None:
    world.run(threads_wait_together)
