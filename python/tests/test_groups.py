"""Groups, wrong arguments, failures, and the end."""

import os
import pathlib
import signal
import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest
import unisono
from ranks import Ranks, alone
from unisono import Group


def parts(group: Group) -> None:
    size, rank = group.size, group.rank
    half = group.split(rank % 2, -rank)
    assert half is not None
    members = [r for r in range(size) if r % 2 == rank % 2][::-1]
    assert (half.members, half.rank, half.size) == (members, members.index(rank), len(members))
    assert half.all_gather_object(rank) == members
    assert half.name in repr(half) and f"rank {half.rank} of {half.size}" in repr(half)
    some = group.split(None if rank == 0 else 3)
    assert (some is None) == (rank == 0)
    ends = sorted({0, size - 1})
    outer = group.new_group(ends)
    assert (outer is not None) == (rank in ends)
    if rank in ends:
        made = group.create_group(ends, 5)
        assert made.all_reduce(1) == len(ends)
        with made:
            made.barrier()
        with pytest.raises(unisono.Error):
            made.barrier()
    for each in (half, some, outer):
        if each is not None:
            each.close()
    assert group.with_timeout(20).all_reduce(1) == size
    assert group.failure is None


def arguments(group: Group) -> None:
    size = group.size
    data, other = np.zeros(3), np.zeros(3, "f4")
    few = np.zeros(2 if size == 1 else 1)
    wrong: list[tuple[Any, str]] = [
        (
            lambda: group.all_reduce(data, "median"),
            "all_reduce: there is no operation 'median'; there are sum",
        ),
        (lambda: group.all_reduce(data, "premulsum(x)"), "no operation"),
        (
            lambda: group.all_reduce(data, "band"),
            "all_reduce: band is not defined for float64; there are avg",
        ),
        (lambda: group.all_reduce(np.zeros(3, "c8"), "max"), "all_reduce: max is not defined for complex64"),
        (lambda: group.all_reduce(np.zeros(3, "M8[s]")), "cannot be reduced"),
        (lambda: group.all_reduce(np.zeros(3, ">f4")), "cannot be reduced"),
        (
            lambda: group.all_reduce(data, out=other),
            "all_reduce: the array has elements of float64 and the output of",
        ),
        (lambda: group.all_reduce(data, out=few), "all_reduce: "),
        (lambda: group.all_reduce(data, out=np.broadcast_to(data, (2, 3))), "read-only"),
        (lambda: group.all_reduce(data, out=b"123"), "read-only"),
        (lambda: group.all_reduce(data, timeout=-1), "the timeout is -1"),
        (lambda: group.all_reduce(data, timeout=0), "all_reduce: the timeout is"),
        (lambda: group.reduce(data, "sum", size), "reduce: "),
        (lambda: group.reduce(data, "sum", -1), "reduce: there is no rank -1"),
        (lambda: group.broadcast(data, -1), "broadcast: there is no rank -1"),
        (lambda: group.all_gather(data, out=np.zeros(3 * size + 1)), "all_gather: "),
        (lambda: group.all_gather(data, lengths=[1] * (size + 1)), "all_gather: the lengths are"),
        (lambda: group.all_gather(data, lengths=[2] * size), "all_gather: the input has 3 elements"),
        (lambda: group.all_gather(data[0], lengths=[1] * size), "all_gather: an array without dimensions"),
        (lambda: group.reduce_scatter(data[0]), "reduce_scatter: an array of shape"),
        (lambda: group.all_to_all(data, send_lengths=[1] * size), "all_to_all: give both"),
        (lambda: group.new_group([]), "new_group: "),
        (lambda: group.create_group([size]), "create_group: "),
        (lambda: group.with_timeout(0), "with_timeout: "),
    ]
    overlapping = np.lib.stride_tricks.as_strided(np.zeros(3), (2, 3), (0, 8))
    wrong.append((lambda: group.all_reduce(overlapping, out=overlapping), "share memory"))
    if size > 1:
        wrong.append((lambda: group.all_to_all(np.zeros(size + 1)), "all_to_all: an array of shape"))
    for call, text in wrong:
        with pytest.raises(ValueError) as raised:
            call()
        assert text in str(raised.value)
    masked = np.ma.masked_array([1.0, 2.0], [True, False])
    for given, text in [
        (masked, "masked array"), ([1.0], "not list"), ("text", "not str"), (None, "not NoneType"), (object(), "not object"),
        (np.array([[], 1], object), "Python objects"), (OnDevice(), "OnDevice is on a device (cuda, number 3)"),
    ]:  # fmt: skip
        with pytest.raises(TypeError) as raised2:
            group.all_reduce(given)
        assert text in str(raised2.value)
    with pytest.raises(TypeError, match="all_reduce: op is 3"):
        group.all_reduce(data, 3)  # type: ignore[arg-type]
    # None of these has begun.
    assert group.all_reduce(1) == size


class OnDevice:
    """An array in another device's memory."""

    def __dlpack__(self, **options: Any) -> Any:
        raise AssertionError("not to be asked for")

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 3)


def differ(group: Group) -> str:
    with pytest.raises(unisono.Error) as raised:
        group.all_reduce(np.zeros(3 + group.rank))
    with pytest.raises(unisono.Error) as again:
        group.barrier()
    assert str(again.value) == str(raised.value) == group.failure
    return str(raised.value)


def late(group: Group) -> str:
    with pytest.raises(unisono.Error) as raised:
        if group.rank == 0:
            group.barrier(timeout=0.3)
        else:
            while True:
                time.sleep(0.01)
                if group.failure is not None:
                    group.barrier()
    return str(raised.value)


def dies(group: Group) -> str:
    if group.rank == 1:
        # The other ranks have made no other call.
        for _ in range(group.size - 1):
            group.recv(np.zeros(1), tag=1)
        os.kill(os.getpid(), signal.SIGKILL)
    work = group.recv_async(np.zeros(3), 1)
    sending = group.send_async(np.zeros(1), 1, 1)
    with pytest.raises(unisono.Error) as raised:
        sending.wait()
        group.barrier()
    with pytest.raises(unisono.Error):
        work.wait()
    assert isinstance(work.exception(), unisono.Error) and "failed: " in repr(work)
    return str(raised.value)


def deadlocked(group: Group) -> str:
    with pytest.raises(unisono.Error) as raised:
        group.recv(np.zeros(1), 1 - group.rank)
    return str(raised.value)


def raising(group: Group) -> str:
    try:
        with group:
            if group.rank == 0:
                raise KeyError("not found")
            group.barrier()
    except (KeyError, unisono.Error) as error:
        return str(error)
    return "nothing raised"


def exits(group: Group) -> str | None:
    with pytest.raises(SystemExit), group:
        sys.exit(0)
    with pytest.raises(unisono.Error, match="left"):
        group.barrier()
    return None


def test_an_exit_that_is_no_failure_leaves_in_good_order() -> None:
    assert alone(2, exits) == [None, None]


def test_groups_are_made_of_groups(world: Ranks) -> None:
    world.run(parts)


def test_wrong_arguments_are_named_and_do_no_harm(world: Ranks) -> None:
    world.run(arguments)


def test_all_ranks_are_told_that_their_calls_differ() -> None:
    first, second = alone(2, differ)
    assert first == second and "rank 0" in first and "rank 1" in first and "all_reduce" in first


def test_all_ranks_are_told_of_a_deadline() -> None:
    first, second = alone(2, late)
    assert (
        " Timed out " in first
        and "barrier() did not finish within" in first
        and "rank 1 has not entered" in second
    )


def test_the_death_of_a_rank_is_told() -> None:
    assert "rank 1" in alone(3, dies, without={1})[0]


def test_two_that_wait_for_each_other_are_told() -> None:
    for text in alone(2, deadlocked):
        assert "ranks wait for each other" in text


def test_an_exception_in_the_block_is_told_to_the_others() -> None:
    assert alone(2, raising) == ["'not found'", "rank 0 aborted the group: KeyError: 'not found'"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"rank": 1, "size": 1}, "init: rank is 1 and size 1"),
        ({"rank": 0}, "init: rank is 0 and size not given"),
        ({"rank": 0, "size": 1, "interface": ",,"}, "init: interface: "),
        ({"rank": 0, "size": 1, "reduction": "slow"}, "init: reduction: wanted fastest or reproducible"),
        ({"rank": 0, "size": 2, "store": "here"}, "init: store: wanted tcp://host:port"),
        ({"rank": 0, "size": 1, "timeout": -1.0}, "the timeout is -1"),
    ],
)
def test_wrong_settings_are_named(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError) as raised:
        unisono.init(**options)
    assert text in str(raised.value)


def test_a_program_without_a_launcher_is_a_world_of_one(python: Any) -> None:
    done = python("-c", "import unisono; group = unisono.init(); print(group.rank, group.size)")
    assert done.returncode == 0 and done.stdout == "0 1\n", done.stderr


def test_half_a_launcher_is_told_what_to_do(python: Any, tmp_path: pathlib.Path) -> None:
    done = python("-c", f"import unisono; unisono.init(store='file://{tmp_path}')")
    assert done.returncode == 1 and "this process does not know its rank" in done.stderr


def start(program: str, folder: Any) -> list[subprocess.Popen[str]]:
    """Two ranks of this program, without a launcher that would end one when the other ends."""
    meeting = {"UNISONO_WORLD_SIZE": "2", "UNISONO_STORE": f"file://{folder}", "UNISONO_PROVIDER": "tcp"}
    return [
        subprocess.Popen(
            [sys.executable, "-c", program],
            env=os.environ | meeting | {"UNISONO_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]


def test_an_uncaught_exception_is_told_to_the_others(tmp_path: Any) -> None:
    program = """
import unisono
try:
    # A rank may get the failure while it joins.
    group = unisono.init()
    if group.rank == 1:
        raise LookupError("no such shard")
    group.barrier()
except unisono.Error as error:
    print(error)
"""
    output = [rank.communicate(timeout=60) for rank in start(program, tmp_path)]
    assert output[0][0] == "rank 1 aborted the group: LookupError: no such shard\n", output


@pytest.mark.parametrize(
    "call",
    [
        "all_reduce(numpy.zeros(3))",
        "recv(numpy.zeros(3), 1)",
        "recv_object(1)",
        "all_gather_object(1)",
        "split(0)",
        "new_group([0, 1])",
        "create_group([0, 1])",
        "recv_file('.', 1)",
    ],
)
def test_ctrl_c_ends_a_wait(tmp_path: Any, call: str) -> None:
    program = """
import sys, time, numpy, unisono
try:
    group = unisono.init()
    if group.rank == 0:
        print("ready", flush=True)
        group.CALL
    while group.failure is None:
        time.sleep(0.01)
    group.barrier()
except unisono.Error as error:
    print(error)
"""
    ranks = start(program.replace("CALL", call), tmp_path)
    assert ranks[0].stdout is not None and ranks[0].stdout.readline() == "ready\n"
    # The rank may not be in the call yet: it ends with the interrupt in this case too, and reports it to the other.
    time.sleep(0.2)
    ranks[0].send_signal(signal.SIGINT)
    output = [rank.communicate(timeout=60) for rank in ranks]
    assert "KeyboardInterrupt" in output[0][1], output
    assert "rank 0 aborted the group: KeyboardInterrupt" in output[1][0], output


@pytest.mark.parametrize("rank", [0, 1])
def test_ctrl_c_ends_joining(tmp_path: Any, rank: int) -> None:
    program = """
import unisono
print("ready", flush=True)
unisono.init()
"""
    ranks = start(program, tmp_path)
    ranks[1 - rank].kill()
    joins = ranks[rank]
    assert joins.stdout is not None and joins.stdout.readline() == "ready\n"
    # The rank waits for a store or for the other rank, which never comes; joining would last a minute.
    time.sleep(0.3)
    joins.send_signal(signal.SIGINT)
    _, errors = joins.communicate(timeout=20)
    ranks[1 - rank].communicate()
    assert errors.endswith("KeyboardInterrupt\n"), errors


def test_who_joins_an_interrupted_rank_is_told(tmp_path: Any) -> None:
    program = """
import os, signal, sys, threading, time, unisono
if os.environ["UNISONO_RANK"] == "0":
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    try:
        unisono.init()
    except KeyboardInterrupt:
        open(sys.argv[1], "w").close()
    # The program goes on, and says that it has heard when the other has ended.
    sys.stdin.read()
else:
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.01)
    try:
        unisono.init().barrier()
    except unisono.Error as error:
        print(error)
"""
    mark = tmp_path / "interrupted"
    meeting = {"UNISONO_WORLD_SIZE": "2", "UNISONO_STORE": f"file://{tmp_path}", "UNISONO_PROVIDER": "tcp"}
    first, second = (
        subprocess.Popen(
            [sys.executable, "-c", program, str(mark)],
            env=os.environ | meeting | {"UNISONO_RANK": str(rank)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    )
    output, _ = second.communicate(timeout=60)
    first.communicate(timeout=60)
    assert output == "rank 0 aborted the group: its program stopped waiting while it joined\n"
    assert first.returncode == 0


def test_a_rank_leaves_after_a_file_whose_receive_was_interrupted(tmp_path: Any) -> None:
    program = """
import os, pathlib, signal, threading, time, numpy, unisono
group = unisono.init()
interrupted = pathlib.Path(INTERRUPTED)
if group.rank == 0:
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        group.recv_file(".", 1)
    except KeyboardInterrupt:
        interrupted.touch()
# Not in a call meanwhile, or the ranks would wait for each other.
while not interrupted.exists():
    time.sleep(0.01)
group.all_reduce(numpy.zeros(3))
"""
    ranks = start(program.replace("INTERRUPTED", repr(str(tmp_path / "interrupted"))), tmp_path)
    output = [rank.communicate(timeout=60) for rank in ranks]
    assert output == [("", "")] * 2 and [rank.returncode for rank in ranks] == [0, 0]
