"""The hooks of DistributedDataParallel that torch has in C++ (`BuiltinCommHookType`).

They want the future of an all_reduce to hold a list of tensors of C++'s. A future that Python makes, and completes later, holds Python's
objects. So the same is registered as a hook in Python, where the model's group is one of ours.
"""

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
    """The same, rounded to 16 bits before."""
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
    """Has models register hooks of this module where they would register C++'s, if a group is one of ours for a device."""
    model = torch.nn.parallel.DistributedDataParallel
    builtin = model._register_builtin_comm_hook

    @wraps(builtin)
    def register(self: Any, comm_hook_type: Any) -> None:
        device = next(self.module.parameters()).device
        hook = _HOOKS.get(comm_hook_type)
        if hook is None or not is_ours(self.process_group, device):
            builtin(self, comm_hook_type)
            return
        self.logger._set_comm_hook_name(str(comm_hook_type))
        dist._register_comm_hook(self.reducer, self.process_group, hook)

    model._register_builtin_comm_hook = register
