"""The primitives of torch.distributed, one by one.

torchrun --nproc-per-node 4 primitives.py
"""

import torch
import torch.distributed as dist

dist.init_process_group("unisono")
rank, ranks = dist.get_rank(), dist.get_world_size()

# broadcast: every rank gets rank 0's tensor.
tensor = torch.arange(4.0) if rank == 0 else torch.empty(4)
dist.broadcast(tensor, src=0)
assert tensor.tolist() == [0, 1, 2, 3]

# all_reduce: every rank gets the sum over all ranks, in place.
tensor = torch.full((3,), float(rank))
dist.all_reduce(tensor, op=dist.ReduceOp.SUM)
assert tensor.tolist() == [sum(range(ranks))] * 3

# scatter: every rank gets its tensor of rank 0's list.
parts = [torch.full((2,), other) for other in range(ranks)] if rank == 0 else None
tensor = torch.empty(2, dtype=torch.int64)
dist.scatter(tensor, parts, src=0)
assert tensor.tolist() == [rank, rank]

# gather: rank 0 gets the tensors of all.
parts = [torch.empty(2, dtype=torch.int64) for _ in range(ranks)] if rank == 0 else None
dist.gather(tensor, parts, dst=0)
assert parts is None or [part[0].item() for part in parts] == list(range(ranks))

# all_gather: every rank gets the tensors of all, as a list, or one after the other in one tensor.
parts = [torch.empty(2, dtype=torch.int64) for _ in range(ranks)]
dist.all_gather(parts, tensor)
whole = torch.empty(2 * ranks, dtype=torch.int64)
dist.all_gather_into_tensor(whole, tensor)
assert torch.equal(torch.cat(parts), whole)

# reduce_scatter: sums of all ranks' tensors, of which every rank gets its part.
part = torch.empty(1)
dist.reduce_scatter_tensor(part, torch.arange(float(ranks)))
assert part.item() == ranks * rank

# all_to_all: every rank sends a part to every rank.
tensor = torch.empty(ranks, dtype=torch.int64)
dist.all_to_all_single(tensor, torch.full((ranks,), rank))
assert tensor.tolist() == list(range(ranks))

# send and recv: from each rank to the next. One of two neighbours would wait for the other if all sent first, so they begin both.
right, left = (rank + 1) % ranks, (rank - 1) % ranks
received = torch.empty(1, dtype=torch.int64)
for work in dist.batch_isend_irecv(
    [dist.P2POp(dist.isend, torch.tensor([rank]), right), dist.P2POp(dist.irecv, received, left)]
):
    work.wait()
assert received.item() == left

# Asynchronous: begin, compute something else, wait.
tensor = torch.full((1_000_000,), 1.0)
work = dist.all_reduce(tensor, async_op=True)
other = torch.ones(100, 100) @ torch.ones(100, 100)
work.wait()
assert tensor[0].item() == ranks and other[0, 0].item() == 100

print(f"rank {rank} of {ranks}: all as it should be")
dist.destroy_process_group()
