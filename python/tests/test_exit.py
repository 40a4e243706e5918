"""A failure that a process finds when it leaves its world at its end is printed, and is in its exit status."""

import os
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

import pytest

BEGIN = """
import atexit, multiprocessing, sys, numpy, unisono
atexit.register(lambda: print("the end"))
group = unisono.init(timeout=30)
data = numpy.ones(5, "f4")
"""


def ended(folder: Path, program: str) -> list[tuple[int, str, str]]:
    """The ends of two ranks of this program: their status, standard output and standard error."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", BEGIN + program],
            env={
                **os.environ,
                "UNISONO_RANK": str(rank),
                "UNISONO_WORLD_SIZE": "2",
                "UNISONO_STORE": f"file://{folder}",
            },
            stdout=PIPE,
            stderr=PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [rank.communicate(timeout=120) for rank in ranks]
    return [(rank.returncode, *output) for rank, output in zip(ranks, outputs, strict=True)]


SENT = "if group.rank == 0: group.send(data, 1, tag=3)"


@pytest.mark.parametrize("program", [SENT, SENT + "\ndel group"])
def test_a_failure_that_no_call_raised_is_told_at_the_end(tmp_path: Path, program: str) -> None:
    for status, out, errors in ended(tmp_path, program):
        assert (status, out) == (120, "the end\n"), errors
        words = "message 0 from rank 0 to rank 1, tag 3"
        assert [line for line in errors.splitlines() if words in line], errors
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


def test_an_exception_in_a_child_of_multiprocessing_is_told(tmp_path: Path) -> None:
    program = """
group.close()
def child(rank, raised, results):
    part = unisono.init(rank=rank, size=2, store=sys.argv[0], token="t" * 32, timeout=30)
    if rank == 1:
        part.barrier()
        try:
            raise ValueError("bad batch 17")
        except ValueError:
            if raised == "ValueError":
                raise
            sys.exit(0 if raised == "good" else 3)
    try:
        part.barrier()
        part.all_reduce(data)
    except unisono.Error as error:
        results.put(str(error))
sys.argv[0] = STORE
fork = multiprocessing.get_context("fork")
for raised in ("ValueError", "SystemExit", "good"):
    results = fork.Queue()
    children = [fork.Process(target=child, args=(rank, raised, results)) for rank in range(2)]
    for each in children: each.start()
    print(results.get(timeout=60))
    for each in children: each.join()
    print(children[1].exitcode)
"""
    stores = []
    for rank in range(2):
        stores.append(tmp_path / f"inner-{rank}")
        stores[-1].mkdir()
    store = f"f'file://{tmp_path}/inner-{{group.rank}}'"
    for status, out, errors in ended(tmp_path, program.replace("STORE", store)):
        assert status == 0, errors
        uncaught, exited, good = zip(*[iter(out.splitlines()[:6])] * 2, strict=True)
        assert uncaught == ("rank 1 aborted the group: ValueError: bad batch 17", "1")
        if sys.version_info < (3, 13):
            assert exited == ("rank 1 aborted the group: ValueError: bad batch 17", "3")
        else:
            assert "rank 1 has left" in exited[0] and exited[1] == "3"
        assert "rank 1 has left" in good[0]


def test_ctrl_c_ends_the_wait_for_others_to_leave(tmp_path: Path) -> None:
    program = """
import os, signal, threading, time
if group.rank == 0:
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        group.close()
    except KeyboardInterrupt:
        print("interrupted")
    AGAIN
else:
    time.sleep(1)
    while WAIT and group.failure is None:
        time.sleep(0.01)
    group.close()
"""
    # A rank that goes on leaves later, without an error.
    for rank, (status, out, errors) in enumerate(
        ended(tmp_path, program.replace("AGAIN", "").replace("WAIT", "False"))
    ):
        assert (status, out, errors) == (0, "interrupted\n" * (1 - rank) + "the end\n", ""), errors
    # A rank that does not go on reports it to the others, although they would never leave.
    program = program.replace("AGAIN", "raise KeyboardInterrupt").replace("WAIT", "True")
    for status, _, errors in ended(tmp_path, program):
        assert status != 0 and "KeyboardInterrupt" in errors, errors


@pytest.mark.skipif(
    not getattr(sys, "_is_gil_enabled", lambda: True)(),
    reason="without the GIL, the thread that made an object runs its finalizer",
)
def test_the_interpreter_ends_although_a_finalizer_does_not(tmp_path: Path) -> None:
    program = """
import time, unisono._finisher
unisono._finisher._PATIENCE = 0.1
class Endless(bytearray):
    def __del__(self):
        while True:
            time.sleep(0.0002)
memory = Endless(800)
array = numpy.frombuffer(memory)
if group.rank == 1:
    time.sleep(0.3)
work = group.all_reduce_async(array) if CALL else group.send_async(array, 1 - group.rank)
del memory, array, work
if not CALL:
    group.recv(numpy.empty(100), 1 - group.rank)
time.sleep(0.3)
"""
    for call in ("True", "False"):
        for ending in ended(tmp_path, program.replace("CALL", call)):
            assert ending == (0, "the end\n", "")


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_the_status_of_a_child_of_multiprocessing_says_so(tmp_path: Path, method: str) -> None:
    program = """
import multiprocessing, os, sys, unisono

def child(store):
    print("begun", flush=True)
    os.environ["UNISONO_STORE"] = store
    part = unisono.init(timeout=30)
    if part.rank == 0:
        part.send(bytearray(5), 1, tag=3)
    sys.stdout.write("child\\n")

if __name__ == "__main__":
    unisono.init(rank=0, size=1).close()
    process = multiprocessing.get_context(METHOD).Process(target=child, args=(WHERE,))
    process.start()
    process.join()
    print("status", process.exitcode)
"""
    place = tmp_path / "store"
    place.mkdir()
    path = tmp_path / "program.py"
    path.write_text(program.replace("WHERE", repr(f"file://{place}")).replace("METHOD", repr(method)))
    processes = []
    for rank in range(2):
        environment = os.environ | {"UNISONO_RANK": str(rank), "UNISONO_WORLD_SIZE": "2"}
        processes.append(
            subprocess.Popen(
                [sys.executable, str(path)], env=environment, stdout=PIPE, stderr=PIPE, text=True
            )
        )
    status = 120 if method == "spawn" and sys.version_info >= (3, 13) else 1
    for process in processes:
        out, errors = process.communicate(timeout=120)
        assert (process.returncode, out) == (0, f"begun\nchild\nstatus {status}\n"), errors
        assert "message 0 from rank 0 to rank 1, tag 3" in errors
