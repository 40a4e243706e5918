"""A large tensor cut by rows, by columns and into blocks over the ranks, and put together again.

torchrun --nproc-per-node 4 splits.py
"""

import math

import torch
import torch.distributed as dist

dist.init_process_group("unisono")
rank, ranks = dist.get_rank(), dist.get_world_size()
ROWS, COLUMNS = 1000, 600
whole = torch.arange(float(ROWS * COLUMNS)).view(ROWS, COLUMNS) if rank == 0 else None


def scatter(pieces: list[torch.Tensor] | None, shape: tuple[int, ...]) -> torch.Tensor:
    """This rank's piece of rank 0's list; the pieces may be views of any strides."""
    mine = torch.empty(shape)
    dist.scatter(mine, pieces, src=0)
    return mine


# By rows: the pieces lie one after the other in memory, and nothing is copied to send them.
rows = scatter(list(whole.chunk(ranks, 0)) if rank == 0 else None, (ROWS // ranks, COLUMNS))
together = torch.empty(ROWS, COLUMNS)
dist.all_gather_into_tensor(together, rows)
assert rank or torch.equal(together, whole)

# By columns: the pieces are views with strides. They are copied, and no element comes to a wrong place.
columns = scatter(list(whole.chunk(ranks, 1)) if rank == 0 else None, (ROWS, COLUMNS // ranks))
parts = [torch.empty(ROWS, COLUMNS // ranks) for _ in range(ranks)]
dist.all_gather(parts, columns)
assert rank or torch.equal(torch.cat(parts, dim=1), whole)
# Or straight into the columns of one tensor.
together = torch.empty(ROWS, COLUMNS)
dist.all_gather(list(together.chunk(ranks, 1)), columns)
assert rank or torch.equal(together, whole)

# Into blocks: ranks as a grid.
down = max(number for number in range(1, math.isqrt(ranks) + 1) if ranks % number == 0)
across = ranks // down


def blocks(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The blocks of all ranks: views."""
    return [block for band in tensor.chunk(down, 0) for block in band.chunk(across, 1)]


block = scatter(blocks(whole) if rank == 0 else None, (ROWS // down, COLUMNS // across))
together = torch.empty(ROWS, COLUMNS)
dist.all_gather(blocks(together), block)
assert rank or torch.equal(together, whole)

print(
    f"rank {rank}: rows {tuple(rows.shape)}, columns {tuple(columns.shape)}, block {tuple(block.shape)} of {down} x {across}"
)
dist.destroy_process_group()
