"""Events for torch's profiler: `unisono:all_reduce` and so on, with the shapes of their inputs. The name before the colon is the group's."""

from collections.abc import Sequence
from contextlib import AbstractContextManager

import torch

is_profiled = torch.autograd._profiler_enabled


def recorded(event: str, tensors: Sequence[torch.Tensor]) -> AbstractContextManager[None]:
    """Makes the code in this context an event of the profiler."""
    return torch._C._profiler._RecordFunctionFast(event, tensors)
