"""Lightning and accelerate, by the names that users write: unisono, and gloo with UNISONO_AS_GLOO=1."""

import os
import pathlib
import subprocess
import sys

import pytest

LIGHTNING = """
import sys

import lightning
import torch
import torch.distributed as dist
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.pytorch.strategies import DDPStrategy

class Model(BoringModel):
    def training_step(self, batch, number):
        loss = super().training_step(batch, number)["loss"]
        self.log("loss", loss, sync_dist=True)
        return loss

lightning.seed_everything(1, verbose=False)
trainer = lightning.Trainer(
    accelerator="cpu", devices=2, strategy=DDPStrategy(process_group_backend=sys.argv[1]), max_epochs=1,
    limit_train_batches=8, limit_val_batches=2, logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False,
)
model = Model()
trainer.fit(model)
every = [None, None]
dist.all_gather_object(every, [each.tolist() for each in model.parameters()])
assert every[0] == every[1]
maker = type(dist.group.WORLD._get_backend(torch.device("cpu")))
with open(f"output.{dist.get_rank()}", "w") as output:
    print(dist.get_backend(), maker.__module__.split(".")[0], float(trainer.callback_metrics["loss"]) > 0, file=output)
"""

ACCELERATE = """
import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import gather_object

accelerator = Accelerator(cpu=True)
torch.manual_seed(accelerator.process_index)
model = torch.nn.Linear(4, 1)
data = torch.utils.data.DataLoader([(torch.rand(4), torch.ones(1)) for _ in range(64)], batch_size=4)
model, optimizer, data = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), data)
for x, y in data:
    optimizer.zero_grad()
    accelerator.backward(torch.nn.functional.mse_loss(model(x), y))
    optimizer.step()
weights = torch.cat([each.flatten() for each in model.parameters()]).detach()
both = accelerator.gather(weights).view(2, -1)
assert torch.equal(both[0], both[1])
assert gather_object([accelerator.process_index]) == [0, 1]
accelerator.wait_for_everyone()
maker = type(dist.group.WORLD._get_backend(torch.device("cpu")))
with open(f"output.{dist.get_rank()}", "w") as output:
    print(dist.get_backend(), maker.__module__.split(".")[0], len(data) == 8, file=output)
accelerator.end_training()
"""


def runs(folder: pathlib.Path, script: str, launcher: list[str], name: str) -> None:
    """Runs a script with a backend's name; each of its two ranks writes the name and the module of its group."""
    path = folder / "train.py"
    path.write_text(script)
    done = subprocess.run(
        [sys.executable, *launcher, str(path), name],
        env=os.environ | {"UNISONO_AS_GLOO": str(int(name == "gloo"))},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    output = {each.name: each.read_text() for each in folder.glob("output.*")}
    assert output == dict.fromkeys(["output.0", "output.1"], f"{name} unisono True\n")


@pytest.mark.parametrize("name", ["unisono", "gloo"])
def test_lightning(tmp_path: pathlib.Path, name: str) -> None:
    runs(tmp_path, LIGHTNING, [], name)


def test_accelerate_launch(tmp_path: pathlib.Path) -> None:
    # Its launcher starts several processes of a host only for several GPUs; the script uses the CPU. Then it accepts no
    # name but gloo.
    launcher = [
        "-m",
        "accelerate.commands.launch",
        "--multi_gpu",
        "--num_processes",
        "2",
        "--main_process_port",
        "0",
    ]
    runs(tmp_path, ACCELERATE, launcher, "gloo")
