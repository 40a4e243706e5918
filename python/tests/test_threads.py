"""Threads that share a group or an operation: none of them keeps the others from running."""

import subprocess
import sys
import tempfile

# `dump_traceback_later` ends a program that hangs, and prints where.
PROGRAM = """
import faulthandler, gc, os, sys, threading, time
faulthandler.dump_traceback_later(60, exit=True)
import unisono
"""

# The results of an operation are made while garbage is collected, whose finalizers let other threads run.
WAITED_TWICE = """
class Cache:
    "Garbage that lets other threads run when it is freed."
    def __init__(self):
        self.me = self
    def __del__(self):
        time.sleep(0.005)

def collected(phase, info):
    if phase == "start":
        time.sleep(0.001)

gc.callbacks.append(collected)
with unisono.init(rank=0, size=1) as group:
    value = [[i] for i in range(3000)]
    for turn in range(20):
        work = group.all_gather_object_async(value)
        gc.collect()
        Cache()
        ends = []
        threads = [threading.Thread(target=lambda: ends.append(work.wait())) for _ in range(3)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        assert ends == [[value]] * 3 and ends[0] is ends[1]
print("ended")
"""

# A finalizer that waits for the operation whose result is being made.
WAITED_WITHIN = """
errors = []
class Asks:
    "Garbage that asks for the result when it is freed."
    def __init__(self, work):
        self.me, self.work = self, work
    def __del__(self):
        try:
            self.work.wait(5)
        except unisono.Error as error:
            errors.append(str(error))

with unisono.init(rank=0, size=1) as group:
    for turn in range(10):
        work = group.all_gather_object_async([[i] for i in range(3000)])
        gc.collect()
        Asks(work)
        assert len(work.wait()[0]) == 3000
        work = None
    gc.collect()
assert all("waits for that result" in each for each in errors), errors
print("ended", len(errors))
"""

# A thread is in a call while another one closes the group. The thread that drops the last handle leaves the world, and waits for the
# other rank.
CLOSED = """
group = unisono.init(timeout=30)
if group.rank == 0:
    def call():
        CALL

    def run():
        # The other rank leaves only after this thread has run for a while.
        time.sleep(1)
        for _ in range(50):
            time.sleep(0.01)
        open(sys.argv[1], "w").close()

    threads = [threading.Thread(target=each) for each in (call, run)]
    for thread in threads: thread.start()
    time.sleep(0.3)
    group.close()
    for thread in threads: thread.join()
else:
    time.sleep(0.6)
    CALL
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.01)
    group.close()
print("ended")
"""


def ended(program: str, *arguments: str, ranks: int = 0) -> str:
    """The output of a program, which must not hang."""
    launcher = ["-m", "unisono", "run", "-n", str(ranks), "--", sys.executable] if ranks else []
    ran = subprocess.run(
        [sys.executable, *launcher, "-c", PROGRAM + program, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0 and ran.stdout.count("ended") == max(ranks, 1), ran.stdout + ran.stderr
    return ran.stdout


def test_several_threads_wait_for_one_result() -> None:
    ended(WAITED_TWICE)


def test_a_finalizer_that_waits_for_the_result_being_made() -> None:
    ended(WAITED_WITHIN)


def test_a_group_that_is_closed_during_a_call() -> None:
    calls = [
        "group.barrier()",
        "group.barrier_async().wait()",
        "group.all_gather_object(1)",
        "group.new_group([0, 1])",
    ]
    for call in calls:
        with tempfile.TemporaryDirectory() as folder:
            ended(CLOSED.replace("CALL", call), f"{folder}/flag", ranks=2)
