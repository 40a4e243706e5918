"""If a rank cannot join, for any reason, the others get the reason at once."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

JOIN = """
import sys, unisono
rank, size, store = int(sys.argv[1]), 3, sys.argv[2]
arguments = {"rank": rank, "size": size, "store": store, "token": "t", "join_timeout": 60}
print("begin", flush=True)
try:
    unisono.init(**arguments | (eval(sys.argv[3]) if rank == 1 else {}))
    print("joined")
except Exception as error:
    print(type(error).__name__, error)
"""


def outcome(folder: Path, change: str = "{}", **variables: str) -> list[str]:
    """The outputs of three ranks; rank 1 has these arguments and variables."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", JOIN, str(rank), f"file://{folder}", change],
            env=os.environ | (variables if rank == 1 else {}),
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(3)
    ]
    for rank in ranks:
        assert rank.stdout is not None
        assert rank.stdout.readline() == "begin\n"
    begin = time.monotonic()
    # `communicate` would lose the output that came with the first line. Joining ends after a minute.
    said = [rank.stdout.read().strip() for rank in ranks if rank.stdout is not None]
    assert [rank.wait(timeout=120) for rank in ranks] == [0, 0, 0], said
    assert time.monotonic() - begin < 20, said
    return said


@pytest.mark.parametrize(
    ("change", "variables", "own", "others"),
    [
        ("{}", {"UNISONO_CHUNK": "abc"}, "UNISONO_CHUNK=abc: wanted", "UNISONO_CHUNK=abc: wanted"),
        ("{'reduction': 'some'}", {}, "ValueError init: reduction: ", "init: reduction: "),
        (
            "{'size': 4}",
            {},
            "this process has world size 4, the store 3",
            "this process has world size 4, the store 3",
        ),
    ],
)
def test_a_rank_that_cannot_join_tells_the_others(
    tmp_path: Path, change: str, variables: dict[str, str], own: str, others: str
) -> None:
    said = outcome(tmp_path, change, **variables)
    assert own in said[1]
    for rank in (0, 2):
        assert "rank 1 could not join: " in said[rank], said
        assert others in said[rank], said


@pytest.mark.parametrize(
    "launcher",
    [
        ["UNISONO_RANK", "UNISONO_WORLD_SIZE"],
        ["RANK", "WORLD_SIZE"],
        # On several hosts.
        ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"],
        ["PMI_RANK", "PMI_SIZE"],
    ],
)
def test_the_program_may_say_where_ranks_meet(tmp_path: Path, launcher: list[str]) -> None:
    program = """
import sys, unisono
try:
    unisono.init()
except unisono.Error as error:
    print("need a place to meet" in str(error) or "does not say where rank 0 is" in str(error))
with unisono.init(store=sys.argv[1], token="t") as group:
    print(group.rank, group.all_reduce(1))
"""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", program, f"file://{tmp_path}"],
            env=os.environ | dict(zip(launcher, (str(rank), "2"), strict=True)),
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=120)[0] for rank in ranks]
    assert said == ["True\n0 2\n", "True\n1 2\n"]
