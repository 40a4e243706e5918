"""Calls of objects: plain values, and pickled ones."""

import collections
import dataclasses
import datetime
import decimal
import enum
import math
import pickle
import random
import struct
from functools import partial
from typing import Any

import numpy as np
import pytest
import unisono
from ranks import Ranks, alone
from unisono import Group

DEEP: list[Any] = []
for _ in range(100):
    DEEP = [DEEP]

PLAIN: list[Any] = [
    None, True, False, 0, 1, -1, 127, 128, -(2**31), 2**63, -(2**63), 2**64, 2**127, -(2**127), 2**128 - 1,
    0.0, -1.5, math.inf, 5e-324, "", "text", "ä€😀", "x" * 100_000, b"", b"\0\xff" * 1000,
    [], [1, "a", None, [2.5, [b"x"]]], {}, {"a": 1, 2: [3], None: {"b": {}}, True: 1.5}, DEEP, list(range(10_000)),
    2**128, -(2**127) - 1, 2**1000, -(2**9999), -0.0, (), (2, 3), ((), [()], {(1, (2,)): (3,)}), set(), {1, "a", (2, 3)},
    frozenset({frozenset(), b"x"}), {frozenset({1}): {2}}, bytearray(), bytearray(b"\0x"), 1 - 2j, complex(0.0, -0.0),
    np.True_, np.int8(-5), np.int16(5), np.int32(-7), np.int64(2**62), np.uint8(255), np.uint16(1), np.uint32(2), np.uint64(2**64 - 1),
    np.float16(0.5), np.float32(0.1), np.float64(0.1), np.complex64(1 + 2j), np.complex128(3j), np.str_("text"), np.bytes_(b"x"),
    {np.int64(1): np.float32(2)},
]  # fmt: skip


def same(one: Any, other: Any) -> bool:
    """True if two values and all values in them have the same types and are equal; NaNs are equal if their bits are."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return same(list(one.items()), list(other.items()))
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, (set, frozenset)):
        return sorted(map(typed, one)) == sorted(map(typed, other))
    if isinstance(one, float):
        return struct.pack("d", one) == struct.pack("d", other)
    if isinstance(one, complex):
        return same((one.real, one.imag), (other.real, other.imag))
    return bool(one == other)


def typed(value: Any) -> str:
    if isinstance(value, (tuple, frozenset)):
        parts = [typed(each) for each in value]
        return f"{type(value).__name__} of {sorted(parts) if isinstance(value, frozenset) else parts}"
    return f"{type(value).__name__} {value!r}"


def anything(random: random.Random, depth: int, key: bool = False) -> Any:
    """A random value; if it is a ``key``, a dict or a set can hold it."""
    leaves: list[Any] = [
        lambda: None,
        lambda: random.random() < 0.5,
        lambda: random.randrange(
            -(2 ** random.choice((1, 8, 64, 128, 300))), 2 ** random.choice((1, 8, 64, 128, 300))
        ),
        lambda: random.choice((0.0, -0.0, math.inf, math.nan, random.gauss(0, 1e10))),
        lambda: "".join(random.choices("aä€😀\0\n", k=random.randrange(5))),
        lambda: random.randbytes(random.randrange(5)),
        lambda: complex(random.random(), random.choice((-0.0, math.inf, 1.0))),
        lambda: np.dtype(random.choice(("?", "i1", "u8", "f2", "f4", "c8"))).type(random.randrange(100)),
    ]
    some = lambda key: [anything(random, depth - 1, key) for _ in range(random.randrange(4))]
    branches: list[Any] = [lambda: tuple(some(key)), lambda: frozenset(some(True))]
    if not key:
        leaves.append(lambda: bytearray(random.randbytes(random.randrange(5))))
        branches += [
            lambda: some(False),
            lambda: set(some(True)),
            lambda: {
                anything(random, depth - 1, True): anything(random, depth - 1)
                for _ in range(random.randrange(4))
            },
        ]
    return random.choice(branches if depth and random.random() < 0.7 else leaves)()


def random_values(group: Group, seed: int) -> None:
    size, rank = group.size, group.rank
    # This rank can compute the other ranks' values from the seed.
    values = random.Random(seed)
    for turn in range(120):
        every = [anything(values, 4) for _ in range(size)]
        mine, root = every[rank], turn % size
        output = f"seed {seed}, turn {turn}: {every!r}"
        got = group.broadcast_object(mine if rank == root else None, root)
        assert same(got, every[root]), output
        assert same(group.all_gather_object(mine), every), output
        assert same(group.gather_object(mine, root), every if rank == root else None), output
        assert same(group.scatter_object(every if rank == root else None, root), mine), output
        sending = group.send_object_async(mine, (rank + 1) % size)
        assert same(group.recv_object((rank - 1) % size), (every[rank - 1], (rank - 1) % size)), output
        sending.wait()


class Color(enum.IntEnum):
    """A class of integers of this test."""

    RED = 1


class Text(str):
    """A class of texts of this test."""

    __slots__ = ()


@dataclasses.dataclass
class Data:
    """A class with fields of this test."""

    x: int = 1


Pair = collections.namedtuple("Pair", "a b")

# Values whose types are derived from plain types.
OTHERS: list[Any] = [
    Color.RED, Text("a"), Data(), Pair(1, 2), collections.OrderedDict(a=1), collections.defaultdict(int), collections.Counter("a"),
    datetime.datetime(2026, 1, 1), datetime.timedelta(1), decimal.Decimal(1), range(3), slice(1), ..., memoryview(b"x"), object(), int, len,
    np.zeros(3), np.zeros(()), np.datetime64(1, "s"), np.timedelta64(1, "s"), np.longdouble(1), np.zeros(1, "i4,i4")[0], np.dtype("f4"),
    "\udc80", [1, (2, {3: Color.RED})], {Text("a"): 1}, ({Pair(1, 2)},),
]  # fmt: skip


def refused_alike(group: Group) -> None:
    size, rank = group.size, group.rank
    for value in OTHERS:
        mine = value if rank == 0 else 1
        for call in (
            lambda: group.broadcast_object(mine),  # noqa: B023
            lambda: group.all_gather_object(mine),  # noqa: B023
            lambda: group.scatter_object([mine] * size if rank == 0 else None),  # noqa: B023
        ):
            with pytest.raises(unisono.Error, match="value of type|surrogates|did not send"):
                call()
        raises("value of type|surrogates", group.send_object, value, 0)
    assert group.all_gather_object(rank) == list(range(size))


def the_root_gets_what_was_sent(group: Group) -> None:
    value = [1, [2]]
    work = group.broadcast_object_async(value if group.rank == 0 else None)
    value[1] = 3
    got = work.wait()
    assert got == [1, [2]] and got is not value
    # A value that becomes another one when it is unpickled does so on all ranks.
    got = group.broadcast_object(Becomes() if group.rank == 0 else None, pickle=True)
    assert got == 5 and type(got) is int


class Becomes:
    """Is unpickled as a number."""

    def __reduce__(self) -> Any:
        return (int, ("5",))


class Point:
    """A type of this test."""

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
        assert same(got, value)
    assert math.isnan(group.broadcast_object(math.nan))
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
        (endless, "levels deep"),
        ("\ud800", "surrogates"),
        (np.zeros(2), "numpy.ndarray.*calls of tensors"),
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
        if at_zero:
            group.send_object(Explosive(), 1, pickle=True)
        elif rank == 1:
            raises("object of rank 0 cannot be unpickled: ValueError", group.recv_object, 0, pickle=True)
    # The group still works.
    assert group.all_gather_object(rank) == list(range(size))


def test_plain_values_arrive_as_they_are(world: Ranks) -> None:
    world.run(plain)


def test_random_values_arrive_as_they_are(world: Ranks) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print("seed", seed)
    world.run(random_values, seed)


def test_values_of_other_types_are_refused_alike(world: Ranks) -> None:
    world.run(refused_alike)


def test_all_ranks_get_one_value(world: Ranks) -> None:
    world.run(the_root_gets_what_was_sent)


def test_others_are_pickled_if_asked_for(world: Ranks) -> None:
    world.run(pickled)


def test_what_cannot_be_sent_is_told_to_all(world: Ranks) -> None:
    world.run(what_cannot_be_sent)


def pickled_on_some(group: Group, call: str, some: int) -> str:
    """The failure of a world in which only rank `some` asks for pickle."""
    ask = {"pickle": group.rank == some}
    with pytest.raises(unisono.Error) as raised:
        match call:
            case "broadcast":
                group.broadcast_object({1} if group.rank == 0 else None, **ask)
            case "gather":
                group.gather_object(b"1", 0, **ask)
            case "all_gather":
                group.all_gather_object(b"1", **ask)
            case "scatter":
                group.scatter_object([b"1"] * group.size if group.rank == 0 else None, **ask)
            case "send" if group.rank == 0:
                group.send_object(b"1", 1, **ask)
            case "send" if group.rank == 1:
                group.recv_object(0, **ask)
        # Ranks that did not see the difference get the failure at the next call.
        group.barrier()
    return str(raised.value)


@pytest.mark.parametrize("call", ["broadcast", "gather", "all_gather", "scatter", "send"])
@pytest.mark.parametrize("some", [0, 1])
def test_ranks_that_ask_for_pickle_apart_are_told(call: str, some: int) -> None:
    one, other = alone(3 if call == "gather" else 2, partial(pickled_on_some, call=call, some=some))[:2]
    assert one == other
    assert "with pickle" in one and "without pickle" in one and "must ask for pickle alike" in one


def test_a_world_can_pickle() -> None:
    with unisono.init(rank=0, size=1, pickle=True) as group:
        half = group.split(0)
        assert half is not None
        for each in (group, half, group.with_timeout(5)):
            assert each.all_gather_object(Point(1)) == [Point(1)]
            raises("Point", each.all_gather_object, Point(1), pickle=False)


def test_a_work_whose_object_cannot_be_unpickled_is_done() -> None:
    with unisono.init(rank=0, size=1) as group:
        sending = group.send_object_async(Explosive(), 0, pickle=True)
        work = group.recv_object_async(0, pickle=True)
        raises("cannot be unpickled", work.wait)
        assert work.done()
        raises("cannot be unpickled", work.wait)
        sending.wait()
