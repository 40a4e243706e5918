"""Runs a function on the ranks of a world, each a separate process."""

import faulthandler
import gc
import multiprocessing
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from unisono.torch._older import HAS_BACKENDS

# Torch is imported once, and each rank is a fork: a process that had to import it would take seconds.
_FORK = multiprocessing.get_context("fork")


# Marks tests of features that torch before 2.14 does not have.
newer = pytest.mark.skipif(not HAS_BACKENDS, reason=f"torch {torch.__version__} does not have it")
# The classes of groups.
CLASSES = ["process-group", "backend"] if HAS_BACKENDS else ["process-group"]


def run(
    ranks: int,
    body: Callable[..., Any],
    *args: Any,
    backend: str = "unisono",
    timeout: float = 30,
    init: bool = True,
    ends: dict[int, int] | None = None,
    env: dict[str, str] | None = None,
) -> list[Any]:
    """The results of `body(*args)` on all ranks, in a world that is made before and destroyed after.

    `ends` has the exit status of ranks that do not end with 0, and return nothing.
    """
    with tempfile.TemporaryDirectory() as folder:
        pipes = [_FORK.Pipe(duplex=False) for _ in range(ranks)]
        job = (folder, ranks, backend, timeout, init, env or {}, _FORK.Barrier(ranks))
        processes = [
            _FORK.Process(target=_rank, args=(job, rank, pipes[rank][1], body, args)) for rank in range(ranks)
        ]
        for process in processes:
            process.start()
        for _, write in pipes:
            write.close()
        results = [_result(read, timeout + 30) for read, _ in pipes]
        for process in processes:
            process.join(timeout)
            if process.is_alive():
                process.kill()
        output = []
        for rank, process in enumerate(processes):
            wanted = (ends or {}).get(rank, 0)
            if process.exitcode != wanted:
                with open(f"{folder}/{rank}.log") as log:
                    output.append(f"rank {rank} ended with {process.exitcode}, not {wanted}:\n{log.read()}")
        assert not output, "\n".join(output)
        return results


def join(init_method: str, timeout: float = 20, backend: str = "unisono") -> None:
    """Makes the default group of this rank. The environment has its rank and world size."""
    dist.init_process_group(
        backend,
        init_method=init_method,
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=timedelta(seconds=timeout),
    )


def _result(read: Any, seconds: float) -> Any:
    try:
        return read.recv() if read.poll(seconds) else None
    except EOFError:
        return None


def _rank(
    job: tuple[Any, ...], rank: int, write: Any, body: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    # Objects that only the traceback of a failed test keeps in the parent must not be destroyed here: PyTorch's stores join their threads, which a
    # fork does not have.
    gc.freeze()
    folder, ranks, backend, timeout, init, env, forked = job
    log = os.open(f"{folder}/{rank}.log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.stdout = sys.stderr = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    # If a rank hangs, its log gets the place before the parent gives it up.
    faulthandler.dump_traceback_later(timeout + 25, file=2)
    # If a rank connects to a store of the parent, a thread works there, and a fork at this time may copy a lock that this thread holds.
    forked.wait(timeout)
    torch.set_num_threads(1)
    torch.manual_seed(1)
    os.environ.update(env)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks), UNISONO_TEST_FOLDER=folder)
    os.environ.setdefault("UNISONO_PROVIDER", "tcp")
    try:
        if init:
            join(f"file://{folder}/store", timeout, backend)
        write.send(body(*args))
        if init:
            dist.destroy_process_group()
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
        sys.exit(1)
