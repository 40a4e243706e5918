"""Groups of Dask's workers."""

import contextlib
import itertools
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import distributed

from unisono import _arrays, _exit, _meeting
from unisono._group import Group
from unisono._native import Error

# Two runs of this process reach all workers in one order. Otherwise a worker with one thread might begin with another run than the rest.
_submitting = threading.Lock()
# Of tasks that are submitted within 100 ms, a worker would begin with any. An earlier run goes first, and a run goes before other tasks.
_priorities = itertools.count(1_000_000, -1)


def run(
    client: distributed.Client,
    function: Callable[..., Any],
    *args: Any,
    workers: Sequence[str] | None = None,
    timeout: float = 300,
    **kwargs: Any,
) -> list[Any]:
    """Runs ``function(group, *args, **kwargs)`` as a task on each worker. The workers are the ranks of ``group``. Returns the results, by
    rank.

    ``workers`` has the addresses of the workers, by rank; the default is all workers of the scheduler. ``timeout`` is the longest wait
    for another worker, in seconds, also for a worker that is still busy with other tasks.

    Raises the first exception of a worker, which ends the group for the other workers with its text. Raises `unisono.Error` if a worker
    dies, the workers' calls differ, or the timeout passes, and `ValueError` if there is no worker, or one is named twice or unknown.
    """
    if client.asynchronous:
        raise ValueError(
            "run: the client is asynchronous; give one that waits, or call this by asyncio.to_thread"
        )
    # `scheduler_info` returns what the client has kept last, and a refresh every two seconds keeps a list without workers.
    known = list(client.nthreads())
    chosen = known if workers is None else list(workers)
    wrong = [each for each in chosen if each not in known or chosen.count(each) > 1]
    if not chosen or wrong:
        named = ", ".join(dict.fromkeys(wrong)) or "nothing"
        raise ValueError(
            f"run: workers has {named}, unknown or twice; the scheduler has {', '.join(known) or 'no workers'}"
        )
    name = f"unisono-{uuid.uuid4().hex}"
    futures = []
    with _submitting:
        priority = next(_priorities)
        for rank, address in enumerate(chosen):
            member = (name, rank, len(chosen), timeout)
            futures.append(
                client.submit(
                    _run,
                    member,
                    function,
                    args,
                    kwargs,
                    workers=[address],
                    key=f"{name}-{rank}",
                    priority=priority,
                    pure=False,
                )
            )
        _assigned(client, dict(zip(chosen, futures, strict=True)), timeout)
    try:
        return list(client.gather(futures))
    except Error:
        _raise_cause(futures)
        raise
    finally:
        client.cancel(futures)


def _assigned(client: distributed.Client, futures: dict[str, distributed.Future], timeout: float) -> None:
    """Waits until the scheduler has assigned each task to its worker. It takes up submitted tasks in any order, also those of two runs."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        assigned = client.processing(list(futures))
        if all(future.done() or future.key in assigned.get(worker, ()) for worker, future in futures.items()):
            return
        time.sleep(0.005)


def _raise_cause(futures: list[distributed.Future]) -> None:
    """Raises the exception that ended the group, if there is one and it arrives soon. The other ranks have only its text."""
    with contextlib.suppress(TimeoutError):
        distributed.wait(futures, timeout=2)
    for future in futures:
        if future.status == "error" and not isinstance(future.exception(), Error):
            raise future.exception()


def _run(
    member: tuple[str, int, int, float], function: Callable[..., Any], args: Any, kwargs: dict[str, Any]
) -> Any:
    """One rank's part."""
    name, rank, size, timeout = member
    native = _meeting.join(_Board(name, rank, timeout), rank, size, timeout, timeout)
    _arrays.load()
    group = Group(native, False, world=True)
    try:
        result = function(group, *args, **kwargs)
    except BaseException as error:
        group.abort(_exit.text_of(error))
        raise
    group.close()
    return result


class _Board:
    """A variable of Dask, which the scheduler keeps."""

    def __init__(self, name: str, rank: int, timeout: float) -> None:
        self._variable = distributed.Variable(name, client=distributed.get_client())
        self._rank = rank
        self._timeout = timeout

    def host(self) -> str:
        return str(distributed.get_worker().ip)

    def tell(self, message: dict[str, Any]) -> None:
        self._variable.set(message)

    def hear(self) -> dict[str, Any]:
        try:
            return dict(self._variable.get(timeout=self._timeout))
        except TimeoutError:
            raise Error(
                f"unisono: Timed out waiting {self._timeout:g} s: rank {self._rank} waits for rank 0 to say where to meet. Is its worker "
                "busy with other tasks?"
            ) from None

    def forget(self) -> None:
        self._variable.delete()
