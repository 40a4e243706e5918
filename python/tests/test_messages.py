"""Messages of arrays between two ranks."""

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
    # What is not contiguous.
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


def test_messages_arrive(world: Ranks) -> None:
    world.run(around)


def test_any_rank_may_be_the_sender(world: Ranks) -> None:
    world.run(from_anyone)


def test_wrong_arguments_are_named(world: Ranks) -> None:
    world.run(wrong)
