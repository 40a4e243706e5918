"""Groups of ranks, and how a process joins one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

from unisono import _arrays, _checks, _exit, _native
from unisono._arrays import Array
from unisono._collectives import Collectives
from unisono._files import Files
from unisono._messages import Messages
from unisono._objects import Objects
from unisono._tensors import Tensors


def init(
    *,
    rank: int | None = None,
    size: int | None = None,
    store: str | None = None,
    token: str | None = None,
    timeout: float | None = None,
    join_timeout: float | None = None,
    provider: str | None = None,
    interface: str | None = None,
    reduction: str | None = None,
    pickle: bool = False,
) -> Group:
    """Joins the world: the group of all ranks. Every rank calls it. It returns when all ranks have joined.

    Rank, size and the address of the store come from the arguments, or from the environment that ``unisono run``, torchrun, Slurm, Open
    MPI or MPICH sets. A program that is started without a launcher is a world of one rank.

    An argument that is not given has the value of its ``UNISONO_`` variable, or its default:

    - ``store``: the store through which ranks join: ``"tcp://host:port"`` (rank 0 serves it) or ``"file:///directory"``;
    - ``token``: the job's secret;
    - ``timeout``: the longest time that a call waits for another rank, in seconds; default 300;
    - ``join_timeout``: the longest time of joining, in seconds; default 60;
    - ``provider``: the transport: ``"shm"``, or a provider of libfabric, for instance ``"tcp"`` or ``"verbs"``;
    - ``interface``: the network interfaces that ranks may use: ``"eth0"``, ``"10.0.0.0/8"``, ``"^docker0"``;
    - ``reduction``: ``"fastest"``, or ``"reproducible"``: the same bits for every algorithm and provider.

    If ``pickle`` is true, calls of objects pickle values that are not plain, unless a call says otherwise; see `broadcast_object`.

    If this process does not catch an exception, the world ends, and the other ranks raise an error with the exception's text. When the
    process ends, it leaves the world, and waits until the other ranks leave it too::

        with unisono.init() as group:
            print(group.all_reduce(1.0))

    Raises `ValueError` if an argument is wrong, and `unisono.Error` if the world cannot be joined.
    """
    counted = {"rank": rank, "size": size}
    for name, number in counted.items():
        if number is not None:
            counted[name] = _checks.whole("init", name, number, most=_checks.TAG)
    native = _native.init_world(
        {
            "rank": counted["rank"],
            "size": counted["size"],
            "store": store,
            "token": token,
            "timeout": _checks.timeout("init", timeout),
            "join_timeout": _checks.timeout("init", join_timeout, "join_timeout"),
            "provider": provider,
            "interface": interface,
            "reduction": reduction,
        }
    )
    _arrays.load()
    _exit.watch(native)
    return Group(native, pickle, world=True)


class _Calls(Collectives, Messages, Objects, Tensors):
    """The calls that exist with and without ``_async``."""


class _Asynchronous(_Calls):
    """The handle whose calls return a `Work`."""

    _waits = False


class Group(_Calls, Files):
    """One rank's handle of a group of ranks: the world (`init`), or a part of it (`split`, `new_group`, `create_group`).

    All ranks must make the same collective calls in the same order. A call returns when this rank's part is done. The call of the same
    name with ``_async`` returns a `Work` at once. Threads may share a group. Roots, sources and destinations are ranks of the group.

    A call raises `ValueError` or `TypeError` if an argument is wrong; then it has not begun. It raises `unisono.Error` if the ranks'
    calls differ, a rank dies, ranks wait for each other, or a timeout passes. Then all groups of the world have failed, on all ranks,
    with the same text.

    As a context manager, the group is closed at the end of the block. An exception in the block ends the world for all ranks.
    """

    def __init__(self, native: _native.Group, pickle: bool, *, world: bool = False) -> None:
        """Only this package makes groups: see `init`."""
        super().__init__(native, pickle)
        self._asynchronous = _Asynchronous(native, pickle)
        self._world = world
        self.members: list[int] = native.members
        """The members' ranks in the world, in the order of their ranks in the group."""

    @property
    def name(self) -> str:
        """The group's name in errors: ``"world"``, or the parent's name with a number."""
        return self._native.name

    @property
    def provider(self) -> str:
        """The transport: ``shm``, or the name of libfabric's provider."""
        return self._native.provider

    @property
    def failure(self) -> str | None:
        """The failure that has ended the world, as the text that every call raises; or ``None``."""
        return self._native.failure()

    def __repr__(self) -> str:
        name = "closed" if self._native.left else self.name
        return f"<unisono.Group {name}: rank {self.rank} of {self.size}>"

    # Other groups.

    def split(self, color: int | None, key: int = 0) -> Group | None:
        """Makes one group of all ranks that give the same color (from 0), ordered by ``key`` and then by rank. All ranks call it. A rank
        without a color gets ``None``.
        """
        if color is not None:
            color = _checks.whole("split", "color", color, 0, _checks.UNSIGNED)
        key = _checks.whole("split", "key", key, -_checks.SIGNED - 1, _checks.SIGNED)
        return self._made(self._native.split(color, key))

    def new_group(self, ranks: Sequence[int]) -> Group | None:
        """Makes a group of these ranks, in this order. All ranks call it with the same list. Ranks that are not in the list get ``None``."""
        return self._made(self._native.new_group(self._ranks("new_group", ranks)))

    def create_group(self, ranks: Sequence[int], tag: int = 0) -> Group:
        """Makes a group of these ranks, in this order. Only these ranks call it, with the same list and ``tag``. They wait for no others."""
        tag = _checks.whole("create_group", "the tag", tag, 0, _checks.UNSIGNED)
        return Group(self._native.create_group(self._ranks("create_group", ranks), tag), self._pickle)

    def with_timeout(self, timeout: float) -> Group:
        """Returns another handle of the group, whose calls have this timeout in seconds."""
        seconds = _checks.timeout("with_timeout", timeout)
        if seconds is None:
            raise TypeError("with_timeout: timeout is None; wanted a number of seconds")
        return Group(self._native.with_timeout(seconds), self._pickle)

    def _ranks(self, call: str, ranks: Sequence[int]) -> list[int]:
        every = _checks.numbers(call, "ranks", ranks, -_checks.SIGNED)
        return [_checks.rank(call, f"ranks[{at}]", each, self.size) for at, each in enumerate(every)]

    def _made(self, native: _native.Group | None) -> Group | None:
        return None if native is None else Group(native, self._pickle)

    # Memory.

    def buffer(self, shape: int | Sequence[int], dtype: Any = "float64") -> Array:
        """Returns an array of zeros in registered memory. The NIC reads and writes it, and the ranks of this host read it, without a copy.
        This needs numpy.
        """
        return _array("buffer", shape, dtype, self._native.buffer)

    def buffer_from(
        self, file: int | HasFileno, shape: int | Sequence[int], dtype: Any = "float64", offset: int = 0
    ) -> Array:
        """Returns an array in memory that exists already: the part of a memfd (``os.memfd_create`` with ``os.MFD_ALLOW_SEALING``) that
        begins at ``offset``, a multiple of the size of a page. Calls use it like an array of `buffer`, and every process that maps the file
        sees the results. The program may close ``file`` afterwards. While a call works on the array, no other code may write to it. This
        needs numpy.
        """
        descriptor = file.fileno() if hasattr(file, "fileno") else file
        descriptor = _checks.whole("buffer_from", "file", descriptor, -(1 << 31), (1 << 31) - 1)
        offset = _checks.whole("buffer_from", "offset", offset)
        return _array(
            "buffer_from", shape, dtype, lambda size: self._native.buffer_from(descriptor, offset, size)
        )

    # The end.

    def abort(self, why: str) -> str:
        """Ends the world on all ranks, with this reason. Returns the text that every later call raises."""
        return self._native.abort(why)

    def close(self) -> None:
        """Closes this handle. If the group is the world, this rank leaves it, as all ranks must: `close` returns when all ranks have called
        it, and no calls are possible afterwards. Raises `unisono.Error` if the world has failed, or a message was not received.
        """
        if self._world:
            self._native.leave()
        else:
            self._native.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or not self._world or _exit.is_good(error):
            self.close()
        elif not self._native.left:
            _exit.abort(_exit.text_of(error))
            self._native.close()


class HasFileno(Protocol):
    """A file object."""

    def fileno(self) -> int: ...


def _array(
    call: str, shape: int | Sequence[int], dtype: Any, memory_of: Callable[[int], _native.Buffer]
) -> Array:
    """Makes an array in memory from ``memory_of``, which gets the number of bytes."""
    import numpy

    kind = numpy.dtype(dtype)
    if kind.hasobject:
        raise TypeError(f"{call}: elements of {kind} are Python objects")
    lengths = _checks.numbers(call, "shape", shape if hasattr(shape, "__iter__") else (shape,))
    count = math.prod(lengths)
    if count * kind.itemsize > _checks.LENGTH:
        raise ValueError(f"{call}: {lengths} elements of {kind} are more bytes than can be addressed")
    return numpy.frombuffer(memory_of(count * kind.itemsize), kind, count).reshape(lengths)  # type: ignore[call-overload]
