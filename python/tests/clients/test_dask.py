"""Dask's workers as the ranks of a group."""

import functools
import os
import signal
import sys
import threading
from collections.abc import Iterator

import numpy
import pytest
import unisono.dask
from conftest import example
from distributed import Client, LocalCluster
from distributed.protocol.pickle import cloudpickle
from unisono import Group

# Functions of this file are sent to the workers by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """A client of three workers of one thread each."""
    with (
        LocalCluster(n_workers=3, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        yield client


def total(group: Group, each: int, plus: float = 0) -> tuple[int, int, list[float]]:
    array = group.all_reduce(numpy.full(each, group.rank + plus))
    return group.rank, group.size, array.tolist()


def test_all_workers(client: Client) -> None:
    for _ in range(3):
        assert unisono.dask.run(client, total, 2, plus=1.0) == [(rank, 3, [6.0, 6.0]) for rank in range(3)]


def address_of(group: Group) -> str:
    from distributed import get_worker

    return str(get_worker().address)


def test_some_workers_in_an_order(client: Client) -> None:
    workers = list(client.nthreads())[:0:-1]
    assert unisono.dask.run(client, address_of, workers=workers) == workers
    assert unisono.dask.run(client, total, 1, workers=workers[:1]) == [(0, 1, [0.0])]


def test_all_workers_whatever_the_client_has_kept(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client refreshes what it has kept beside other calls, and then without the workers."""
    monkeypatch.setattr(client, "scheduler_info", lambda *_, **__: {"workers": {}})
    assert unisono.dask.run(client, total, 1) == [(rank, 3, [3.0]) for rank in range(3)]


def test_runs_at_once(client: Client) -> None:
    """Each worker has one thread, and all begin with the same run."""
    for _ in range(10):
        results: list[object] = []

        def one(results: list[object] = results) -> None:
            results.extend(unisono.dask.run(client, total, 1, timeout=60))

        threads = [threading.Thread(target=one) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(results) == sorted([(rank, 3, [3.0]) for rank in range(3)] * 4)


def test_wrong_workers(client: Client) -> None:
    known = list(client.nthreads())
    for workers in (["tcp://127.0.0.1:1"], [known[0], known[0]], []):
        with pytest.raises(
            ValueError, match="run: workers has .*, unknown or twice; the scheduler has tcp://"
        ):
            unisono.dask.run(client, total, 1, workers=workers)


def fail(group: Group) -> None:
    if group.rank == 1:
        raise LookupError("no such row")
    group.barrier()


def differ(group: Group) -> None:
    group.all_reduce(numpy.ones(2 + group.rank // 2))


def kill(group: Group) -> None:
    if group.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    group.barrier()


def test_failures(client: Client) -> None:
    with pytest.raises(LookupError, match="no such row"):
        unisono.dask.run(client, fail)
    with pytest.raises(unisono.Error, match=r"all_reduce.*rank 2 has 3 elements"):
        unisono.dask.run(client, differ)
    assert unisono.dask.run(client, total, 1) == [(rank, 3, [3.0]) for rank in range(3)]
    with pytest.raises(unisono.Error, match="rank 1"):
        unisono.dask.run(client, kill)
    # Dask has started another worker in its place.
    client.wait_for_workers(3, timeout=60)
    assert unisono.dask.run(client, total, 1) == [(rank, 3, [3.0]) for rank in range(3)]


def busy(until: str) -> None:
    import pathlib
    import time

    while not pathlib.Path(until).exists():
        time.sleep(0.02)


def test_a_worker_that_is_busy(client: Client, tmp_path: object) -> None:
    workers = list(client.nthreads())
    occupied = client.submit(functools.partial(busy, f"{tmp_path}/done"), workers=workers[:1])
    with pytest.raises(unisono.Error, match=r"Timed out .* rank [12] waits for rank 0 to say where"):
        unisono.dask.run(client, total, 1, workers=workers, timeout=1)
    open(f"{tmp_path}/done", "w").close()
    occupied.result(timeout=30)
    assert unisono.dask.run(client, total, 1) == [(rank, 3, [3.0]) for rank in range(3)]


def test_the_example() -> None:
    example("dask/pi.py")
