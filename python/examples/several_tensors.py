"""Several tensors from one rank to another: concatenated, as a list of any shapes, and as a file.

torchrun --nproc-per-node 2 several_tensors.py
"""

import io

import torch
import torch.distributed as dist

dist.init_process_group("unisono")
rank = dist.get_rank()

# Concatenated: both sides know the shapes, and one message carries all.
shapes = [(2, 3), (4,), (1, 5)]
if rank == 0:
    tensors = [torch.full(shape, float(index)) for index, shape in enumerate(shapes)]
    dist.send(torch.cat([tensor.flatten() for tensor in tensors]), dst=1)
elif rank == 1:
    sizes = [torch.Size(shape).numel() for shape in shapes]
    flat = torch.empty(sum(sizes))
    dist.recv(flat, src=0)
    tensors = [part.view(shape) for part, shape in zip(flat.split(sizes), shapes, strict=True)]
    assert all(
        (tensor == index).all() and tensor.shape == shapes[index] for index, tensor in enumerate(tensors)
    )


def send_list(tensors: list[torch.Tensor], to: int) -> None:
    """Sends tensors of any dtypes and shapes: first what they are, then each."""
    dist.send_object_list([[(tensor.dtype, tensor.shape) for tensor in tensors]], dst=to)
    for work in [dist.isend(tensor.contiguous(), to) for tensor in tensors]:
        work.wait()


def receive_list(source: int) -> list[torch.Tensor]:
    """Receives what `send_list` sends."""
    shapes: list = [None]
    dist.recv_object_list(shapes, src=source)
    tensors = [torch.empty(shape, dtype=dtype) for dtype, shape in shapes[0]]
    for work in [dist.irecv(tensor, source) for tensor in tensors]:
        work.wait()
    return tensors


# As a list: the receiver learns how many there are, and of which dtypes and shapes.
mine = [torch.arange(6).view(2, 3), torch.tensor(1.5), torch.zeros(0, 4), torch.ones(3, dtype=torch.bfloat16)]
if rank == 0:
    send_list(mine, 1)
elif rank == 1:
    got = receive_list(0)
    assert all(
        torch.equal(one, other) and one.dtype is other.dtype for one, other in zip(got, mine, strict=True)
    )

# As a file: what torch.save writes, as bytes.
if rank == 0:
    file = io.BytesIO()
    torch.save({"weights": torch.ones(3, 3), "step": 7}, file)
    data = torch.frombuffer(file.getbuffer(), dtype=torch.uint8)
    dist.send(torch.tensor([data.numel()]), dst=1)
    dist.send(data, dst=1)
elif rank == 1:
    length = torch.empty(1, dtype=torch.int64)
    dist.recv(length, src=0)
    data = torch.empty(int(length), dtype=torch.uint8)
    dist.recv(data, src=0)
    state = torch.load(io.BytesIO(data.numpy().tobytes()))
    assert state["step"] == 7 and (state["weights"] == 1).all()

print(f"rank {rank}: all tensors are there")
dist.destroy_process_group()
