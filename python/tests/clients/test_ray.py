"""The backend of ray.util.collective: the results of its calls, compared with numpy and with Ray's Gloo."""

import contextlib
import os
import pathlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
import ray
import torch
import unisono
from conftest import example
from ray.experimental import internal_kv
from ray.util import collective
from ray.util.collective.types import ReduceOp
from unisono.ray import UnisonoGroup

# Functions of this file are sent to the actors by value.
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])


@ray.remote(num_cpus=0, max_concurrency=2)
class Actor:
    """Runs functions."""

    def __init__(self) -> None:
        collective.register_collective_backend("unisono", UnisonoGroup)

    def run(self, body: Callable[..., Any], *args: Any) -> Any:
        return body(*args)


@pytest.fixture(scope="module")
def actors(cluster: str) -> Iterator[list[Any]]:
    """Three actors in a group of unisono's, and in one of Gloo's."""
    with three() as each:
        for backend in ("unisono", "gloo"):
            everywhere(each, join, 3, backend, backend)
        yield each


@contextlib.contextmanager
def three() -> Iterator[list[Any]]:
    """Three actors that end with the test."""
    made = [Actor.remote() for _ in range(3)]
    try:
        yield made
    finally:
        for actor in made:
            ray.kill(actor)


def everywhere(actors: list[Any], body: Callable[..., Any], *args: Any) -> list[Any]:
    """The results of `body(rank, *args)` in all actors."""
    return ray.get([actor.run.remote(body, rank, *args) for rank, actor in enumerate(actors)], timeout=120)


def join(rank: int, size: int, backend: str, name: str) -> None:
    collective.init_collective_group(size, rank, backend, name)


KINDS: dict[str, Callable[[Any], Any]] = {
    "float64": lambda of: numpy.array(of, "float64"),
    "float32": lambda of: numpy.array(of, "float32"),
    "int32": lambda of: numpy.array(of, "int32"),
    "uint8": lambda of: numpy.array(of, "uint8"),
    "columns": lambda of: numpy.repeat(numpy.array(of, "int64"), 2, axis=-1)[..., ::2],
    "torch": lambda of: torch.tensor(of, dtype=torch.float32),
    "torch bfloat16": lambda of: torch.tensor(of, dtype=torch.bfloat16),
    "torch transposed": lambda of: torch.tensor(of, dtype=torch.int64).T.contiguous().T,
    "torch gradient": lambda of: torch.tensor(of, dtype=torch.float64, requires_grad=True),
}


def plain(tensor: Any) -> Any:
    return tensor.tolist()


def all_calls(rank: int, kind: str, group: str) -> dict[str, Any]:
    """The tensors after each call of Ray."""
    make, size = KINDS[kind], 3
    mine = [[rank + 1, 2 * rank + 1], [3, 4 - rank], [2, 1]]
    empty = [[0, 0]] * 3
    outcome: dict[str, Any] = {}
    with torch.no_grad():
        for op in ReduceOp:
            tensor = make(mine)
            collective.allreduce(tensor, group, op)
            outcome[f"allreduce {op.name}"] = plain(tensor)
            for root in range(size):
                tensor = make(mine)
                collective.reduce(tensor, root, group, op)
                outcome[f"reduce {op.name} to {root}"] = plain(tensor)
            inputs, output = (
                [make([[each + x for x in row] for row in mine]) for each in range(size)],
                make(empty),
            )
            collective.reducescatter(output, inputs, group, op)
            outcome[f"reducescatter {op.name}"] = plain(output)
        for root in range(size):
            tensor = make(mine)
            collective.broadcast(tensor, root, group)
            outcome[f"broadcast from {root}"] = plain(tensor)
        outputs, tensor = [make(empty) for _ in range(size)], make(mine)
        collective.allgather(outputs, tensor, group)
        outcome["allgather"] = [plain(each) for each in outputs]
        if rank == 0:
            collective.send(make(mine), 2, group)
        elif rank == 2:
            tensor = make(empty)
            collective.recv(tensor, 0, group)
            outcome["recv"] = plain(tensor)
        collective.barrier(group)
    return outcome


def oracle(rank: int) -> dict[str, Any]:
    """The same tensors, computed by numpy."""
    every = [numpy.array([[r + 1, 2 * r + 1], [3, 4 - r], [2, 1]]) for r in range(3)]
    output: dict[str, Any] = {}
    for op, by in zip(ReduceOp, (numpy.sum, numpy.prod, numpy.min, numpy.max), strict=True):
        whole = by(every, axis=0).tolist()
        output[f"allreduce {op.name}"] = whole
        for root in range(3):
            output[f"reduce {op.name} to {root}"] = whole if rank == root else every[rank].tolist()
        output[f"reducescatter {op.name}"] = by([each + rank for each in every], axis=0).tolist()
    for root in range(3):
        output[f"broadcast from {root}"] = every[root].tolist()
    output["allgather"] = [each.tolist() for each in every]
    if rank == 2:
        output["recv"] = every[0].tolist()
    return output


@pytest.mark.parametrize("kind", KINDS)
def test_all_calls(actors: list[Any], kind: str) -> None:
    assert everywhere(actors, all_calls, kind, "unisono") == [oracle(rank) for rank in range(3)]


@pytest.mark.parametrize("kind", ["float32", "torch bfloat16"])
def test_gloo_gives_the_same(actors: list[Any], kind: str) -> None:
    assert everywhere(actors, all_calls, "float32", "gloo") == everywhere(actors, all_calls, kind, "unisono")


def large(rank: int) -> bool:
    array = numpy.full(3_000_001, rank + 1.0)
    collective.allreduce(array, "unisono")
    outputs = [numpy.empty_like(array) for _ in range(3)]
    collective.allgather(outputs, array + rank, "unisono")
    return bool((array == 6).all() and all((each == 6 + at).all() for at, each in enumerate(outputs)))


def test_large_arrays(actors: list[Any]) -> None:
    assert everywhere(actors, large) == [True] * 3


def wrong(rank: int) -> list[str]:
    output = []
    group, ones = collective.get_group_handle("unisono"), numpy.ones(3)
    for call in (
        lambda: group.allreduce([ones, ones]),
        lambda: group.allreduce(["text"]),
        lambda: group.allreduce([torch.ones(3, device="meta")]),
        lambda: group.allgather([[ones, ones]], [ones]),
        lambda: collective.allgather([ones, ones, numpy.ones(4)], ones, "unisono"),
        lambda: collective.reducescatter(ones, [ones, ones, ones.astype("float32")], "unisono"),
        lambda: collective.allreduce(numpy.array(["text"]), "unisono"),
        lambda: collective.broadcast(torch.ones(3).to_sparse(), 0, "unisono"),
        lambda: collective.allreduce(
            torch.quantize_per_tensor(torch.ones(3), 1.0, 0, torch.qint8), "unisono"
        ),
    ):
        try:
            call()
            output.append("nothing")
        except (TypeError, ValueError) as error:
            output.append(f"{type(error).__name__} {error}")
    # None of these calls has begun.
    collective.allreduce(ones, "unisono")
    assert ones.tolist() == [3, 3, 3]
    return output


def test_what_is_wrong_is_told(actors: list[Any]) -> None:
    output = everywhere(actors, wrong)
    assert output[0] == output[1] == output[2]
    beginnings = [
        "ValueError allreduce: 2 tensors; wanted one",
        "TypeError allreduce: wanted an array of numpy's or a tensor of torch's, not str",
        "TypeError allreduce: the tensor is torch.strided on meta; only",
        "ValueError allgather: 2 tensors in 1 lists; wanted one list of 3",
        "ValueError allgather: the list's tensor 2 has shape (4,) and float64; wanted (3,) and float64",
        "ValueError reducescatter: the list's tensor 2 has shape (3,) and float32; wanted (3,) and float64",
        "ValueError all_reduce: ",
        "TypeError broadcast: the tensor is torch.sparse_coo on cpu; only",
        "TypeError allreduce: numpy has no torch.qint8, nor has ml_dtypes",
    ]
    assert [got[: len(wanted)] for got, wanted in zip(output[0], beginnings, strict=True)] == beginnings, (
        output[0]
    )


def differ(rank: int) -> None:
    collective.allreduce(numpy.ones(3 + rank // 2), "differing")


def leave(rank: int, name: str) -> None:
    collective.destroy_collective_group(name)


def add(rank: int, name: str) -> float:
    array = numpy.array([rank + 1.0])
    collective.allreduce(array, name)
    return float(array[0])


def test_a_failure_is_everybodys_and_the_name_can_be_used_again(actors: list[Any]) -> None:
    everywhere(actors, join, 3, "unisono", "differing")
    output = []
    for future in [actor.run.remote(differ, rank) for rank, actor in enumerate(actors)]:
        with pytest.raises(unisono.Error) as error:
            ray.get(future, timeout=60)
        output.append(str(error.value.cause))
    assert output[0] == output[1] == output[2] and "rank 2" in output[0] and "all_reduce" in output[0], output
    everywhere(actors, leave, "differing")
    everywhere(actors, join, 3, "unisono", "differing")
    assert everywhere(actors, add, "differing") == [6] * 3
    # They leave one after the other: none waits for those that have not begun to leave.
    for rank, actor in enumerate(actors):
        ray.get(actor.run.remote(leave, rank, "differing"), timeout=30)


def test_the_driver_makes_the_group(actors: list[Any]) -> None:
    collective.register_collective_backend("unisono", UnisonoGroup)
    collective.create_collective_group(actors, 3, [2, 0, 1], "unisono", "declared")
    got = ray.get(
        [actor.run.remote(add, rank, "declared") for rank, actor in zip((2, 0, 1), actors, strict=True)]
    )
    assert got == [6] * 3
    ranks = ray.get([actor.run.remote(collective.get_rank, "declared") for actor in actors])
    assert ranks == [2, 0, 1]
    everywhere(actors, leave, "declared")


def test_an_actor_that_dies_is_told(cluster: str) -> None:
    """The address that it has stored does not mislead the next group of the name."""
    with three() as actors:
        # It dies while it waits for the others.
        waits = actors[0].run.remote(join, 0, 3, "unisono", "mortal")
        ray.get(actors[0].run.remote(has_said, "mortal"), timeout=60)
        ray.kill(actors[0])
        with pytest.raises(ray.exceptions.RayActorError):
            ray.get(waits, timeout=60)
        joins = [actors[rank].run.remote(join, rank, 3, "unisono", "mortal") for rank in (1, 2)]
        actors[0] = Actor.remote()
        ray.get([*joins, actors[0].run.remote(join, 0, 3, "unisono", "mortal")], timeout=120)
        assert everywhere(actors, add, "mortal") == [6] * 3
        waits = [actors[rank].run.remote(add, rank, "mortal") for rank in (0, 1)]
        ray.kill(actors[2])
        for each in waits:
            with pytest.raises(unisono.Error, match="rank 2"):
                ray.get(each, timeout=60)


def pid(rank: int) -> int:
    return os.getpid()


def test_an_actor_that_ends_does_not_wait_for_the_others(cluster: str) -> None:
    with three() as actors:
        everywhere(actors, join, 3, "unisono", "ending")
        process = pathlib.Path("/proc", str(everywhere(actors, pid)[0]))
        actors[0].__ray_terminate__.remote()
        begin = time.monotonic()
        # It leaves the group, for which it takes 5 s.
        while process.exists():
            assert time.monotonic() - begin < 30
            time.sleep(0.05)
        with pytest.raises(unisono.Error, match="rank 0"):
            ray.get(actors[1].run.remote(add, 1, "ending"), timeout=60)


def has_said(name: str) -> None:
    while not internal_kv._internal_kv_exists(f"unisono/tests/{name}"):
        time.sleep(0.02)


def test_the_example(cluster: str) -> None:
    example("ray/actors.py", RAY_ADDRESS=cluster)
