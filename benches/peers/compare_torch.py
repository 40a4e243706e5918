"""Compares torch.distributed over unisono with the same over Gloo, and prints times and ratios; run.sh --torch calls this.

As in compare.py all contestants run in turn, each in its own world: unisono over TCP and over shared memory, both through torch
and as `unisono bench` measures them, and torch's Gloo over TCP. An all_reduce is in place, as torch has it, and so is the bench's.
After the tables: a training step of 8 million parameters (DistributedDataParallel) and the part of it that one rank alone does not
take; an all_reduce begun and waited for beside a blocking one; and what a group costs.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile

import torch
import torch_rank as ranks_of
from compare import COLLECTIVES, QUICK_SIZES, SIZES, Cores, collective, in_turn, list_of, row, short, size, whole

# The backend and the provider of each world, by the title of its column.
WORLDS = {"tcp": ("unisono", "tcp"), "shm": ("unisono", "shm"), "Gloo": ("gloo", None)}
COLUMNS = ["tcp", "bench tcp", "shm", "bench shm", "Gloo"]
DDP_STEPS = (30, 5)
GROUPS = 1000


def bench(options, provider, name, ranks, count, iterations, warmup):
    """What `unisono bench` measures, in µs."""
    with tempfile.NamedTemporaryFile() as report:
        words = [options.unisono, "bench", name, "--ranks", str(ranks), "--provider", provider, "-d", "f32", "--no-raw"]
        words += ["-b", str(count), "-e", str(count), "-n", str(iterations), "-w", str(warmup), "--json", report.name]
        words += ["--in-place" if name == "all_reduce" else "--out-of-place"]
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=ranks_of.LIMIT_S)
        if done.returncode:
            raise ranks_of.Failed(f"unisono bench: exit status {done.returncode}: {done.stderr.strip()}")
        return float(json.loads(report.readlines()[-1])["time_us"]["p50"])


def rounds(options, cores, runs):
    """What each of `runs`, by name, gives in each round."""
    taken = [cores.during(list(runs.values())) for _ in range(options.rounds)]
    return dict(zip(runs, map(list, zip(*taken))))


def compare(options, cores, name, ranks):
    """Prints one table."""
    print(f"\n{name}, {ranks} ranks, µs:")
    row("bytes", COLUMNS + ["tcp/Gloo", "shm/Gloo"])
    ratios = {"tcp": [], "shm": []}
    for count in dict.fromkeys(whole(count, name, ranks) for count in options.sizes):
        iterations = max(8, min(300, (64 << 20) // count))
        numbers = (iterations, max(2, iterations // 10))
        runs = {}
        for column in COLUMNS:
            if column in WORLDS:
                work = (ranks, *WORLDS[column], ranks_of.p50, name, count // 4, *numbers)
                runs[column] = lambda work=work: ranks_of.world(*work)
            else:
                work = (options, column.split()[-1], name, ranks, count, *numbers)
                runs[column] = lambda work=work: bench(*work)
        times = rounds(options, cores, runs)
        here = {provider: in_turn(times[provider], times["Gloo"]) for provider in ratios}
        for provider, ratio in here.items():
            ratios[provider].append(ratio)
        row(short(count), [f"{statistics.median(times[column]):.1f}" for column in COLUMNS] +
            [f"{ratio:.2f}" for ratio in here.values()])
    means = (f"{math.exp(statistics.fmean(map(math.log, of))):.2f} over {provider}" for provider, of in ratios.items())
    print(f"geometric mean of ours/Gloo: {', '.join(means)} (below 1 we lead)")


def steps(options, cores):
    """Prints what a training step takes."""
    runs = {"alone": lambda: ranks_of.world(1, "gloo", None, ranks_of.step, False, *DDP_STEPS)}
    for column, world in WORLDS.items():
        runs[column] = lambda world=world: ranks_of.world(2, *world, ranks_of.step, True, *DDP_STEPS)
    times = rounds(options, cores, runs)
    print("\na training step of 8 M parameters, 2 ranks, ms:")
    row("", ["one alone", *WORLDS, "tcp/Gloo", "shm/Gloo"])
    row("whole", [f"{statistics.median(of):.1f}" for of in times.values()] +
        [f"{in_turn(times[provider], times['Gloo']):.2f}" for provider in ("tcp", "shm")])
    beyond = {who: [time - alone for time, alone in zip(times[who], times["alone"])] for who in WORLDS}
    row("beyond", ["", *(f"{statistics.median(of):.1f}" for of in beyond.values())] +
        [f"{in_turn(beyond[provider], beyond['Gloo']):.2f}" for provider in ("tcp", "shm")])


def waits(options, cores):
    """Prints what it costs to begin and wait instead of blocking."""
    runs = {who: lambda world=world: ranks_of.world(2, *world, ranks_of.begun_and_waited_for, 200) for who, world in WORLDS.items()}
    times = rounds(options, cores, runs)
    print("\nall_reduce of 8 B, 2 ranks, µs:")
    row("", list(WORLDS))
    for which, label in enumerate(("blocking", "begun")):
        row(label, [f"{statistics.median(pair[which] for pair in times[who]):.1f}" for who in WORLDS])


def groups(options, cores):
    """Prints what a group costs."""
    runs = {who: lambda world=world: ranks_of.world(2, *world, ranks_of.groups, GROUPS) for who, world in WORLDS.items() if who != "Gloo"}
    times = rounds(options, cores, runs)
    print(f"\neach of {GROUPS} groups, 2 ranks:")
    for who, of in times.items():
        print(f"  {who}: {statistics.median(ms for ms, _ in of):.2f} ms, {max(files for _, files in of):.2f} descriptors")


def main():
    more = {"steps": steps, "waits": waits, "groups": groups}
    parser = argparse.ArgumentParser(prog="benches/peers/run.sh --torch")
    parser.add_argument("--collective", type=list_of(collective), default=COLLECTIVES, metavar="NAMES")
    parser.add_argument("--ranks", type=list_of(int), default=[2], help="numbers of ranks, default 2")
    parser.add_argument("--sizes", type=list_of(size), help=f"bytes, default {SIZES}")
    parser.add_argument("--rounds", type=int, help="how often each contestant runs, default 3")
    parser.add_argument("--quick", action="store_true", help=f"one round of {QUICK_SIZES}")
    parser.add_argument("--more", type=list_of(str), default=list(more), metavar="NAMES", help=f"default {','.join(more)}")
    for internal in ("unisono", "cores"):
        parser.add_argument(f"--{internal}", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.sizes = options.sizes or list_of(size)(QUICK_SIZES if options.quick else SIZES)
    options.rounds = max(1, options.rounds or (1 if options.quick else 3))
    print(f"torch {torch.__version__}, float32, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; median of {options.rounds} round(s)")
    print("of the p50 of the slowest rank's time of one call after a barrier")
    cores = Cores(options.cores)
    failed = False
    works = [lambda name=name, ranks=ranks: compare(options, cores, name, ranks)
             for name in options.collective for ranks in options.ranks]
    works += [lambda name=name: more[name](options, cores) for name in options.more]
    for work in works:
        try:
            work()
        except Exception as error:
            print(f"  failed: {error}")
            failed = True
    sys.exit(1 if failed else 0)


main()
