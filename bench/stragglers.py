"""
Count how often a straggler is named: in healthy runs on a busy machine, and in slowed ones.

    python bench/stragglers.py --runs 50 --ranks 4 --busy 2
    python bench/stragglers.py --runs 10 --ranks 4 --slow

``--busy`` processes compute beside the ranks. ``--slow`` stops one rank, which changes with
each run, for half of the time: SIGSTOP and SIGCONT, a few milliseconds each.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

import msgspec

from hpcverify.isolation.stragglers import describe_straggler, find_stragglers
from hpcverify.records.collectives import CollectiveRun
from hpcverify_checks.collectives.launch import launch
from hpcverify_checks.collectives.order import LaunchOrder
from tests.checks.collectives.launched import FAR, read_position_of

STOP_SECONDS, GO_SECONDS = 0.012, 0.004
SPIN = "while True: pass"


def find_rank(rank: int) -> int:
    """Find the process of *rank* among our children; 0 if it is not there yet."""
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    for child in children:
        words = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
        if b"hpcverify_checks.collectives.rank" in words and b'"rank":%d,' % rank in words[-2]:
            return int(child)
    return 0


def stop_for_a_moment(rank: int) -> None:
    """Stop *rank* once, if it measures already."""
    child = find_rank(rank)
    if not child or read_position_of(child) <= FAR:
        return
    process = os.pidfd_open(child)
    try:
        signal.pidfd_send_signal(process, signal.SIGSTOP)
        time.sleep(STOP_SECONDS)
        signal.pidfd_send_signal(process, signal.SIGCONT)
    finally:
        os.close(process)


@contextmanager
def slow_down(rank: int) -> Generator[None]:
    """Stop *rank* for three quarters of the time, from when it measures."""
    over = Event()

    def act() -> None:
        while not over.wait(GO_SECONDS):
            with suppress(OSError):  # it is about to begin, or done
                stop_for_a_moment(rank)

    thread = Thread(target=act)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def keep_busy(count: int) -> Generator[None]:
    """Compute in *count* processes."""
    with ExitStack() as stack:
        for _ in range(count):
            process = subprocess.Popen([sys.executable, "-c", SPIN])
            stack.callback(process.wait)
            stack.callback(process.kill)
        yield


def measure(ranks: int) -> CollectiveRun:
    """Run one small all-reduce and the steps that stragglers are told from."""
    order = LaunchOrder(
        folder="",
        backend="",
        operations=("all_reduce",),
        sizes=(4096,),
        seconds=0.1,
        timeout=30.0,
        seed=1,
        algorithm="auto",
        alone=False,
        timeline=True,
        node="n1",
        group="bench",
        world=ranks,
        ranks=tuple((rank, rank) for rank in range(ranks)),
        address="127.0.0.1",
    )
    return msgspec.json.decode(launch(msgspec.json.encode(order)), type=CollectiveRun)


def main() -> None:
    """Print whom each run names, and how many named anybody."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--busy", type=int, default=0)
    parser.add_argument("--slow", action="store_true")
    options = parser.parse_args()
    counts = {"named": 0, "named the right one alone": 0, "not measured": 0}
    with keep_busy(options.busy):
        for number in range(options.runs):
            start, rank = time.monotonic(), number % options.ranks
            with slow_down(rank) if options.slow else ExitStack():
                run = measure(options.ranks)
            found = find_stragglers(run.ranks, run.steps, run.transfers)
            counts["not measured"] += not run.steps
            counts["named"] += bool(found)
            counts["named the right one alone"] += [one.rank for one in found] == [rank]
            told = "; ".join(describe_straggler(one, run.ranks) for one in found)
            took = time.monotonic() - start
            lost = "; ".join(run.reasons.values())
            told = told or run.unable or lost or "nobody"
            print(f"run {number}: {took:.1f} s; {told}", flush=True)
    print(", ".join(f"{name}: {count}" for name, count in counts.items()))


if __name__ == "__main__":
    main()
