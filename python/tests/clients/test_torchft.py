"""torchft makes a new group of `ProcessGroupGloo` when replicas come and go: with UNISONO_AS_GLOO=1 it commits the same steps as on Gloo."""

import os
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip(
    "torchft", reason="this environment was made before torchft was in it; remove it, and it is made again"
)

TRAIN = """
import hashlib
import os
import pathlib
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

replica, steps, dies = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "True" and sys.argv[1] == "1"
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(store.port))
torch.set_num_threads(1)
torch.manual_seed(replica)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 10))
group = ProcessGroupGloo(timeout=timedelta(seconds=30))

def load(state):
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])

def save():
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

manager = Manager(
    pg=group, min_replica_size=1, load_state_dict=load, state_dict=save, replica_id=f"replica_{replica}", timeout=timedelta(seconds=30)
)
ddp = DistributedDataParallel(manager, model)
optimizer = Optimizer(manager, torch.optim.AdamW(model.parameters()))
# The first quorum is of both: their heartbeats have begun.
pathlib.Path(f"ready.{replica}").touch()
while not pathlib.Path(f"ready.{1 - replica}").exists():
    time.sleep(0.05)
tried, maker = 0, None
while manager.current_step() < steps:
    tried += 1
    optimizer.zero_grad()
    nn.functional.cross_entropy(ddp(torch.randn(8, 16)), torch.randint(10, (8,))).backward()
    optimizer.step()
    maker = maker or type(group._pg._get_backend(torch.device("cpu"))).__module__.split(".")[0]
    if dies and tried == steps // 2:
        os._exit(7)
weights = b"".join(each.detach().numpy().tobytes() for each in model.parameters())
digest = hashlib.sha256(weights).hexdigest()
pathlib.Path(f"output.{replica}").write_text(f"{maker} {tried} {manager.current_step()} {manager.batches_committed()} {digest}")
manager.shutdown()
"""
STEPS = 40


def trained(folder: pathlib.Path, dies: bool) -> dict[str, list[list[str]]]:
    """The output of replicas on Gloo and on unisono, which all run at once. If it `dies`, replica 1 does so after half of the steps."""
    from torchft.coordination import LighthouseServer

    script = folder / "train.py"
    script.write_text(TRAIN)
    running, lighthouses = {}, []
    for name, alias in (("torch", "0"), ("unisono", "1")):
        (folder / name).mkdir()
        lighthouse = LighthouseServer(
            bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=60000, heartbeat_timeout_ms=5000
        )
        lighthouses.append(lighthouse)
        address = f"http://127.0.0.1:{lighthouse.address().rpartition(':')[2]}"
        for replica in range(2):
            running[name, replica] = subprocess.Popen(
                [sys.executable, script, str(replica), str(STEPS), str(dies)],
                env=os.environ | {"UNISONO_AS_GLOO": alias, "TORCHFT_LIGHTHOUSE": address},
                cwd=folder / name,
                stdout=subprocess.DEVNULL,
                stderr=(folder / f"{name}.{replica}").open("w"),
            )
    try:
        for (name, replica), process in running.items():
            wanted = 7 if dies and replica == 1 else 0
            assert process.wait(timeout=150) == wanted, (folder / f"{name}.{replica}").read_text()
    finally:
        for process in running.values():
            process.kill()
        for lighthouse in lighthouses:
            lighthouse.shutdown()
    outcome: dict[str, list[list[str]]] = {}
    for name, replica in running:
        if not dies or replica == 0:
            outcome.setdefault(name, []).append((folder / name / f"output.{replica}").read_text().split())
    return outcome


@pytest.mark.parametrize("dies", [False, True])
def test_replicas_commit_what_they_commit_on_gloo(tmp_path: pathlib.Path, dies: bool) -> None:
    output = trained(tmp_path, dies)
    for name, replicas in output.items():
        for made, tried, step, batches, digest in replicas:
            assert (made, int(tried), int(step)) == (name, STEPS, STEPS), output
            assert int(batches) == (STEPS * 3 // 2 if dies else STEPS * 2), output
            assert digest == output["torch"][0][4], output
