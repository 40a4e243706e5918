"""What a rank of torch.distributed measures, and the starting of such ranks: forks of this process, which has imported torch once."""

import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

FORK = multiprocessing.get_context("fork")
LIMIT_S = 60


class Failed(Exception):
    """A world gave no figure; says why."""


def world(ranks, backend, provider, body, *args):
    """What `body(*args)` returns on rank 0 of a new world."""
    with tempfile.TemporaryDirectory() as directory:
        read, write = FORK.Pipe(duplex=False)
        work = (directory, ranks, backend, provider, write, body, args)
        processes = [FORK.Process(target=rank_of, args=(rank, *work)) for rank in range(ranks)]
        for process in processes:
            process.start()
        write.close()
        try:
            result = read.recv() if read.poll(LIMIT_S) else Failed(f"not done within {LIMIT_S} s")
        except EOFError:
            result = Failed("no rank gave a result")
        for process in processes:
            # One that went on would disturb the next.
            process.join(LIMIT_S if not isinstance(result, Exception) else 1)
            process.kill()
            process.join()
    if isinstance(result, Exception):
        raise result
    return result


def rank_of(rank, directory, ranks, backend, provider, write, body, args):
    """One rank, from its beginning to its end."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    if provider is not None:
        os.environ["UNISONO_PROVIDER"] = provider
    torch.set_num_threads(1)
    torch.manual_seed(1)
    try:
        where, limit = f"file://{directory}/store", timedelta(seconds=LIMIT_S)
        dist.init_process_group(backend, init_method=where, rank=rank, world_size=ranks, timeout=limit)
        result = body(*args)
        dist.destroy_process_group()
        if rank == 0:
            write.send(result)
    except BaseException as error:
        write.send(Failed(f"rank {rank}: {error}"))
        sys.exit(1)


def vector(rank, count):
    """What a rank gives: small whole numbers, so that sums are exact."""
    return (torch.arange(count, dtype=torch.float32) * 7 + rank * 31) % 97


def collective(name, count):
    """What calls the collective once, its vector of `count` elements, and the result that must come of it."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    block = count // ranks
    inputs = [vector(other, block if name == "all_gather" else count) for other in range(ranks)]
    mine = slice(rank * block, (rank + 1) * block)
    if name == "all_reduce":
        tensor = inputs[rank].clone()
        return lambda: dist.all_reduce(tensor), tensor, sum(inputs)
    if name == "broadcast":
        tensor = inputs[rank].clone()
        return lambda: dist.broadcast(tensor, 0), tensor, inputs[0]
    output = torch.full((count if name != "reduce_scatter" else block,), -1.0)
    # The newer names of these three are not in every torch.
    if name == "all_gather":
        call, wanted = dist.all_gather_into_tensor, torch.cat(inputs)
    elif name == "reduce_scatter":
        call, wanted = dist.reduce_scatter_tensor, sum(inputs)[mine]
    else:
        call, wanted = dist.all_to_all_single, torch.cat([other[mine] for other in inputs])
    return lambda: call(output, inputs[rank]), output, wanted


def after_barriers(call, iterations, warmup):
    """The p50 in µs of the slowest rank's time of one call after a barrier."""
    times = torch.zeros(iterations, dtype=torch.float64)
    for k in range(-warmup, iterations):
        dist.barrier()
        begin = time.perf_counter_ns()
        call()
        taken = time.perf_counter_ns() - begin
        if k >= 0:
            times[k] = taken / 1e3
    dist.all_reduce(times, dist.ReduceOp.MAX)
    # The upper of two in the middle, as unisono has it.
    return statistics.median_high(times.tolist())


def p50(name, count, iterations, warmup):
    """Of a collective whose vector has `count` elements."""
    call, result, wanted = collective(name, count)
    call()
    if not torch.equal(result, wanted):
        raise Failed(f"wrong result of {name}")
    if name == "all_reduce":
        # Sums of sums would overflow.
        result.zero_()
    return after_barriers(call, iterations, warmup)


def begun_and_waited_for(iterations):
    """The p50 in µs of an all_reduce of 8 B: blocking, and begun and waited for, in turn."""
    tensor = torch.zeros(2)
    blocking, begun = [], []
    for _ in range(5):
        blocking.append(after_barriers(lambda: dist.all_reduce(tensor), iterations, 20))
        begun.append(after_barriers(lambda: dist.all_reduce(tensor, async_op=True).wait(), iterations, 20))
    return statistics.median(blocking), statistics.median(begun)


def step(parallel, iterations, warmup):
    """The p50 in ms of a training step of 8 M parameters: forward, backward, update; `parallel` if gradients are averaged."""
    net = nn.Sequential(*[layer for _ in range(8) for layer in (nn.Linear(1000, 1000), nn.ReLU())])
    net = nn.parallel.DistributedDataParallel(net) if parallel else net
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    inputs = torch.randn(32, 1000)

    def one():
        optimizer.zero_grad()
        net(inputs).square().mean().backward()
        optimizer.step()

    return after_barriers(one, iterations, warmup) / 1e3


def groups(count):
    """The ms and the descriptors that each of `count` groups costs."""
    before, begin = len(os.listdir("/proc/self/fd")), time.perf_counter()
    made = [dist.new_group() for _ in range(count)]
    taken, now = time.perf_counter() - begin, len(os.listdir("/proc/self/fd"))
    tensor = torch.ones(1)
    dist.all_reduce(tensor, group=made[-1])
    return 1e3 * taken / count, (now - before) / count
