"""Messages between two ranks: objects and arrays, as in the tutorial of mpi4py.

python -m unisono run -n 2 python point_to_point.py

    [1] object: {'a': 7, 'b': 3.14}
    [1] later: {'a': 7, 'b': 3.14}
    [1] array: the sum of 1000 numbers is 499500
    [1] of any shape: (2, 3) float32, () int64
    [0] from rank 1: (1+2j)
"""

import numpy as np
import unisono

with unisono.init() as group:
    rank = group.rank
    data = {"a": 7, "b": 3.14}

    # comm.send(data, dest=1, tag=11); data = comm.recv(source=0, tag=11)
    if rank == 0:
        group.send_object(data, to=1, tag=11)
    elif rank == 1:
        received, _ = group.recv_object(source=0, tag=11)
        print("object:", received)

    # comm.isend, comm.irecv, req.wait()
    if rank == 0:
        work = group.send_object_async(data, to=1, tag=12)
        work.wait()
    elif rank == 1:
        work = group.recv_object_async(source=0, tag=12)
        received, _ = work.wait()
        print("later:", received)

    # comm.Send([data, MPI.INT], dest=1, tag=77); comm.Recv([data, MPI.INT], source=0, tag=77): types are found out.
    if rank == 0:
        group.send(np.arange(1000, dtype=np.int32), to=1, tag=77)
    elif rank == 1:
        array = np.empty(1000, dtype=np.int32)
        group.recv(array, source=0, tag=77)
        print("array: the sum of 1000 numbers is", array.sum())

    # Several arrays, whose types and shapes the receiver learns with them.
    if rank == 0:
        group.send_tensors([np.zeros((2, 3), np.float32), np.array(5)], to=1)
    elif rank == 1:
        arrays, _ = group.recv_tensors(source=0)
        print("of any shape:", ", ".join(f"{array.shape} {array.dtype}" for array in arrays))

    # What is not plain is pickled, if both ask for it: only from ranks that are trusted. From MPI.ANY_SOURCE: no source.
    if rank == 1:
        group.send_object(1 + 2j, to=0, pickle=True)
    elif rank == 0:
        received, sender = group.recv_object(pickle=True)
        print(f"from rank {sender}:", received)
