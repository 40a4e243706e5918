"""A call that waits and the call that begins it have one definition: their signatures and documentation agree."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import unisono
from unisono import Group

METHODS = dict(inspect.getmembers(Group, inspect.isfunction))
BEGINNING = sorted(name for name in METHODS if name.endswith("_async"))


def both(name: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    return METHODS[name.removesuffix("_async")], METHODS[name]


def test_all_pairs_are_here() -> None:
    assert len(BEGINNING) == 25
    # Calls without an asynchronous form.
    alone = {name for name in METHODS if not name.startswith("_") and f"{name}_async" not in METHODS}
    files = {"broadcast_file", "send_file", "recv_file"}
    groups = {"split", "new_group", "create_group", "with_timeout", "abort", "close"}
    assert alone - set(BEGINNING) == {"send_recv", "buffer", "buffer_from", *files, *groups}


@pytest.mark.parametrize("name", BEGINNING)
def test_both_have_the_same_parameters(name: str) -> None:
    waits, begins = (inspect.signature(call) for call in both(name))
    assert waits.parameters == begins.parameters
    assert begins.return_annotation == f"Work[{waits.return_annotation}]"


@pytest.mark.parametrize("name", BEGINNING)
def test_both_have_names_and_docs(name: str) -> None:
    waits, begins = both(name)
    assert waits.__doc__ and begins.__doc__
    assert f"`{waits.__name__}`" in begins.__doc__
    assert begins.__name__ == name and begins.__qualname__ == f"{waits.__qualname__}_async"
    assert begins.__module__ == waits.__module__


def test_an_unknown_argument_is_refused_under_the_name_that_was_called() -> None:
    with unisono.init(rank=0, size=1) as group:
        for name in BEGINNING:
            for call in both(name):
                with pytest.raises(
                    TypeError, match=rf"\.{call.__name__}\(\) got an unexpected keyword argument"
                ):
                    call(group, unknown=1)
