"""A matrix, of which every rank has rows, times a vector, of which every rank has a part: by all_gather, as in the tutorial of mpi4py.

python -m unisono run -n 4 python matrix_vector.py

    [0] the product is the one of a single process
"""

import numpy as np
import unisono


def times(group: unisono.Group, rows: np.ndarray, x: np.ndarray) -> np.ndarray:
    """This rank's part of the product, of its rows and its part of the vector."""
    whole = group.all_gather(x)
    return rows @ whole.reshape(-1)


with unisono.init() as group:
    # The same numbers on all ranks, of which each takes its own.
    each = 10
    n = each * group.size
    rng = np.random.default_rng(1)
    matrix, vector = rng.random((n, n)), rng.random(n)
    mine = slice(each * group.rank, each * (group.rank + 1))

    product = group.gather(times(group, matrix[mine], vector[mine]), root=0)
    if product is not None:
        assert np.allclose(product.reshape(-1), matrix @ vector)
        print("the product is the one of a single process")
