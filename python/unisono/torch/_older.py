"""For torch before 2.14: what its process groups ask of a backend, which cannot be written in Python there."""

from __future__ import annotations

import sys
from types import WrapperDescriptorType
from typing import Any

import torch
from torch._C._distributed_c10d import Backend

from unisono.torch import _devices

# Whether torch lets backends be written in Python.
HAS_BACKENDS = not isinstance(Backend.__init__, WrapperDescriptorType)


def refuse_others() -> None:
    """Raises the error of a group of several backends: torch, which calls `create`, would forget the others without a word."""
    config = sys._getframe(2).f_locals.get("backend_config")
    if config is not None and len(set(config.get_device_backend_map().values())) > 1:
        raise ValueError(
            f"init_process_group('{config}'): torch {torch.__version__} lets no backend of Python's stand beside others; update to "
            "torch 2.14 or later, or give 'unisono' alone, which serves all of its devices"
        )


class ItsOwnBackend:
    """A process group that is asked instead of its backend."""

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
