"""Events for torch's profiler: `unisono:all_reduce` and so on, with the shapes of their inputs."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

_T = TypeVar("_T")

is_profiled = torch.autograd._profiler_enabled


def recorded(call: str, tensors: Sequence[torch.Tensor], run: Callable[[], _T]) -> _T:
    """Runs a call as an event of the profiler."""
    with torch._C._profiler._RecordFunctionFast(f"unisono:{call}", tensors):
        return run()
