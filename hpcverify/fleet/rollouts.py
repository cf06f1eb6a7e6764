"""What changed on the nodes: versions and settings that a rollout brings."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from msgspec import Struct

from hpcverify.fleet.states import DAY_S, HOUR_S
from hpcverify.records.reported_facts import ReportedFacts
from hpcverify.summary.facts import MADE_OF_FACTS

ROLLOUT_WINDOW_S = 14 * DAY_S
"""How long a change is new: then whoever is behind deviates."""


class FactChange(Struct, frozen=True):
    """A fact that changed on a node, and when that was first seen, in s since 1970."""

    name: str
    before: str
    after: str
    when: float


def follow_changes(rows: Sequence[ReportedFacts]) -> Iterator[FactChange]:
    """Yield each change of a fact in the *rows* of one source, oldest first."""
    known = dict(rows[0].facts)
    for earlier, row in pairwise(rows):
        when = max(row.first, earlier.last)
        for name, value in row.facts.items():
            if (before := known.setdefault(name, value)) != value:
                yield FactChange(name, before, value, when)
                known[name] = value


def list_changes(rows: Sequence[ReportedFacts]) -> list[FactChange]:
    """List the last change of each fact in the *rows* of one source, oldest first."""
    return list({change.name: change for change in follow_changes(rows)}.values())


class Carried(NamedTuple):
    """When a node changed to a value of a fact, and when to another one, in s since 1970."""

    since: float
    until: float
    """Infinity: it still has the value."""

    def was_new(self, failed: float) -> bool:
        """Whether the value was new on the node when that *failed*."""
        return -HOUR_S <= failed - self.since <= ROLLOUT_WINDOW_S and failed < self.until

    def was_there(self, passed: float) -> bool:
        """Whether the node had the value, or a later one, when it *passed*."""
        return passed >= self.since


def find_value_changes(
    records: Iterable[ReportedFacts],
) -> Mapping[tuple[str, str], Mapping[str, Carried]]:
    """
    Say by fact and value which nodes changed to it, and when; *records* oldest first.

    A fault changes how many parts there are; no rollout does.
    """
    by_source: dict[tuple[str, str], list[ReportedFacts]] = {}
    for record in records:
        by_source.setdefault((record.node, record.source), []).append(record)
    changes: dict[tuple[str, str], dict[str, Carried]] = {}
    for (node, _), rows in by_source.items():
        for change in follow_changes(rows):
            if change.name in MADE_OF_FACTS:
                continue
            if old := changes.get((change.name, change.before), {}).get(node):
                changes[change.name, change.before][node] = old._replace(until=change.when)
            carried = changes.setdefault((change.name, change.after), {})
            carried[node] = Carried(change.when, math.inf)
    return changes


def find_nodes_without(
    changes: Mapping[tuple[str, str], Collection[str]],
    records: Iterable[ReportedFacts],
    runs: Iterable[tuple[str, float]],
) -> set[str]:
    """
    Find the nodes that had none of the *changes* in their *runs*.

    *changes* are nodes that changed to a value, by fact and value; another node that reported the
    value a `ROLLOUT_WINDOW_S` before a run always had it. *runs* are nodes and the times of runs,
    in seconds since 1970. A node that did not report such a fact in one of its runs may have had
    the change, and is not found.
    """
    times: dict[str, list[float]] = {}
    for node, at in runs:
        times.setdefault(node, []).append(at)
    known: dict[tuple[str, float, str], set[str]] = {}
    always: set[tuple[str, float, tuple[str, str]]] = set()
    for record in records:
        for at in times.get(record.node, ()):
            if int(record.first) <= at <= record.last:
                for name in {name for name, _ in changes} & record.facts.keys():
                    known.setdefault((record.node, at, name), set()).add(record.facts[name])
            if record.first <= at - ROLLOUT_WINDOW_S:
                held = changes.keys() & record.facts.items()
                always |= {(record.node, at, c) for c in held if record.node not in changes[c]}
    return {
        node
        for node, of_node in times.items()
        if all(
            (node, at, (name, value)) in always or value not in known.get((node, at, name), {value})
            for at in of_node
            for name, value in changes
        )
    }
