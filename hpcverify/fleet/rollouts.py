"""What changed on the nodes: versions and settings that a rollout brings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from msgspec import Struct

from hpcverify.fleet.states import DAY_S
from hpcverify.records.reported_facts import ReportedFacts

ROLLOUT_WINDOW_S = 14 * DAY_S
"""How long a change is new: then whoever is behind deviates."""


class FactChange(Struct, frozen=True):
    """A fact that changed on a node, and when that was first seen, in s since 1970."""

    name: str
    before: str
    after: str
    when: float


def list_changes(rows: Sequence[ReportedFacts]) -> list[FactChange]:
    """List the last change of each fact in the *rows* of one source, oldest first."""
    changes: dict[str, FactChange] = {}
    known: dict[str, str] = dict(rows[0].facts)
    for earlier, row in pairwise(rows):
        when = max(row.first, earlier.last)
        for name, value in row.facts.items():
            before = known.get(name, value)
            if before != value:
                changes[name] = FactChange(name, before, value, when)
            known[name] = value
    return list(changes.values())


def find_value_changes(
    records: Iterable[ReportedFacts],
) -> Mapping[tuple[str, str], Mapping[str, float]]:
    """Say by fact and value which nodes changed to it, and when; *records* oldest first."""
    by_source: dict[tuple[str, str], list[ReportedFacts]] = {}
    for record in records:
        by_source.setdefault((record.node, record.source), []).append(record)
    changes: dict[tuple[str, str], dict[str, float]] = {}
    for (node, _), rows in by_source.items():
        for change in list_changes(rows):
            changes.setdefault((change.name, change.after), {})[node] = change.when
    return changes
