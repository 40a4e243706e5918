"""Warnings of the library in Python's logging."""

import os
import subprocess
import sys


def logged(program: str, **env: str) -> list[str]:
    """The output of a program that is a world of one rank; `texts` is the list of the records' texts."""
    begin = """
import logging, time, unisono
records, texts = [], []
class Keep(logging.Handler):
    def emit(self, record):
        records.append(record)
        texts.append(record.getMessage())
logging.getLogger("unisono").addHandler(Keep())
def until(done):
    begun = time.monotonic()
    while not done() and time.monotonic() < begun + 30:
        time.sleep(0.01)
"""
    done = subprocess.run(
        [sys.executable, "-c", begin + program],
        env={**os.environ, "UNISONO_RANK": "0", "UNISONO_WORLD_SIZE": "1", "UNISONO_PROVIDER": "tcp", **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout.splitlines()


def test_warnings_are_records_of_logging() -> None:
    program = """
with unisono.init():
    until(lambda: texts)
for record in records:
    print(record.name, record.levelname, record.getMessage())
    print(record.pathname, record.lineno > 0)
"""
    record, place = logged(program, UNISONO_PROVIDRE="tcp")
    assert record == "unisono WARNING UNISONO_PROVIDRE is set, but this version has no such variable"
    assert place == "rendezvous/src/launch/environment.rs True"


def test_a_level_of_the_logger_holds() -> None:
    program = """
logging.getLogger("unisono").setLevel(logging.ERROR)
with unisono.init() as group:
    time.sleep(0.3)
print(texts)
"""
    assert logged(program, UNISONO_PROVIDRE="tcp") == ["[]"]


def test_a_handler_that_raises_harms_nobody() -> None:
    program = """
class Raises(logging.Filter):
    def filter(self, record):
        texts.append("")
        raise LookupError("no such shard")
logging.getLogger("unisono").addFilter(Raises())
with unisono.init() as group:
    until(lambda: len(texts) == 2)
    print(group.all_reduce(2.5), len(texts))
"""
    assert logged(program, UNISONO_ONE="1", UNISONO_TWO="2") == ["2.5 2"]


def test_what_is_dropped_is_counted() -> None:
    many = {f"UNISONO_UNKNOWN_{number}": "" for number in range(3000)}
    program = """
import re
def counted():
    dropped = [re.match(r"(\\d+) warnings were dropped", text) for text in list(texts)]
    return sum(int(number[1]) if number else 1 for number in dropped)
with unisono.init():
    until(lambda: counted() == 3000)
print(counted(), len(texts))
"""
    ((count, records),) = (map(int, line.split()) for line in logged(program, **many))
    # Python takes longer for a record than the library for a warning.
    assert count == 3000 and records < 3000


def test_a_failure_is_raised_and_not_logged() -> None:
    program = """
with unisono.init() as group:
    try:
        group.abort("enough")
        group.barrier()
    except unisono.Error as error:
        print(error)
    time.sleep(0.3)
    print(texts)
    group._native.close()
"""
    assert logged(program) == ["rank 0 aborted the group: enough", "[]"]
