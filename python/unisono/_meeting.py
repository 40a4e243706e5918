"""How ranks meet that share a board, which all of them read: rank 0 serves unisono's store on a free port, and says there where.

The job's token, which the ranks prove to each other, is random and goes over the board too: who reads that may join.
"""

import secrets
import socket
from typing import Any, Protocol

from unisono import _exit, _native
from unisono._codes import BARRIER


class Board(Protocol):
    """Where rank 0 says something, and all others read it."""

    def host(self) -> str:
        """The address of this host that the other ranks reach."""
        ...

    def tell(self, told: dict[str, Any]) -> None:
        """Says it."""
        ...

    def hear(self) -> dict[str, Any]:
        """What rank 0 says, as soon as it has."""
        ...

    def forget(self) -> None:
        """Takes away what was said."""
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
    """Joins the world of the ranks that share this board. Timeouts are in seconds; `None`: as the environment or the default says."""
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
        told = board.hear()
        if "problem" in told:
            raise errors(f"rank 0 could not join: {told['problem']}")
        meeting.update(host=told["host"], token=told["token"])
        group = _native.join(meeting, told["port"], errors)
    # Nobody goes on, and may look for the next address, before this one is gone.
    group.collective(BARRIER, 0, 0, 1.0, 0, None, None)
    _exit.watch(group)
    return group


def address_towards(host: str) -> str:
    """The address of this host on the route to another one, or of loopback where there is none."""
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
