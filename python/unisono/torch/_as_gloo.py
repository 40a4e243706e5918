"""Groups called "gloo" that unisono makes, for scripts and libraries with this name in their code."""

from __future__ import annotations

import functools
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend as _Backend
from torch.distributed import distributed_c10d as c10d

from unisono.torch import _devices
from unisono.torch._groups import GLOO, Backend, Membership, PassesForGloo, create
from unisono.torch._meeting import join
from unisono.torch._older import HAS_BACKENDS

VARIABLE = "UNISONO_AS_GLOO"
"""Replaces Gloo when torch is imported."""

ORIGINAL = "original_gloo"
"""The name of torch's Gloo after it has been replaced."""

# The name of unisono's backend, for versions of torch that refuse to register "gloo".
_AS_GLOO = "unisono_as_gloo"

# True if torch makes groups of Gloo by a registered function. Earlier versions compare the name in their code.
_IS_REGISTERED = hasattr(c10d, "_create_gloo_process_group")
_replaced = False

_Type = dist.ProcessGroup.BackendType


def asked_for() -> bool:
    """Returns true if `UNISONO_AS_GLOO` asks for it."""
    value = os.environ.get(VARIABLE, "0").strip()
    if value in ("1", "true", "on", "yes"):
        return True
    if value in ("0", "false", "off", "no"):
        return False
    raise ValueError(
        f"{VARIABLE}={value}: wanted 1 or 0; it is whether unisono makes the groups of torch.distributed that are called gloo"
    )


def replace_gloo() -> None:
    """Makes unisono create all groups of this process called "gloo" from now on, and those for which torch chooses Gloo by itself.

    Torch's Gloo is available as "original_gloo". All ranks must call this before their first group, or be started with
    `UNISONO_AS_GLOO=1`. Calling it again is harmless.

    Raises `RuntimeError` if Gloo has made a group that still exists.
    """
    global _replaced
    if _replaced:
        return
    _refuse_if_late()
    _keep_original()
    if _IS_REGISTERED:
        # These records of torch are for its Gloo.
        c10d._FR_SELF_RECORDING_BACKENDS.discard(GLOO)
        c10d._FR_SELF_RECORDING_BACKENDS.add(ORIGINAL)
        _register(GLOO, _create, _Type.CUSTOM)
    else:
        dist.Backend.register_backend(_AS_GLOO, _create, extended_api=True, devices=_devices.types())
        c10d._new_process_group_helper = _by_name(c10d._new_process_group_helper)
    if HAS_BACKENDS and dist.is_gloo_available():
        dist.ProcessGroupGloo.__new__ = staticmethod(_new)
        dist.ProcessGroup._register_backend = _register_as_custom(dist.ProcessGroup._register_backend)
        wrapping = _with_original(c10d._create_process_group_wrapper)
        c10d._create_process_group_wrapper = dist._create_process_group_wrapper = wrapping
    if dist.is_gloo_available():
        for call in ("create_device", "create_default_device"):
            setattr(PassesForGloo, call, staticmethod(getattr(dist.ProcessGroupGloo, call)))
    _replaced = True


def _refuse_if_late() -> None:
    for group, config in c10d._world.pg_backend_config.items():
        backends = [part.rpartition(":")[2] for part in str(config).split(",")]
        if GLOO in backends:
            raise RuntimeError(
                f"replace_gloo: Gloo has made the group {c10d._world.pg_names[group]!r} of {group.size()} ranks ({config}) before, and "
                f"serves it as long as it exists; call replace_gloo before init_process_group, or start the program with {VARIABLE}=1"
            )


def _keep_original() -> None:
    """Registers torch's Gloo under another name."""
    if not dist.is_gloo_available():
        return
    if _IS_REGISTERED:
        dist.Backend._ensure_backend_registered(GLOO)
        _register(ORIGINAL, _with_original(dist.Backend._plugins[GLOO.upper()].creator_fn), _Type.GLOO)
    else:
        devices = list(dist.Backend.backend_capability[GLOO])
        dist.Backend.register_backend(ORIGINAL, _create_original, extended_api=True, devices=devices)


def _register(name: str, creator: Callable[..., Any], kind: Any) -> None:
    """Registers a backend for Gloo's devices."""
    dist.Backend.register_backend(
        name,
        creator,
        extended_api=True,
        devices=list(dist.Backend.backend_capability[GLOO]),
        _backend_type=kind,
    )


def _create(opts: Any, options: object | None = None) -> Any:
    """The function that torch calls for "gloo"."""
    if getattr(opts, "enable_reconfigure", False):
        _warn_of_reconfigure()
        return dist.Backend._plugins[ORIGINAL.upper()].creator_fn(opts, options)
    return create(opts, options, GLOO)


def _warn_of_reconfigure() -> None:
    warnings.warn(
        "a group with enable_reconfigure=True stays Gloo's: unisono's cannot be reconfigured", stacklevel=4
    )


def _create_original(opts: Any, options: object | None = None) -> Any:
    """Makes a group of "gloo" as torch without `_create_gloo_process_group` does."""
    with _original():
        group = dist.ProcessGroupGloo(opts.store, opts.group_rank, opts.group_size, timeout=opts.timeout)
    group.options.global_ranks_in_group = opts.global_ranks_in_group
    group.options.group_name = opts.group_id
    group._set_sequence_number_for_group()
    return group


# Torch without `_create_gloo_process_group`.


def _by_name(make: Callable[..., Any]) -> Callable[..., Any]:
    """Torch's function that makes all groups, which takes the backend's name."""

    @functools.wraps(make)
    def helper(size: int, rank: int, ranks: list[int], backend: str, *more: Any, **options: Any) -> Any:
        config = c10d.BackendConfig(dist.Backend(backend))
        backends = config.get_device_backend_map()
        ours = backend
        if set(backends.values()) == {GLOO}:
            ours = _AS_GLOO
        elif GLOO in backends.values() and HAS_BACKENDS:
            ours = ",".join(
                f"{device}:{_AS_GLOO if name == GLOO else name}" for device, name in backends.items()
            )
        elif GLOO in backends.values():
            warnings.warn(
                f"the group {config} stays Gloo's: torch {torch.__version__} lets no backend of Python's stand beside others",
                stacklevel=3,
            )
        made = make(size, rank, ranks, ours, *more, **options)
        if ours != backend and made[0] in c10d._world.pg_map:
            # `get_backend` returns this name.
            c10d._world.pg_map[made[0]] = (backend, made[1])
            c10d._world.pg_backend_config[made[0]] = str(config)
        return made

    return helper


# Torch's class of Gloo, with which some programs make groups themselves.


class _Making(threading.local):
    """The state of this thread while it makes a group."""

    original = False


_making = _Making()


@contextmanager
def _original() -> Iterator[None]:
    """In this context, this thread makes groups of torch's Gloo."""
    before, _making.original = _making.original, True
    try:
        yield
    finally:
        _making.original = before


def _with_original(make: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(make)
    def making(*arguments: Any, **options: Any) -> Any:
        with _original():
            return make(*arguments, **options)

    return making


def _register_as_custom(register: Callable[..., Any]) -> Callable[..., Any]:
    """Torch's `_register_backend` with the type CUSTOM: C++ (DDP's log) casts a backend with the type GLOO to Gloo's C++ class."""

    @functools.wraps(register)
    def registering(group: Any, device: torch.device, kind: Any, backend: Any = None) -> None:
        if kind == _Type.GLOO and type(backend) is Backend:
            kind = _Type.CUSTOM
            group._set_default_backend(kind)
        register(group, device, kind, backend)

    return registering


def _new(kind: type, *arguments: Any, **options: Any) -> Any:
    """The result of `ProcessGroupGloo(store, rank, size, ...)`."""
    if kind is not dist.ProcessGroupGloo or _making.original:
        return _Backend.__new__(kind)
    return _create_separate(*arguments, **options)


def _create_separate(
    store: dist.Store,
    rank: int,
    size: int,
    options: Any = None,
    timeout: timedelta | float = c10d.default_pg_timeout,
    enable_reconfigure: bool = False,
) -> Any:
    """A backend outside of torch's groups: `options` are `ProcessGroupGloo._Options`, or the timeout."""
    if enable_reconfigure:
        _warn_of_reconfigure()
        with _original():
            return dist.ProcessGroupGloo(store, rank, size, timeout, enable_reconfigure)
    if isinstance(options, (timedelta, int, float)):
        timeout = options
    elif options is not None:
        timeout = options._timeout
    if not isinstance(timeout, timedelta):
        # C++ accepts seconds, too.
        timeout = timedelta(seconds=timeout)
    return Backend(Membership(join(store, rank, size, timeout), store, rank, size, timeout, True, GLOO))
