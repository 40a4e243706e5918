"""Joins ranks that share a board, which all of them can read: rank 0 serves unisono's store on a free port, and writes its address there.

The job's token, which the ranks prove to each other, is random and is on the board too: a process that can read the board can join.
"""

import secrets
import socket
from typing import Any, Protocol

from unisono import _exit, _native
from unisono._codes import BARRIER


class Board(Protocol):
    """A place where rank 0 writes a message and all others read it."""

    def host(self) -> str:
        """The address of this host that the other ranks reach."""
        ...

    def tell(self, message: dict[str, Any]) -> None:
        """Writes rank 0's message."""
        ...

    def hear(self) -> dict[str, Any]:
        """Waits for rank 0's message, and returns it."""
        ...

    def forget(self) -> None:
        """Removes the message."""
        ...


def join(
    board: Board,
    rank: int,
    size: int,
    timeout: float | None = None,
    join_timeout: float | None = None,
    leave_timeout: float | None = None,
    errors: type[Exception] = _native.Error,
) -> _native.Group:
    """Joins the world of the ranks that share this board. Timeouts are in seconds; `None` is the value of the environment, or the default."""
    meeting: _native.Meeting = {
        "rank": rank,
        "size": size,
        "host": "",
        "token": "",
        "timeout": timeout,
        "join_timeout": join_timeout,
        "leave_timeout": leave_timeout,
    }
    if rank == 0:
        meeting.update(host=board.host(), token=secrets.token_hex(16))
        try:
            served = _native.Store.serve(meeting, errors)
        except Exception as error:
            board.tell({"problem": str(error)})
            raise
        board.tell({"host": meeting["host"], "port": served.port, "token": meeting["token"]})
        try:
            group = served.join()
        finally:
            # A later group at the same board must not find this address.
            board.forget()
    else:
        message = board.hear()
        if "problem" in message:
            raise errors(f"rank 0 could not join: {message['problem']}")
        meeting.update(host=message["host"], token=message["token"])
        group = _native.join(meeting, message["port"], errors)
    # No rank goes on, and may look for the next address, before this one is removed.
    group.collective(True, BARRIER, 0, 0, 1.0, 0, None, None)
    _exit.watch(group)
    return group


def address_towards(host: str) -> str:
    """The address of this host on the route to another one, or of loopback if there is no route."""
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
