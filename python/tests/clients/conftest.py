"""What the tests with other packages share."""

import os
import pathlib
import signal
import subprocess
import sys

# A shell starts its background jobs with SIGINT ignored, and every program after them inherits that: as in a terminal again.
signal.signal(signal.SIGINT, signal.default_int_handler)

# What Ray's processes inherit. Nothing is sent to its makers, and no file is written to the home directory.
os.environ.update(
    RAY_USAGE_STATS_ENABLED="0",
    RAY_AUTH_MODE="disabled",
    RAY_DEDUP_LOGS="0",
    OMP_NUM_THREADS="1",
    UNISONO_PROVIDER="tcp",
)
EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"


def example(name: str) -> None:
    """Runs an example, which prints what it says."""
    path = EXAMPLES / name
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    documented = [
        line.strip() for line in path.read_text().split('"""')[1].splitlines() if line[:4] == " " * 4
    ]
    assert documented and [line for line in documented if line not in done.stdout] == [], done.stdout
