"""
Stands for ``hpcverify fabric test`` in a simulated cluster.

It measures nothing: a JSON file says which nodes and links are bad, and it writes the
document that rank 0 would. `make_run` does the same within a test; as a program it is a
rank that Slurm started.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from hpcverify.plan.hostlist import expand
from hpcverify.records.collectives import CollectiveRun, CollectiveTiming, RankPlace

GOOD_GB_S = 40.0
SLOW_SHARE = 0.4
SIZE = 2**28
NO_RUN = CollectiveRun(id="stand-in", started="", ended="", version="")


class SimulatedCluster(Struct, frozen=True, kw_only=True):
    """Who is bad, and how."""

    bad: tuple[str, ...] = ()
    senders: tuple[str, ...] = ()
    receivers: tuple[str, ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    """From the first node to the second."""
    inside: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    newer: tuple[str, ...] = ()
    """They do not answer all others, and are well with each other."""
    largest: int = 10**9
    """More nodes than this are slow together."""
    pause: str = ""
    """While this file exists, no test ends."""


def is_slow(cluster: SimulatedCluster, nodes: Sequence[str], *, one_way: bool) -> bool:
    """Say whether a collective over *nodes*, in the order of ranks, is slow."""
    if len(nodes) == 1:
        return nodes[0] in cluster.inside
    senders = nodes[:1] if one_way else nodes
    receivers = nodes[1:] if one_way else nodes
    ways = {(a, b) for a in senders for b in receivers}
    return (
        not {*cluster.bad, *cluster.inside}.isdisjoint(nodes)
        or not set(cluster.senders).isdisjoint(senders)
        or not set(cluster.receivers).isdisjoint(receivers)
        or not ways.isdisjoint(cluster.links)
        or len(nodes) > cluster.largest
    )


def make_run(
    cluster: SimulatedCluster, nodes: Sequence[str], operations: Sequence[str]
) -> CollectiveRun:
    """Make the document of *operations* over *nodes*, in the order of ranks."""
    one_way = list(operations) == ["broadcast"]
    slow, newer = is_slow(cluster, nodes, one_way=one_way), {*cluster.newer}
    speed = GOOD_GB_S * (SLOW_SHARE if slow else 1.0)
    seconds = SIZE / speed / 1e9
    return msgspec.structs.replace(
        NO_RUN,
        ranks=tuple(RankPlace(rank, node, "cpu") for rank, node in enumerate(nodes)),
        timings=tuple(
            CollectiveTiming(one, SIZE, 20, seconds, seconds, seconds, speed, speed)
            for one in operations
        ),
        missing=tuple(
            rank
            for rank, node in enumerate(nodes)
            if node in cluster.missing or (node in cluster.newer and not newer.issuperset(nodes))
        ),
    )


def parse_arguments(words: Sequence[str]) -> argparse.Namespace:
    """Read the arguments, as `hpcverify fabric test` has them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("group", choices=["fabric"])
    parser.add_argument("command", choices=["test"])
    parser.add_argument("-o", dest="out", required=True)
    parser.add_argument("--operation", action="append", required=True)
    parser.add_argument("--size", action="append", required=True)
    parser.add_argument("--time")
    parser.add_argument("--address")
    parser.add_argument("--algorithm")
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--no-stragglers", action="store_true")
    return parser.parse_args(words)


def main() -> None:
    """Be one rank that Slurm started; the first one writes."""
    asked = parse_arguments(sys.argv[1:])
    cluster = msgspec.json.decode(
        Path(os.environ["SIMULATED_CLUSTER"]).read_bytes(), type=SimulatedCluster
    )
    while cluster.pause and Path(cluster.pause).exists():
        time.sleep(0.05)
    if os.environ["SLURM_PROCID"] != "0":
        return
    first = os.environ["SLURMD_NODENAME"]
    others = [n for n in expand(os.environ["SLURM_STEP_NODELIST"]) if n != first]
    run = make_run(cluster, [first, *others], asked.operation)
    unfinished = Path(f"{asked.out}.tmp")
    unfinished.write_bytes(msgspec.json.encode(run))
    unfinished.rename(asked.out)


if __name__ == "__main__":
    main()
