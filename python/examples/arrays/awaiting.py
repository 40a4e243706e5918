"""Collectives in asyncio: several are under way while the program does other things.

python -m unisono run -n 2 python awaiting.py

    [0] 5 sums, and the loop was free meanwhile
"""

import asyncio

import numpy as np
import unisono


async def heartbeat(beats: list[int]) -> None:
    """What else the program does."""
    while True:
        beats.append(len(beats))
        await asyncio.sleep(0)


async def main(group: unisono.Group) -> None:
    """Begins all sums, and awaits them one after the other."""
    beats: list[int] = []
    beating = asyncio.create_task(heartbeat(beats))
    works = [group.all_reduce_async(np.full(1_000_000, float(number))) for number in range(5)]
    for number, work in enumerate(works):
        total = await work
        assert (total == number * group.size).all()
    beating.cancel()
    if group.rank == 0:
        print(f"{len(works)} sums, and the loop was free meanwhile")


with unisono.init() as group:
    asyncio.run(main(group))
