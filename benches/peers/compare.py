"""Runs the contestants in turn and prints times and ratios; run.sh installs them and calls this.

Per collective, number of ranks, size and round every contestant runs once, one right after the other, so that what
else the machine does hits all alike. A time is the median over the rounds of each run's p50: the slowest rank's time
of one call after a barrier, of float32, reduced by sums. The ratio to another is the median over the rounds of our time
by its time in the same round, and the one printed for which it is highest: where a run comes out in one of two ways,
as large broadcasts do, the medians of two contestants with the same two ways can be far apart by chance. A round counts
only where the cores were as far apart after each of its runs as before all (cores.c): a virtual machine's are moved
about, and all times with them. Every contestant checks its result; where one fails there is no ratio, and the exit
status is 1. One that cannot be started at all is skipped. Where MPICH takes part, unisono and Intel MPI run over the libfabric
that MPICH brings along, so that the provider underneath all three is the same. With --over shm all run over shared memory,
each over its own; Gloo has none. With --json each contestant's medians are also written to a file of its name, in the form of
`unisono bench --json`, for `unisono bench --plot`.
"""

import argparse
import ctypes
import json
import math
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TITLES = {"unisono": "unisono", "gloo": "Gloo", "mpich": "MPICH", "openmpi": "Open MPI", "impi": "Intel MPI"}
# By the transport between the ranks of one host.
WAYS = {"tcp": "TCP", "shm": "shared memory"}
COLLECTIVES = ["all_reduce", "all_gather", "broadcast", "reduce_scatter", "all_to_all"]
# Their vectors have a block for every rank.
IN_BLOCKS = ["all_gather", "reduce_scatter", "all_to_all"]
SIZES = "8,1K,8K,64K,512K,1M,4M,32M"
QUICK_SIZES = "8,8K,512K,4M"
# From this size on the loopback's byte counter tells whether a contestant used TCP at all.
TELLING = 512 * 1024
LIMIT_S = 60
# With this status gloo.py says that what it was asked for is not there; of others it is a failure.
REFUSED = 2
# Cores are as far apart as before if what cores.c measures is within this factor; between two ways to lie there are 4.
ALIKE = 1.8
# A round is tried so often until it counts.
ATTEMPTS = 50


class Failed(Exception):
    """A run gave no figure; says why."""


class Refused(Exception):
    """The contestant has not what is asked for; says so in its words."""


def size(text):
    scale = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:].upper())
    value = int(text[:-1]) * scale if scale else int(text)
    if value < 4:
        raise argparse.ArgumentTypeError(f"{text} is less than a float32")
    return value


def collective(text):
    if text not in COLLECTIVES:
        raise argparse.ArgumentTypeError(f"there is no {text}; there are {', '.join(COLLECTIVES)}")
    return text


def whole(count, name, ranks):
    """The bytes of the whole vector: whole elements, of every block, and at least one."""
    unit = 4 * ranks if name in IN_BLOCKS else 4
    return max(unit, count - count % unit)


def list_of(kind):
    return lambda text: [kind(word) for word in text.split(",") if word]


def short(count):
    for unit, scale in (("M", 1 << 20), ("K", 1 << 10)):
        if count >= scale and count % scale == 0:
            return f"{count // scale}{unit}"
    return str(count)


def loopback_bytes():
    with open("/proc/net/dev") as table:
        for line in table:
            device, _, numbers = line.partition(":")
            if device.strip() == "lo":
                return int(numbers.split()[0])
    return None


def same_libfabric(options):
    """The environment in which unisono and Intel MPI load MPICH's libfabric, if they are to."""
    brought = os.path.join(options.peers, "mpich/lib/mpich")
    if options.own_libfabric or "mpich" not in options.contestants or not os.path.exists(f"{brought}/libfabric.so.1"):
        return {}
    return {"LD_LIBRARY_PATH": ":".join(filter(None, [brought, os.environ.get("LD_LIBRARY_PATH")]))}


def congestion_control():
    """What decides how much of a TCP connection may be under way: much between ranks of one machine depends on it."""
    try:
        with open("/proc/sys/net/ipv4/tcp_congestion_control") as name:
            return name.read().strip()
    except OSError:
        return "unknown"


def libfabric(options):
    """Which version that is; of this machine's, if none is brought along."""
    directory = same_libfabric(options).get("LD_LIBRARY_PATH", "").split(":")[0]
    version = ctypes.CDLL(os.path.join(directory, "libfabric.so.1")).fi_version()
    return f"{version >> 16}.{version & 0xffff}"


class Cores:
    """How far apart the machine's cores are, which may change while contestants run."""

    def __init__(self, program):
        self.program = program
        self.repeated = 0
        self.apart()

    def apart(self):
        """What cores.c prints: µs to write memory that the other core has read; None without it."""
        if self.program is None:
            return None
        return float(subprocess.run([self.program], check=True, capture_output=True, text=True).stdout)

    def during(self, runs):
        """What each of `runs` gives, one right after the other, with the cores as far apart after each as before all."""
        for _ in range(ATTEMPTS):
            before, results = self.apart(), []
            for run in runs:
                results.append(run())
                if before and not 1 / ALIKE < self.apart() / before < ALIKE:
                    break
            else:
                return results
            self.repeated += 1
        raise Failed(f"the cores were moved in each of {ATTEMPTS} attempts")


def command(who, options, name, ranks, count, iterations, warmup, report):
    """The words and the extra environment that run one contestant."""
    peers = os.path.join(options.peers, who)
    numbers = [str(count), str(iterations), str(warmup)]
    tcp = options.over == "tcp"
    if who == "unisono":
        words = [options.unisono, "bench", name, "--ranks", str(ranks), "--provider", options.over, "-d", "f32"]
        words += ["-b", str(count), "-e", str(count), "-n", str(iterations), "-w", str(warmup)]
        # The others put nothing beforehand either.
        return words + ["--no-raw", "--out-of-place", "--json", report], same_libfabric(options)
    program = ["-n", str(ranks), f"{peers}/collectives", name, *numbers]
    if who == "mpich":
        if not tcp and ranks > len(os.sched_getaffinity(0)):
            # Large ones do not end within the limit. Of its settings only MPIR_CVAR_CH4_PROGRESS_THROTTLE helps, and not enough.
            raise Refused("its ranks poll shared memory without end, and there are more of them than cores")
        # The wheel's first choice is UCX, and ranks on one host share memory unless told they are not local.
        environment = {"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp", "MPIR_CVAR_NOLOCAL": str(int(tcp))}
        return [f"{peers}/bin/mpiexec", *program], environment
    if who == "openmpi":
        words = [f"{peers}/bin/mpirun", "--oversubscribe", "--mca", "pml", "ob1", "--mca", "btl", f"{'tcp' if tcp else 'sm'},self"]
        words += ["--allow-run-as-root"] if os.geteuid() == 0 else []
        return [*words, *program], {}
    if who == "impi":
        # Without the last, ranks on one host share memory in collectives whatever the fabric is.
        environment = {"I_MPI_FABRICS": "ofi", "FI_PROVIDER": "tcp", "I_MPI_COLL_INTRANODE": "pt2pt"} if tcp else {"I_MPI_FABRICS": "shm"}
        return [f"{peers}/bin/mpiexec", *program], {"I_MPI_ROOT": peers, **environment, **same_libfabric(options)}
    if not tcp:
        raise Refused("it has nothing over shared memory")
    return [f"{peers}/bin/python", f"{HERE}/gloo.py", name, str(ranks), *numbers], {}


def p50(who, options, name, ranks, count):
    """One run's median time in µs."""
    iterations = max(8, min(300, (64 << 20) // count))
    warmup = max(2, iterations // 10)
    with tempfile.TemporaryDirectory() as directory:
        report = os.path.join(directory, "report")
        words, environment = command(who, options, name, ranks, count, iterations, warmup, report)
        before = loopback_bytes()
        try:
            running = subprocess.Popen(words, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, text=True,
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
        except OSError as error:
            raise Failed(f"it cannot be started: {error}") from None
        try:
            said, complaint = running.communicate(timeout=LIMIT_S)
        except BaseException as error:
            # With all its ranks: one that went on would disturb the next.
            os.killpg(running.pid, signal.SIGKILL)
            running.wait()
            if isinstance(error, subprocess.TimeoutExpired):
                raise Failed(f"not done within {LIMIT_S} s") from None
            raise
        after = loopback_bytes()
        if running.returncode != 0:
            lines = [line for line in (complaint or said).splitlines() if any(map(str.isalpha, line))]
            # What comes first is the cause; but our program may have warned of something before, unless it could not
            # read its arguments, with status 2.
            cause = -1 if who == "unisono" and running.returncode != 2 else 0
            why = lines[cause] if lines else "nothing said"
            if running.returncode == REFUSED and who == "gloo":
                raise Refused(why)
            raise Failed(f"exit status {running.returncode}: {why}")
        try:
            if who == "unisono":
                with open(report) as lines:
                    result = json.loads(lines.readlines()[-1])
                if result["wrong"]:
                    raise Failed(f"{result['wrong']} wrong elements")
                value = float(result["time_us"]["p50"])
            else:
                # The upper of two in the middle, as unisono has it.
                value = statistics.median_high(float(line) for line in said.split())
        except (OSError, LookupError, ValueError, TypeError) as error:
            raise Failed(f"its report cannot be read: {error!r}") from None
    tells = options.over == "tcp" and ranks > 1 and count >= TELLING and before is not None
    if tells and after - before < count * iterations:
        raise Failed(f"it does not use TCP: {after - before} bytes on the loopback")
    return value


def tried(who, options, *run):
    """What `p50` gives, or why it gives nothing."""
    if time.monotonic() > options.until:
        return Failed(f"{options.within} s have passed")
    try:
        return p50(who, options, *run)
    except (Failed, Refused) as trouble:
        return trouble


def in_turn(ours, theirs):
    """Our time by theirs, the median over the rounds."""
    return statistics.median(our / their for our, their in zip(ours, theirs))


def bus_factor(name, ranks):
    """What nccl-tests multiplies the algorithm's bandwidth with (doc/PERFORMANCE.md)."""
    return {"all_reduce": 2 * (ranks - 1) / ranks, "broadcast": 1}.get(name, (ranks - 1) / ranks)


def record(options, name, ranks, count, median):
    """Adds a line to each contestant's file."""
    if options.json is None:
        return
    for who, micros in median.items():
        bandwidth = count / micros / 1e3
        line = {"collective": name, "ranks": ranks, "provider": options.over, "bytes": count, "dtype": "f32", "op": "sum" if "reduce" in name else None,
                "rounds": options.rounds, "time_us": {"p50": micros}, "algbw": bandwidth,
                "busbw": bandwidth * bus_factor(name, ranks)}
        with open(os.path.join(options.json, f"{TITLES[who]}.json"), "a") as results:
            print(json.dumps(line), file=results)


def taking_part(options):
    """The contestants: unisono, and the peers that are installed and can be started. Says which are not, and why."""
    there = ["unisono"]
    for who in filter(None, options.contestants.split(",")):
        result = tried(who, options, "all_reduce", 2, 8)
        if isinstance(result, Exception):
            print(f"SKIPPED: {TITLES[who]}: {result}", flush=True)
        else:
            there.append(who)
    return [who for who in TITLES if who in there]


def row(label, cells):
    print(f"{label:>8}" + "".join(f"{cell:>11}" for cell in cells), flush=True)


def compare(options, cores, name, ranks, contestants):
    """Prints one table; tells whether nobody failed, so that there is a ratio for every size."""
    print(f"\n{name}, {ranks} ranks, µs:")
    row("bytes", [TITLES[who] for who in contestants] + ["ours/best"])
    ratios, refused = [], set()
    sizes = list(dict.fromkeys(whole(count, name, ranks) for count in options.sizes))
    for count in sizes:
        if time.monotonic() > options.until:
            print(f"  not measured from {short(count)} on: {options.within} s have passed", flush=True)
            break
        times = {who: [] for who in contestants if who not in refused}
        notes = {}
        for _ in range(options.rounds):
            running = [who for who in times if who not in notes]
            try:
                results = cores.during([lambda who=who: tried(who, options, name, ranks, count) for who in running])
            except Failed as failure:
                results = [failure] * len(running)
            for who, result in zip(running, results):
                if isinstance(result, Refused):
                    notes[who] = f"SKIPPED: {TITLES[who]}: {result}"
                    refused.add(who)
                elif isinstance(result, Failed):
                    notes[who] = f"{TITLES[who]} failed at {short(count)}: {result}"
                else:
                    times[who].append(result)
        median = {who: statistics.median(runs) for who, runs in times.items() if who not in notes}
        # The one that failed might have been the best.
        failed = any(who not in refused for who in notes)
        others = [] if failed else [who for who in median if who != "unisono"]
        ratio = max((in_turn(times["unisono"], times[who]) for who in others), default=None)
        ratios += [ratio] if ratio else []
        absent = {who: "skipped" if who in refused else "failed" for who in contestants}
        cells = [f"{median[who]:.1f}" if who in median else absent[who] for who in contestants]
        row(short(count), cells + [f"{ratio:.2f}" if ratio else "-"])
        record(options, name, ranks, count, median)
        for note in notes.values():
            print(f"  {note}", flush=True)
    if ratios:
        print(f"geometric mean of ours/best: {math.exp(statistics.fmean(map(math.log, ratios))):.2f} (below 1 we lead)")
    return len(ratios) == len(sizes)


def main():
    parser = argparse.ArgumentParser(
        prog="benches/peers/run.sh",
        epilog="Bytes are those of the whole vector, as nccl-tests counts: of all_gather's output, of reduce_scatter's"
        " input, of either of all_to_all's. They are rounded down to whole elements of every rank's block,"
        " of which there is one at least.",
    )
    parser.add_argument("--collective", type=list_of(collective), default=COLLECTIVES, metavar="NAMES",
                        help=f"default {','.join(COLLECTIVES)}")
    parser.add_argument("--ranks", type=list_of(int), default=[2, 4, 8], help="numbers of ranks, default 2,4,8")
    parser.add_argument("--sizes", type=list_of(size), help=f"bytes, default {SIZES}")
    parser.add_argument("--rounds", type=int, help="how often each contestant runs, default 3")
    parser.add_argument("--over", choices=list(WAYS), default="tcp", help="TCP on the loopback (default), or shared memory")
    parser.add_argument("--within", type=int, metavar="S", help="begin nothing after this many seconds")
    parser.add_argument("--quick", action="store_true", help=f"one round of {QUICK_SIZES}")
    parser.add_argument("--json", metavar="DIR", help="write results to NAME.json there for each contestant, too;"
                        " what such a file held before is lost")
    parser.add_argument("--own-libfabric", action="store_true", help="unisono over this machine's, not over MPICH's")
    for internal in ("unisono", "peers", "contestants", "cores"):
        parser.add_argument(f"--{internal}", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.sizes = options.sizes or list_of(size)(QUICK_SIZES if options.quick else SIZES)
    options.rounds = max(1, options.rounds or (1 if options.quick else 3))
    options.until = math.inf if options.within is None else time.monotonic() + options.within
    by = f"TCP ({congestion_control()})" if options.over == "tcp" else "shared memory, each over its own"
    print(f"float32, sums, over {by}: {platform.system()} {platform.release()}, {os.cpu_count()} cores,")
    if options.over == "tcp":
        print(f"unisono over libfabric {libfabric(options)},")
    print(f"median of {options.rounds} round(s) of the p50 of the slowest rank's time of one call after a barrier")
    order = taking_part(options)
    if options.json is not None:
        os.makedirs(options.json, exist_ok=True)
        for who in order:
            open(os.path.join(options.json, f"{TITLES[who]}.json"), "w").close()
    try:
        cores = Cores(options.cores)
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        print(f"SKIPPED: how far apart the cores are: {error}")
        cores = Cores(None)
    # Every table is measured, whatever came before it.
    full = [compare(options, cores, name, ranks, order) for name in options.collective for ranks in options.ranks]
    if cores.repeated:
        print(f"\n{cores.repeated} rounds were repeated since the cores were moved meanwhile.")
    sys.exit(0 if all(full) else 1)


if __name__ == "__main__":
    main()
