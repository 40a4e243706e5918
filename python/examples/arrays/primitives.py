"""The primitives for numpy arrays, one by one.

python -m unisono run -n 4 python primitives.py

    [0] all as it should be
"""

import numpy as np
import unisono

with unisono.init() as group:
    rank, ranks = group.rank, group.size

    # broadcast: every rank gets rank 0's array.
    array = np.arange(4.0) if rank == 0 else np.empty(4)
    group.broadcast(array, root=0)
    assert array.tolist() == [0, 1, 2, 3]

    # all_reduce: every rank gets the sum over all ranks; as a new array, or in place.
    total = group.all_reduce(np.full(3, rank))
    assert total.tolist() == [sum(range(ranks))] * 3
    array = np.full(3, float(rank))
    group.all_reduce(array, "max", out=array)
    assert array.tolist() == [ranks - 1] * 3

    # reduce: rank 0 gets it, the others None.
    mean = group.reduce(np.array([float(rank)]), "avg", root=0)
    assert mean is None or mean[0] == (ranks - 1) / 2

    # scatter: every rank gets its block of rank 0's array.
    block = np.empty(2, dtype=np.int64)
    group.scatter(np.arange(2 * ranks) if rank == 0 else None, block, root=0)
    assert block.tolist() == [2 * rank, 2 * rank + 1]

    # gather: rank 0 gets the blocks of all, the others None.
    table = group.gather(block, root=0)
    assert table is None or table.tolist() == [[2 * r, 2 * r + 1] for r in range(ranks)]

    # all_gather: every rank gets them. Arrays of lengths that all ranks know are concatenated.
    assert group.all_gather(block).shape == (ranks, 2)
    lengths = [r + 1 for r in range(ranks)]
    whole = group.all_gather(np.full(rank + 1, rank), lengths=lengths)
    assert whole.tolist() == [r for r in range(ranks) for _ in range(r + 1)]

    # reduce_scatter: sums of all ranks' arrays, of which every rank gets its block.
    part = group.reduce_scatter(np.arange(float(ranks)))
    assert part.tolist() == [ranks * rank]

    # all_to_all: every rank sends a block to every rank.
    blocks = group.all_to_all(np.full(ranks, rank))
    assert blocks.tolist() == list(range(ranks))

    # send and recv: from each rank to the next. One of two neighbours would wait for the other if all sent first.
    right, left = (rank + 1) % ranks, (rank - 1) % ranks
    received = np.empty(1, dtype=np.int64)
    group.send_recv(np.array([rank]), right, received, left)
    assert received[0] == left

    # Groups: the ranks with even numbers, and those with odd ones.
    half = group.split(rank % 2)
    assert half.all_gather(rank).tolist() == list(range(rank % 2, ranks, 2))

    # Asynchronous: begin, compute something else, wait.
    work = group.all_reduce_async(np.ones(1_000_000))
    other = np.ones((100, 100)) @ np.ones((100, 100))
    assert work.wait()[0] == ranks and other[0, 0] == 100

    group.barrier()
    if rank == 0:
        print("all as it should be")
