"""Calls of files."""

from __future__ import annotations

import os
import pathlib
from typing import NamedTuple

from unisono import _checks, _native
from unisono._handle import Handle


class Delivered(NamedTuple):
    """A file that has been copied."""

    path: pathlib.Path
    """Its path on this rank; on a sender the path that was given."""
    bytes: int
    """Its length."""
    sent: int
    """The bytes that were sent: not those that the receivers had, and no holes."""
    wrote: bool
    """Whether this rank has written it. If not, it was there, or another rank has written it into the same directory."""


class Files(Handle):
    """The calls of files.

    A file is sent in pieces, each with a checksum, and appears under its name only when it is whole, on the disks of all ranks. A call
    that was interrupted is resumed by the next with the same file. What goes wrong with a file is a `unisono.Error` on all ranks
    that take part, and the group still works.
    """

    def broadcast_file(
        self, file: str | os.PathLike[str], directory: str | os.PathLike[str], root: int = 0
    ) -> Delivered:
        """Copies rank ``root``'s ``file`` into each rank's ``directory``, which is made if it does not exist. Every rank calls it; ``file`` is
        used only at the root. No other thread may use the group meanwhile.

        Raises `ValueError` if there is no such root, and `unisono.Error` otherwise: see `Files`.
        """
        root = _checks.rank("broadcast_file", "root", root, self.size)
        return _told(_native.broadcast_file(self._native, os.fspath(file), os.fspath(directory), root))

    def send_file(self, file: str | os.PathLike[str], to: int, tag: int = 0) -> Delivered:
        """Sends a file to a rank, which receives it by `recv_file` with the same tag; returns when it is on that rank's disk. Only these
        two ranks take part. Raises as `broadcast_file`.
        """
        to, tag = _checks.rank("send_file", "to", to, self.size), _checks.tag("send_file", tag)
        return _told(_native.send_file(self._native, os.fspath(file), to, tag))

    def recv_file(
        self, directory: str | os.PathLike[str], source: int | None = None, tag: int = 0
    ) -> tuple[Delivered, int]:
        """Receives a file into a directory, from a rank or, if ``source`` is ``None``, from any. Returns what was received and the sender.
        Raises as `broadcast_file`.
        """
        source, tag = _checks.source("recv_file", source, self.size), _checks.tag("recv_file", tag)
        delivered, sender = _native.recv_file(self._native, os.fspath(directory), source, tag)
        return _told(delivered), sender


def _told(delivered: tuple[str, int, int, bool]) -> Delivered:
    path, size, sent, wrote = delivered
    return Delivered(pathlib.Path(path), size, sent, wrote)
