"""Tensors of differing lengths, and lists of lists, gathered from all ranks.

torchrun --nproc-per-node 4 uneven.py
"""

import torch
import torch.distributed as dist

dist.init_process_group("unisono")
rank, ranks = dist.get_rank(), dist.get_world_size()


def gather_rows(tensor: torch.Tensor) -> torch.Tensor:
    """All ranks' rows, one rank after the other, on every rank. Ranks may have different numbers of rows, or none."""
    rows = [torch.empty(1, dtype=torch.int64) for _ in range(ranks)]
    dist.all_gather(rows, torch.tensor([len(tensor)]))
    parts = [tensor.new_empty((int(count), *tensor.shape[1:])) for count in rows]
    # unisono's all_gather takes tensors that differ in size: nothing is padded.
    dist.all_gather(parts, tensor)
    return torch.cat(parts)


mine = torch.full((rank, 3), float(rank))
whole = gather_rows(mine)
assert whole.shape == (sum(range(ranks)), 3)
assert whole[:, 0].tolist() == [float(other) for other in range(ranks) for _ in range(other)]

# Along another dimension: the same of the transposed tensors.
columns = gather_rows(torch.full((2, rank + 1), rank).t()).t()
assert columns.shape == (2, ranks * (ranks + 1) // 2)

# Shapes that differ in several dimensions do not fit into one tensor: a list of tensors, by their shapes.
shapes: list = [None] * ranks
tensor = torch.full((rank + 1, ranks - rank), float(rank))
dist.all_gather_object(shapes, tensor.shape)
parts = [torch.empty(shape) for shape in shapes]
dist.all_gather(parts, tensor)
assert all((part == other).all() for other, part in enumerate(parts))

# Lists of lists of anything: objects, which are pickled.
lists: list = [None] * ranks
dist.all_gather_object(lists, [[rank] * length for length in range(rank + 2)])
assert lists == [[[other] * length for length in range(other + 2)] for other in range(ranks)]
together = [row for rows in lists for row in rows]
assert len(together) == sum(other + 2 for other in range(ranks))

print(f"rank {rank}: {len(whole)} rows, {len(together)} lists")
dist.destroy_process_group()
