"""Handles of a group: the calls of one wait, those of the other begin and return a `Work`. Each call is defined once, for both::

    def send(self, array: ArrayLike, to: int) -> None:
        ...
        return self._result(self._native.send_async(...), nothing)

    send_async = beginning(send)

Users have one handle: its methods with ``_async`` make the same calls by the other.
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

    # Whether calls wait.
    _waits = True
    # The handle of the same group whose calls do not wait. It has none.
    _asynchronous: Handle

    def __init__(self, native: _native.Group, pickle: bool) -> None:
        self._native = native
        self._pickle = pickle
        # Runs a collective, or begins it: a call that waits needs no work, which is faster.
        self._run: Callable[..., _native.Work | None] = (
            native.collective if self._waits else native.collective_async
        )
        self.rank: int = native.rank
        """This process's rank in the group, from 0."""
        self.size: int = native.size
        """The number of ranks."""

    def _result(self, native: _native.Work, finish: Callable[[Any], T]) -> T:
        """What a call returns once it has begun: the result, which ``finish`` makes, or the `Work` that waits for it."""
        return finish(native.wait()) if self._waits else Work(native, finish)  # type: ignore[return-value]


def nothing(_: Any) -> None:
    """Finishes a call that has no result."""


def beginning(call: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], Work[T]]:
    """The method whose name has ``_async`` added, which begins what ``call`` waits for."""
    name = f"{call.__name__}_async"
    place = call.__qualname__.removesuffix(call.__name__)
    # A copy with this name, so that signatures, help and errors about arguments show it.
    code = call.__code__.replace(co_name=name, co_qualname=place + name)  # type: ignore[attr-defined]
    method = FunctionType(code, call.__globals__, name, call.__defaults__, call.__closure__)  # type: ignore[attr-defined]
    method.__kwdefaults__ = call.__kwdefaults__  # type: ignore[attr-defined]
    method.__annotations__ = {**call.__annotations__, "return": f"Work[{call.__annotations__['return']}]"}
    method.__doc__ = f"Begins a call as `{call.__name__}` describes it, and returns a `Work` at once; its ``wait`` returns the result."
    return _Beginning(method)  # type: ignore[return-value]


class _Beginning:
    """A method that a handle makes by its asynchronous one."""

    __slots__ = ("_function", "_method")

    def __init__(self, method: FunctionType) -> None:
        @functools.wraps(method)
        def begin(handle: Handle, *arguments: Any, **options: Any) -> Any:
            return method(handle._asynchronous, *arguments, **options)

        # What the class shows.
        self._function = begin
        self._method = method

    def __get__(self, handle: Handle | None, owner: type | None = None) -> Any:
        if handle is None:
            return self._function
        # To bind it costs less than to pass arguments on.
        return MethodType(self._method, handle._asynchronous)
