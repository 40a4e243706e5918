"""Tensors of devices, staged through pinned memory: with a simulated device, whose copies run as late as allowed, and on a GPU if there is one."""

import os
import threading
import time
from datetime import timedelta

import late
import pytest
import torch
import torch.distributed as dist
from test_calls import MOVED, everything
from torch import nn
from unisono.torch import ProcessGroup, _chunks, _devices, _staging
from world import CLASSES, newer, run

# With this, torch asks the driver's library, so that forks may use the GPU.
os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU of CUDA")
DEVICES = ["late", pytest.param("cuda", marks=needs_gpu)]


class Cuda:
    """The same as the module `late` for a GPU."""

    FAULTS = ()

    def __init__(self):
        torch.cuda.set_device(int(os.environ["RANK"]) % torch.cuda.device_count())

    def put(self, values):
        return values.cuda(non_blocking=True)

    def view(self, tensor):
        return tensor

    def write(self, tensor, values):
        return tensor.copy_(values, non_blocking=True)

    def read(self, tensor):
        copy = tensor.clone()
        return copy.cpu


def on(name, chunk, body, *args):
    """Runs a body with a device, in chunks of this many bytes."""
    device = late if name == "late" else Cuda()
    _chunks.CHUNK = chunk
    result = body(device, *args)
    assert not device.FAULTS, device.FAULTS
    return result


def ran(ranks, name, body, *args, chunk=64, kind="process-group", **more):
    return run(ranks, on, name, chunk, body, *args, env={"UNISONO_TORCH_CLASS": kind}, **more)


def moves(device):
    def home(tensor):
        return device.read(tensor)()

    def strided(tensor):
        wide = device.put(tensor.unsqueeze(-1).repeat(*[1] * tensor.dim(), 3))
        # On the simulated device, a copy that makes a tensor contiguous runs at once.
        device.read(wide)()
        return device.view(wide[..., 1])

    # Torch views complex tensors as real ones, which the simulated device does not see.
    dtypes = [dtype for dtype in MOVED if device is not late or not dtype.is_complex]
    for dtype in dtypes if dist.get_world_size() == 3 else [torch.float32, torch.bool]:
        everything(dtype, device.put, (9, 5), home)
    everything(torch.float32, strided, (9, 5), home)


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("name", DEVICES)
def test_every_call_moves_tensors_of_a_device(name, kind):
    for ranks in (1, 2, 3):
        ran(ranks, name, moves, kind=kind)


def reduces(device):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    total = ranks * (ranks + 1) // 2
    for count in (0, 1, 15, 16, 17, 200):
        for dtype in (torch.float32, torch.int64, torch.bfloat16, torch.complex128):
            mine = (torch.arange(count) % 7 * (rank + 1)).to(dtype)
            whole = (torch.arange(count) % 7 * total).to(dtype)
            tensor = device.put(mine)
            dist.group.WORLD.allreduce([tensor]).wait()
            assert torch.equal(device.read(tensor)(), whole), (count, dtype)
            tensor = device.put(mine)
            dist.group.WORLD.reduce([tensor], ranks - 1).wait()
            assert torch.equal(device.read(tensor)(), whole if rank == ranks - 1 else mine), (count, dtype)
            part = device.put(torch.zeros(count, dtype=dtype))
            dist.reduce_scatter_tensor(part, device.put(mine.repeat(ranks)))
            assert torch.equal(device.read(part)(), whole), (count, dtype)
            part = device.put(torch.zeros(count + rank, dtype=dtype))
            dist.reduce_scatter(
                part, [device.put(torch.full((count + other,), rank + 1).to(dtype)) for other in range(ranks)]
            )
            assert torch.equal(device.read(part)(), torch.full((count + rank,), total).to(dtype))
    tensor = device.put(torch.full((40,), float(rank)))
    dist.all_reduce(tensor, dist.ReduceOp.MAX)
    assert device.read(tensor)().tolist() == [ranks - 1.0] * 40
    tensors = [device.put(torch.full((count,), rank + 1)) for count in (3, 50, 0, 7)]
    tensors.append(device.put(torch.full((20,), rank + 1.0)))
    dist.group.WORLD.allreduce_coalesced(tensors).wait()
    assert all((device.read(tensor)() == total).all() for tensor in tensors)
    outputs = [device.put(torch.zeros(count * ranks)) for count in (3, 50)]
    inputs = [device.put(torch.full((count,), float(rank))) for count in (3, 50)]
    dist.group.WORLD.all_gather_single_coalesced(outputs, inputs).wait()
    for output, count in zip(outputs, (3, 50), strict=True):
        wanted = torch.arange(ranks).repeat_interleave(count).float()
        assert torch.equal(device.read(output)(), wanted)
    parts = [device.put(torch.zeros(count)) for count in (3, 50)]
    wholes = [device.put(torch.arange(ranks).repeat_interleave(count) + float(rank + 1)) for count in (3, 50)]
    dist.group.WORLD.reduce_scatter_single_coalesced(parts, wholes).wait()
    assert all((device.read(part)() == ranks * rank + total).all() for part in parts)


@pytest.mark.parametrize("name", DEVICES)
def test_reductions_of_all_lengths(name):
    for ranks in (1, 2, 3):
        ran(ranks, name, reduces)


def in_order(device):
    """Calls keep their order, whether their tensors are on the device or not, and see what the stream wrote before them."""
    device.DELAY = 0.005
    rank, ranks = dist.get_rank(), dist.get_world_size()
    tensor, plain, works, seen = device.put(torch.zeros(300)), torch.zeros(5), [], []
    for round in range(10):
        device.write(tensor, torch.full((300,), float(rank + round)))
        before = device.read(tensor)
        works.append(dist.all_reduce(tensor, async_op=True))
        plain.fill_(rank)
        dist.all_reduce(plain)
        assert plain.tolist() == [ranks * (ranks - 1) / 2] * 5
        works[-1].wait()
        seen.append((round, before, device.read(tensor)))
    for round, before, after in seen:
        assert (before() == rank + round).all(), "what was read before the call is as it was"
        assert (after() == ranks * (ranks - 1) / 2 + ranks * round).all(), round
    assert all(work.is_completed() or not hasattr(work, "_natives") for work in works)
    # Many at once, of all sizes.
    tensors = [device.put(torch.full((size,), float(size + rank))) for size in range(1, 200, 7)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    dist.barrier()
    for work, tensor in zip(works, tensors, strict=True):
        work.wait()
        assert (device.read(tensor)() == ranks * len(tensor) + ranks * (ranks - 1) / 2).all()


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("name", DEVICES)
def test_calls_keep_their_order(name, kind):
    ran(3, name, in_order, chunk=256, kind=kind)


def messages(device):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % ranks, (rank - 1) % ranks
    # All receive before they send, with one tag and two, more than goes into pinned memory at once.
    inputs = [device.put(torch.full((size,), 100.0 * rank + size)) for size in (500, 3, 700)]
    outputs = [device.put(torch.zeros(size)) for size in (500, 3, 700)]
    works = [dist.irecv(output, left, tag=7) for output in outputs]
    works += [dist.irecv(torch.zeros(2), left, tag=8)]
    works += [dist.isend(given, right, tag=7) for given in inputs]
    works += [dist.isend(torch.ones(2), right, tag=8)]
    for work in works:
        work.wait()
    for output in outputs:
        assert (device.read(output)() == 100.0 * left + len(output)).all()
    # One on the device and one in main memory, both of one tag.
    first, second = device.put(torch.zeros(400)), torch.zeros(3)
    works = [dist.irecv(first, left), dist.irecv(second, left)]
    works += [dist.isend(device.put(torch.ones(400)), right), dist.isend(torch.full((3,), 2.0), right)]
    for work in works:
        work.wait()
    assert (device.read(first)() == 1).all() and second.tolist() == [2.0] * 3


def from_any(device):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        outputs = [device.put(torch.zeros(300)) for _ in range(2 * (ranks - 1))]
        works = [dist.irecv(output) for output in outputs]
        last = device.put(torch.zeros(300))
        after = dist.irecv(last, 1)
        for work in works:
            work.wait()
        # Only now does rank 1 send another message, which none of the receives above can take.
        dist.send(torch.ones(1), 1, tag=9)
        after.wait()
        values = []
        for output in outputs:
            value = device.read(output)()
            assert (value == value[0]).all(), "chunks of one sender"
            values.append(int(value[0]))
        assert sorted(values) == sorted([*range(1, ranks)] * 2)
        assert [work.source_rank() for work in works] == values
        assert (device.read(last)() == 10).all()
    else:
        for _ in range(2):
            dist.send(device.put(torch.full((300,), float(rank))), 0)
        if rank == 1:
            dist.recv(torch.zeros(1), 0, tag=9)
            dist.send(device.put(torch.full((300,), 10.0)), 0)


@pytest.mark.parametrize("name", DEVICES)
def test_messages_of_many_chunks(name):
    for ranks in (2, 3):
        ran(ranks, name, messages)


@pytest.mark.parametrize("name", DEVICES)
def test_messages_from_any_rank(name):
    for ranks in (2, 4):
        ran(ranks, name, from_any)


def dropped(device):
    """A work and its tensor may be dropped at once."""
    device.DELAY = 0.005
    rank, kept = dist.get_rank(), []
    for round in range(5):
        tensor = device.put(torch.full((200,), float(rank + round)))
        kept.append(device.put(torch.full((200,), float(rank + round))))
        dist.all_reduce(tensor, async_op=True)
        dist.all_reduce(kept[-1], async_op=True)
        del tensor
    tensor = device.put(torch.ones(1))
    dist.all_reduce(tensor)
    device.read(tensor)()
    for round, tensor in enumerate(kept):
        until = time.monotonic() + 10
        while not (device.read(tensor)() == 1 + 2 * round).all() and time.monotonic() < until:
            dist.group.WORLD.barrier().wait()
        assert (device.read(tensor)() == 1 + 2 * round).all()


@pytest.mark.parametrize("name", DEVICES)
def test_a_dropped_work_is_safe(name):
    ran(2, name, dropped)


def inference(device):
    with torch.inference_mode():
        wide = device.put(torch.full((50, 3), float(dist.get_rank())))
        device.read(wide)()
        plain, column = device.put(torch.ones(50)), device.view(wide[..., 1])
        works = [dist.all_reduce(tensor, async_op=True) for tensor in (plain, column)]
        for work in works:
            work.wait()
        assert (device.read(plain)() == 2).all() and (device.read(column)() == 1).all()
        assert (device.read(wide)()[:, 0] == dist.get_rank()).all()


@pytest.mark.parametrize("name", DEVICES)
def test_tensors_of_inference_mode(name):
    ran(2, name, inference)


def futures(device):
    rank = dist.get_rank()
    tensor = device.put(torch.full((100,), float(rank)))
    seen = threading.Event()
    future = dist.all_reduce(tensor, async_op=True).get_future()
    then = future.then(lambda done: (seen.set(), done.value())[1])
    (value,) = then.wait()
    assert seen.wait(10) and (device.read(value)() == 1).all()
    if not isinstance(dist.group.WORLD, ProcessGroup):
        return  # Torch treats the error of a backend's future as its value.
    future = dist.all_reduce(device.put(torch.ones(5 + rank)), async_op=True).get_future()
    with pytest.raises(RuntimeError, match="rank 0 has 5 elements, rank 1 has 6 elements"):
        future.wait()


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("name", DEVICES)
def test_futures_of_tensors_on_a_device(name, kind):
    ran(2, name, futures, kind=kind)


def errors(device):
    rank = dist.get_rank()
    for call, words in (
        (lambda: dist.all_reduce_coalesced([device.put(torch.ones(2)), torch.ones(2)]), "must be on one device"),
        (lambda: dist.group.WORLD.allreduce([torch.ones(2).to("meta")]), "a tensor on meta is not served; tensors on cpu and cuda"),
        (lambda: dist.all_reduce(device.put(torch.ones(1)).expand(4)), "share memory"),
        (lambda: dist.send(device.put(torch.ones(1)), 5), "there is no rank 5"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=words):
            work = call()
            if work is not None:
                work.wait()
    tensor = device.put(torch.ones(300))
    dist.all_reduce(tensor)
    assert (device.read(tensor)() == 2).all(), "none of these has begun anything"
    works = [dist.all_reduce(device.put(torch.ones(300)), async_op=True) for _ in range(5)] if rank else []
    if not rank:
        with pytest.raises(dist.DistBackendError, match="rank 0 calls barrier"):
            dist.barrier()
    for work in works:
        with pytest.raises(dist.DistBackendError, match="rank 0 calls barrier"):
            work.wait()
        assert work.is_completed() and not work.is_success()
    for call in (lambda: dist.all_reduce(tensor), lambda: dist.send(tensor, 1 - rank)):
        with pytest.raises(dist.DistBackendError, match="rank 0 calls barrier"):
            call()


@pytest.mark.parametrize("name", DEVICES)
def test_errors_are_told(name):
    ran(2, name, errors)


def groups(device):
    rank = dist.get_rank()
    pairs = [dist.new_group([0, 1]), dist.new_group([0, 1])]
    # Calls of one group are in order, calls of different groups in any order.
    tensors = [device.put(torch.full((500,), float(rank + index))) for index in range(2)]
    turn = [0, 1] if rank else [1, 0]
    works = {index: dist.all_reduce(tensors[index], group=pairs[index], async_op=True) for index in turn}
    for index in range(2):
        works[index].wait()
        assert (device.read(tensors[index])() == 1 + 2 * index).all()
    for group in pairs:
        dist.destroy_process_group(group)
    until = time.monotonic() + 10
    while any(thread.name == "unisono-staging" for thread in threading.enumerate()):
        assert time.monotonic() < until, "a destroyed group keeps its thread"
        time.sleep(0.01)


@pytest.mark.parametrize("name", DEVICES)
def test_groups_do_not_wait_for_each_other(name):
    ran(2, name, groups)


def overlaps(device):
    """The first chunks are on the wire before the last ones have been copied."""
    order, begin, copy = [], _staging.Staging._begin, device.DEVICE.copy

    def begins(self, call, chunk):
        order.append("begin")
        begin(self, call, chunk)

    def copies(stream, target, source):
        if not device.is_here(target):
            order.append("copy")
        copy(stream, target, source)

    _staging.Staging._begin, device.DEVICE.copy = begins, copies
    tensor = device.put(torch.ones(640))
    dist.all_reduce(tensor)
    assert (device.read(tensor)() == 2).all()
    assert order.count("begin") == order.count("copy") == 40
    assert order[:5].count("copy") == 4, "as many as pinned memory is there for, before the first one begins"


def test_copies_overlap_with_the_wire():
    ran(2, "late", overlaps)


def while_busy(device):
    """While the device is busy, a call ends before its result has been copied; pinned memory is bounded."""
    if dist.get_rank() == 0:
        for size in (64, 640):
            dist.broadcast(device.put(torch.ones(size)), src=0)
        return
    gate, device.DEVICE.pinned_most = threading.Event(), 0
    small, large = device.put(torch.zeros(64)), device.put(torch.zeros(640))
    device.CURRENT.add(gate.wait)
    work = dist.broadcast(small, src=0, async_op=True)
    work.wait()
    assert not work.is_completed()
    later = dist.broadcast(large, src=0, async_op=True)
    with pytest.raises(dist.DistBackendError, match=" Timed out waiting 300ms"):
        later.wait(timedelta(milliseconds=300))
    assert device.DEVICE.pinned_most == 4 * 64
    gate.set()
    later.wait()
    assert (device.read(small)() == 1).all() and (device.read(large)() == 1).all()
    assert work.is_completed() and device.DEVICE.pinned_most == 4 * 64


def test_a_busy_device_holds_up_neither_the_host_nor_takes_its_memory():
    ran(2, "late", while_busy)


def hook_of_ddp(device):
    """The gradients of a model go through the device and come back in a future."""

    def hook(group, bucket):
        gradients = device.put(bucket.buffer() / dist.get_world_size())
        future = dist.all_reduce(gradients, group=group, async_op=True).get_future()
        return future.then(lambda done: device.read(done.value()[0])())

    torch.manual_seed(7)
    net = nn.parallel.DistributedDataParallel(nn.Linear(30, 20))
    net.register_comm_hook(dist.group.WORLD, hook)
    inputs = torch.full((4, 30), float(dist.get_rank()))
    net(inputs).sum().backward()
    assert (net.module.weight.grad == 2).all() and (net.module.bias.grad == 4).all()


def test_a_hook_of_ddp():
    ran(2, "late", hook_of_ddp)


def model_on_a_gpu(device):
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 3)).cuda()
    net = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.01)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(dist.get_rank())
    losses = []
    for _ in range(6):
        inputs, labels = torch.randn(8, 40, generator=generator), torch.randint(3, (8,), generator=generator)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(inputs.cuda()), labels.cuda())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@needs_gpu
def test_ddp_with_a_model_on_a_gpu_gives_what_gloo_gives():
    wanted = run(2, on, "cuda", 4096, model_on_a_gpu, backend="gloo")
    for kind in CLASSES:
        got = run(2, on, "cuda", 4096, model_on_a_gpu, env={"UNISONO_TORCH_CLASS": kind})
        for one, other in zip(got, wanted, strict=True):
            assert one == pytest.approx(other, rel=1e-5)


def beside_nccl(device):
    tensor, plain = device.put(torch.ones(5)), torch.ones(5)
    dist.all_reduce(tensor)
    dist.all_reduce(plain)
    assert device.read(tensor)().tolist() == plain.tolist() == [1.0] * 5


@needs_gpu
@newer
def test_nccl_serves_the_gpu_where_it_is_asked_to():
    run(1, on, "cuda", 4096, beside_nccl, backend="cpu:unisono,cuda:nccl")


def names():
    assert dist.get_backend() == "unisono"
    kinds = {device.type for device in dist.group.WORLD._device_types}
    assert kinds == set(_devices.types()), kinds
    assert ("cuda" in kinds) == torch.cuda.is_available()


@pytest.mark.parametrize("kind", CLASSES)
def test_a_group_says_which_devices_it_serves(kind):
    run(2, names, env={"UNISONO_TORCH_CLASS": kind})
