"""The hooks of reducers (those of DistributedDataParallel, and bare ones) that torch has in C++ (`BuiltinCommHookType`).

They need a future of an all_reduce that holds a list of C++ tensors. A future that Python makes, and completes later, holds Python
objects. So this module registers the same hook in Python if the reducer's group is one of unisono.
"""

import weakref
from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future


def _all_reduce(group: Any, bucket: Any) -> Future[Any]:
    """The mean of all ranks' gradients."""
    buffer = bucket.buffer()
    buffer.div_(group.size())
    return group.allreduce([buffer]).get_future().then(_first)


def _fp16_compress(group: Any, bucket: Any) -> Future[Any]:
    """The mean of gradients that were first rounded to 16 bits."""
    buffer = bucket.buffer()
    narrow = buffer.to(torch.float16).div_(group.size())

    def widened(ended: Future[Any]) -> Tensor:
        return buffer.copy_(_first(ended))

    return group.allreduce([narrow]).get_future().then(widened)


def _first(ended: Future[Any]) -> Tensor:
    tensor: Tensor = ended.value()[0]
    return tensor


_HOOKS: dict[Any, Callable[[Any, Any], Future[Any]]] = {
    dist.BuiltinCommHookType.ALLREDUCE: _all_reduce,
    dist.BuiltinCommHookType.FP16_COMPRESS: _fp16_compress,
}


@cache
def serve_builtin_hooks(is_ours: Callable[[Any, torch.device], bool]) -> None:
    """Makes reducers register hooks of this module instead of those in C++, if their group is one of unisono for their device."""
    init, builtin = dist.Reducer.__init__, dist._register_builtin_comm_hook
    # The groups and devices of reducers, because a reducer has no method for them.
    groups: weakref.WeakKeyDictionary[dist.Reducer, tuple[Any, torch.device]] = weakref.WeakKeyDictionary()

    @wraps(init)
    def remembered(reducer: Any, *arguments: Any, **named: Any) -> None:
        init(reducer, *arguments, **named)
        given = (*arguments, *named.values())
        group = next(each for each in given if isinstance(each, dist.ProcessGroup))
        parameters = named["params"] if "params" in named else arguments[0]
        groups[reducer] = group, parameters[0].device

    @wraps(builtin)
    def register(reducer: Any, comm_hook_type: Any) -> None:
        hook = _HOOKS.get(comm_hook_type)
        if hook is None or reducer not in groups or not is_ours(*groups[reducer]):
            builtin(reducer, comm_hook_type)
        else:
            dist._register_comm_hook(reducer, groups[reducer][0], hook)

    dist.Reducer.__init__ = remembered
    for module in (dist, torch._C._distributed_c10d):
        module._register_builtin_comm_hook = register
