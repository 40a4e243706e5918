"""Runs PyTorch's test files that write "gloo", on Gloo and on unisono under that name, and prints a table of their outcomes.

    python run.py SOURCE [FILE...] [--ranks 2 3 4] [-k NAME]

SOURCE is the folder `test` of PyTorch's source; a FILE is a path in its folder `distributed`, or `BACKENDS`, the tests of backends that
`suite.py` runs; by default all of `FILES`. `--ranks` is for tests that leave the number to PyTorch's default. Ranks are forks, since a fresh
interpreter takes seconds to load torch. `UNISONO_TEST_TOLD` names a file for what the tests print.

Every test that Gloo passes and unisono does not must stand in `differences.txt`, with the reason; one that stands there and passes is an error too.
"""

import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from typing import IO, Any

BACKENDS = "distributed_test.py"
FILES = (
    BACKENDS,
    "test_c10d_gloo.py",
    "test_c10d_spawn_gloo.py",
    "test_c10d_object_collectives.py",
    "test_functional_api.py",
    "test_device_mesh.py",
    "test_pg_wrapper.py",
    "test_backends.py",
    "test_collective_utils.py",
    "optim/test_zero_redundancy_optimizer.py",
    "tensor/parallel/test_tp_style.py",
    "tensor/parallel/test_tp_examples.py",
    "tensor/parallel/test_parallelize_api.py",
    "_tensor/test_dtensor.py",
    "_tensor/test_redistribute.py",
    "_composable/test_replicate.py",
    "checkpoint/test_file_system_checkpoint_cpu.py",
)
NAMES = {"Gloo": "0", "unisono": "1"}
DIFFERENCES = pathlib.Path(__file__).with_name("differences.txt")
# The limits for a test and for a file, in seconds.
TEST_LIMIT, FILE_LIMIT = 60, 1800
OUTCOMES = ("passed", "failed", "skipped")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("source", type=pathlib.Path)
    parser.add_argument("files", nargs="*")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("-k", dest="only", default="")
    given = parser.parse_args()
    known, seen, status = differences(), set(), 0
    print(
        f"{'file':54} {'ranks':>5}  "
        + "  ".join(f"{name + ': passed, failed, skipped':>32}" for name in NAMES)
    )
    for file in given.files or FILES:
        for ranks in given.ranks:
            came = {name: outcomes(given, file, ranks, alias) for name, alias in NAMES.items()}
            counts = [Counter(each.values()) for each in came.values()]
            output = "  ".join(f"{', '.join(str(count[of]) for of in OUTCOMES):>32}" for count in counts)
            print(f"{file:54} {ranks:>5}  {output}", flush=True)
            for test in (test for test, outcome in came["Gloo"].items() if outcome == "passed"):
                name, outcome = f"{file}::{test}", came["unisono"].get(test, "not come to its end")
                if outcome != "passed":
                    seen.add(name)
                    status |= name not in known
                    print(f"    {test}: {outcome}, {known.get(name, 'UNEXPLAINED')}")
            if not came["Gloo"]:
                status = 1
                print("    FAILED: nothing ran; UNISONO_TEST_TOLD=FILE says why")
    if not given.files and not given.only and len(given.ranks) > 1:
        for name in known.keys() - seen:
            status = 1
            print(f"it stands in {DIFFERENCES.name}, and passes: {name}")
    return int(status)


def differences() -> dict[str, str]:
    """The reasons, by the test's name."""
    lines = (line for line in DIFFERENCES.read_text().splitlines() if line and not line.startswith("#"))
    return dict(line.split(" ", 1) for line in lines)


def outcomes(given: argparse.Namespace, file: str, ranks: int, alias: str) -> dict[str, str]:
    """The outcomes of the tests of a file."""
    if file == BACKENDS:
        return of_backends(ranks, alias, given.only)
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder, "report")
        path = os.pathsep.join(
            [str(given.source), str(given.source / "distributed"), os.environ.get("PYTHONPATH", "")]
        )
        environment = {
            **os.environ,
            "PYTHONPATH": path,
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
            "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": str(TEST_LIMIT),
            "TORCH_CPP_LOG_LEVEL": "FATAL",
            "UNISONO_AS_GLOO": alias,
        }
        environment.pop("CI", None)
        tests = [
            sys.executable,
            __file__,
            "--one",
            str(given.source / "distributed" / file),
            str(ranks),
            str(report),
            given.only,
        ]
        with output_file() as output:
            process = subprocess.Popen(
                tests, env=environment, start_new_session=True, stdout=output, stderr=output, cwd=folder
            )
            try:
                process.wait(timeout=FILE_LIMIT)
            except subprocess.TimeoutExpired:
                print(f"    {file} on {'unisono' if alias == '1' else 'Gloo'} was ended after {FILE_LIMIT} s")
            finally:
                try:
                    os.killpg(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
        lines = report.read_text().splitlines() if report.exists() else []
    return dict(json.loads(line) for line in lines)


def of_backends(ranks: int, alias: str, only: str) -> dict[str, str]:
    """The outcomes of PyTorch's tests of backends."""
    name = ["--as-gloo"] if alias == "1" else ["--backend", "gloo"]
    chosen = ["-k", only] if only else []
    suite = pathlib.Path(__file__).parents[1] / "with_torch" / "suite.py"
    with tempfile.NamedTemporaryFile("r") as report, output_file() as output:
        command = [
            sys.executable,
            suite,
            "--ranks",
            str(ranks),
            *name,
            "--report",
            report.name,
            "-v",
            *chosen,
        ]
        subprocess.run(command, check=False, stdout=output, stderr=output)
        return dict(json.loads(line) for line in report)


def output_file() -> IO[str]:
    """The file to which tests print."""
    return pathlib.Path(os.environ.get("UNISONO_TEST_TOLD", os.devnull)).open("a")


class Report:
    """A plug-in of pytest that writes the outcome of each test."""

    def __init__(self, path: str) -> None:
        self._path = pathlib.Path(path)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or report.outcome != "passed":
            test = report.nodeid.partition("::")[2]
            with self._path.open("a") as file:
                print(json.dumps([test, report.outcome]), file=file)


def one(file: str, ranks: str, report: str, only: str) -> int:
    """Runs one file."""
    import pytest
    import torch
    from torch.testing._internal import common_distributed
    from torch.testing._internal.distributed._tensor import common_dtensor

    get_context = torch.multiprocessing.get_context
    torch.multiprocessing.get_context = lambda method=None: get_context(
        "fork" if method == "spawn" else method
    )
    common_distributed.DEFAULT_WORLD_SIZE = int(ranks)
    common_dtensor.NUM_DEVICES = int(ranks)
    return pytest.main([file, "-q", "-p", "no:cacheprovider", "-k", only], plugins=[Report(report)])


if __name__ == "__main__":
    sys.exit(one(*sys.argv[2:]) if sys.argv[1:2] == ["--one"] else main())
