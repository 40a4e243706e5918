"""One large array by rows, columns and blocks, lists of arrays of any shapes, and a file.

python -m unisono run -n 4 python parts_and_files.py

    [0] parts, lists and the file arrived
"""

import pathlib
import tempfile

import numpy as np
import unisono

with unisono.init() as group, tempfile.TemporaryDirectory() as folder:
    rank, size = group.rank, group.size
    matrix = np.arange(42.0).reshape(6, 7)
    whole = matrix if rank == 0 else None

    # By rows, by columns, and as a grid of blocks; the others learn type and shape.
    for options in ({"axis": 0}, {"axis": 1}, {"blocks": (1, size)}):
        part = group.scatter_tensor(whole, root=0, **options)
        assert (group.all_gather_tensor(part, **options) == matrix).all()

    # Every rank has another number of arrays.
    mine = [np.full((rank, k), k, dtype="i2") for k in range(rank)]
    lists = group.all_gather_tensors(mine)
    assert [len(each) for each in lists] == list(range(size))

    # From rank 0's directory to all others'.
    file = pathlib.Path(folder, "weights.npy")
    if rank == 0:
        np.save(file, matrix)
    delivered = group.broadcast_file(file, folder, root=0)
    assert (np.load(delivered.path) == matrix).all()

    group.barrier()
    if rank == 0:
        print("parts, lists and the file arrived")
