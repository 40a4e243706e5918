"""PyTorch's own tests of distributed backends, which its wheel carries, on unisono.

    python suite.py --ranks 2 [--as-gloo] [-v] [-k broadcast]

With `--as-gloo`, it runs the tests of Gloo under this name, as torch runs them with `--backend gloo`. `--report FILE` writes one line for each
test: a JSON list of its name and its outcome.

Many tests ask whether the backend is "gloo" or "mpi" to find out what a backend for the CPU can do. The name that they get also equals these
names, so that no test is skipped only for the name. The tests use no GPU.
"""

import argparse
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
from typing import Any

SAME_AS = ("gloo", "mpi")
# In seconds: the tests of 4 ranks on 2 cores take a third of it.
LIMIT = 1500
# The variable that tells the tests where to report.
REPORT = "UNISONO_TEST_REPORT"


def main() -> int:
    """Runs the tests in a separate process group, because a failed test leaves children behind."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--backend", default="unisono")
    parser.add_argument("--as-gloo", action="store_true")
    parser.add_argument("--report", type=pathlib.Path, default=os.devnull)
    given, rest = parser.parse_known_args()
    if given.as_gloo:
        given.backend = "gloo"
    name = f"PyTorch's tests of backends, {given.backend}{' that is unisono' if given.as_gloo else ''}, {given.ranks} ranks"
    with tempfile.TemporaryDirectory() as folder:
        for part in ("barrier", "test_dir", "init_dir"):
            os.mkdir(os.path.join(folder, part))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        environment = {
            **os.environ,
            "BACKEND": given.backend,
            "WORLD_SIZE": str(given.ranks),
            "TEMP_DIR": folder,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
            "UNISONO_TEST_SUITE": "1",
            "UNISONO_AS_GLOO": str(int(given.as_gloo)),
            REPORT: str(given.report.absolute()),
        }
        # With this variable, PyTorch writes its report as XML, by a package that its wheel does not require.
        environment.pop("CI", None)
        tests = subprocess.Popen(
            [sys.executable, __file__, *rest], env=environment, start_new_session=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace",
        )  # fmt: skip
        try:
            output, _ = tests.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            os.killpg(tests.pid, signal.SIGKILL)
            output = tests.communicate()[0] + f"\nended after {LIMIT} s"
        finally:
            try:
                os.killpg(tests.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
    ran = re.search(r"Ran (\d+) tests? in ([\d.]+)s\n+(OK|FAILED)(?: \((.*)\))?", output)
    if tests.returncode != 0 or ran is None or "-v" in rest:
        print(output)
    if tests.returncode != 0 or ran is None:
        print(f"FAILED   {name}: status {tests.returncode}")
        return 1
    print("".join(f"{line}\n" for line in output.splitlines() if line.startswith("SKIPPED: ")), end="")
    skipped = int(re.search(r"skipped=(\d+)", ran[4] or "skipped=0")[1])
    print(f"RAN      {name}: {int(ran[1]) - skipped} cases in {ran[2]} s, {skipped} skipped by PyTorch")
    return 0


class AlsoEqual(str):
    """A backend's name that also equals other names."""

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other) or other in SAME_AS

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        # Sets compare hashes: a set with gloo contains this name too.
        return hash(SAME_AS[0])


class Environment:
    """The environment, except the backend's name."""

    def __getitem__(self, key: str) -> str:
        return AlsoEqual(environ[key]) if key == "BACKEND" else environ[key]

    def __getattr__(self, name: str):
        return getattr(environ, name)

    def __contains__(self, key: str) -> bool:
        return key in environ

    def __setitem__(self, key: str, value: str) -> None:
        environ[key] = value

    def __iter__(self):
        return iter(environ)


if __name__ == "__main__" and "UNISONO_TEST_SUITE" not in os.environ:
    sys.exit(main())

environ = os.environ
import unittest

import torch
from torch.testing._internal import common_distributed

NOT_THERE: dict[str, str] = {}
if os.environ["BACKEND"] == "unisono":
    # Torch before 2.14 does not find the backend by its name.
    from unisono.torch._older import HAS_BACKENDS

    if not HAS_BACKENDS:
        # Torch has these only for Gloo.
        NOT_THERE = dict.fromkeys(
            ("test_monitored_barrier_gloo", "test_monitored_barrier_gloo_subgroup"),
            f"torch {torch.__version__} has it for Gloo alone",
        )
elif os.environ["UNISONO_AS_GLOO"] == "1":
    NOT_THERE = {
        "test_ddp_logging_data_cpu": "torch's C++ takes a group that it logs as gloo for an object of Gloo's class"
    }
if os.environ["BACKEND"] not in SAME_AS:
    common_distributed.DistTestCases.backend_feature["plugin"].add(os.environ["BACKEND"])
    # The import below reads the environment.
    os.environ = Environment()  # noqa: B003
    import torch.testing._internal.distributed.distributed_test

    os.environ = environ  # noqa: B003
from torch.testing._internal.common_utils import run_tests
from torch.testing._internal.distributed import distributed_test
from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend


class Asynchronous:
    """An event of the profiler; only C++ can mark one as asynchronous."""

    is_async = True

    def __init__(self, event: Any) -> None:
        self._event = event

    def __getattr__(self, name: str) -> Any:
        return getattr(self._event, name)


if os.environ["UNISONO_AS_GLOO"] == "1":
    # The tests check no events of other backends. Gloo's events of collectives have only the shapes of inputs; ours also have those of outputs.
    distributed_test.PROFILING_SUPPORTED_BACKENDS.remove("gloo")
    events = distributed_test.get_profiling_event
    distributed_test.get_profiling_event = lambda *asked, **more: [
        Asynchronous(event) for event in events(*asked, **more)
    ]


class TestDistBackendWithFork(TestDistBackend, DistributedTest._DistTestBase):
    """PyTorch's tests; each rank is a fork."""

    def setUp(self) -> None:
        super().setUp()
        self._start_processes(torch.multiprocessing.get_context("fork").Process)
        torch.backends.cudnn.flags(enabled=True, allow_tf32=False).__enter__()

    def run(self, result: unittest.TestResult | None = None) -> unittest.TestResult | None:
        """Runs the test and reports its outcome."""
        super().run(result)
        if result is not None:
            skipped = any(test is self for test, _ in result.skipped)
            failed = any(test is self for test, _ in result.failures + result.errors)
            with pathlib.Path(os.environ[REPORT]).open("a") as report:
                outcome = "skipped" if skipped else "failed" if failed else "passed"
                print(json.dumps([self._testMethodName, outcome]), file=report)
        return result


for name, reason in NOT_THERE.items():
    print(f"SKIPPED: {name}: {reason}")
    setattr(TestDistBackendWithFork, name, None)


if __name__ == "__main__":
    sys.exit(run_tests())
