"""Every example for arrays runs, with 2 and with 4 ranks, and prints the output in its documentation."""

import pathlib
import sys

import pytest
from conftest import Run

EXAMPLES = pathlib.Path(__file__).parents[1] / "examples" / "arrays"


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_the_example_runs(python: Run, name: str, ranks: int) -> None:
    command = ["-m", "unisono", "run", "-n", str(ranks), sys.executable, str(EXAMPLES / name)]
    done = python(*command, set={"UNISONO_PROVIDER": "tcp", "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    documented = [
        line.strip()
        for line in (EXAMPLES / name).read_text().split('"""')[1].splitlines()
        if line.startswith("    ")
    ]
    assert documented and sorted(done.stdout.splitlines()) == sorted(documented)


def test_numpy_is_not_needed(python: Run) -> None:
    program = pathlib.Path(__file__).with_name("without_numpy.py")
    done = python("-m", "unisono", "run", "-n", "2", sys.executable, str(program))
    assert done.returncode == 0, done.stderr
    output = [line.removeprefix("[0] ") for line in done.stdout.splitlines() if line.startswith("[0] ")]
    assert output == [
        "TypeError all_reduce: an object with the buffer protocol is wanted, not float",
        "TypeError all_reduce: an object with the buffer protocol is wanted, not str",
        "ValueError all_reduce: the memory of this memoryview is not contiguous",
        "TypeError all_reduce: an object with the buffer protocol is wanted, not list",
    ]


def test_the_import_loads_no_numpy(python: Run) -> None:
    done = python("-c", "import sys, unisono; print('numpy' in sys.modules, 'asyncio' in sys.modules)")
    assert done.stdout == "False False\n", done
