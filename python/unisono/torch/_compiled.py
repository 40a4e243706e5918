"""`torch.compile` and this package: the compiler does not compile the package's code, nor torch's own code of collectives.

A call of a collective outside of a graph is a graph break: torch's Python runs it, and the compiler would compile the functions that it calls.
"""

import sys
import types
from collections.abc import Iterator
from functools import cache
from typing import Any

from torch._C._dynamo import eval_frame


@cache
def leave_as_it_is() -> None:
    """Marks all functions of the package that are loaded: neither they nor what they call are compiled."""
    skip = eval_frame._FrameAction.SKIP
    strategy = eval_frame._FrameExecStrategy(skip, skip)
    for name, module in list(sys.modules.items()):
        if _is_ours(name):
            for code in _codes(vars(module)):
                eval_frame.set_code_exec_strategy(code, strategy)


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] == "unisono"


def _codes(names: Any) -> Iterator[types.CodeType]:
    """The code of this package's functions and classes in a namespace."""
    for value in list(names.values()):
        if isinstance(value, staticmethod | classmethod):
            value = value.__func__
        if isinstance(value, property):
            yield from _codes({"get": value.fget, "set": value.fset})
        elif isinstance(value, types.FunctionType):
            yield from _nested(value.__code__)
        elif isinstance(value, type) and _is_ours(value.__module__):
            yield from _codes(vars(value))


def _nested(code: types.CodeType) -> Iterator[types.CodeType]:
    """This code, and that of the functions in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _nested(constant)
