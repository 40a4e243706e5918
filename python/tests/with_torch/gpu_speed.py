"""Measures all_reduce on tensors of a GPU, with a backend: `torchrun --nproc-per-node 2 gpu_speed.py unisono`."""

import statistics
import sys
import time

import torch
import torch.distributed as dist
import unisono.torch  # noqa: F401 (before 2.14 torch does not find the backend itself)


def main(backend: str) -> None:
    """Prints a line for each size: median over 20 calls, each with its copies."""
    dist.init_process_group(backend)
    rank = dist.get_rank()
    torch.cuda.set_device(rank % torch.cuda.device_count())
    for size in (8, 64 << 10, 1 << 20, 16 << 20, 256 << 20):
        tensor, times = torch.zeros(size // 4, device="cuda"), []
        for _ in range(23):
            dist.barrier()
            begun = time.perf_counter()
            dist.all_reduce(tensor)
            torch.cuda.synchronize()
            times.append(time.perf_counter() - begun)
        if rank == 0:
            print(
                f"{backend:8} all_reduce {size:>10} B {statistics.median(times[3:]) * 1e6:>12.1f} us",
                flush=True,
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
