"""Ray Train by the names that users write: unisono, and gloo with UNISONO_AS_GLOO=1."""

import pathlib
import sys

import ray
import torch
from conftest import example
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])


def fit() -> tuple[str, str]:
    """Returns the name and the module of the group; its workers have the same weights after steps of DDP."""
    import torch.distributed as dist
    from ray.train.torch import prepare_model

    torch.manual_seed(dist.get_rank())
    model = prepare_model(torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.rand(20, 3)).square().mean().backward()
        optimizer.step()
    weights = torch.cat([each.flatten() for each in model.parameters()]).detach()
    every = [torch.empty_like(weights) for _ in range(2)]
    dist.all_gather(every, weights)
    assert torch.equal(*every)
    maker = type(dist.group.WORLD._get_backend(torch.device("cpu")))
    return dist.get_backend(), maker.__module__.split(".")[0]


def test_by_name(cluster: str) -> None:
    example("ray/train.py", RAY_ADDRESS=cluster)


def test_as_gloo(cluster: str, tmp_path: pathlib.Path) -> None:
    trainer = TorchTrainer(
        fit,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            storage_path=str(tmp_path), worker_runtime_env={"env_vars": {"UNISONO_AS_GLOO": "1"}}
        ),
    )
    assert trainer.fit().return_value == ("gloo", "unisono")
