"""Calls of objects: plain values, and pickled ones."""

import math
import pickle
from typing import Any

import numpy as np
import pytest
import unisono
from ranks import Ranks
from unisono import Group

DEEP: list[Any] = []
for _ in range(100):
    DEEP = [DEEP]

PLAIN: list[Any] = [
    None, True, False, 0, 1, -1, 127, 128, -(2**31), 2**63, -(2**63), 2**64, 2**127, -(2**127), 2**128 - 1,
    0.0, -1.5, math.inf, 5e-324, "", "text", "ä€😀", "x" * 100_000, b"", b"\0\xff" * 1000,
    [], [1, "a", None, [2.5, [b"x"]]], {}, {"a": 1, 2: [3], None: {"b": {}}, True: 1.5}, DEEP, list(range(10_000)),
]  # fmt: skip


class Point:
    """A type of this test's."""

    def __init__(self, x: int) -> None:
        self.x = x

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Point) and other.x == self.x

    __hash__ = None  # type: ignore[assignment]


def plain(group: Group) -> None:
    size, rank = group.size, group.rank
    for number, value in enumerate(PLAIN):
        root = number % size
        got = group.broadcast_object(value if rank == root else "another", root)
        assert got == value and type(got) is type(value)
    assert math.isnan(group.broadcast_object(math.nan))
    assert group.broadcast_object((1, (2, 3)), 0) == ([1, [2, 3]] if rank else (1, (2, 3)))
    mine = {"rank": rank, "list": [0] * rank}
    everyone = [{"rank": r, "list": [0] * r} for r in range(size)]
    assert group.all_gather_object(mine) == everyone
    assert group.gather_object(mine, size - 1) == (everyone if rank == size - 1 else None)
    assert group.scatter_object(everyone if rank == 0 else None) == mine
    right, left = (rank + 1) % size, (rank - 1) % size
    sending = group.send_object_async({"from": rank}, right, 7)
    assert group.recv_object(left, 7) == ({"from": left}, left)
    sending.wait()
    if rank == 0:
        got = dict(reversed(group.recv_object(tag=8)) for _ in range(size - 1))
        assert got == {r: f"hello from {r}" for r in range(1, size)}
    else:
        group.send_object(f"hello from {rank}", 0, 8)


def pickled(group: Group) -> None:
    size, rank = group.size, group.rank
    value = (1, {2, 3}, Point(4), np.arange(5.0)[::2])
    got = group.broadcast_object(value if rank == 0 else None, pickle=True)
    assert got[:3] == value[:3] and np.array_equal(got[3], value[3])
    points = [Point(r) for r in range(size)]
    assert group.all_gather_object(Point(rank), pickle=True) == points
    assert group.gather_object(Point(rank), 0, pickle=True) == (points if rank == 0 else None)
    assert group.scatter_object(points if rank == 0 else None, pickle=True) == Point(rank)
    sending = group.send_object_async(Point(rank), rank, pickle=True)
    assert group.recv_object(rank, pickle=True) == (Point(rank), rank)
    sending.wait()


def raises(text: str, call: Any, *args: Any, **options: Any) -> None:
    with pytest.raises(unisono.Error, match=text):
        call(*args, **options)


class Unpicklable:
    """Cannot be pickled."""

    def __reduce__(self) -> Any:
        raise pickle.PicklingError("not this one")


class Explosive:
    """Cannot be unpickled."""

    def __reduce__(self) -> Any:
        return (int, ("no number",))


def what_cannot_be_sent(group: Group) -> None:
    size, rank = group.size, group.rank
    at_zero = rank == 0
    endless: list[Any] = []
    endless.append(endless)
    for value, why in [
        (Point(1), "Point.*pickle=True"),
        ({1, 2}, "set"),
        (2**128, "128 bits"),
        (endless, "levels deep"),
        ("\ud800", "surrogates"),
        ({(1, 2): 3}, "key of a dict"),
    ]:
        raises(why if at_zero else "did not send", group.broadcast_object, value if at_zero else None)
        raises(why, group.send_object, value, 0)
    raises(
        "Point" if rank == size - 1 else "object of rank",
        group.all_gather_object,
        Point(1) if rank == size - 1 else 1,
    )
    raises("not this one" if at_zero else "did not send", group.broadcast_object, Unpicklable(), pickle=True)
    with pytest.raises(unisono.Error if rank else ValueError, match="values|did not send"):
        group.scatter_object([1] * (size + 1) if rank == 0 else None)
    if size > 1:
        for sent, why in [(5, "not pickled"), (b"no pickle", "cannot be unpickled")]:
            if at_zero:
                group.send_object(sent, 1)
            elif rank == 1:
                raises(why, group.recv_object, 0, pickle=True)
        if at_zero:
            group.send_object(Explosive(), 1, pickle=True)
        elif rank == 1:
            raises("object of rank 0 cannot be unpickled: ValueError", group.recv_object, 0, pickle=True)
    # The group still works.
    assert group.all_gather_object(rank) == list(range(size))


def test_plain_values_arrive_as_they_are(world: Ranks) -> None:
    world.run(plain)


def test_others_are_pickled_if_asked_for(world: Ranks) -> None:
    world.run(pickled)


def test_what_cannot_be_sent_is_told_to_all(world: Ranks) -> None:
    world.run(what_cannot_be_sent)


def test_a_world_can_pickle() -> None:
    with unisono.init(rank=0, size=1, pickle=True) as group:
        half = group.split(0)
        assert half is not None
        for each in (group, half, group.with_timeout(5)):
            assert each.all_gather_object({1}) == [{1}]
            raises("set", each.all_gather_object, {1}, pickle=False)


def test_a_work_whose_object_cannot_be_unpickled_is_done() -> None:
    with unisono.init(rank=0, size=1) as group:
        sending = group.send_object_async(b"no pickle", 0)
        work = group.recv_object_async(0, pickle=True)
        raises("cannot be unpickled", work.wait)
        assert work.done()
        raises("cannot be unpickled", work.wait)
        sending.wait()
