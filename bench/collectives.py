"""
How far is our bus bandwidth from that of a bare loop around the same collective?

Run with ``python bench/collectives.py [PAIRS]``. Two ranks of gloo on the loopback take
turns: steps of ours, each with data of its own that is made and verified, and a loop that
only meets and calls the collective, with the same buffers. A step is as long as its slower
rank. Compared are the median steps of a pair of turns, which change their order; the target
is 3 %.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from itertools import cycle, islice
from statistics import median
from time import perf_counter

import msgspec
import torch
from torch import Tensor

from hpcverify.units import KIB, MIB
from hpcverify_checks.ranks.collective import (
    CollectiveBenchmark,
    CollectiveJob,
    finish,
    use_thread_share,
)
from hpcverify_checks.ranks.operations import ALL_REDUCE, OPERATIONS
from hpcverify_checks.ranks.process_group import join_group
from hpcverify_checks.ranks.rendezvous import exchange_messages
from hpcverify_checks.ranks.sizes import format_size
from hpcverify_checks.ranks.step_data import WORD_BYTES, Words
from pairs import summarise

PAIRS = 15
STEPS = 8
"""In each half of a pair."""
SIZES = (64 * KIB, MIB, 16 * MIB)
NAMES = ("all_reduce", "all_gather", "alltoall")
TARGET = 0.03
CPU = torch.device("cpu")


def time_bare(
    benchmark: CollectiveBenchmark, buffers: Sequence[tuple[Tensor, Tensor]]
) -> list[float]:
    """
    Time a loop that does nothing but meet and call the collective.

    What is sent was written just before, and one step is not timed: a job that computes what
    it sends has it in its caches as well, and so have we.
    """
    meeting, times = torch.zeros(1), []
    untimed, *timed = islice(cycle(buffers), STEPS + 1)
    for send, _ in (*timed, untimed):
        send.add_(1)
    finish(benchmark.operation.begin(*untimed), CPU)
    for send, receive in timed:
        finish(ALL_REDUCE.begin(meeting, meeting), CPU)
        begin = perf_counter()
        finish(benchmark.operation.begin(send, receive), CPU)
        times.append(perf_counter() - begin)
    return times


def be_rank(rank: int, job: CollectiveJob, pairs: int) -> list[list[float]]:
    """Take turns; give the times of each half of each pair, ours first."""
    halves: list[list[float]] = []
    with use_thread_share(job), join_group(job, rank, CPU):
        for size in job.sizes:
            rows = Words.make(job.seed, size // WORD_BYTES, CPU)
            for name in job.operations:
                operation = OPERATIONS[name]
                benchmark = CollectiveBenchmark(job, rank, CPU, operation, size, rows, rows)
                buffers = benchmark.allocate()
                benchmark.run_steps(0, STEPS, buffers)
                for pair in range(pairs):
                    first = (pair + 1) * 2 * STEPS
                    if pair % 2:
                        bare = time_bare(benchmark, buffers)
                        ours = benchmark.run_steps(first, STEPS, buffers).times
                    else:
                        ours = benchmark.run_steps(first, STEPS, buffers).times
                        bare = time_bare(benchmark, buffers)
                    halves += [[*ours], bare]
    return halves


def main() -> None:
    """Start the other rank, be the first, and print a table."""
    if len(sys.argv) > 2:
        job = msgspec.json.decode(sys.argv[2], type=CollectiveJob)
        exchange_messages(job, 1, "halves", json.dumps(be_rank(1, job, int(sys.argv[1]))).encode())
        return
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else PAIRS
    with tempfile.TemporaryDirectory() as folder:
        job = CollectiveJob(folder, 2, "gloo", 120.0, NAMES, SIZES, 0.0, 1)
        text = msgspec.json.encode(job).decode()
        other = subprocess.Popen([sys.executable, __file__, str(pairs), text])
        own = be_rank(0, job, pairs)
        both = [
            json.loads(m) for m in exchange_messages(job, 0, "halves", json.dumps(own).encode())
        ]
        other.wait(60)
    slowest = [list(map(max, *ranks)) for ranks in zip(*both, strict=True)]
    cases = [(size, name) for size in SIZES for name in NAMES]
    print("operation    size  ours ms  busbw to that of the bare loop")
    for place, (size, name) in enumerate(cases):
        times = slowest[place * 2 * pairs : (place + 1) * 2 * pairs]
        ours, bare = ([median(half) for half in times[which::2]] for which in range(2))
        ratio = summarise([b / o for o, b in zip(ours, bare, strict=True)])
        mark = "" if abs(ratio.median - 1) <= TARGET else "  beyond the target"
        print(f"{name:11} {format_size(size):>6} {median(ours) * 1e3:8.3f}  {ratio}{mark}")


if __name__ == "__main__":
    main()
