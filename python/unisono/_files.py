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
    """Its path on this rank; on a sender, the path that the caller gave."""
    bytes: int
    """Its length."""
    sent: int
    """The bytes that were sent, without those that the receivers already had, and without holes."""
    wrote: bool
    """True if this rank has written the file. Otherwise it was already there, or another rank has written it into the same directory."""


class Files(Handle):
    """The calls of files.

    A file is sent in pieces, each with a checksum. It appears under its name only when it is complete on the disks of all ranks. After an
    interrupted call, the next call with the same file resumes it. An error with a file is a `unisono.Error` on all ranks that take part,
    and the group still works.
    """

    def broadcast_file(
        self, file: str | os.PathLike[str], directory: str | os.PathLike[str], root: int = 0
    ) -> Delivered:
        """Copies rank ``root``'s ``file`` into each rank's ``directory``, and makes the directory if it does not exist. Every rank calls it;
        only the root uses ``file``. Meanwhile, no other thread may use the group.

        Raises `ValueError` if ``root`` is not a rank of the group, and `unisono.Error` for other errors: see `Files`.
        """
        root = _checks.rank("broadcast_file", "root", root, self.size)
        return _delivered(_native.broadcast_file(self._native, os.fspath(file), os.fspath(directory), root))

    def send_file(self, file: str | os.PathLike[str], to: int, tag: int = 0) -> Delivered:
        """Sends a file to a rank, which receives it by `recv_file` with the same tag. Returns when the file is on that rank's disk. Only
        these two ranks take part. Raises the same errors as `broadcast_file`.
        """
        to, tag = _checks.rank("send_file", "to", to, self.size), _checks.tag("send_file", tag)
        return _delivered(_native.send_file(self._native, os.fspath(file), to, tag))

    def recv_file(
        self, directory: str | os.PathLike[str], source: int | None = None, tag: int = 0
    ) -> tuple[Delivered, int]:
        """Receives a file into a directory, from rank ``source`` or, if that is ``None``, from any rank. Returns the received file and the
        sender. Raises the same errors as `broadcast_file`.
        """
        source, tag = _checks.source("recv_file", source, self.size), _checks.tag("recv_file", tag)
        delivered, sender = _native.recv_file(self._native, os.fspath(directory), source, tag)
        return _delivered(delivered), sender


def _delivered(delivered: tuple[str, int, int, bool]) -> Delivered:
    path, size, sent, wrote = delivered
    return Delivered(pathlib.Path(path), size, sent, wrote)
