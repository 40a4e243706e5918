"""Fixtures of the package's tests."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from ranks import Ranks

# A shell starts its background jobs with SIGINT ignored, and their children inherit that. Set the handler as in a terminal.
signal.signal(signal.SIGINT, signal.default_int_handler)

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def python() -> Run:
    """Runs this interpreter with arguments, in the tests' environment changed by ``set``; returns its output."""

    def run(*arguments: str, set: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        environment = os.environ | (set or {})
        return subprocess.run(
            [sys.executable, *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return run


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes the variables that name a libfabric, or make this process a rank."""
    for name in ("UNISONO_LIBFABRIC", "IPATH_NO_BACKTRACE", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def worlds() -> Iterator[dict[int, Ranks]]:
    """The worlds that tests share, by size."""
    shared: dict[int, Ranks] = {}
    yield shared
    for world in shared.values():
        world.end()


@pytest.fixture(params=[1, 2, 3, 4], ids=lambda size: f"{size}-ranks")
def world(request: pytest.FixtureRequest, worlds: dict[int, Ranks]) -> Ranks:
    """A world of 1 to 4 ranks that works."""
    size: int = request.param
    if size not in worlds or not worlds[size].usable:
        worlds[size] = Ranks(size)
    return worlds[size]
