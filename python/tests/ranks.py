"""Runs functions on the ranks of a world, each a separate process that runs many of them."""

import contextlib
import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable, Iterable
from typing import Any

import numpy
import unisono
from unisono import Group

# The package and numpy are imported once, and each rank is a fork.
_FORK = multiprocessing.get_context("fork")
assert numpy


class Ranks:
    """Ranks that wait for functions to run."""

    def __init__(self, size: int, **env: str) -> None:
        self.size = size
        self._folder = tempfile.TemporaryDirectory()
        self._pipes = []
        self._processes = []
        for rank in range(size):
            mine, theirs = _FORK.Pipe()
            environment = {
                "UNISONO_RANK": str(rank),
                "UNISONO_WORLD_SIZE": str(size),
                "UNISONO_STORE": f"file://{self._folder.name}",
                "UNISONO_PROVIDER": "tcp",
                **env,
            }
            process = _FORK.Process(target=_serve, args=(environment, theirs), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(mine)
            self._processes.append(process)
        # Wait until all ranks have joined, so that no function runs while another rank still joins.
        self._answers(60, ())

    def run(
        self, body: Callable[..., Any], *args: Any, timeout: float = 60, without: Iterable[int] = ()
    ) -> list[Any]:
        """The results of `body(group, *args)` on all ranks, except ranks `without` an answer, which end. `body` is a function of a module."""
        for pipe in self._pipes:
            pipe.send((body, args))
        return self._answers(timeout, without)

    def _answers(self, timeout: float, without: Iterable[int]) -> list[Any]:
        results, output = [], []
        for rank, pipe in enumerate(self._pipes):
            try:
                good, result = pipe.recv() if pipe.poll(timeout) else (False, f"no answer within {timeout} s")
            except (EOFError, OSError):
                good, result = False, "it has ended"
            results.append(result)
            if not good and rank not in without:
                output.append(f"rank {rank}: {result}")
        if output:
            # The others may wait for this one.
            for process in self._processes:
                process.kill()
            self.end()
            raise AssertionError("\n".join(output))
        return results

    @property
    def usable(self) -> bool:
        """True if the ranks can run functions."""
        return bool(self._processes)

    def end(self) -> None:
        """Ends the ranks; ranks of a working world leave it."""
        for pipe in self._pipes:
            with contextlib.suppress(BrokenPipeError):
                pipe.send(None)
        for process in self._processes:
            process.join(10)
            if process.is_alive():
                process.kill()
        self._pipes, self._processes = [], []
        self._folder.cleanup()


def _serve(environment: dict[str, str], pipe: Any) -> None:
    os.environ.update(environment)
    with unisono.init(timeout=30) as group:
        pipe.send((True, None))
        while True:
            asked = pipe.recv()
            if asked is None:
                return
            body, args = asked
            try:
                answer = (True, body(group, *args))
            except BaseException:  # noqa: BLE001
                answer = (False, traceback.format_exc())
                # The other ranks do not wait for this rank then.
                group.abort("a test has failed")
            pipe.send(answer)


def alone(size: int, body: Callable[[Group], Any], without: Iterable[int] = (), **env: str) -> list[Any]:
    """The results of `body(group)` on all ranks of a new world; ranks `without` an answer end."""
    ranks = Ranks(size, **env)
    try:
        return ranks.run(body, without=without)
    finally:
        ranks.end()
