"""Tools that watch torch's dispatcher: `CommDebugMode`, other modes of dispatch, fake tensors.

While such a tool is active, the calls of unisono's process groups go through torch's C++, where the tool sees them, to the group's backend.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch._C import _len_torch_dispatch_stack
from torch._C._distributed_c10d import AllToAllOptions, ProcessGroup, Work

_CALLS = [
    "allreduce", "allreduce_coalesced", "reduce", "broadcast", "allgather", "_allgather_base", "all_gather_single",
    "allgather_coalesced", "allgather_into_tensor_coalesced", "all_gather_single_coalesced", "gather", "gather_single",
    "gather_into_tensor", "scatter", "reduce_scatter", "_reduce_scatter_base", "reduce_scatter_single",
    "reduce_scatter_tensor_coalesced", "reduce_scatter_single_coalesced", "alltoall", "send", "recv", "recv_anysource", "barrier",
]  # fmt: skip

# Torch's C++ looks for a method of either name; if one called the other through C++, this would not end.
_ALL_TO_ALL_SINGLE = ["alltoall_base", "all_to_all_single"]


def let_tools_watch(group: type[ProcessGroup]) -> None:
    """Makes the calls of this class go through torch's C++ while a tool watches."""
    for name in _CALLS:
        if hasattr(ProcessGroup, name) and hasattr(group, name):
            setattr(group, name, _either(name, getattr(group, name), getattr(ProcessGroup, name)))
    for name in _ALL_TO_ALL_SINGLE:
        setattr(group, name, _either(name, getattr(group, name), _all_to_all_single))


def _all_to_all_single(
    group: Any,
    output: Tensor,
    input: Tensor,
    to: list[int],
    given: list[int],
    opts: Any = None,
    timeout: timedelta | None = None,
) -> Any:
    """The operator of torch's dispatcher."""
    if not isinstance(opts, AllToAllOptions):
        opts, timeout = AllToAllOptions(), opts if opts is not None else timeout
        opts.timeout = timeout if timeout is not None else opts.timeout
    # A negative timeout is not set.
    limit = -1 if opts.timeout.days < 0 else round(opts.timeout.total_seconds() * 1000)
    boxed = torch.ops.c10d.alltoall_base_(
        output, input, group.boxed(), list(to), list(given), opts.asyncOp, limit
    )
    return Work.unbox(boxed)


def _either(name: str, straight: Callable[..., Any], through: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        if _len_torch_dispatch_stack():
            return through(self, *arguments, **options)
        return straight(self, *arguments, **options)

    # By this name, pybind11 sees that a method calls the method that it overrides, and does not call it again.
    call.__code__ = call.__code__.replace(co_name=name)
    call.__name__, call.__doc__ = name, straight.__doc__
    return call
