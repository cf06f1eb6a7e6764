"""Fleets to try a ranking on: of a file of faults, and made up by a hazard that is known."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, product
from math import exp
from pathlib import Path
from random import Random

from msgspec import Struct
from msgspec.structs import replace

from hpcverify.reliability.outages import Outage
from hpcverify.selection.outages import FleetHistory, FleetNode, make_history
from hpcverify.selection.places import locate_nodes

INFINITE_HBD = Path(__file__).parents[1] / "data/infinitehbd-faults-first-half.csv"
INFINITE_HBD_NODES, INFINITE_HBD_DAYS = 400, 174.0


def read_fleet(path: Path, count: int) -> FleetHistory:
    """
    Read a file of faults: node, start_day and end_day (empty: not over), and other columns.

    The nodes that it does not name, up to *count*, had no fault.
    """
    with path.open(newline="", encoding="utf-8") as file:
        outages = [
            Outage(row["node"], float(row["start_day"]), float(row["end_day"] or "inf"))
            for row in csv.DictReader(file)
        ]
    names = sorted({outage.node for outage in outages})
    names += islice(name_silent(names), max(0, count - len(names)))
    return make_history(locate_nodes(dict.fromkeys(names, 0.0)), outages)


def name_silent(names: Sequence[str]) -> Iterator[str]:
    """
    Name nodes beside those with *names*: first in the free places of the same racks.

    Otherwise only nodes that once fail would have a place, which would give them away.
    """
    taken = set(names)
    rows = [re.findall(r"\d+", name) for name in names]
    shape = re.sub(r"\d+", "{}", names[0])
    if len(rows[0]) > 1 and all(re.sub(r"\d+", "{}", name) == shape for name in names):
        columns = [sorted(set(column)) for column in zip(*rows, strict=True)]
        free = [n for n in (shape.format(*v) for v in product(*columns)) if n not in taken]
        Random(0).shuffle(free)
        yield from free
    number = 0
    while True:
        number += 1
        yield f"silent{number}"


class NodeAge(Struct, frozen=True):
    """What a hazard may depend on; times in days."""

    number: int
    rack: int
    cage: int
    since_repair: float
    """Since its last return, or since it joined."""
    since_return: float | None
    """None: it was never out."""
    day: float = 0.0


Hazard = Callable[[NodeAge], float]
"""Outages a day."""
RATE = 0.004
_racks = Random(5)
RACK_FACTORS = [exp(_racks.gauss(0, 0.7)) for _ in range(100)]
STEP_DAYS = 0.5
MOVED_DAY = 300.0


def wears_out(node: NodeAge) -> float:
    """Let age decide, and a repair make a node as new: who failed is the safest."""
    return RATE * 3 * (node.since_repair / 500) ** 2


def comes_in_batches(node: NodeAge) -> float:
    """Make one batch in four wear out six times as fast."""
    bad = node.number // 100 % 4 == 1
    return RATE * 2 * (node.since_repair / 500) * (3 if bad else 0.5)


def is_placed(node: NodeAge) -> float:
    """Make the upper cages and some racks fail more often, as hotter ones do."""
    return RATE * (0.4, 0.8, 2.0)[node.cage] * RACK_FACTORS[node.rack]


def moves_down(node: NodeAge) -> float:
    """Change the epoch: the upper cages were replaced, and now the lower ones fail."""
    return is_placed(replace(node, cage=2 - node.cage) if node.day > MOVED_DAY else node)


def has_no_signal(_node: NodeAge) -> float:
    """Make all nodes alike for ever."""
    return RATE


def returns_safely(node: NodeAge) -> float:
    """Make nodes hardly ever fail for four months after a return."""
    back = node.since_return
    return RATE * (1.2 if back is None or back > 120 else 0.1)


def returns_at_risk(node: NodeAge) -> float:
    """Make a node that came back the riskiest."""
    back = node.since_return
    return RATE * 0.6 * (1 + (0 if back is None else 50 * exp(-back / 1.5) + 3 * exp(-back / 30)))


def has_lemons(node: NodeAge) -> float:
    """Make one node in twenty fail thirteen times as often as the others, for ever."""
    return RATE * (8 if node.number % 20 == 0 else 0.6)


HAZARDS: dict[str, Hazard] = {
    "no signal": has_no_signal,
    "wear-out, repaired as new": wears_out,
    "wear-out, a bad batch": comes_in_batches,
    "place": is_placed,
    "place, the other way since half-time": moves_down,
    "safe returns": returns_safely,
    "risky returns": returns_at_risk,
    "lemons": has_lemons,
}


def simulate_fleet(hazard: Hazard, seed: int, count: int = 400, days: float = 600) -> FleetHistory:
    """Simulate nodes in racks of three cages with ten slots each; batches join in half years."""
    chance = Random(seed)
    outages: list[Outage] = []
    since: dict[str, float] = {}
    for number in range(count):
        rack, position = divmod(number, 30)
        name = f"r{rack}c{position // 10}s{position % 10}"
        joined = number // 100 % 4 * 150.0 if hazard is comes_in_batches else 0.0
        since[name] = joined
        first = NodeAge(number, rack, position // 10, 0.0, None)
        outages += _simulate_node(FleetNode(name, joined), first, days, hazard, chance)
    return make_history(locate_nodes(since), outages)


def _simulate_node(
    node: FleetNode, first: NodeAge, days: float, hazard: Hazard, chance: Random
) -> Iterator[Outage]:
    day, repaired, back = node.since, node.since, None
    while day < days:
        since_return = None if back is None else day - back
        now = replace(first, since_repair=day - repaired, since_return=since_return, day=day)
        if chance.random() < hazard(now) * STEP_DAYS:
            began = day + chance.random() * STEP_DAYS
            day = began + chance.expovariate(1 / 0.8)
            repaired = back = day
            yield Outage(node.name, began, day)
        day += STEP_DAYS
