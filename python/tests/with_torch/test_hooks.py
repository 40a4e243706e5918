"""Torch's built-in communication hooks of DistributedDataParallel give the same gradients as on Gloo."""

import pytest
import torch
import torch.distributed as dist
from test_as_gloo import as_gloo
from torch import nn
from world import CLASSES, run

KINDS = {
    "one bucket": {},
    "unused": {"bucket_cap_mb": 0.002, "find_unused_parameters": True},
    "static graph": {"bucket_cap_mb": 0.002, "static_graph": True},
    "views of 64 bits": {"bucket_cap_mb": 0.002, "gradient_as_bucket_view": True},
}


class Model(nn.Module):
    """Layers, one of which is not used."""

    def __init__(self, has_unused):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(16, 16) for _ in range(5)))
        self.unused = nn.Linear(3, 3) if has_unused else None

    def forward(self, x):
        return self.layers(x)


def gradients(hook, kind):
    """The gradients of some steps."""
    torch.manual_seed(3)
    dtype = torch.float64 if "64" in kind else torch.float32
    model = nn.parallel.DistributedDataParallel(Model(kind == "unused").to(dtype), **KINDS[kind])
    model._register_builtin_comm_hook(getattr(dist.BuiltinCommHookType, hook))
    torch.manual_seed(dist.get_rank())
    got = []
    for _ in range(2):
        model.zero_grad()
        model(torch.randn(4, 16).to(dtype)).square().sum().backward()
        used = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        got.append(torch.cat([gradient.flatten() for gradient in used]).clone())
    assert model._get_ddp_logging_data()["comm_hook"] == f"BuiltinCommHookType.{hook}"
    return [each.tolist() for each in got]


def all_gradients():
    return {(hook, kind): gradients(hook, kind) for hook in ("FP16_COMPRESS", "ALLREDUCE") for kind in KINDS}


@pytest.mark.parametrize("ranks", [2, 3])
def test_built_in_hooks_give_the_gradients_of_gloo(ranks):
    wanted = run(ranks, all_gradients, backend="gloo")
    for kind in CLASSES:
        got = run(ranks, all_gradients, env={"UNISONO_TORCH_CLASS": kind})
        assert got[0] == got[-1]
        for which, steps in wanted[0].items():
            # Sums of two numbers have only one order.
            nearness = 0 if ranks == 2 else 2e-3 if which[0] == "FP16_COMPRESS" else 1e-5
            for step, other in zip(steps, got[0][which], strict=True):
                assert other == pytest.approx(step, rel=nearness, abs=nearness), which


def of_a_bare_reducer():
    """The gradients of some steps of a reducer without a model."""
    from torch._C import _distributed_c10d as torch_s

    got = []
    for module in (dist, torch_s):
        for hook in (dist.BuiltinCommHookType.FP16_COMPRESS, dist.BuiltinCommHookType.ALLREDUCE):
            torch.manual_seed(3)
            layer = nn.Linear(16, 16)
            reducer = dist.Reducer(list(layer.parameters()), [[0], [1]], [1 << 20] * 2, dist.group.WORLD)
            module._register_builtin_comm_hook(reducer, hook)
            with pytest.raises(RuntimeError, match="can only be called once"):
                module._register_builtin_comm_hook(reducer, hook)
            torch.manual_seed(dist.get_rank())
            for _ in range(2):
                layer.zero_grad()
                out = layer(torch.randn(4, 16))
                reducer.prepare_for_backward([out])
                out.square().sum().backward()
                got += [parameter.grad.tolist() for parameter in layer.parameters()]
    with pytest.raises(TypeError):
        dist.Reducer()
    return got


def test_a_bare_reducer_has_the_hooks_too():
    wanted = run(2, of_a_bare_reducer, backend="gloo")
    for kind in CLASSES:
        assert run(2, of_a_bare_reducer, env={"UNISONO_TORCH_CLASS": kind}) == wanted, kind
        assert as_gloo(2, of_a_bare_reducer, classes=[kind]) == wanted, kind


def of_another_backend():
    # A group of Gloo beside a group of unisono keeps its hooks.
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4), process_group=dist.new_group(backend="gloo"))
    model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    model(torch.ones(2, 4)).sum().backward()
    assert model.module.weight.grad.tolist() == [[2.0] * 4] * 4


@pytest.mark.parametrize("kind", CLASSES)
def test_a_model_of_another_backend_keeps_its_hooks(kind):
    run(2, of_another_backend, env={"UNISONO_TORCH_CLASS": kind})


class Around(dist.ProcessGroup):
    """A group around another group, without backends, such as torchft's."""

    def __init__(self, group):
        super().__init__(group.rank(), group.size())
        self.group = group

    def allgather(self, *given):
        return self.group.allgather(*given)

    def allreduce(self, *given):
        return self.group.allreduce(*given)

    def broadcast(self, *given):
        return self.group.broadcast(*given)


def of_a_group_around_ours():
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4), process_group=Around(dist.group.WORLD))
    model._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
    model(torch.full((2, 4), float(dist.get_rank()))).sum().backward()
    assert model.module.weight.grad.tolist() == [[1.0] * 4] * 4


@pytest.mark.parametrize("kind", CLASSES)
def test_a_model_of_a_group_around_ours(kind):
    run(2, of_a_group_around_ours, env={"UNISONO_TORCH_CLASS": kind})
