"""Two handles of a group: calls of the first one wait; calls of the second begin and return a `Work`. One definition makes both calls::

    def send(self, array: ArrayLike, to: int) -> None:
        ...
        return self._result(self._native.send_async(...), nothing)

    send_async = beginning(send)

Users have the first handle. Its methods with ``_async`` make the same calls by the second.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any, Concatenate, ParamSpec, TypeVar

from unisono import _native
from unisono._work import Work

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


class Handle:
    """A handle of a group, to which classes add calls."""

    # True if calls wait.
    _waits = True
    # The handle of the same group whose calls do not wait. Only a handle whose calls wait has this attribute.
    _asynchronous: Handle

    def __init__(self, native: _native.Group, pickle: bool) -> None:
        self._native = native
        self._pickle = pickle
        self.rank: int = native.rank
        """This process's rank in the group, from 0."""
        self.size: int = native.size
        """The number of ranks."""

    def _result(self, native: _native.Work, finish: Callable[[Any], T]) -> T:
        """The return value of a call that has begun: the result, which ``finish`` makes, or the `Work` that waits for it."""
        return finish(native.wait()) if self._waits else Work(native, finish)  # type: ignore[return-value]


def nothing(_: Any) -> None:
    """Finishes a call that has no result."""


def beginning(call: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], Work[T]]:
    """Returns the method with ``_async`` added to its name, which begins the operation for which ``call`` waits."""
    name = f"{call.__name__}_async"
    place = call.__qualname__.removesuffix(call.__name__)
    # Make a copy with this name, so that signatures, help and errors about arguments show the name.
    code = call.__code__.replace(co_name=name, co_qualname=place + name)  # type: ignore[attr-defined]
    method = FunctionType(code, call.__globals__, name, call.__defaults__, call.__closure__)  # type: ignore[attr-defined]
    method.__kwdefaults__ = call.__kwdefaults__  # type: ignore[attr-defined]
    method.__annotations__ = {**call.__annotations__, "return": f"Work[{call.__annotations__['return']}]"}
    method.__doc__ = f"Begins a call as `{call.__name__}` describes it, and returns a `Work` at once; its ``wait`` returns the result."
    return _Beginning(method)  # type: ignore[return-value]


class _Beginning:
    """A method that calls the asynchronous handle of its handle."""

    __slots__ = ("_function", "_method")

    def __init__(self, method: FunctionType) -> None:
        @functools.wraps(method)
        def begin(handle: Handle, *arguments: Any, **options: Any) -> Any:
            return method(handle._asynchronous, *arguments, **options)

        # This function is the attribute of the class.
        self._function = begin
        self._method = method

    def __get__(self, handle: Handle | None, owner: type | None = None) -> Any:
        if handle is None:
            return self._function
        # Binding the method costs less than forwarding arguments.
        return MethodType(self._method, handle._asynchronous)
