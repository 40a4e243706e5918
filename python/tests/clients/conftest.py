"""Fixtures of the tests with other packages."""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import pytest

# A shell starts its background jobs with SIGINT ignored, and their children inherit that. Set the handler as in a terminal.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Ray's processes inherit these: they send nothing to Ray's authors, and write no file to the home directory.
os.environ.update(
    RAY_USAGE_STATS_ENABLED="0",
    RAY_AUTH_MODE="disabled",
    # These tests do not need this, which takes processes.
    RAY_TRAIN_ENABLE_PREEMPTION_WATCHER="0",
    RAY_TRAIN_METRICS_ENABLED="0",
    RAY_TRAIN_HEALTH_CHECK_INTERVAL_S="0.2",
    OMP_NUM_THREADS="1",
    UNISONO_PROVIDER="tcp",
)
EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="session")
def cluster() -> Iterator[str]:
    """The address of Ray on this host."""
    import ray

    # Ray's sockets need a short path.
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        ray.init(
            num_cpus=4,
            include_dashboard=False,
            object_store_memory=80 << 20,
            log_to_driver=False,
            namespace="tests",
            _temp_dir=folder,
        )
        yield ray.get_runtime_context().gcs_address
        ray.shutdown()


def example(name: str, **environment: str) -> None:
    """Runs an example, and checks its output against its documentation."""
    path = EXAMPLES / name
    done = subprocess.run(
        [sys.executable, path],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    documented = [
        line.strip() for line in path.read_text().split('"""')[1].splitlines() if line[:4] == " " * 4
    ]
    assert documented and [line for line in documented if line not in done.stdout] == [], done.stdout
