"""Ray Train with unisono by its name: workers fit a line to points, each to its own, by DDP.

python train.py

    2 workers on unisono fitted y = 3.00 x + 1.00
"""

import tempfile

import torch
import torch.distributed as dist
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, prepare_model


def fit(config: dict) -> tuple[str, float, float]:
    """What each worker does."""
    torch.manual_seed(dist.get_rank())
    x = torch.rand(1000, 1)
    y = 3 * x + 1
    # DDP, which averages gradients over the workers.
    model = prepare_model(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=config["rate"])
    for _ in range(config["steps"]):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    weight, bias = (each.item() for each in model.parameters())
    return dist.get_backend(), weight, bias


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        trainer = TorchTrainer(
            fit,
            train_loop_config={"rate": 0.5, "steps": 200},
            torch_config=TorchConfig(backend="unisono"),
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(storage_path=folder),
        )
        backend, weight, bias = trainer.fit().return_value
    print(f"2 workers on {backend} fitted y = {weight:.2f} x + {bias:.2f}")
