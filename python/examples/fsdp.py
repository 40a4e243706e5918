"""Training with FSDP2: each rank keeps a part of every parameter, of its gradient and of the optimizer's state.

torchrun --nproc-per-node 4 fsdp.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("unisono")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(1)
net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))

mesh = init_device_mesh("cpu", (ranks,))
for layer in net:
    if isinstance(layer, nn.Linear):
        fully_shard(layer, mesh=mesh)
fully_shard(net, mesh=mesh)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)

generator = torch.Generator().manual_seed(rank)
inputs, labels = torch.randn(64, 64, generator=generator), torch.randint(10, (64,), generator=generator)
for step in range(30):
    loss = nn.functional.cross_entropy(net(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 0:
        first = loss.item()

mine = sum(parameter.to_local().numel() for parameter in net.parameters())
all_of_them = sum(parameter.numel() for parameter in net.parameters())
assert loss.item() < first / 2, (first, loss.item())
print(f"rank {rank}: loss {first:.3f} to {loss.item():.3f} with {mine} of {all_of_them} parameters")
dist.destroy_process_group()
