"""Broadcast, scatter and gather of objects and arrays, as in the tutorial of mpi4py.

python -m unisono run -n 4 python collectives.py

    [0] everything arrived
"""

import numpy as np
import unisono

with unisono.init() as group:
    rank, size = group.rank, group.size

    # data = comm.bcast(data, root=0)
    data = {"key1": [7, 2.72, None], "key2": ["abc", "xyz"]} if rank == 0 else None
    data = group.broadcast_object(data, root=0)
    assert data["key1"] == [7, 2.72, None]

    # data = comm.scatter(data, root=0)
    squares = [(i + 1) ** 2 for i in range(size)] if rank == 0 else None
    square = group.scatter_object(squares, root=0)
    assert square == (rank + 1) ** 2

    # data = comm.gather(data, root=0)
    gathered = group.gather_object((rank + 1) ** 2, root=0)
    assert gathered == ([(i + 1) ** 2 for i in range(size)] if rank == 0 else None)

    # comm.Bcast(data, root=0)
    array = np.arange(100, dtype="i") if rank == 0 else np.empty(100, dtype="i")
    group.broadcast(array, root=0)
    assert (array == np.arange(100)).all()

    # comm.Scatter(sendbuf, recvbuf, root=0)
    sendbuf = np.repeat(np.arange(size, dtype="i"), 100).reshape(size, 100) if rank == 0 else None
    recvbuf = np.empty(100, dtype="i")
    group.scatter(sendbuf, recvbuf, root=0)
    assert (recvbuf == rank).all()

    # comm.Gather(sendbuf, recvbuf, root=0): the result is made here.
    table = group.gather(np.full(100, rank, dtype="i"), root=0)
    assert table is None or (table == np.arange(size)[:, None]).all()

    # comm.Allgatherv with counts, and without: lengths that only their owners know.
    mine = np.full(rank + 1, float(rank))
    wanted = np.repeat(np.arange(size), np.arange(size) + 1)
    assert (group.all_gather(mine, lengths=[r + 1 for r in range(size)]) == wanted).all()
    assert (group.all_gather_tensor(mine) == wanted).all()

    group.barrier()
    if rank == 0:
        print("everything arrived")
