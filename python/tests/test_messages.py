"""Messages of arrays between two ranks."""

import time
from typing import Any

import numpy as np
import pytest
from ranks import Ranks
from unisono import Group


def around(group: Group) -> None:
    size, rank = group.size, group.rank
    right, left = (rank + 1) % size, (rank - 1) % size
    for dtype in ("float64", "int8", "complex64", "bool", "datetime64[D]", ">u2"):
        for shape in ((), (0,), (5,), (3, 100_000)):
            mine = np.full(shape, rank % 2, "i8").astype(dtype)
            out = np.zeros(shape, dtype)
            assert group.send_recv(mine, right, out, left, 3) == left
            np.testing.assert_array_equal(out, np.full(shape, left % 2, "i8").astype(dtype))
    # Arrays that are not contiguous.
    table = np.zeros((4, 6))
    sending = group.send_async(np.arange(48.0).reshape(8, 6)[::2, 1] + rank, right)
    work = group.recv_async(table[:, 2], left)
    assert work.wait(20) == left and work.done() and work.wait() == left
    sending.wait()
    np.testing.assert_array_equal(table[:, 2], np.arange(48.0).reshape(8, 6)[::2, 1] + left)
    assert not table[:, [0, 1, 3, 4, 5]].any()


def from_anyone(group: Group) -> None:
    size, rank = group.size, group.rank
    if rank == 0:
        seen = set()
        for _ in range(size - 1):
            out = np.zeros(3)
            sender = group.recv(out, tag=1)
            assert out.tolist() == [sender] * 3
            seen.add(sender)
        assert seen == set(range(1, size))
    else:
        group.send(np.full(3, float(rank)), 0, 1)
    group.barrier()


def wrong(group: Group) -> None:
    size = group.size
    data = np.zeros(3)
    for call in (
        lambda: group.send(data, size),
        lambda: group.recv(data, -1),
        lambda: group.send(data, -1),
        lambda: group.send(data, 0, -1),
        lambda: group.send(data, 0, 2**32),
        lambda: group.send_recv(data, size, data.copy(), 0),
        lambda: group.send_recv(data, 0, data.copy(), -1),
    ):
        with pytest.raises(ValueError, match=r"(send|recv|send_recv): "):
            call()
    for wrong in ("text", [1, 2], None, object(), np.array(["a"], object)):
        with pytest.raises(TypeError, match="send: "):
            group.send(wrong, 0)
        with pytest.raises(TypeError, match="recv: "):
            group.recv(wrong, 0)
    with pytest.raises(ValueError, match="recv: .*read-only"):
        group.recv(b"abc", 0)
    group.barrier()


def in_one_place(group: Group) -> None:
    """If a call sends from memory into which it receives, the contents before the call arrive."""
    size, rank = group.size, group.rank
    right, left = (rank + 1) % size, (rank - 1) % size
    registered = group.buffer(100_000)
    for length in (1, 100, 5_000, 60_000):
        for name in ("same", "ahead", "behind", "reversed", "every second", "apart", "bytes"):
            for table in (np.zeros(100_000), registered):
                table[:] = np.arange(100_000) + 1e7 * rank
                whole: dict[str, tuple[slice, slice]] = {
                    "same": (slice(0, length), slice(0, length)),
                    "ahead": (slice(0, length), slice(1, length + 1)),
                    "behind": (slice(length // 2, length // 2 + length), slice(0, length)),
                    "reversed": (slice(0, length), slice(length, 0, -1)),
                    "every second": (slice(0, length, 2), slice(0, (length + 1) // 2)),
                    "apart": (slice(0, length // 8), slice(length // 8, length // 8 * 2)),
                    "bytes": (slice(0, length), slice(0, length)),
                }
                source, target = whole[name]
                wanted = np.arange(100_000) + 1e7 * rank
                wanted[target] = (np.arange(100_000) + 1e7 * left)[source]
                out: Any = memoryview(table[target]).cast("B") if name == "bytes" else table[target]
                array: Any = table[source].view("u1") if name == "bytes" else table[source]
                if (length + rank) % 2:
                    # A message that comes meanwhile must not be in the memory before the other is sent.
                    time.sleep(0.002)
                assert group.send_recv(array, right, out, left) == left
                np.testing.assert_array_equal(table, wanted, f"{name}, {length} elements")


def refused(group: Group) -> None:
    """If one half of a call is wrong, neither half has begun."""
    size, rank = group.size, group.rank
    right, left = (rank + 1) % size, (rank - 1) % size
    data, out = np.full(4, float(rank)), np.full(4, -1.0)
    read_only = np.zeros(4)
    read_only.flags.writeable = False
    for call in (
        lambda: group.send_recv(np.array([None] * 4, object), right, out, left),
        lambda: group.send_recv("text", right, out, left),
        lambda: group.send_recv(data, size, out, left),
        lambda: group.send_recv(data, right, out, size),
        lambda: group.send_recv(data, right, read_only, left),
        lambda: group.send_recv(data, right, out, left, -1),
        lambda: group.send_recv(data, right, out, left, timeout=-1),
        lambda: group.send_recv(data, right, out, left, timeout="soon"),  # type: ignore[arg-type]
    ):
        with pytest.raises((TypeError, ValueError), match="send_recv: "):
            call()
    sending = group.send_async(data, right)
    got = np.zeros(4)
    group.recv(got, left)
    sending.wait()
    assert got.tolist() == [left] * 4 and out.tolist() == [-1.0] * 4


def test_what_is_sent_and_received_in_one_place_arrives(world: Ranks) -> None:
    world.run(in_one_place)


def test_a_refused_call_has_begun_nothing(world: Ranks) -> None:
    world.run(refused)


def test_messages_arrive(world: Ranks) -> None:
    world.run(around)


def test_any_rank_may_be_the_sender(world: Ranks) -> None:
    world.run(from_anyone)


def test_wrong_arguments_are_named(world: Ranks) -> None:
    world.run(wrong)
