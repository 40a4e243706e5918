"""Ray's actors compute pi together: each adds up a part of the series, and all get the sum.

python actors.py

    4 actors agree that pi is 3.141592654
"""

import numpy
import ray
from ray.util import collective
from unisono.ray import UnisonoGroup

ACTORS, TERMS = 4, 1_000_000


@ray.remote(num_cpus=0)
class Summand:
    """One of the actors."""

    def __init__(self, rank: int) -> None:
        # Each process registers the backend.
        collective.register_collective_backend("unisono", UnisonoGroup)
        collective.init_collective_group(ACTORS, rank, "unisono")

    def pi(self) -> float:
        """This actor's part is every fourth interval, summed up with the parts of the others."""
        at = (numpy.arange(collective.get_rank(), TERMS, ACTORS) + 0.5) / TERMS
        part = numpy.array([(4 / (1 + at * at)).sum() / TERMS])
        collective.allreduce(part)
        return float(part[0])


actors = [Summand.remote(rank) for rank in range(ACTORS)]
results = ray.get([actor.pi.remote() for actor in actors])
assert len(set(results)) == 1
print(f"{ACTORS} actors agree that pi is {results[0]:.9f}")
