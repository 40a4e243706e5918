"""Joins ranks through torch's store: rank 0 writes the address of unisono's store there."""

import contextlib
import json
import os
import time
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from unisono import _meeting, _native

# The key in the group's prefix of torch's store.
_KEY = "unisono"


def join(store: dist.Store, rank: int, size: int, timeout: timedelta) -> _native.Group:
    """Joins the world of the ranks that share this store."""
    seconds = timeout.total_seconds()
    # `UNISONO_JOIN_TIMEOUT`, or as long as the group's timeout, as its users expect: a rank may come late.
    joining = None if "UNISONO_JOIN_TIMEOUT" in os.environ else seconds
    board = _Board(store, rank, timeout)
    return _meeting.join(board, rank, size, seconds, joining, errors=dist.DistBackendError)


class _Board:
    """Torch's store."""

    def __init__(self, store: dist.Store, rank: int, timeout: timedelta) -> None:
        self._store = store
        self._rank = rank
        self._timeout = timeout

    def host(self) -> str:
        """The address on the route to torch's store."""
        store = self._store
        while hasattr(store, "underlying_store"):
            store = store.underlying_store
        # Without a TCPStore there is a file: ranks are on one host, or share a file system. No host has 192.0.2.1 (RFC 5737): nothing is sent.
        return _meeting.address_towards(getattr(store, "host", None) or "192.0.2.1")

    def tell(self, message: dict[str, Any]) -> None:
        self._store.set(_KEY, json.dumps(message))

    def hear(self) -> dict[str, Any]:
        begin = time.monotonic()
        try:
            self._store.wait([_KEY], self._timeout)
            return dict(json.loads(self._store.get(_KEY)))
        except RuntimeError as error:
            # Stores raise different errors after a timeout, and others if their server has ended.
            waited = timedelta(seconds=time.monotonic() - begin)
            over = (
                f"Timed out waiting {waited // timedelta(milliseconds=1)}ms: "
                if waited >= self._timeout
                else ""
            )
            raise dist.DistBackendError(
                f"unisono: {over}rank {self._rank} waits for rank 0 to say in torch's store where to meet: {error}. Has rank 0 "
                "started, and does the process that serves torch's store still run?"
            ) from error

    def forget(self) -> None:
        try:
            self._store.delete_key(_KEY)
        except RuntimeError:
            # The store may be unable to delete, or may have ended. Then no rank reads it, and a failure to join is the error to raise.
            with contextlib.suppress(RuntimeError):
                self._store.set(_KEY, "{}")
