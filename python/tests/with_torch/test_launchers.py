"""Runs the commands for launchers in docs/pytorch.md unchanged, with replacements for the programs of Slurm."""

import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile

PAGE = pathlib.Path(__file__).parents[3] / "docs/pytorch.md"

TRAIN = """
import os
import torch
import torch.distributed as dist
import unisono.torch  # for torch before 2.14
dist.init_process_group("unisono")
tensor = torch.ones(3)
dist.all_reduce(tensor)
assert tensor.tolist() == [dist.get_world_size()] * 3
with open(f"done.{dist.get_rank()}", "w") as done:
    done.write(f"{dist.get_world_size()} {os.environ['LOCAL_RANK']}")
dist.destroy_process_group()
"""

# Starts the hosts and tasks of the job, all on this host.
SRUN = """#!/bin/bash
status=0
for ((task = 0; task < SLURM_NTASKS; task++)); do
  SLURM_PROCID=$task SLURM_LOCALID=$((task % SLURM_NTASKS_PER_NODE)) "$@" &
  tasks+=($!)
done
for task in "${tasks[@]}"; do wait "$task" || status=1; done
exit $status
"""

SCONTROL = """#!/bin/bash
[ "$*" = 'show hostnames here,there' ] && printf '127.0.0.1\\n127.0.0.2\\n'
"""


def scripts():
    """The shell scripts of the page's section on Slurm."""
    section = re.search(r"^## Slurm\n(.*?)^## ", PAGE.read_text(), re.DOTALL | re.MULTILINE)[1]
    batch, line = re.findall(r"```bash\n(.*?)```", section, re.DOTALL)
    return batch, line


def job(script, hosts, tasks):
    """Runs a batch script; returns the output of each rank."""
    with tempfile.TemporaryDirectory() as folder:
        bin = pathlib.Path(folder, "bin")
        bin.mkdir()
        programs = {
            "srun": SRUN,
            "scontrol": SCONTROL,
            "python": f'#!/bin/bash\nexec {sys.executable} "$@"\n',
            "torchrun": f'#!/bin/bash\nexec {sys.executable} -m torch.distributed.run "$@"\n',
        }
        for name, text in programs.items():
            (bin / name).write_text(text)
            (bin / name).chmod(0o755)
        pathlib.Path(folder, "train.py").write_text(TRAIN)
        environment = {
            **os.environ,
            "PATH": f"{bin}:{os.environ['PATH']}",
            "UNISONO_PROVIDER": "tcp",
            "SLURM_JOB_ID": str(free_port() + 10000),
            "SLURM_JOB_NODELIST": "here,there",
            "SLURM_NNODES": str(hosts),
            "SLURM_NTASKS": str(hosts * tasks),
            "SLURM_NTASKS_PER_NODE": str(tasks),
        }
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
            environment.pop(name, None)
        run = subprocess.Popen(
            ["bash", "-c", script], cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, start_new_session=True,
        )  # fmt: skip
        try:
            outcome, _ = run.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            os.killpg(run.pid, signal.SIGKILL)
            outcome = run.communicate()[0] + "\nended after 120 s"
        assert run.returncode == 0, outcome
        return {path.name: path.read_text() for path in pathlib.Path(folder).glob("done.*")}


def free_port():
    """A free port among those that the script takes: 20000 to 29999."""
    for port in range(20000 + os.getpid() % 9000, 30000):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no port of 20000 to 29999 is free")


def test_the_batch_script():
    batch, _ = scripts()
    assert job(batch, 2, 2) == {"done.0": "4 0", "done.1": "4 1", "done.2": "4 0", "done.3": "4 1"}


def test_the_batch_script_with_torchrun():
    batch, line = scripts()
    script = re.sub(
        r"^srun .*\n", lambda _: line.replace("per-node 4", "per-node 2"), batch, flags=re.MULTILINE
    )
    assert script != batch
    done = job(script, 2, 1)
    # Agents number themselves in the order in which they come.
    assert sorted(done) == [f"done.{rank}" for rank in range(4)]
    assert sorted(done.values()) == ["4 0", "4 0", "4 1", "4 1"]


def test_unisono_run():
    """`unisono run` sets the address of torch's store, also if a pod or a shell has set another one."""
    environment = os.environ | {"MASTER_ADDR": "nowhere.invalid", "MASTER_PORT": "1"}
    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.run(
            [sys.executable, "-m", "unisono", "run", "-n", "2", sys.executable, "-c", TRAIN],
            cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert run.returncode == 0, run.stderr
        assert sorted(os.listdir(folder)) == ["done.0", "done.1"]
