"""One contestant of the comparison: Gloo's all_reduce of float32 sums over TCP.

    gloo.py [--torch] RANKS BYTES ITERATIONS WARMUP

prints the time of each iteration in microseconds: the slowest rank's time of one call after a barrier. Gloo comes
in PyPI's xoscar, whose extension module wraps it with nothing between, or with --torch in torch.distributed. A wrong
sum ends the program with a message.
"""

import array
import importlib.util
import os
import sys
import sysconfig
import tempfile
import time


class Plain:
    """Gloo as xoscar's extension module gives it: pointers and counts."""

    def __init__(self):
        name = "xoscar_pygloo" + sysconfig.get_config_var("EXT_SUFFIX")
        path = os.path.join(sysconfig.get_path("platlib"), "xoscar", "collective", name)
        # Loaded by its path: the package around it wants pandas.
        spec = importlib.util.spec_from_file_location("xoscar_pygloo", path)
        self.gloo = importlib.util.module_from_spec(spec)
        sys.modules["xoscar_pygloo"] = self.gloo
        spec.loader.exec_module(self.gloo)

    def join(self, rank, ranks, directory):
        gloo = self.gloo
        device = gloo.transport.tcp.CreateDevice(gloo.transport.tcp.attr("127.0.0.1"))
        self.context = gloo.rendezvous.Context(rank, ranks)
        self.context.connectFullMesh(gloo.rendezvous.FileStore(directory), device)

    def barrier(self):
        self.gloo.barrier(self.context)

    def reducer(self, values):
        out = array.array("f", bytes(4 * len(values)))
        kind, add = self.gloo.GlooDataType_t.glooFloat32, self.gloo.ReduceOp.SUM
        ring = self.gloo.AllreduceAlgorithm.RING
        context, source, target, count = self.context, values.buffer_info()[0], out.buffer_info()[0], len(values)
        return lambda: self.gloo.allreduce(context, source, target, count, kind, add, ring, 0), lambda: out

    def slowest(self, times):
        out = array.array("d", bytes(8 * len(times)))
        kind, largest = self.gloo.GlooDataType_t.glooFloat64, self.gloo.ReduceOp.MAX
        ring = self.gloo.AllreduceAlgorithm.RING
        source, target = times.buffer_info()[0], out.buffer_info()[0]
        self.gloo.allreduce(self.context, source, target, len(times), kind, largest, ring, 1)
        return out


class Torch:
    """Gloo as torch.distributed gives it; it reduces in place."""

    def __init__(self):
        import torch
        import torch.distributed

        self.torch, self.dist = torch, torch.distributed

    def join(self, rank, ranks, directory):
        self.torch.set_num_threads(1)
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        self.dist.init_process_group("gloo", init_method=f"file://{directory}/store", rank=rank, world_size=ranks)

    def barrier(self):
        self.dist.barrier()

    def reducer(self, values):
        tensor = self.torch.tensor(values)
        result = []

        def reduce():
            self.dist.all_reduce(tensor)
            # The sums grow from call to call: the first is kept for the check.
            if not result:
                result.append(tensor.clone())

        return reduce, lambda: result[0].tolist()

    def slowest(self, times):
        tensor = self.torch.tensor(times, dtype=self.torch.float64)
        self.dist.all_reduce(tensor, op=self.dist.ReduceOp.MAX)
        return tensor.tolist()


def measure(peer, rank, ranks, count, iterations, warmup):
    values = array.array("f", (float((i + rank) % 97) for i in range(count)))
    reduce, result = peer.reducer(values)
    times = array.array("d", bytes(8 * iterations))
    for k in range(-warmup, iterations):
        peer.barrier()
        begin = time.perf_counter()
        reduce()
        if k >= 0:
            times[k] = (time.perf_counter() - begin) * 1e6
    got = result()
    step = max(1, count // 100_000)
    for i in range(0, count, step):
        if got[i] != sum((i + r) % 97 for r in range(ranks)):
            sys.exit(f"gloo: wrong sum at {i}")
    return peer.slowest(times)


def main():
    words = sys.argv[1:]
    peer = Torch() if words[:1] == ["--torch"] else Plain()
    ranks, size, iterations, warmup = map(int, words[-4:])
    with tempfile.TemporaryDirectory() as directory:
        children = []
        for rank in range(ranks):
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    peer.join(rank, ranks, directory)
                    times = measure(peer, rank, ranks, size // 4, iterations, warmup)
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
