"""Undocumented requirements of torch for a backend."""

import gc
import os
import re
import signal
import threading
import time
import weakref
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from world import CLASSES, join, newer, run


def both(ranks, body, *args, **more):
    """Runs a body with either class of group."""
    for kind in CLASSES:
        run(ranks, body, *args, env={"UNISONO_TORCH_CLASS": kind}, **more)


def waits():
    group = dist.group.WORLD
    for timeout in ((), (timedelta(0),), (timedelta(seconds=20),), (timedelta(milliseconds=-1),)):
        tensor = torch.ones(2)
        work = group.allreduce([tensor])
        assert work.wait(*timeout)
        assert tensor.tolist() == [dist.get_world_size()] * 2
        assert work.wait(*timeout), "again"
        assert [value.tolist() for value in work.get_future().wait()] == [tensor.tolist()]


def test_a_work_is_waited_for_in_all_ways():
    both(2, waits)


def states():
    group, tensor = dist.group.WORLD, torch.ones(2)
    work = group.allreduce([tensor])
    work.wait()
    assert work.is_completed() and work.is_success() and work.exception() is None
    assert work.result()[0] is tensor
    if dist.get_rank() == 0:
        work = group.recv_anysource([tensor], 7)
        assert not work.is_completed()
        dist.send(torch.zeros(1), 1, tag=8)
        work.wait()
        assert work._source_rank() == work.source_rank() == 1
    else:
        dist.recv(torch.zeros(1), 0, tag=8)
        dist.send(torch.full((2,), 5.0), 0, tag=7)


def test_a_work_tells_its_state():
    run(2, states)


def states_through_torch():
    # Torch wraps the work of a backend, and forwards only `wait` and `get_future`: the future shows its state without waiting.
    tensor = torch.ones(2)
    work = dist.all_reduce(tensor, async_op=True)
    future = work.get_future()
    work.wait()
    future.wait()
    assert future.done() and tensor.tolist() == [2, 2]


def test_the_work_of_a_backend_is_looked_at_through_its_future():
    run(2, states_through_torch, env={"UNISONO_TORCH_CLASS": "backend"})


def dropped_works():
    """The tensor of a dropped work lives until the operation ends, and no longer."""
    rank, freed = dist.get_rank(), []
    for round in range(20):
        tensor = torch.full((50_000,), float(rank + round))
        freed.append(weakref.ref(tensor.untyped_storage()))
        dist.all_reduce(tensor, async_op=True)
        del tensor
        # Memory that was freed too early would be overwritten here.
        torch.full((50_000,), -1.0)
    check = torch.tensor([1.0])
    dist.all_reduce(check)
    until = time.monotonic() + 10
    while any(storage() is not None for storage in freed) and time.monotonic() < until:
        gc.collect()
        time.sleep(0.01)
    assert not any(storage() is not None for storage in freed)


def test_a_dropped_work_keeps_its_tensor_until_the_end():
    both(2, dropped_works)


def staged_and_dropped():
    wide = torch.zeros(100, 2)
    wide[:, 0] = dist.get_rank() + 1
    dist.all_reduce(wide[:, 0], async_op=True)
    until = time.monotonic() + 10
    while wide[0, 0] != 3 and time.monotonic() < until:
        time.sleep(0.01)
    assert (wide[:, 0] == 3).all() and (wide[:, 1] == 0).all()


def test_the_result_of_a_dropped_work_still_comes_to_its_place():
    both(2, staged_and_dropped)


def in_inference_mode():
    """Tensors of inference mode can be written only in that mode, also by the thread that ends a call."""
    done = threading.Event()
    with torch.inference_mode():
        wide = torch.zeros(100, 2)
        wide[:, 0] = dist.get_rank() + 1
        work = dist.all_reduce(wide[:, 0], async_op=True)
        work.get_future().then(lambda _: done.set())
        assert done.wait(10) and (wide[:, 0] == 3).all() and (wide[:, 1] == 0).all()


def test_tensors_of_inference_mode():
    both(2, in_inference_mode)


def futures_are_completed_while_a_thread_holds_the_interpreter():
    """A rank that computes in Python stops neither the driver nor other ranks."""
    from concurrent.futures import ThreadPoolExecutor

    done = threading.Event()
    tensor = torch.ones(10)
    future = dist.all_reduce(tensor, async_op=True).get_future()
    future.then(lambda _: done.set())
    sum(range(2_000_000))
    assert done.wait(10) and tensor.tolist() == [2.0] * 10
    with ThreadPoolExecutor(4) as pool:
        groups = [dist.new_group() for _ in range(4)]
        tensors = [torch.full((1000,), float(i)) for i in range(4)]
        for _ in range(20):
            list(
                pool.map(
                    lambda pair: dist.all_reduce(pair[0], group=pair[1]), zip(tensors, groups, strict=True)
                )
            )
    assert [tensor[0].item() for tensor in tensors] == [i * 2.0**20 for i in range(4)]


def test_futures_and_threads():
    both(2, futures_are_completed_while_a_thread_holds_the_interpreter)


def again_and_again(folder):
    threads = None
    for round in range(5):
        join(f"file://{folder}")
        tensor = torch.ones(3)
        dist.all_reduce(tensor)
        dist.all_reduce(tensor, group=dist.new_group([0, 1]))
        assert tensor.tolist() == [4.0] * 3
        dist.destroy_process_group()
        gc.collect()
        now = (len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd")))
        threads = threads or now
        assert now <= (threads[0] + 1, threads[1] + 2), (round, threads, now)
        # The last FileStore to close removes the file, also if a new store has been opened on that path before.
        open(f"{folder}.{round}.{os.environ['RANK']}", "w").close()
        while not all(os.path.exists(f"{folder}.{round}.{rank}") for rank in range(2)):
            time.sleep(0.001)


def test_five_times_init_and_destroy(tmp_path):
    for kind in CLASSES:
        run(2, again_and_again, str(tmp_path / kind), init=False, env={"UNISONO_TORCH_CLASS": kind})


def tcp_store_again(port_file):
    """The same with one TCPStore that stays."""
    rank = int(os.environ["RANK"])
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, 2, True, wait_for_workers=False)
        with open(port_file + ".new", "w") as file:
            file.write(str(store.port))
        os.rename(port_file + ".new", port_file)
    else:
        while not os.path.exists(port_file):
            time.sleep(0.01)
        with open(port_file) as file:
            store = dist.TCPStore("127.0.0.1", int(file.read()), 2, False, wait_for_workers=False)
    for _ in range(5):
        dist.init_process_group(
            "unisono", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=20)
        )
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        assert tensor.item() == 2
        dist.destroy_process_group()


def test_five_times_with_one_store(tmp_path):
    run(2, tcp_store_again, str(tmp_path / "port"), init=False)


def late():
    dist.barrier()
    # Set the timeout of calls, and not that of joining, which may take longer on a busy machine.
    dist.group.WORLD.set_timeout(timedelta(seconds=1))
    if dist.get_rank() == 0:
        with pytest.raises(dist.DistBackendError, match=" Timed out ") as raised:
            dist.barrier()
        assert re.search(
            r"op \d+ barrier\(\) did not finish within", str(raised.value)
        ) and "rank 1 has not entered it" in str(raised.value), raised.value
        # Every call raises it again.
        with pytest.raises(dist.DistBackendError, match="barrier.. did not finish"):
            dist.all_reduce(torch.ones(1))
    else:
        time.sleep(3)
    # Destroying the group does not raise the failure again.


def test_a_timeout_says_so_and_shutdown_is_silent():
    for kind in CLASSES:
        run(2, late, env={"UNISONO_TORCH_CLASS": kind})


def timeouts_of_a_call():
    begun, options = time.monotonic(), dist.BarrierOptions()
    options.timeout = timedelta(milliseconds=300)
    if dist.get_rank() == 0:
        with pytest.raises(dist.DistBackendError, match=" Timed out waiting ") as raised:
            dist.group.WORLD.barrier(options).wait()
        waited = int(re.search(r"waiting (\d+)ms", str(raised.value))[1])
        assert 300 <= waited <= 1000 * (time.monotonic() - begun) and time.monotonic() - begun < 5, (
            raised.value
        )
    else:
        time.sleep(2)


def test_a_call_has_its_own_timeout():
    run(2, timeouts_of_a_call)


def a_wait_that_is_over():
    group, tensor = dist.group.WORLD, torch.ones(1)
    if dist.get_rank() == 0:
        work = group.allreduce([tensor])
        with pytest.raises(dist.DistBackendError, match=" Timed out "):
            work.wait(timedelta(milliseconds=50))
        dist.send(torch.zeros(1), 1)
        work.wait()
    else:
        dist.recv(torch.zeros(1), 0)
        dist.all_reduce(tensor)
    assert tensor.item() == 2


def test_a_wait_with_a_timeout_does_not_end_the_operation():
    run(2, a_wait_that_is_over)


def monitored(ranks):
    rank, limit = dist.get_rank(), timedelta(seconds=1)
    dist.monitored_barrier(timeout=timedelta(seconds=10))
    if rank != 1:
        wanted = {
            0: "Rank 1 failed to pass monitoredBarrier in 1000 ms",
        }.get(rank, f"Rank {rank} successfully reached monitoredBarrier, but received errors")
        with pytest.raises(dist.DistBackendError, match=wanted):
            dist.monitored_barrier(timeout=limit)
    # The group lives on.
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == ranks
    if rank == 0:
        others = ", ".join(str(other) for other in range(1, ranks))
        with pytest.raises(dist.DistBackendError, match=f"Ranks {others} failed to pass monitoredBarrier"):
            dist.monitored_barrier(timeout=timedelta(milliseconds=100), wait_all_ranks=True)
    dist.barrier()


@newer
def test_a_monitored_barrier_answers_all_that_are_not_late():
    both(3, monitored, 3)


def debugged():
    assert type(dist.group.WORLD) is dist.ProcessGroup
    gc.collect()
    tensor = torch.ones(2)
    for _ in range(3):
        dist.all_reduce(tensor)
    assert tensor.tolist() == [8.0] * 2
    if dist.get_rank() == 0:
        with pytest.raises(RuntimeError, match="mismatch|inconsistent|Detected"):
            dist.all_reduce(torch.ones(2))
    else:
        with pytest.raises(RuntimeError, match="mismatch|inconsistent|Detected"):
            dist.all_reduce(torch.ones(3))


@newer
def test_debug_level_detail():
    run(2, with_detail(debugged))


class with_detail:
    """Sets torch's debug level in the ranks, before the group is made."""

    def __init__(self, body):
        self.body = body

    def __call__(self):
        dist.destroy_process_group()
        os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
        dist.set_debug_level_from_env()
        with_store = os.environ["UNISONO_TEST_FOLDER"]
        join(f"file://{with_store}/detail")
        return self.body()


def interrupted():
    """A signal raises KeyboardInterrupt in a thread that waits for others, and the other rank gets the failure."""
    if dist.get_rank() == 0:
        threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        begun = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            dist.recv(torch.zeros(1), 1)
        assert time.monotonic() - begun < 3
        dist.send(torch.ones(1), 1)
    else:
        dist.recv(torch.zeros(1), 0)


def test_ctrl_c_interrupts_a_call():
    both(2, interrupted)


def sequence_numbers_and_names():
    group = dist.group.WORLD
    assert dist.get_backend() == "unisono" and group.name() in ("unisono", "custom")
    assert group.rank() == dist.get_rank() and group.size() == dist.get_world_size()
    assert group._get_backend(torch.device("cpu")).name() == "unisono"
    before = group._get_sequence_number_for_group()
    dist.barrier()
    assert group._get_sequence_number_for_group() == before + 1
    backend = group._get_backend(torch.device("cpu"))
    assert backend.supports_splitting and not backend.supports_coalescing
    for name in ("supports_shrinking", "supports_reconfigure", "supports_window", "_supports_time_estimate"):
        assert getattr(backend, name) is False, name
    assert backend.options._timeout == timedelta(seconds=30)
    assert group.group_name == "0" and isinstance(group.group_desc, str)


def test_names_numbers_and_properties():
    both(2, sequence_numbers_and_names)


def registered_memory():
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    assert backend.supports_tensor_alloc(torch.device("cpu"))
    tensor = backend.allocate_tensor(1000, dtype=torch.float32, device=torch.device("cpu"))
    assert tensor.shape == (1000,) and (tensor == 0).all()
    tensor += dist.get_rank() + 1
    dist.all_reduce(tensor)
    assert (tensor == 3).all()
    part = tensor[10:20]
    del tensor
    gc.collect()
    dist.all_reduce(part)
    assert (part == 6).all(), "the memory lives as long as a view of it"


def test_tensors_are_allocated_in_registered_memory():
    both(2, registered_memory)
