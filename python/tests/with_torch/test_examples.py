"""Every example runs, with 2 and with 4 ranks."""

import os
import pathlib
import runpy
import sys

import pytest
import torch.distributed as dist
from world import run

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"


def example(name, port):
    rank, ranks = os.environ["RANK"], os.environ["WORLD_SIZE"]
    # This test serves the store, as torchrun's agent does.
    os.environ.update(
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        TORCHELASTIC_USE_AGENT_STORE="True",
        LOCAL_RANK=rank,
        LOCAL_WORLD_SIZE=ranks,
    )
    sys.argv = [name]
    log = pathlib.Path(os.environ["UNISONO_TEST_FOLDER"], f"{rank}.log")
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    sys.stdout.flush()
    return log.read_text()


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_the_example_runs(name):
    for ranks in (2, 4):
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        output = run(ranks, example, name, store.port, init=False)
        documented = runpy_doc(EXAMPLES / name)
        missing = [line for line in documented if line not in output[0]]
        assert not missing, (missing, output[0])


def runpy_doc(path):
    """The output in the example's documentation."""
    text = path.read_text().split('"""')[1]
    return [line.strip() for line in text.splitlines() if line.startswith("    ") and "torchrun" not in line]
