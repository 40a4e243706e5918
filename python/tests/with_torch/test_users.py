"""Features of torch on top of c10d: DDP, FSDP2, DTensor, checkpoints, functional collectives, groups, the profiler, the flight recorder."""

import copy
import json
import os
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from test_traps import both
from torch import nn
from unisono.torch import _devices
from world import CLASSES, HAS_BACKENDS, join, newer, run

SIZE = 40


def model():
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(SIZE, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))


def batches(rank):
    generator = torch.Generator().manual_seed(rank)
    return [
        (torch.randn(8, SIZE, generator=generator), torch.randint(3, (8,), generator=generator))
        for _ in range(6)
    ]


def losses_of(net, optimizer, rank):
    losses = []
    for inputs, labels in batches(rank):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(inputs), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def ddp(**options):
    net = nn.parallel.DistributedDataParallel(model(), bucket_cap_mb=0.01, **options)
    losses = losses_of(net, torch.optim.SGD(net.parameters(), lr=0.1), dist.get_rank())
    return losses, [parameter.tolist() for parameter in net.parameters()]


def test_the_losses_of_ddp_are_those_over_gloo():
    wanted = run(2, ddp, backend="gloo")
    for kind in ("process-group", "backend"):
        got = run(2, ddp, env={"UNISONO_TORCH_CLASS": kind})
        assert got == wanted, "bit for bit"


def ddp_in_its_ways():
    rank = dist.get_rank()
    plain, _ = ddp()
    for options in (
        {"gradient_as_bucket_view": True},
        {"static_graph": True},
        {"find_unused_parameters": True},
    ):
        losses, _ = ddp(**options)
        assert losses == plain, options
    # Test a hook that compresses, and the gradients of a sparse embedding.
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    net = nn.parallel.DistributedDataParallel(model())
    net.register_comm_hook(None, default_hooks.bf16_compress_hook)
    losses = losses_of(net, torch.optim.SGD(net.parameters(), lr=0.1), rank)
    assert all(abs(one - other) < 0.05 for one, other in zip(losses, plain, strict=True))
    torch.manual_seed(7)
    net = nn.parallel.DistributedDataParallel(nn.EmbeddingBag(50, 4, sparse=True, mode="sum"))
    net(torch.tensor([[rank, 7], [3, rank + 10]])).sum().backward()
    gradient = net.module.weight.grad.to_dense()
    assert gradient[7].tolist() == [1.0] * 4 and gradient[0].tolist() == [0.5] * 4
    # Ranks with fewer batches take part by Join.
    from torch.distributed.algorithms.join import Join

    net = nn.parallel.DistributedDataParallel(model())
    with Join([net]):
        for inputs, labels in batches(rank)[: 2 + rank]:
            nn.functional.cross_entropy(net(inputs), labels).backward()


def test_ddp_in_all_its_ways():
    run(2, ddp_in_its_ways)


def fsdp():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    rank, whole = dist.get_rank(), model()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    sharded = copy.deepcopy(whole)
    for layer in sharded:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    optimizer = torch.optim.SGD(sharded.parameters(), lr=0.1)
    losses = losses_of(sharded, optimizer, rank)
    reference = nn.parallel.DistributedDataParallel(whole)
    wanted = losses_of(reference, torch.optim.SGD(reference.parameters(), lr=0.1), rank)
    assert all(abs(one - other) < 1e-5 for one, other in zip(losses, wanted, strict=True)), (losses, wanted)
    for one, other in zip(sharded.parameters(), whole.parameters(), strict=True):
        assert torch.allclose(one.full_tensor(), other, atol=1e-5)


@pytest.mark.parametrize("ranks", [2, 4])
def test_fsdp2_gives_what_ddp_gives(ranks):
    both(ranks, fsdp)


def dtensors():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    ranks = dist.get_world_size()
    mesh = init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("rows", "columns"))
    whole = torch.arange(64.0).reshape(8, 8)
    spread = distribute_tensor(whole, mesh, [Shard(0), Shard(1)])
    assert torch.equal(spread.full_tensor(), whole)
    other = spread.redistribute(mesh, [Replicate(), Shard(0)])
    assert torch.equal(other.full_tensor(), whole)
    product = distribute_tensor(whole, mesh, [Shard(0), Replicate()]) @ distribute_tensor(
        whole, mesh, [Replicate(), Shard(1)]
    )
    assert torch.allclose(product.full_tensor(), whole @ whole)
    swapped = distribute_tensor(whole, mesh["rows"], [Shard(0)]).redistribute(mesh["rows"], [Shard(1)])
    assert torch.equal(swapped.full_tensor(), whole)
    assert torch.equal(spread.sum().full_tensor(), whole.sum())


def test_dtensors():
    both(4, dtensors)


def functional():
    from torch.distributed import _functional_collectives as functional

    rank, ranks, group = dist.get_rank(), dist.get_world_size(), dist.group.WORLD
    total = float(sum(range(ranks)))
    assert functional.all_reduce(torch.full((3,), float(rank)), "sum", group).tolist() == [total] * 3
    gathered = functional.all_gather_tensor(torch.full((2,), rank), 0, group)
    assert gathered.tolist() == [other for other in range(ranks) for _ in range(2)]
    part = functional.reduce_scatter_tensor(torch.arange(float(ranks)), "sum", 0, group)
    assert part.tolist() == [float(ranks * rank)]
    exchanged = functional.all_to_all_single(torch.full((ranks,), rank), None, None, group)
    assert exchanged.tolist() == list(range(ranks))
    several = functional.all_reduce_coalesced(
        [torch.full((2,), float(rank)), torch.full((1,), float(rank))], "sum", group
    )
    assert [tensor[0].item() for tensor in several] == [total, total]
    assert functional.broadcast(torch.full((2,), rank), 1, group).tolist() == [1, 1]


def test_functional_collectives():
    both(3, functional)


def sharded_tensors():
    from torch.distributed._shard import sharded_tensor
    from torch.distributed._shard.sharding_spec import ChunkShardingSpec

    # Other tests of this process may have set another device.
    dist.Backend.backend_capability["unisono"] = _devices.types()
    join(f"file://{os.environ['UNISONO_TEST_FOLDER']}/store")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    places = [f"rank:{each}/cpu" for each in range(ranks)]
    sharded = sharded_tensor.full(ChunkShardingSpec(dim=0, placements=places), (4 * ranks, 3), 5.0)
    # Torch assumes that the backend's device exists.
    whole = torch.zeros(4 * ranks, 3) if rank == 0 else None
    sharded.gather(out=whole)
    assert whole is None or bool((whole == 5).all())
    dist.destroy_process_group()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_sharded_tensors_are_gathered_where_there_is_no_gpu(monkeypatch):
    monkeypatch.setattr(_devices, "DEVICES", {"cuda": _devices.Cuda})
    for kind in CLASSES:
        run(2, sharded_tensors, init=False, env={"UNISONO_TORCH_CLASS": kind})


def checkpoints(folder):
    from torch.distributed import checkpoint
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    whole = torch.arange(40.0).reshape(10, 4)
    state = {"weights": distribute_tensor(whole, mesh, [Shard(0)]), "step": 7, "plain": torch.ones(3)}
    checkpoint.save(state, checkpoint_id=f"{folder}/one")
    future = checkpoint.async_save(state, checkpoint_id=f"{folder}/two")
    future = getattr(future, "upload_completion", future)
    future.result()
    for name in ("one", "two"):
        read = {
            "weights": distribute_tensor(torch.zeros(10, 4), mesh, [Shard(0)]),
            "step": 0,
            "plain": torch.zeros(3),
        }
        checkpoint.load(read, checkpoint_id=f"{folder}/{name}")
        assert (
            torch.equal(read["weights"].full_tensor(), whole)
            and read["step"] == 7
            and (read["plain"] == 1).all()
        )


def test_checkpoints_also_asynchronous_ones(tmp_path):
    for kind in ("process-group", "backend"):
        run(2, checkpoints, str(tmp_path / kind), env={"UNISONO_TORCH_CLASS": kind})


def groups():
    rank, ranks = dist.get_rank(), dist.get_world_size()
    even, odd = [0, 2], [1, 3]
    pairs = [dist.new_group(even), dist.new_group(odd)]
    mine = pairs[rank % 2]
    tensor = torch.ones(1) * rank
    dist.all_reduce(tensor, group=mine)
    assert tensor.item() == sum(odd if rank % 2 else even)
    assert dist.get_process_group_ranks(mine) == (odd if rank % 2 else even)
    # Only the members make this call.
    if rank < 2:
        alone = dist.new_group([0, 1], use_local_synchronization=True)
        dist.all_reduce(tensor, group=alone)
        dist.destroy_process_group(alone)
    half, _ = dist.new_subgroups(2)
    tensor = torch.ones(1) * rank
    dist.all_reduce(tensor, group=half)
    assert tensor.item() == 4 * (rank // 2) + 1
    part = dist.group.WORLD.split_group([1, 3] if rank % 2 else [0, 2], group_name="split")
    tensor = torch.ones(1) * rank
    part.broadcast(tensor, 1).wait()
    assert tensor.item() == rank % 2 + 2
    assert part.size() == 2 and part.rank() == rank // 2
    part.shutdown()
    for timeout in (timedelta(seconds=5), timedelta(seconds=7)):
        group = dist.new_group(timeout=timeout)
        assert group._get_backend(torch.device("cpu")).options._timeout == timeout
    for _ in range(50):
        group = dist.new_group()
        dist.all_reduce(torch.ones(1), group=group)
        dist.destroy_process_group(group)
    before = len(os.listdir("/proc/self/fd"))
    many = [dist.new_group() for _ in range(50)]
    assert len(os.listdir("/proc/self/fd")) == before
    for group in many:
        tensor = torch.ones(1)
        dist.all_reduce(tensor, group=group)
        assert tensor.item() == ranks


def test_groups_are_made_by_their_members_and_cost_no_descriptors():
    both(4, groups)


def mixed():
    """A group with another backend of torch for another device."""
    group = dist.group.WORLD
    assert type(group) is dist.ProcessGroup
    tensor = torch.ones(2)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [2.0, 2.0]
    part = dist.new_group([0, 1])
    dist.all_reduce(tensor, group=part)
    assert tensor.tolist() == [4.0, 4.0]


@newer
def test_a_group_with_several_backends():
    run(2, mixed, backend="cpu:unisono,cuda:gloo")


def refused():
    with pytest.raises(ValueError, match="lets no backend of Python's stand beside others"):
        join("tcp://127.0.0.1:0", backend="cpu:unisono,cuda:gloo")


@pytest.mark.skipif(HAS_BACKENDS, reason="this torch has groups of several backends")
def test_an_older_torch_refuses_a_group_with_several_backends():
    run(1, refused, init=False)


def beside_gloo():
    """A part of a world with another backend."""
    rank = dist.get_rank()
    group = dist.new_group([0, 2], backend="unisono")
    if rank != 1:
        tensor = torch.ones(1) * rank
        dist.all_reduce(tensor, group=group)
        assert tensor.item() == 2
    dist.barrier()


def test_a_group_of_a_world_over_gloo():
    run(3, beside_gloo, backend="gloo")


def profiled():
    tensor = torch.ones(4, 2)
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True
    ) as profile:
        dist.all_reduce(tensor)
        dist.broadcast(tensor, src=0)
    events = {event.name: event for event in profile.events() if event.name.startswith("unisono:")}
    assert set(events) == {"unisono:all_reduce", "unisono:broadcast"}, [
        event.name for event in profile.events()
    ]
    assert events["unisono:all_reduce"].input_shapes == [[4, 2]]


def test_calls_are_events_of_the_profiler():
    both(2, profiled)


def recorded():
    from torch._C._distributed_c10d import _dump_fr_trace_json

    tensor = torch.ones(4)
    dist.all_reduce(tensor)
    dist.all_reduce(tensor)
    backend = dist.get_backend()
    output = json.loads(_dump_fr_trace_json(True, False, backend))
    names = [entry["profiling_name"] for entry in output["entries"]]
    assert sum("all" in name and "reduce" in name for name in names) == 2, output


@newer
def test_the_flight_recorder_records():
    run(2, recorded, env={"TORCH_FR_BUFFER_SIZE": "100"})
