"""What is found when a process leaves its world at its end is told, and is in its status."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

BEGIN = """
import atexit, multiprocessing, sys, numpy, unisono
atexit.register(lambda: print("the end"))
group = unisono.init(timeout=30)
data = numpy.ones(5, "f4")
"""


def ended(folder: Path, program: str) -> list[tuple[int, str, str]]:
    """How two ranks of this program end: their status, standard output and standard error."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", BEGIN + program],
            env={
                **os.environ,
                "UNISONO_RANK": str(rank),
                "UNISONO_WORLD_SIZE": "2",
                "UNISONO_STORE": f"file://{folder}",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [rank.communicate(timeout=120) for rank in ranks]
    return [(rank.returncode, *output) for rank, output in zip(ranks, outputs, strict=True)]


@pytest.mark.parametrize(
    ("program", "told"),
    [
        ("group.reduce(data, root=1 - group.rank)", "rank 0 calls reduce(f32, sum, root 1)"),
        ("group.reduce(data, root=1 - group.rank); del group", "rank 0 calls reduce(f32, sum, root 1)"),
        ("if group.rank == 0: group.send(data, 1, tag=3)", "message 0 from rank 0 to rank 1, tag 3"),
    ],
)
def test_a_failure_that_no_call_raised_is_told_at_the_end(tmp_path: Path, program: str, told: str) -> None:
    for status, out, errors in ended(tmp_path, program):
        assert (status, out) == (120, "the end\n"), errors
        assert [line for line in errors.splitlines() if told in line], errors
        assert "Traceback" not in errors and "Exception ignored" not in errors, errors


def test_a_failure_that_a_call_raised_is_the_programs(tmp_path: Path) -> None:
    program = """
try:
    group.all_reduce(numpy.ones(5 + group.rank, "f4"))
except unisono.Error as error:
    print("caught")
"""
    for status, out, errors in ended(tmp_path, program):
        assert (status, out) == (0, "caught\nthe end\n"), errors


def test_good_ends_are_silent(tmp_path: Path) -> None:
    for status, out, errors in ended(tmp_path, "group.broadcast(data, root=1)"):
        assert (status, out, errors) == (0, "the end\n", "")


def test_the_status_of_a_child_of_multiprocessing_says_so(tmp_path: Path) -> None:
    program = """
group.close()
def child():
    part = unisono.init(timeout=30, store=sys.argv[0])
    part.reduce(numpy.ones(5), root=1 - part.rank)
process = multiprocessing.get_context("fork").Process(target=child)
sys.argv[0] = STORE
process.start()
process.join()
print(process.exitcode)
"""
    inner = tmp_path / "inner"
    inner.mkdir()
    outer = tmp_path / "outer"
    outer.mkdir()
    for status, out, errors in ended(outer, program.replace("STORE", repr(f"file://{inner}"))):
        assert (status, out) == (0, "1\nthe end\n"), errors
