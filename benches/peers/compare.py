"""Runs the contestants in turn and prints times and ratios; run.sh installs them and calls this.

Per number of ranks, size and round every contestant runs once, one right after the other, so that what else the
machine does hits all alike. A figure is the median over the rounds of each run's p50: the slowest rank's time of one
call after a barrier, float32 sum.
"""

import argparse
import json
import math
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
TITLES = {"unisono": "unisono", "gloo": "Gloo", "torch": "torch", "mpich": "MPICH", "openmpi": "Open MPI"}
SIZES = "8,1K,8K,64K,512K,1M,4M,32M"
QUICK_SIZES = "8,8K,512K,4M"
# From this size on the loopback's byte counter tells whether a contestant used TCP at all.
TELLING = 512 * 1024
LIMIT_S = 60


class Failed(Exception):
    """A run gave no figure; says why."""


def size(text):
    scale = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:].upper())
    value = int(text[:-1]) * scale if scale else int(text)
    if value < 4 or value % 4:
        raise argparse.ArgumentTypeError(f"{text} is no whole number of float32")
    return value


def list_of(kind):
    return lambda text: [kind(word) for word in text.split(",") if word]


def name(count):
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


def command(who, options, ranks, count, iterations, warmup, report):
    """The words and the extra environment that run one contestant."""
    peers = os.path.join(options.peers, who)
    numbers = [str(count), str(iterations), str(warmup)]
    if who == "unisono":
        words = [options.unisono, "bench", "all_reduce", "--ranks", str(ranks), "--provider", "tcp", "-d", "f32"]
        words += ["-o", "sum", "-b", str(count), "-e", str(count), "-n", str(iterations), "-w", str(warmup)]
        return words + ["--json", report], {}
    if who == "mpich":
        # The wheel's first choice is UCX, and ranks on one host share memory unless told they are not local.
        environment = {"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp", "MPIR_CVAR_NOLOCAL": "1"}
        return [f"{peers}/bin/mpiexec", "-n", str(ranks), f"{peers}/allreduce", *numbers], environment
    if who == "openmpi":
        words = [f"{peers}/bin/mpirun", "--oversubscribe", "--mca", "pml", "ob1", "--mca", "btl", "tcp,self"]
        words += ["--allow-run-as-root"] if os.geteuid() == 0 else []
        return [*words, "-n", str(ranks), f"{peers}/allreduce", *numbers], {}
    words = [f"{peers}/bin/python", f"{HERE}/gloo.py"] + (["--torch"] if who == "torch" else [])
    return [*words, str(ranks), *numbers], {}


def p50(who, options, ranks, count):
    """One run's median time in µs."""
    iterations = max(8, min(300, (64 << 20) // count))
    warmup = max(2, iterations // 10)
    with tempfile.TemporaryDirectory() as directory:
        report = os.path.join(directory, "report")
        words, environment = command(who, options, ranks, count, iterations, warmup, report)
        before = loopback_bytes()
        running = subprocess.Popen(words, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
        try:
            said, complaint = running.communicate(timeout=LIMIT_S)
        except BaseException as error:
            # With all its ranks: one that went on would disturb whoever is next.
            os.killpg(running.pid, signal.SIGKILL)
            running.wait()
            if isinstance(error, subprocess.TimeoutExpired):
                raise Failed(f"not done within {LIMIT_S} s") from None
            raise
        after = loopback_bytes()
        if running.returncode != 0:
            last = (complaint or said).strip().splitlines() or ["nothing said"]
            raise Failed(f"exit status {running.returncode}: {last[-1]}")
        try:
            if who == "unisono":
                with open(report) as lines:
                    result = json.loads(lines.readlines()[-1])
                if result["wrong"]:
                    raise Failed(f"{result['wrong']} wrong elements")
                value = float(result["time_us"]["p50"])
            else:
                value = statistics.median(float(line) for line in said.split())
        except (OSError, LookupError, ValueError, TypeError) as error:
            raise Failed(f"its report cannot be read: {error!r}") from None
    if ranks > 1 and count >= TELLING and before is not None and after - before < count * iterations:
        raise Failed(f"it does not use TCP: {after - before} bytes on the loopback")
    return value


def row(label, cells):
    print(f"{label:>8}" + "".join(f"{cell:>11}" for cell in cells), flush=True)


def compare(options, ranks, contestants):
    print(f"\n{ranks} ranks, µs:")
    columns = [TITLES[who] for who in contestants]
    row("bytes", columns + ["ours/best"])
    ratios = []
    for count in options.sizes:
        times = {who: [] for who in contestants}
        failures = {}
        for _ in range(options.rounds):
            for who in contestants:
                if who not in failures:
                    try:
                        times[who].append(p50(who, options, ranks, count))
                    except Failed as failure:
                        failures[who] = failure
        median = {who: statistics.median(runs) for who, runs in times.items() if who not in failures}
        best = min((time for who, time in median.items() if who != "unisono"), default=None)
        ratio = median["unisono"] / best if best and "unisono" in median else None
        ratios += [ratio] if ratio else []
        cells = [f"{median[who]:.1f}" if who in median else "failed" for who in contestants]
        row(name(count), cells + [f"{ratio:.2f}" if ratio else "-"])
        for who, failure in failures.items():
            print(f"  {TITLES[who]} failed at {name(count)}: {failure}")
    if ratios:
        print(f"geometric mean of ours/best: {math.exp(statistics.fmean(map(math.log, ratios))):.2f} (below 1 we lead)")
    return len(ratios) == len(options.sizes)


def main():
    parser = argparse.ArgumentParser(prog="benches/peers/run.sh")
    parser.add_argument("--ranks", type=list_of(int), default=[2, 4], help="numbers of ranks, default 2,4")
    parser.add_argument("--sizes", type=list_of(size), help=f"bytes, default {SIZES}")
    parser.add_argument("--rounds", type=int, help="how often each contestant runs, default 3")
    parser.add_argument("--quick", action="store_true", help=f"one round of {QUICK_SIZES}")
    for internal in ("unisono", "peers", "contestants"):
        parser.add_argument(f"--{internal}", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.sizes = options.sizes or list_of(size)(QUICK_SIZES if options.quick else SIZES)
    options.rounds = max(1, options.rounds or (1 if options.quick else 3))
    order = [who for who in TITLES if who == "unisono" or who in options.contestants.split(",")]

    print(f"all_reduce, float32 sum, over TCP: {platform.system()} {platform.release()}, {os.cpu_count()} cores,")
    print(f"median of {options.rounds} round(s) of the p50 of the slowest rank's time of one call after a barrier")
    # Every number of ranks is measured, whatever came before it.
    complete = [compare(options, ranks, order) for ranks in options.ranks]
    sys.exit(0 if all(complete) else 1)


main()
