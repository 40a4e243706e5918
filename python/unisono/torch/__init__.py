"""The backend `unisono` of `torch.distributed`.

    import torch.distributed as dist
    dist.init_process_group("unisono")

Torch 2.14 and later find the backend by its name; for earlier ones `import unisono.torch` registers it. With `UNISONO_AS_GLOO=1`, or
after `unisono.torch.replace_gloo()`, it also makes the groups that are called "gloo".
"""

from unisono.torch._as_gloo import asked_for, replace_gloo
from unisono.torch._groups import Backend, ProcessGroup, register

__all__ = ["Backend", "ProcessGroup", "register", "replace_gloo"]

register()
if asked_for():
    replace_gloo()
