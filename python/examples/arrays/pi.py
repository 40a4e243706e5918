"""Pi, as the integral of 4 / (1 + x²): every rank sums up a part, and rank 0 gets the sum, as in the tutorial of mpi4py.

python -m unisono run -n 4 python pi.py

    [0] pi is 3.1415927
"""

import numpy as np
import unisono

with unisono.init() as group:
    # comm.Bcast(N, root=0)
    intervals = np.array(100_000 if group.rank == 0 else 0)
    group.broadcast(intervals, root=0)

    n = int(intervals)
    x = (np.arange(group.rank, n, group.size) + 0.5) / n
    part = (4 / (1 + x * x)).sum() / n

    # comm.Reduce(part, pi, op=MPI.SUM, root=0): a number is an array without dimensions.
    pi = group.reduce(part, "sum", root=0)
    if pi is not None:
        print(f"pi is {pi:.7f}")
