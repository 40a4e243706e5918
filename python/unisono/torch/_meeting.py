"""How ranks meet: rank 0 serves unisono's store on a free port, and says where in torch's store.

The job's token, which the ranks prove to each other, is random and goes through torch's store too: who reads that may join.
"""

import contextlib
import json
import os
import secrets
import socket
import time
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from unisono import _exit, _native
from unisono._codes import COLLECTIVES

# The key in the group's prefix of torch's store.
_KEY = "unisono"


def join(store: dist.Store, rank: int, size: int, timeout: timedelta) -> _native.Group:
    """Joins the world of the ranks that share this store."""
    meeting: dict[str, Any] = {
        "rank": rank,
        "size": size,
        "host": "",
        "token": "",
        "timeout": timeout.total_seconds(),
        # `UNISONO_JOIN_TIMEOUT`, or as long as the group's timeout, as its users expect: a rank may come late.
        "join_timeout": None if "UNISONO_JOIN_TIMEOUT" in os.environ else timeout.total_seconds(),
    }
    if rank == 0:
        meeting.update(host=_address(store), token=secrets.token_hex(16))
        try:
            served = _native.Store.serve(meeting, dist.DistBackendError)
        except Exception as error:
            store.set(_KEY, json.dumps({"problem": str(error)}))
            raise
        store.set(_KEY, json.dumps({"host": meeting["host"], "port": served.port, "token": meeting["token"]}))
        try:
            group = served.join()
        finally:
            # A later group at the same store must not find this address.
            _forget(store)
    else:
        told = _told(store, rank, timeout)
        meeting.update(host=told["host"], token=told["token"])
        group = _native.join(meeting, told["port"], dist.DistBackendError)
    # Nobody goes on, and may look for the next address, before this one is gone.
    group.collective(COLLECTIVES["barrier"], 0, 0, 1.0, 0, None, None)
    _exit.watch(group)
    return group


def _told(store: dist.Store, rank: int, timeout: timedelta) -> dict[str, Any]:
    """What rank 0 has said in torch's store."""
    begin = time.monotonic()
    try:
        store.wait([_KEY], timeout)
        told = dict(json.loads(store.get(_KEY)))
    except RuntimeError as error:
        # Stores raise different errors if the time is over, and others if they are gone.
        waited = timedelta(seconds=time.monotonic() - begin)
        over = f"Timed out waiting {waited // timedelta(milliseconds=1)}ms: " if waited >= timeout else ""
        raise dist.DistBackendError(
            f"unisono: {over}rank {rank} waits for rank 0 to say in torch's store where to meet: {error}. Has rank 0 started, and "
            "does the process that serves torch's store still run?"
        ) from error
    if "problem" in told:
        raise dist.DistBackendError(f"rank 0 could not join: {told['problem']}")
    return told


def _forget(store: dist.Store) -> None:
    try:
        store.delete_key(_KEY)
    except RuntimeError:
        # A store that cannot delete, or that is gone: then nobody reads it, and a failure to join is the error to tell.
        with contextlib.suppress(RuntimeError):
            store.set(_KEY, "{}")


def _address(store: dist.Store) -> str:
    """The address of this host that the other ranks reach: that on the route to torch's store."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    host = getattr(store, "host", None)
    if host is None:
        # No TCPStore, so a file: ranks are on one host, or share a file system. 192.0.2.1 is nobody's (RFC 5737): nothing is sent.
        host = "192.0.2.1"
    try:
        families = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
    except OSError:
        return "127.0.0.1"
    for family, kind, protocol, _, address in families:
        with socket.socket(family, kind, protocol) as probe:
            try:
                probe.connect(address)
                return str(probe.getsockname()[0])
            except OSError:
                continue
    return "127.0.0.1"
