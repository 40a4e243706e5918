"""For torch before 2.14, in which a backend cannot be written in Python: the methods that its process groups need."""

from __future__ import annotations

import sys
from types import WrapperDescriptorType
from typing import Any

import torch
from torch._C._distributed_c10d import Backend
from torch.distributed.distributed_c10d import BackendConfig

from unisono.torch import _devices

# True if torch accepts backends written in Python.
HAS_BACKENDS = not isinstance(Backend.__init__, WrapperDescriptorType)


def backends_asked_for() -> set[str]:
    """The names of the backends of the group that torch is making; they are in the frame of a caller."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        config = frame.f_locals.get("backend_config")
        if isinstance(config, BackendConfig):
            return set(config.get_device_backend_map().values())
        frame = frame.f_back
    return set()


def refuse_others() -> None:
    """Raises the error of a group of several backends, because torch would silently forget the others."""
    names = backends_asked_for()
    if len(names) > 1:
        raise ValueError(
            f"init_process_group: a group of the backends {', '.join(sorted(names))}: torch {torch.__version__} lets no backend of "
            "Python's stand beside others; update to torch 2.14 or later, or give 'unisono' alone, which serves all of its devices"
        )


class ItsOwnBackend:
    """A process group with the methods of its backend."""

    def _get_backend(self, device: torch.device) -> Any:
        return self

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device(device) for device in _devices.types()]

    def setGroupName(self, name: str) -> None:
        """Called by C++."""
        self._name = name

    def getGroupName(self) -> str:
        """Called by C++."""
        return self._name

    def setGroupDesc(self, description: str) -> None:
        """Called by C++."""
        self._description = description

    def getGroupDesc(self) -> str:
        """Called by C++."""
        return self._description
