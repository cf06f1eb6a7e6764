"""
What planning a sweep costs on a large cluster with a past: ``hpcverify fleet sweep --dry-run``.

Slurm is a script that prints an answer from a file, for 10,000 nodes. The ledger knows all
of them, with the outages of five years (4.18 a day for each 1,000 nodes, as InfiniteHBD-Trace
has), and the verifications of thirty nights. CPU time is that of the command with all that
it starts; that of the ranking alone is measured in this process.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from random import Random
from sqlite3 import connect

import msgspec

from collect import HPCVERIFY, NODES, a_site, cpu_seconds, drained

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from hpcverify.fleet.ledger import Ledger  # noqa: E402 - below the path
from hpcverify.fleet.outages import NodeOutage, OutageCause  # noqa: E402 - as this
from hpcverify.fleet.risk import HISTORY_S, rank_fleet  # noqa: E402 - as this
from hpcverify.fleet.states import DAY_S, HOUR_S, Node, State  # noqa: E402 - as this

YEARS = 5
RATE = 4.18 / 1000
"""Outages a node and day."""
LATELY = 300
"""The nodes of the last outages: one in three falls on them again."""
NIGHTS = 30
MOST_SECONDS = 3
MOST_RANKING_SECONDS = 0.5


def main() -> None:
    """Measure, and print one line for each."""
    with tempfile.TemporaryDirectory(prefix="hvdry-") as name:
        folder = Path(name)
        environment = a_site(folder)
        drained(folder, NODES // 50)
        now = time.time()
        fill_ledger(folder / "state", now)
        report_ranking(folder / "state", now)
        for options in ([], ["--explain"], ["--json"]):
            before, start = cpu_seconds(), time.perf_counter()
            command = [HPCVERIFY, "fleet", "sweep", "--dry-run", *options]
            subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
            wall, cpu = time.perf_counter() - start, cpu_seconds() - before
            words = " ".join(command[1:])
            print(f"{NODES} nodes, {words}: {cpu:.1f} s CPU (at most {MOST_SECONDS}), {wall:.1f} s")


def fill_ledger(state: Path, now: float) -> None:
    """Fill a ledger with nodes, their outages and the tickets of many nights."""
    ledger = Ledger(state)
    chance = Random(1)  # noqa: S311 - made up
    names = [f"gpu{i:05d}" for i in range(1, NODES + 1)]
    nodes = [make_node(name, chance, now) for name in names]
    outages = list(make_outages(names, chance, now))
    with connect(ledger.path) as db:
        rows = [(node.name, msgspec.json.encode(node)) for node in nodes]
        db.executemany("insert into nodes values (?, ?)", rows)
        db.executemany(
            "insert into outages values (?, ?, ?, ?, ?)",
            [(o.number, o.node, o.began, o.ended, msgspec.json.encode(o)) for o in outages],
        )
        db.executemany(
            "insert into tickets (node, token, purpose, suite, made, job, ended, ending, run)"
            " values (?, 'x', 'sweep', 'idle', ?, 1, ?, 'finished', 'r')",
            [
                (name, now - night * DAY_S, now - night * DAY_S + HOUR_S)
                for night in range(NIGHTS, 0, -1)
                for name in names
            ],
        )
    db.close()


def make_node(name: str, chance: Random, now: float) -> Node:
    """Make a healthy node that passed within two days."""
    at = now - chance.uniform(0, 48) * HOUR_S
    first = now - YEARS * 365 * DAY_S
    return Node(
        name=name,
        state=State.HEALTHY,
        since=first,
        last_pass_at=at,
        last_run_at=at,
        first_seen_at=first,
    )


def make_outages(names: list[str], chance: Random, now: float) -> Iterable[NodeOutage]:
    """Make outages all through the years; a third follows another one of the same node."""
    day, number = -YEARS * 365.0, 0
    lately: deque[str] = deque(names[:1], maxlen=LATELY)
    while (day := day + chance.expovariate(RATE * len(names))) < -1:
        number += 1
        lately.append(chance.choice(lately if chance.random() < 1 / 3 else names))
        yield NodeOutage(
            number=number,
            node=lately[-1],
            began=now + day * DAY_S,
            ended=now + (day + chance.uniform(0.05, 1)) * DAY_S,
            cause=OutageCause.VERIFICATION,
            reason="gemm: bf16.sustained 450 TFLOP/s on GPU 7, below 600",
            checks=("gemm",),
            confirmed=True,
            held=True,
        )


def report_ranking(state: Path, now: float) -> None:
    """Rank all nodes, and print what that alone took."""
    ledger = Ledger(state)
    nodes = list(ledger.list_nodes().values())
    start = time.process_time()
    outages = ledger.list_outages(now - HISTORY_S)
    read = time.process_time() - start
    ranking = rank_fleet(nodes, outages, {}, now - YEARS * 365 * DAY_S, now)
    took = time.process_time() - start
    print(
        f"{NODES} nodes, {len(outages)} outages in the last two of {YEARS} years: ranked in "
        f"{took:.2f} s CPU (at most {MOST_RANKING_SECONDS}), {read:.2f} of it to read them; "
        f"weights: {ranking.weighting.basis}"
    )


if __name__ == "__main__":
    main()
