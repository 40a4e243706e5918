"""A tensor that is put together from the parts of all hosts, of which each rank of a host has a part.

    torchrun --nnodes 2 --nproc-per-node 2 --rdzv-endpoint HOST:29400 --rdzv-backend c10d across_hosts.py

The ranks of a host first put the host's part together, among themselves; then the ranks with the same number on each host exchange these.
"""

import os
import socket

import torch
import torch.distributed as dist

dist.init_process_group("unisono")
rank, ranks = dist.get_rank(), dist.get_world_size()

# The launcher says which ranks share a host; without a launcher, all are taken to be on one host.
local_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", ranks))
host, local = divmod(rank, local_ranks)
hosts = ranks // local_ranks

# A group for each host, and one for the ranks with the same number on every host. Only members make a group.
inside = dist.new_group(range(host * local_ranks, (host + 1) * local_ranks), use_local_synchronization=True)
across = dist.new_group(range(local, ranks, local_ranks), use_local_synchronization=True)

mine = torch.full((2, 3), float(rank))
part = torch.empty(2 * local_ranks, 3)
dist.all_gather_into_tensor(part, mine, group=inside)
whole = torch.empty(2 * ranks, 3)
dist.all_gather_into_tensor(whole, part, group=across)
assert whole[:, 0].tolist() == [float(other) for other in range(ranks) for _ in range(2)]

names: list = [None] * hosts
dist.all_gather_object(names, socket.gethostname(), group=across)
if rank == 0:
    print(f"{len(whole)} rows of {hosts} hosts with {local_ranks} ranks each: {', '.join(names)}")
dist.destroy_process_group()
