"""Dask's workers compute pi together: each adds up a part of the series, and all get the sum.

python pi.py

    4 workers agree that pi is 3.141592654
"""

import numpy
import unisono.dask
from distributed import Client, LocalCluster

TERMS = 1_000_000


def pi(group: unisono.Group) -> float:
    """What one worker does: its part is every fourth interval."""
    at = (numpy.arange(group.rank, TERMS, group.size) + 0.5) / TERMS
    return float(group.all_reduce((4 / (1 + at * at)).sum() / TERMS))


if __name__ == "__main__":
    with (
        LocalCluster(n_workers=4, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        results = unisono.dask.run(client, pi)
    assert len(set(results)) == 1
    print(f"{len(results)} workers agree that pi is {results[0]:.9f}")
