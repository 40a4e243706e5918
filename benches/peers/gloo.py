"""One contestant of the comparison: a collective of Gloo over TCP, of float32, reduced by sums.

    gloo.py COLLECTIVE RANKS BYTES ITERATIONS WARMUP

prints the time of each iteration in microseconds: the slowest rank's time of one call after a barrier. BYTES are
those of the whole vector, rounded down to whole elements per block where there is a block for every rank. Gloo comes
in PyPI's xoscar, whose extension module wraps it with next to nothing between. A wrong result of the first call ends
the program with a message; a collective that there is not, with status 2.
"""

import array
import importlib.util
import os
import sys
import sysconfig
import tempfile
import time

# compare.py takes this status for "it has not the collective".
REFUSED = 2


class Gloo:
    """Gloo as xoscar's extension module gives it: pointers and counts.

    Two things are not as Gloo alone would do them: a broadcast's root copies its input to its output, and
    reduce_scatter, which Gloo does in place, copies the input first.
    """

    FUNCTIONS = {
        "all_reduce": "allreduce",
        "all_gather": "allgather",
        "broadcast": "broadcast",
        "reduce_scatter": "reduce_scatter",
        "all_to_all": "all_to_all",
    }

    def __init__(self):
        name = "xoscar_pygloo" + sysconfig.get_config_var("EXT_SUFFIX")
        path = os.path.join(sysconfig.get_path("platlib"), "xoscar", "collective", name)
        # Loaded by its path: the package around it wants pandas.
        spec = importlib.util.spec_from_file_location("xoscar_pygloo", path)
        self.gloo = importlib.util.module_from_spec(spec)
        sys.modules["xoscar_pygloo"] = self.gloo
        spec.loader.exec_module(self.gloo)

    def has(self, name):
        return hasattr(self.gloo, self.FUNCTIONS.get(name, ""))

    def join(self, rank, ranks, directory):
        gloo = self.gloo
        device = gloo.transport.tcp.CreateDevice(gloo.transport.tcp.attr("127.0.0.1"))
        self.context = gloo.rendezvous.Context(rank, ranks)
        self.context.connectFullMesh(gloo.rendezvous.FileStore(directory), device)
        self.ranks = ranks

    def barrier(self):
        self.gloo.barrier(self.context)

    def collective(self, name, source, target):
        """What calls the collective once."""
        kind, add = self.gloo.GlooDataType_t.glooFloat32, self.gloo.ReduceOp.SUM
        rest = {
            "all_reduce": [len(source), kind, add, self.gloo.AllreduceAlgorithm.RING, 0],
            "all_gather": [len(source), kind, 0],
            "broadcast": [len(target), kind, 0, 0],
            "reduce_scatter": [len(source), [len(target)] * self.ranks, kind, add],
            "all_to_all": [len(source), kind, 0],
        }
        function = getattr(self.gloo, self.FUNCTIONS[name])
        arguments = [self.context, source.buffer_info()[0], target.buffer_info()[0], *rest[name]]
        return lambda: function(*arguments)

    def slowest(self, times):
        out = array.array("d", bytes(8 * len(times)))
        kind, largest = self.gloo.GlooDataType_t.glooFloat64, self.gloo.ReduceOp.MAX
        ring = self.gloo.AllreduceAlgorithm.RING
        source, target = times.buffer_info()[0], out.buffer_info()[0]
        self.gloo.allreduce(self.context, source, target, len(times), kind, largest, ring, 1)
        return out


def vector(ranks, first, count):
    """The sum of what these ranks have from element `first` on: small numbers, so that it is exact."""
    period = array.array("f", (sum(((first + i) * 7 + rank * 31) % 97 for rank in ranks) for i in range(97)))
    return (period * (count // 97 + 1))[:count]


def vectors(name, rank, ranks, count):
    """This rank's input to the collective, and the parts of what must come of it."""
    block, everyone = count // ranks, range(ranks)
    if name == "all_gather":
        return vector([rank], 0, block), [vector([other], 0, block) for other in everyone]
    if name == "reduce_scatter":
        return vector([rank], 0, block * ranks), [vector(everyone, rank * block, block)]
    if name == "all_to_all":
        return vector([rank], 0, block * ranks), [vector([other], rank * block, block) for other in everyone]
    return vector([rank], 0, count), [vector([0] if name == "broadcast" else everyone, 0, count)]


def measure(peer, name, rank, ranks, count, iterations, warmup):
    source, parts = vectors(name, rank, ranks, count)
    wanted = b"".join(part.tobytes() for part in parts)
    target = array.array("f", [-1.0]) * (len(wanted) // 4)
    call = peer.collective(name, source, target)
    call()
    if target.tobytes() != wanted:
        raise ValueError(f"wrong result of {name}")
    times = array.array("d", bytes(8 * iterations))
    for k in range(-warmup, iterations):
        peer.barrier()
        begin = time.perf_counter()
        call()
        if k >= 0:
            times[k] = (time.perf_counter() - begin) * 1e6
    return peer.slowest(times)


def main():
    words = sys.argv[1:]
    peer = Gloo()
    name = words[-5]
    if not peer.has(name):
        print(f"gloo: this Gloo has no {name}", file=sys.stderr)
        sys.exit(REFUSED)
    ranks, size, iterations, warmup = map(int, words[-4:])
    with tempfile.TemporaryDirectory() as directory:
        children = []
        for rank in range(ranks):
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    peer.join(rank, ranks, directory)
                    times = measure(peer, name, rank, ranks, size // 4, iterations, warmup)
                    if rank == 0:
                        print(*(f"{t:.3f}" for t in times), sep="\n", flush=True)
                    peer.barrier()
                    status = 0
                except BaseException as error:
                    print(f"gloo: rank {rank}: {error}", file=sys.stderr, flush=True)
                os._exit(status)
            children.append(child)
        failed = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    sys.exit(1 if any(failed) else 0)


main()
