"""Checks of numbers in arguments. A wrong number is a `TypeError` or a `ValueError` that names the call, the argument and its value."""

from __future__ import annotations

import math
import operator
import reprlib
from collections.abc import Iterable
from typing import Any

# The largest lengths, tags, and numbers of 64 bits.
LENGTH = (1 << 63) - 1
TAG = (1 << 32) - 1
UNSIGNED = (1 << 64) - 1
SIGNED = (1 << 63) - 1

# The longest timeout, in seconds.
_YEAR = 365 * 24 * 3600


def _shown(given: Any) -> str:
    # Python refuses to write an integer of thousands of digits.
    if isinstance(given, int) and given.bit_length() > 256:
        return f"a number of {given.bit_length()} bits"
    return reprlib.repr(given)


def whole(call: str, name: str, given: Any, least: int = 0, most: int = LENGTH) -> int:
    """Returns a whole number of Python or numpy from ``least`` to ``most``. Truth values are not numbers."""
    if type(given) is int:
        number = given
    else:
        try:
            # `operator.index` refuses truth values of numpy, but not those of Python.
            number = operator.index("" if isinstance(given, bool) else given)  # type: ignore[arg-type]
        except TypeError:
            raise TypeError(
                f"{call}: {name} is {_shown(given)}, a {type(given).__name__}; wanted a whole number"
            ) from None
    if not least <= number <= most:
        raise ValueError(f"{call}: {name} is {_shown(number)}; wanted a number from {least} to {most}")
    return number


def rank(call: str, name: str, given: Any, size: int) -> int:
    """Returns a rank of a group of ``size``."""
    if type(given) is int and 0 <= given < size:
        return given
    number = whole(call, name, given, -SIGNED, SIGNED)
    if not 0 <= number < size:
        raise ValueError(
            f"{call}: there is no rank {number}, which is given as {name}; there are ranks 0 to {size - 1}"
        )
    return number


def source(call: str, given: Any, size: int) -> int | None:
    """Returns the rank from which to receive; ``None`` is any rank."""
    return None if given is None else rank(call, "source", given, size)


def tag(call: str, given: Any) -> int:
    """Returns the tag of a message."""
    return whole(call, "the tag", given, 0, TAG)


def sending(call: str, to: Any, size: int, tag_given: Any, seconds: Any) -> tuple[int, int, float | None]:
    """Returns destination, tag and timeout of a message."""
    return rank(call, "to", to, size), tag(call, tag_given), timeout(call, seconds)


def receiving(
    call: str, from_rank: Any, size: int, tag_given: Any, seconds: Any
) -> tuple[int | None, int, float | None]:
    """Returns source, tag and timeout of a message."""
    return source(call, from_rank, size), tag(call, tag_given), timeout(call, seconds)


def rooted(call: str, root: Any, size: int, seconds: Any) -> tuple[int, float | None]:
    """Returns root and timeout of a collective."""
    return rank(call, "root", root, size), timeout(call, seconds)


def numbers(call: str, name: str, given: Iterable[Any], least: int = 0, most: int = LENGTH) -> list[int]:
    """Returns a list of whole numbers."""
    try:
        every = list(() if isinstance(given, (str, bytes)) else given)
    except TypeError:
        every = None
    if every is None or isinstance(given, (str, bytes)):
        raise TypeError(f"{call}: {name} is {_shown(given)}; wanted a list of whole numbers")
    return [whole(call, f"{name}[{at}]", each, least, most) for at, each in enumerate(every)]


def _seconds(call: str, name: str, given: Any) -> float:
    if isinstance(given, (bool, str, bytes)):
        number = None
    else:
        try:
            number = float(given)
        except (TypeError, ValueError):
            number = None
        except OverflowError:
            number = math.inf
    if number is None:
        raise TypeError(
            f"{call}: {name} is {_shown(given)}, a {type(given).__name__}; wanted a number of seconds"
        )
    return number


def timeout(call: str, given: Any, name: str = "timeout") -> float | None:
    """Returns the timeout of a call in seconds; ``None`` is the group's timeout."""
    if given is None:
        return None
    number = _seconds(call, name, given)
    if not 0 < number <= _YEAR:
        raise ValueError(
            f"{call}: the {name} is {_shown(given)}; wanted seconds, more than 0 and at most a year ({_YEAR})"
        )
    return number


def patience(call: str, given: Any) -> float | None:
    """Returns the longest time of a wait in seconds; ``None`` is the time of the operation."""
    if given is None:
        return None
    number = _seconds(call, "timeout", given)
    if not 0 <= number < 1 << 62:
        raise ValueError(f"{call}: timeout is {_shown(given)}; wanted seconds from 0, or None")
    return number
