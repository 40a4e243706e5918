"""Failures have the library's text, the same on all ranks."""

import contextlib
import multiprocessing
import os
import signal
import sys
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from test_traps import both
from unisono.torch import _meeting
from unisono.torch._work import Work
from world import join, run


def failure(call):
    """The text of the error that a call raises."""
    with pytest.raises(dist.DistBackendError) as raised:
        call()
    return str(raised.value)


def mismatch():
    rank = dist.get_rank()
    return failure(lambda: dist.all_reduce(torch.ones(3 + rank)))


def test_a_mismatch_reads_as_in_rust():
    one, other = run(2, mismatch)
    assert one == other and "all_reduce(f32, sum): rank 0 has 3 elements, rank 1 has 4 elements" in one


def another_call():
    call = dist.barrier if dist.get_rank() else (lambda: dist.all_reduce(torch.ones(3)))
    return failure(call)


def test_another_call_reads_as_in_rust():
    one, other = run(2, another_call)
    assert one == other and "rank 0 calls all_reduce(f32, sum), rank 1 calls barrier()" in one


def failed_futures():
    future = dist.all_reduce(torch.ones(3 + dist.get_rank()), async_op=True).get_future()
    # C++ also makes a future of this future: it must see an error and no value.
    for each in (future, future.then(lambda ended: ended.value())):
        with pytest.raises(RuntimeError, match="rank 0 has 3 elements, rank 1 has 4 elements"):
            each.wait()


def test_the_future_of_a_call_that_fails_is_an_error():
    for kind in ("process-group", "backend"):
        run(2, failed_futures, env={"UNISONO_TORCH_CLASS": kind})


def results_without_a_place():
    def lost():
        raise OSError("the memory of the results is gone")

    tensor = torch.ones(3)
    work = Work(dist.all_reduce(tensor, async_op=True)._natives, [tensor], lost)
    future = work.get_future()
    with pytest.raises(RuntimeError, match="the memory of the results is gone"):
        future.wait()
    with pytest.raises(OSError, match="the memory of the results is gone"):
        work.wait()
    assert work.is_completed() and not work.is_success()


def test_results_that_cannot_be_copied_back_are_an_error():
    run(2, results_without_a_place)


def deadlock():
    return failure(lambda: dist.recv(torch.ones(3), src=1 - dist.get_rank()))


def test_a_deadlock_of_two_receives_is_found():
    for kind in ("process-group", "backend"):
        begun = time.monotonic()
        one, other = run(2, deadlock, env={"UNISONO_TORCH_CLASS": kind})
        assert one == other and "ranks wait for each other" in one, (one, other)
        assert time.monotonic() - begun < 20


def death():
    if dist.get_rank() == 1:
        dist.barrier()
        os.kill(os.getpid(), signal.SIGKILL)
    # A rank that still waits here may already get the failure; the next call raises the same.
    with contextlib.suppress(dist.DistBackendError):
        dist.barrier()
    begun = time.monotonic()
    output = failure(lambda: dist.all_reduce(torch.ones(100)))
    assert time.monotonic() - begun < 5
    return output


def test_the_death_of_a_rank_is_told():
    first, _, third = run(3, death, ends={1: -signal.SIGKILL})
    assert first == third and first.startswith("rank 1 died"), first


def uncaught():
    dist.barrier()
    if dist.get_rank() == 1:
        # As in a script, the interpreter calls the hook last.
        try:
            raise ValueError("the data of epoch 7 are missing")
        except ValueError:
            sys.excepthook(*sys.exc_info())
            return None
    return failure(lambda: dist.all_reduce(torch.ones(100)))


def test_an_uncaught_exception_is_told_to_the_others():
    first, _, third = run(3, uncaught)
    assert first == third and "rank 1" in first and "ValueError: the data of epoch 7 are missing" in first, (
        first
    )


def test_wrong_arguments_are_value_errors():
    run(2, arguments)


def arguments():
    group, ones = dist.group.WORLD, torch.ones(4)
    wrong = [
        (lambda: group.allgather([[ones]], [ones]), "one for each of 2 ranks"),
        (lambda: group.all_gather_single(torch.ones(7), ones), "must have 8"),
        (lambda: group.reduce_scatter_single(torch.ones(4), ones), "must have 8"),
        (lambda: group.scatter([ones], [[ones]], _root(dist.ScatterOptions)), "one for each of 2 ranks"),
        (
            lambda: group.gather([[ones, torch.ones(5)]], [ones], _root(dist.GatherOptions)),
            "all must have equally many",
        ),
        (lambda: group.alltoall([ones, ones.int()], [ones, ones]), "must have one dtype"),
        (lambda: group.all_to_all_single(ones, ones, [1, 2], [2, 2]), "add up to 3"),
        (lambda: group.allreduce([ones.to(torch.float8_e4m3fn)]), "cannot be reduced"),
        (lambda: group.allreduce([ones], _op(dist.ReduceOp.BXOR)), "bxor is not defined for torch.float32"),
        (lambda: group.allreduce([ones.to("meta")]), "a tensor on meta is not served"),
        (lambda: group.broadcast([ones.to_sparse()]), "layout torch.sparse_coo is not served"),
        (lambda: group.allreduce([torch.eye(2).to_sparse_csr()]), "layout torch.sparse_csr is not served"),
        (lambda: group.allreduce([ones.to_sparse()], _op(dist.ReduceOp.MAX)), "can only be summed"),
        (lambda: group.allreduce([torch.ones(1).expand(4)]), "share memory"),
        (lambda: group.reduce([ones, ones]), "one tensor is wanted, and there are 2"),
        (lambda: group.broadcast([ones], _root(dist.BroadcastOptions, 5)), "5"),
        (lambda: group.send([ones], 5, 0), "there is no rank 5"),
    ]
    for call, words in wrong:
        with pytest.raises(ValueError) as raised:
            call()
        assert words in str(raised.value), (words, str(raised.value))
    # None of these calls has begun, so the ranks still agree.
    dist.all_reduce(ones)
    assert ones.tolist() == [2.0] * 4


def _root(kind, root=None):
    options = kind()
    options.rootRank = dist.get_rank() if root is None else root
    return options


def _op(op):
    options = dist.AllreduceOptions()
    options.reduceOp = op
    return options


def never_comes():
    """A rank that never comes is named, and the others end."""
    if os.environ["RANK"] == "1":
        return None
    begun = time.monotonic()
    with pytest.raises(dist.DistBackendError) as raised:
        join(f"file://{os.environ['UNISONO_TEST_FOLDER']}/store", timeout=3)
    assert time.monotonic() - begun < 15
    return str(raised.value)


def test_a_rank_that_never_comes_is_named():
    first, _, third = run(3, never_comes, init=False)
    assert "Timed out" in first and "1" in first, first
    assert first.split("waits for")[1] == third.split("waits for")[1], (first, third)


def cannot_join(one):
    """A rank that cannot read its settings reports it to the others, which do not wait for it."""
    if os.environ["RANK"] == one:
        os.environ["UNISONO_CHUNK"] = "abc"
    begun = time.monotonic()
    with pytest.raises(dist.DistBackendError) as raised:
        join(f"file://{os.environ['UNISONO_TEST_FOLDER']}/store", timeout=60)
    assert time.monotonic() - begun < 30
    return str(raised.value)


@pytest.mark.parametrize("one", ["0", "1"])
def test_a_rank_that_cannot_join_tells_the_others(one):
    for rank, output in enumerate(run(3, cannot_join, one, init=False)):
        assert "UNISONO_CHUNK=abc: wanted" in output, output
        assert (f"rank {one} could not join: " in output) == (str(rank) != one), output


def rank_0_never_comes():
    if os.environ["RANK"] == "0":
        return None
    with pytest.raises(dist.DistBackendError) as raised:
        join(f"file://{os.environ['UNISONO_TEST_FOLDER']}/store", timeout=1)
    return str(raised.value)


def test_rank_0_that_never_comes_is_named():
    _, output = run(2, rank_0_never_comes, init=False)
    assert " Timed out waiting " in output and "rank 1 waits for rank 0" in output, output


class Gone:
    """A store whose server ends after this many answers."""

    def __init__(self, answers):
        self.answers = answers

    def _answer(self, *_):
        self.answers -= 1
        if self.answers < 0:
            raise dist.DistNetworkError("Broken pipe")

    set = wait = get = delete_key = _answer


def test_a_store_that_is_gone_hides_no_error():
    # Rank 0 has written the store's address when torch's store ends, and rank 1 does not come.
    with pytest.raises(dist.DistBackendError, match="waits for 1 of 2 ranks: 1"):
        _meeting.join(Gone(1), 0, 2, timedelta(seconds=1))
    # Rank 1 cannot read the address.
    with pytest.raises(dist.DistBackendError, match="waits for rank 0 to say .* Broken pipe"):
        _meeting.join(Gone(0), 1, 2, timedelta(seconds=20))


def without_a_store(port, server):
    rank = int(os.environ["RANK"])
    store = dist.TCPStore("127.0.0.1", port, 2, False)
    dist.init_process_group("unisono", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=20))
    dist.barrier()
    if rank == 0:
        os.kill(server, signal.SIGKILL)
    dist.barrier()
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [2.0] * 3
    dist.destroy_process_group()


def serve(write):
    store = dist.TCPStore("127.0.0.1", 0, 2, True, wait_for_workers=False)
    write.send(store.port)
    signal.pause()


def test_a_store_is_needed_to_meet_and_not_to_communicate():
    fork = multiprocessing.get_context("fork")
    read, write = fork.Pipe(duplex=False)
    server = fork.Process(target=serve, args=(write,), daemon=True)
    server.start()
    run(2, without_a_store, read.recv(), server.pid, init=False)
    server.join()


def memory_with_a_history():
    rank, ranks = dist.get_rank(), dist.get_world_size()
    # The library writes a leaf that requires gradients in place, without autograd.
    for leaf in (torch.ones(4, requires_grad=True), torch.ones(4, 2)[:, 0].requires_grad_()):
        dist.all_reduce(leaf)
        dist.broadcast(leaf, src=0)
        assert leaf.tolist() == [ranks] * 4 and leaf.is_leaf and leaf.grad_fn is None
        leaf.square().sum().backward()
        assert leaf.grad.tolist() == [2.0 * ranks] * 4
    # The input is a part of the output, the output a part of the input, or both are the same.
    whole = torch.zeros(2 * ranks)
    own = whole[2 * rank : 2 * rank + 2]
    own += rank + 1
    dist.all_gather_into_tensor(whole, own)
    assert whole.tolist() == [float(other + 1) for other in range(ranks) for _ in range(2)]
    dist.reduce_scatter_tensor(own, whole)
    assert own.tolist() == [ranks * (rank + 1.0)] * 2
    tensor = torch.full((ranks,), float(rank))
    dist.all_to_all_single(tensor, tensor)
    assert tensor.tolist() == [float(other) for other in range(ranks)]
    # They overlap in another way.
    tensor = torch.arange(ranks + 1.0) + 10 * rank
    dist.all_to_all_single(tensor[1:], tensor[:-1])
    assert tensor.tolist() == [10.0 * rank, *(10.0 * other + rank for other in range(ranks))]


def test_leaves_and_parts_of_the_other_operand():
    both(2, memory_with_a_history)


def forked_loaders():
    """DataLoader workers, by fork and by spawn, do no harm."""
    from torch.utils.data import DataLoader

    tensor = torch.ones(1000)
    for context in ("fork", "spawn"):
        for epoch in range(2):
            loader = DataLoader(Squares(), batch_size=4, num_workers=2, multiprocessing_context=context)
            for batch in loader:
                dist.all_reduce(batch.clone())
                dist.all_reduce(tensor)
    assert torch.isfinite(tensor[0]) and tensor[0].item() == 2.0 ** (2 * 2 * 4)


class Squares(torch.utils.data.Dataset):
    """The data that the workers of loaders read."""

    def __len__(self):
        return 16

    def __getitem__(self, index):
        return torch.full((3,), float(index**2))


def test_workers_of_data_loaders_do_no_harm():
    run(2, forked_loaders)


def a_child_that_calls():
    """A forked child is not a rank: its calls raise an error that says so, and its end does not affect the others."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            dist.all_reduce(torch.ones(1))
        except BaseException as error:  # noqa: BLE001
            os.write(write, f"{type(error).__name__}: {error}".encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as output:
        words = output.read()
    os.waitpid(child, 0)
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == 2
    return words


def test_a_forked_child_is_told_that_it_is_no_rank():
    for words in run(2, a_child_that_calls):
        assert words.startswith("DistBackendError") and "fork" in words, words
