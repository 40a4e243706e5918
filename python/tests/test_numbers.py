"""Numbers in arguments: a wrong one is an error that names the call and the value, and the call has not begun."""

import inspect
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import unisono
from ranks import Ranks
from unisono import Group

HUGE = 10**5000

# Values that are not counts.
UNCOUNTED: list[Any] = [
    -1,
    2**70,
    -(2**70),
    HUGE,
    1.0,
    1.5,
    float("nan"),
    True,
    np.True_,
    "1",
    b"1",
    [1],
    np.float64(1),
    np.array([0, 1]),
]
# Values that are not ranks of any group here.
NO_RANKS: list[Any] = [*UNCOUNTED, 1000, np.int64(-1), np.int64(1000), 2**63, 2**64]
NO_TAGS: list[Any] = [*UNCOUNTED, None, 2**32, np.int64(2**40)]
NO_TIMES: list[Any] = [
    -1,
    0,
    -0.0,
    float("nan"),
    float("inf"),
    -float("inf"),
    1e10,
    2**70,
    HUGE,
    "1",
    b"1",
    [1],
    True,
    1j,
    np.float64("nan"),
]

DATA = np.zeros(4)


def calls(group: Group) -> dict[str, tuple[Callable[..., Any], dict[str, Any]]]:
    """Every call, and its arguments that are not numbers."""
    out, rows = np.zeros(4), np.zeros((group.size, 2))
    return {
        "all_reduce": (group.all_reduce, {"array": DATA}),
        "reduce": (group.reduce, {"array": DATA}),
        "reduce_scatter": (group.reduce_scatter, {"array": rows}),
        "broadcast": (group.broadcast, {"array": out}),
        "scatter": (group.scatter, {"array": rows, "out": np.zeros(2)}),
        "all_gather": (group.all_gather, {"array": DATA}),
        "gather": (group.gather, {"array": DATA}),
        "all_to_all": (group.all_to_all, {"array": rows}),
        "barrier": (group.barrier, {}),
        "send": (group.send, {"array": DATA, "to": 0}),
        "recv": (group.recv, {"out": out, "source": 0}),
        "send_recv": (group.send_recv, {"array": DATA, "to": 0, "out": out, "source": 0}),
        "broadcast_object": (group.broadcast_object, {"value": 1}),
        "gather_object": (group.gather_object, {"value": 1}),
        "all_gather_object": (group.all_gather_object, {"value": 1}),
        "scatter_object": (group.scatter_object, {"values": [1] * group.size}),
        "send_object": (group.send_object, {"value": 1, "to": 0}),
        "recv_object": (group.recv_object, {"source": 0}),
        "send_tensors": (group.send_tensors, {"arrays": [DATA], "to": 0}),
        "recv_tensors": (group.recv_tensors, {"source": 0}),
        "broadcast_tensors": (group.broadcast_tensors, {"arrays": [DATA]}),
        "gather_tensors": (group.gather_tensors, {"arrays": [DATA]}),
        "all_gather_tensors": (group.all_gather_tensors, {"arrays": [DATA]}),
        "scatter_tensor": (group.scatter_tensor, {"array": rows}),
        "gather_tensor": (group.gather_tensor, {"part": rows}),
        "all_gather_tensor": (group.all_gather_tensor, {"part": rows}),
        "broadcast_file": (group.broadcast_file, {"file": "/nowhere", "directory": "/nowhere"}),
        "send_file": (group.send_file, {"file": "/nowhere", "to": 0}),
        "recv_file": (group.recv_file, {"directory": "/nowhere", "source": 0}),
        "split": (group.split, {"color": 0}),
        "new_group": (group.new_group, {"ranks": [0]}),
        "create_group": (group.create_group, {"ranks": [0]}),
        "with_timeout": (group.with_timeout, {}),
        "buffer": (group.buffer, {"shape": 1}),
        "buffer_from": (group.buffer_from, {"file": 0, "shape": 1}),
    }


def lists(size: int) -> list[Any]:
    """Values that are not lists of lengths, one for each rank."""
    each = [[wrong] * size for wrong in UNCOUNTED if not isinstance(wrong, (list, np.ndarray))]
    return [*each, 5, "ab" * size, [1] * (size + 1), [2**62] * size, [2**45] * size, object()]


def wrong_values(name: str, call: str, size: int) -> list[Any]:
    """Wrong values of an argument."""
    many = [value for value in UNCOUNTED if not isinstance(value, (list, np.ndarray))]
    by_name: dict[str, list[Any]] = {
        "root": [*NO_RANKS, None],
        "to": [*NO_RANKS, None],
        "source": NO_RANKS,
        "tag": [
            tag
            for tag in NO_TAGS
            if call != "create_group" or not isinstance(tag, (int, np.int64)) or not 0 <= tag < 2**64
        ],
        "timeout": [*NO_TIMES, None] if call == "with_timeout" else NO_TIMES,
        "lengths": lists(size),
        "send_lengths": lists(size),
        "recv_lengths": lists(size),
        "ranks": [[wrong] for wrong in NO_RANKS] + [5, [0, 0], [], None],
        "axis": [
            *(wrong for wrong in UNCOUNTED if type(wrong) is not int or wrong != -1),
            None,
            -(2**70),
        ],
        "indices": [[wrong] for wrong in many if wrong != -1] + [5],
        "blocks": [(1, wrong) for wrong in many] + [5, (1,), (1, 2, 3)],
        "color": UNCOUNTED,
        "key": [wrong for wrong in UNCOUNTED if type(wrong) is not int or wrong != -1] + [None],
        "shape": [*many, (1, -1), (2**40, 2**40), None],
        "file": [*many, None, 2**31],
        "offset": [*many, None],
    }
    return by_name.get(name, [])


# Arguments that are not numbers.
OTHERS = {"array", "arrays", "out", "value", "values", "part", "op", "pickle", "directory", "dtype"}


def every_argument(group: Group) -> int:
    """Checks that every call refuses every wrong value of every number; returns the number of checks."""
    tried = 0
    for name, (call, given) in calls(group).items():
        parameters = inspect.signature(call).parameters
        for argument in parameters:
            values = wrong_values(argument, name, group.size)
            if argument == "file" and name.endswith("_file"):
                continue
            assert values or argument in OTHERS, f"{name}: no wrong values of {argument}"
            for value in values:
                options = {**given, argument: value}
                if argument in ("send_lengths", "recv_lengths"):
                    options = {"send_lengths": [1] * group.size, "recv_lengths": [1] * group.size, **options}
                if argument == "lengths" and "root" in parameters:
                    # Only the root uses these arguments.
                    options["root"] = group.rank
                for later in (False, True):
                    made = getattr(group, f"{name}_async", None) if later else call
                    if made is None:
                        continue
                    try:
                        made(**options)
                    except (ValueError, TypeError, MemoryError) as error:
                        assert name in str(error), (
                            f"{name}({argument}={value!r}): {type(error).__name__}: {error}"
                        )
                        assert len(str(error)) < 600, str(error)
                        tried += 1
                    else:
                        raise AssertionError(f"{name}({argument}={value!r}) is taken")
    # No call has begun.
    assert group.all_gather_object(group.rank) == list(range(group.size))
    return tried


def good_numbers(group: Group) -> None:
    size, rank = group.size, group.rank
    last = size - 1
    for kind in (int, np.int8, np.int64, np.uint32, np.array):
        assert group.broadcast(np.full(2, rank), kind(last)).tolist() == [last] * 2
        assert group.broadcast_object(rank, kind(last)) == last
        sending = group.send_async(DATA, kind(rank), kind(3), timeout=np.float32(20))
        assert group.recv(np.zeros(4), kind(rank), kind(3), timeout=Fraction(20)) == rank
        sending.wait(np.float64(20))
        rows = np.full((size, 2), rank)
        assert group.all_gather(rows[0:1], lengths=[kind(1)] * size).shape == (size, 2)
        assert group.buffer((kind(2), kind(3))).shape == (2, 3)
        part = group.split(kind(0), np.int8(-rank))
        assert part is not None and part.with_timeout(Decimal(20)).rank == last - rank  # type: ignore[arg-type]
    assert group.buffer(np.int64(3)).shape == (3,) and group.buffer(0).shape == (0,)


def beyond(group: Group) -> None:
    """All ranks get an error about an argument that does not fit the root's array."""
    rows = np.zeros((group.size, 2))
    wrong: list[dict[str, Any]] = [
        {"axis": 7},
        {"axis": 2**62},
        {"blocks": (2**40, 2**40)},
        {"indices": [2**62] * (group.size + 1)},
    ]
    for options in wrong:
        with pytest.raises((ValueError, unisono.Error), match="scatter_tensor: "):
            group.scatter_tensor(rows, **options)
    for call in (group.gather_tensor, group.all_gather_tensor):
        with pytest.raises(ValueError, match=f"^{call.__name__}: "):
            call(rows, axis=7)
    group.barrier()


def waits(group: Group) -> None:
    work = group.barrier_async()
    for wrong in NO_TIMES:
        if wrong == 0 or wrong == 1e10:
            work.wait() and work.wait(wrong)
            continue
        with pytest.raises((ValueError, TypeError), match="wait: timeout is"):
            work.wait(wrong)


def test_wrong_numbers_are_refused_by_every_call(worlds: dict[int, Ranks]) -> None:
    worlds.setdefault(2, Ranks(2))
    tried = worlds[2].run(every_argument)
    print(f"{tried[0]} calls were refused")
    assert tried[0] > 1000


def test_every_call_is_in_the_table() -> None:
    with unisono.init(rank=0, size=1) as group:
        names = {name.removesuffix("_async") for name, _ in inspect.getmembers(Group, inspect.isfunction)}
        assert {name for name in names if not name.startswith("_")} - {"abort", "close"} == set(calls(group))


def test_numbers_of_numpy_are_numbers(world: Ranks) -> None:
    world.run(good_numbers)


def test_what_does_not_fit_is_told_to_all(world: Ranks) -> None:
    world.run(beyond)


def test_wrong_timeouts_of_waits(world: Ranks) -> None:
    world.run(waits)


@pytest.mark.parametrize("name", ["rank", "size", "timeout", "join_timeout"])
def test_wrong_numbers_of_a_world(name: str) -> None:
    for wrong in UNCOUNTED if name in ("rank", "size") else NO_TIMES:
        given: dict[str, Any] = {"rank": 0, "size": 1, name: wrong}
        with pytest.raises((ValueError, TypeError), match=f"init: (the )?{name} is "):
            unisono.init(**given)
