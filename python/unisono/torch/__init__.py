"""The backend `unisono` of `torch.distributed`.

    import torch.distributed as dist
    dist.init_process_group("unisono")

Torch 2.14 and later find the backend by its name; for earlier ones `import unisono.torch` registers it.
"""

from unisono.torch._groups import Backend, ProcessGroup, register

__all__ = ["Backend", "ProcessGroup", "register"]

register()
