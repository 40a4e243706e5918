"""Events for torch's profiler: `unisono:all_reduce` and so on, with the shapes of their inputs. The name before the colon is the group's."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch

is_profiled = torch.autograd._profiler_enabled
# The context of code that makes no event: it costs less than a call of `recorded` does.
UNRECORDED = nullcontext()


def recorded(event: str, tensors: Sequence[torch.Tensor]) -> AbstractContextManager[None]:
    """Makes the code in this context an event of the profiler."""
    return torch._C._profiler._RecordFunctionFast(event, tensors)
