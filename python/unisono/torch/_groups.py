"""The two classes of process groups, and the choice between them for a group.

`ProcessGroup` replaces torch's class: a call goes from Python straight to the library. It serves all devices of a group, so it is for
groups that have no other backend. `Backend` is one of several backends of a group; torch dispatches to it in C++, which costs some
microseconds a call, and hides `is_completed()` and `result()` of its works (they are those of torch's wrapper).
"""

from __future__ import annotations

import os
import weakref
from collections import Counter
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import Backend as _Backend
from torch._C._distributed_c10d import ErrorType
from torch._C._distributed_c10d import ProcessGroup as _ProcessGroup

from unisono import _native
from unisono.torch import _devices, _meeting
from unisono.torch._calls import Calls
from unisono.torch._compiled import leave_as_it_is
from unisono.torch._hooks import serve_builtin_hooks
from unisono.torch._monitored import MonitoredBarrier
from unisono.torch._older import HAS_BACKENDS, ItsOwnBackend, backends_asked_for, refuse_others
from unisono.torch._watched import let_tools_watch

NAME = "unisono"
GLOO = "gloo"
"""The name of groups that replace Gloo's groups."""

# The variable that overrides the choice: `process-group` or `backend`.
_CLASS = "UNISONO_TORCH_CLASS"


class _Worlds:
    """The world of torch's default group, whose endpoint all groups share. `None` while that has another backend."""

    default: _native.Group | None = None


class Membership(NamedTuple):
    """A process's membership in a group: its native group, whose calls have this timeout, the group's part of torch's store, its rank, and
    the name of the backend."""

    group: _native.Group
    store: dist.Store
    rank: int
    size: int
    timeout: timedelta
    is_world: bool = False
    name: str = NAME


class Common(Calls):
    """The methods of both classes besides the calls."""

    # The value before the object is made.
    _called = NAME

    def _enter(self, membership: Membership) -> None:
        *place, self._called = membership
        self._world_or_part, self._store, self._rank, self._ranks, self._timeout, self._is_world = place
        self._group = self._world_or_part
        self._monitored = MonitoredBarrier(self._store, self._rank, self._ranks)
        # C++ may keep only its half of this object.
        _alive.add(self)

    def getBackendName(self) -> str:
        """The backend's name. DDP's log casts a group with the name gloo to Gloo's C++ class."""
        return NAME

    def set_timeout(self, timeout: timedelta) -> None:
        """Sets the timeout of all calls from now on."""
        self._timeout = timeout
        self._group = self._world_or_part.with_timeout(timeout.total_seconds())

    _set_default_timeout = set_timeout

    def _get_sequence_number_for_group(self) -> int:
        """The number of collectives that this rank has called."""
        return self._calls_made

    def _set_sequence_number_for_group(self) -> None:
        """Ranks begin to count with the group."""

    def get_error(self) -> ErrorType:
        """The state of the group: failed or not."""
        failure = None if self._world_or_part.left else self._world_or_part.failure()
        if failure is None:
            return ErrorType.SUCCESS
        return ErrorType.TIMEOUT if "Timed out" in failure else ErrorType.REMOTE_ERROR

    def shutdown(self) -> None:
        """Ends the group. All ranks leave the world together: returns when all ranks have called it, or one has failed."""
        if self._staging is not None:
            self._staging.drain(self._timeout.total_seconds())
        group = self._world_or_part
        failed = not group.left and group.failure() is not None
        try:
            group.leave()
        except dist.DistBackendError:
            # If a call has failed, it has raised this error before.
            if not failed:
                raise
        finally:
            self._release()

    def _release(self) -> None:
        """Drops the handles of the group: the last one of a world frees it."""
        _alive.discard(self)
        if self._staging is not None:
            self._staging.close()
        if self._is_world and _Worlds.default is self._world_or_part:
            _Worlds.default = None
        self._group.close()
        self._world_or_part.close()

    def abort(self) -> None:
        """Ends the world of the group, with all its groups, on all ranks."""
        if not self._world_or_part.left:
            self._world_or_part.abort("the program aborted its process group")
        self._release()

    def supports_tensor_alloc(self, device: Any = None) -> bool:
        """Returns true if `allocate_tensor` works for this device."""
        return device is None or device == -1 or torch.device(device).type == "cpu"

    def allocate_tensor(self, size: int, *, dtype: torch.dtype, device: Any = "cpu") -> Tensor:
        """A tensor of zeros in registered memory."""
        if torch.device(device).type != "cpu":
            raise ValueError(
                f"allocate_tensor: on {device}; this backend has registered memory on the cpu only"
            )
        memory = self._group.buffer(max(1, size * dtype.itemsize))
        return torch.frombuffer(memory, dtype=torch.uint8)[: size * dtype.itemsize].view(dtype)

    @property
    def supports_splitting(self) -> bool:
        """Returns true: `split_group` can make groups."""
        return True

    @property
    def supports_coalescing(self) -> bool:
        """Returns false: operations begin at once, so torch need not bracket a batch."""
        return False

    # Not supported yet. These properties must be defined, because torch's definitions would ask them again.
    supports_shrinking = supports_reconfigure = supports_window = _supports_time_estimate = property(
        lambda _: False
    )

    def _part(self, store: dist.Store, ranks: list[int], timeout: timedelta) -> Membership:
        """Makes a group of these ranks of this group, which include this rank; only they take part."""
        group = _create_group(self._world_or_part, ranks, timeout)
        return Membership(group, store, ranks.index(self._rank), len(ranks), timeout, name=self._called)


class PassesForGloo:
    """A backend with the name "gloo", which torch and its users see as an instance of `ProcessGroupGloo`."""

    @property
    def __class__(self) -> type:
        return dist.ProcessGroupGloo if self._called == GLOO and dist.is_gloo_available() else type(self)


def _options(name: str, timeout: timedelta) -> Any:
    if name == GLOO and dist.is_gloo_available():
        options = dist.ProcessGroupGloo._Options()
        options._timeout = timeout
        return options
    return _Backend.Options(name, timeout)


_alive: set[Common] = set()


# The number of groups that were made of each list of ranks. Members make them in the same order; their names in torch differ between ranks
# that do not make the same groups in between.
_made: weakref.WeakKeyDictionary[_native.Group, Counter[tuple[int, ...]]] = weakref.WeakKeyDictionary()


def _create_group(parent: _native.Group, ranks: list[int], timeout: timedelta) -> _native.Group:
    """Makes a group of these ranks of another group; only they take part."""
    made = _made.setdefault(parent, Counter())
    made[tuple(ranks)] += 1
    return parent.create_group(ranks, made[tuple(ranks)]).with_timeout(timeout.total_seconds())


class ProcessGroup(*(() if HAS_BACKENDS else (ItsOwnBackend, PassesForGloo)), Common, _ProcessGroup):
    """A process group with all calls in the library."""

    def __init__(self, membership: Membership) -> None:
        _ProcessGroup.__init__(self, membership.rank, membership.size)
        self._enter(membership)
        if HAS_BACKENDS:
            # Some code asks the group for its backend, its devices or its name.
            self._backend = Backend(membership._replace(is_world=False))
            for device in _devices.types():
                self._register_backend(torch.device(device), _ProcessGroup.BackendType.CUSTOM, self._backend)
        self._set_default_backend(_ProcessGroup.BackendType.CUSTOM)

    # Old names, and those of the C++ interface.
    _allgather_base = Calls.all_gather_single
    allgather_into_tensor_coalesced = Calls.all_gather_single_coalesced
    gather_into_tensor = Calls.gather_single
    _reduce_scatter_base = Calls.reduce_scatter_single
    reduce_scatter_tensor_coalesced = Calls.reduce_scatter_single_coalesced
    alltoall_base = Calls.all_to_all_single

    def getRank(self) -> int:
        """This process's rank in the group."""
        return self._rank

    def getSize(self) -> int:
        """The number of ranks."""
        return self._ranks

    rank, size = getRank, getSize

    def _release(self) -> None:
        if HAS_BACKENDS:
            self._backend._release()
        super()._release()

    def name(self) -> str:
        """The backend's name."""
        return self._called

    _get_backend_name = name

    def get_group_store(self) -> dist.Store:
        """The group's part of torch's store."""
        return self._store

    @property
    def options(self) -> Any:
        """The options of the group."""
        return _options(self._called, self._timeout)

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """See `torch.distributed.monitored_barrier`."""
        self._monitored.wait(self._timeout if timeout is None else timeout, wait_all_ranks)

    def split_group(
        self,
        new_ranks: list[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: list[torch.device] | None = None,
    ) -> ProcessGroup | None:
        """Makes a group of these ranks of this group; only they take part."""
        if self._rank not in new_ranks:
            return None
        name, timeout = group_name or f"{self.group_name}:split:{new_ranks}", timeout or self._timeout
        store = dist.PrefixStore(f"{name}/", self._store)
        group = ProcessGroup(self._part(store, new_ranks, timeout))
        group._set_group_name(name)
        group._set_group_desc(group_desc or f"{self.group_desc}:split")
        return group

    splitGroup = split_group


if HAS_BACKENDS:
    let_tools_watch(ProcessGroup)


class Backend(PassesForGloo, Common, _Backend):
    """One of several backends of a process group."""

    def __init__(self, membership: Membership) -> None:
        _Backend.__init__(self, membership.rank, membership.size)
        self._enter(membership)
        self._options = _options(membership.name, membership.timeout)

    def getBackendName(self) -> str:
        """The backend's name. The flight recorder skips a backend with the name gloo, which records itself."""
        return NAME if _is_recorded() else self._called

    @property
    def options(self) -> Any:
        """The options of the backend."""
        return self._options

    def set_timeout(self, timeout: timedelta) -> None:
        """Sets the timeout of all calls from now on."""
        super().set_timeout(timeout)
        self._options._timeout = timeout

    _set_default_timeout = set_timeout

    def monitored_barrier(self, opts: Any, wait_all_ranks: bool = False) -> None:
        """See `torch.distributed.monitored_barrier`."""
        timeout = opts.timeout if opts.timeout.days >= 0 else self._timeout
        self._monitored.wait(timeout, wait_all_ranks)

    def split(self, store: dist.Store, ranks: list[int], opts: Any) -> Backend | None:
        """Makes a backend of these ranks of this one; only they take part."""
        if self._rank not in ranks:
            return None
        timeout = opts._timeout if opts is not None else self._timeout
        return Backend(self._part(store, ranks, timeout))


def create(opts: Any, backend_options: object | None = None, name: str = NAME) -> ProcessGroup | Backend:
    """The function with which torch makes a group: `opts` are its `_DistributedBackendOptions`; `name` is the name of the group."""
    if not HAS_BACKENDS:
        refuse_others()
    leave_as_it_is()
    serve_builtin_hooks(_is_ours)
    rank, size, store = opts.group_rank, opts.group_size, opts.store
    timeout = opts.timeout
    if not isinstance(timeout, timedelta):
        timeout = timedelta(seconds=timeout)
    ranks = list(opts.global_ranks_in_group)
    world = _Worlds.default
    if ranks and world is not None:
        group, is_world = _create_group(world, ranks, timeout), False
    else:
        group, is_world = _meeting.join(store, rank, size, timeout), True
        if not ranks:
            _Worlds.default = group
    return _class(opts)(Membership(group, store, rank, size, timeout, is_world, name))


def _is_ours(group: dist.ProcessGroup, device: torch.device) -> bool:
    """Returns true if this package runs a group's calls of tensors on this device."""
    if isinstance(group, Common):
        return True
    try:
        return isinstance(group._get_backend(device), Common)
    except RuntimeError:
        # A group in Python around other groups has no backends.
        return False


def _class(opts: Any) -> type[ProcessGroup | Backend]:
    wanted = os.environ.get(_CLASS)
    if not HAS_BACKENDS:
        return ProcessGroup
    if wanted is not None:
        classes = {"process-group": ProcessGroup, "backend": Backend}
        if wanted not in classes:
            raise ValueError(f"{_CLASS}={wanted}: wanted process-group or backend")
        return classes[wanted]
    # Torch wraps backends, not process groups, to check calls.
    checked = dist.get_debug_level() == dist.DebugLevel.DETAIL
    alone = len(backends_asked_for()) == 1
    return ProcessGroup if alone and not checked and not _is_recorded() else Backend


def _is_recorded() -> bool:
    """Returns true if the program asks for the flight recorder, which listens to torch's dispatch."""
    return any(os.environ.get(name) for name in ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"))


def register() -> None:
    """Makes `unisono` known to torch as a backend."""
    if NAME.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(NAME, create, extended_api=True, devices=_devices.types())
