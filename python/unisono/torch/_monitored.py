"""The monitored barrier names the ranks that do not come. It uses only torch's store, so that it works if the fabric does not."""

import time
from datetime import timedelta

import torch.distributed as dist


class MonitoredBarrier:
    """The monitored barriers of one group."""

    def __init__(self, store: dist.Store, rank: int, ranks: int) -> None:
        self._store = dist.PrefixStore("monitored_barrier", store)
        self._rank, self._ranks = rank, ranks
        self._made = 0

    def wait(self, timeout: timedelta, wait_all_ranks: bool) -> None:
        """Returns when all ranks have called it. Rank 0 raises an error that names the late ranks, and answers all others."""
        number, self._made = self._made, self._made + 1
        if self._rank == 0:
            self._gather(number, timeout, wait_all_ranks)
        else:
            self._store.set(f"{number}/{self._rank}", "here")
            try:
                self._store.wait([f"{number}/answer"], timeout)
            except RuntimeError as error:
                raise dist.DistBackendError(
                    f"Rank {self._rank} successfully reached monitoredBarrier, but rank 0 gave no answer within "
                    f"{_milliseconds(timeout)} ms. Please check rank 0 logs for faulty rank."
                ) from error
            if self._store.get(f"{number}/answer") != b"all":
                raise dist.DistBackendError(
                    f"Rank {self._rank} successfully reached monitoredBarrier, but received errors while waiting for send/recv "
                    "from rank 0. Please check rank 0 logs for faulty rank."
                )

    def _gather(self, number: int, timeout: timedelta, wait_all_ranks: bool) -> None:
        until = time.monotonic() + timeout.total_seconds()
        late, answer = [], "not all"
        try:
            for rank in range(1, self._ranks):
                left = max(0.0, until - time.monotonic())
                if left == 0 and not late:
                    raise dist.DistBackendError(
                        f"Rank 0 timed out in monitoredBarrier after {_milliseconds(timeout)} ms. "
                        f"Ranks {', '.join(map(str, range(rank, self._ranks)))} had not been heard of."
                    )
                if not self._has_come(f"{number}/{rank}", left):
                    late.append(rank)
                    if not wait_all_ranks:
                        break
            if not late:
                answer = "all"
        finally:
            # Ranks that come later read it, too.
            self._store.set(f"{number}/answer", answer)
        if late:
            who = f"Rank {late[0]}" if not wait_all_ranks else f"Ranks {', '.join(map(str, late))}"
            raise dist.DistBackendError(
                f"{who} failed to pass monitoredBarrier in {_milliseconds(timeout)} ms"
            )

    def _has_come(self, key: str, seconds: float) -> bool:
        if not self._store.check([key]) and seconds > 0:
            try:
                self._store.wait([key], timedelta(seconds=seconds))
            except RuntimeError:
                # Stores raise different errors after a timeout, and others if their server has ended. The next question raises the latter again.
                pass
        return self._store.check([key])


def _milliseconds(timeout: timedelta) -> int:
    return timeout // timedelta(milliseconds=1)
