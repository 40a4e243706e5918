"""A checkpoint of all ranks in one directory, written while training goes on, and read by another number of ranks.

torchrun --nproc-per-node 4 checkpoint.py DIRECTORY
"""

import sys
import tempfile

import torch
import torch.distributed as dist
from torch.distributed import checkpoint
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

dist.init_process_group("unisono")
rank, ranks = dist.get_rank(), dist.get_world_size()
folder = [sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()]
dist.broadcast_object_list(folder, src=0)

mesh = init_device_mesh("cpu", (ranks,))
whole = torch.arange(60.0).reshape(12, 5)
state = {"weights": distribute_tensor(whole, mesh, [Shard(0)]), "step": 7}

# Returns at once; the state is copied first, and the files are written beside what comes next, by a thread with a separate group:
# the calls of two threads on one group would come in another order on every rank.
saved = checkpoint.async_save(state, checkpoint_id=folder[0], process_group=dist.new_group())
busy = torch.ones(1000)
dist.all_reduce(busy)
getattr(saved, "upload_completion", saved).result()
dist.barrier()

# Half of the ranks read it, each twice as much.
half = list(range(max(1, ranks // 2)))
group = dist.new_group(half)
if rank in half:
    smaller = (
        init_device_mesh("cpu", (len(half),))
        if len(half) == ranks
        else dist.DeviceMesh.from_group(group, "cpu")
    )
    state = {"weights": distribute_tensor(torch.zeros(12, 5), smaller, [Shard(0)]), "step": 0}
    checkpoint.load(state, checkpoint_id=folder[0], process_group=group)
    assert state["step"] == 7 and torch.equal(state["weights"].full_tensor(), whole)
    print(
        f"rank {rank}: {tuple(state['weights'].to_local().shape)} of {tuple(whole.shape)} from {ranks} ranks' files"
    )
dist.barrier()
dist.destroy_process_group()
