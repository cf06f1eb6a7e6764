"""
Group equal faults of many nodes: the diagnosis, what to do, and where.

Faults are equal if the same decides on parts of one kind: the same metrics and codes, or low
speeds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from hpcverify.insight.overview import NodeRow, cap_verdict
from hpcverify.model import Remedy, Verdict
from hpcverify.records.last_result import LastResult
from hpcverify.summary.diagnosis import Diagnosis

COMMON_CAUSE_THRESHOLDS = ((3, 0.1), (50, 0.02))
"""
Nodes with a fault, and their share of those that ran the check, from which the fault may
have a common cause: parts do not break in step. In a large fleet a smaller share is
enough, but not so small that weeks of ordinary failures look like one cause.
"""


@dataclass(frozen=True, slots=True)
class Sighting:
    """A fault on one node; *results* is empty if no newest result explains it."""

    row: NodeRow
    results: tuple[LastResult, ...] = ()
    """The newest results that have the diagnosis."""
    diagnosis: Diagnosis | None = None

    @property
    def result(self) -> LastResult | None:
        """The worst of the results."""
        return max(self.results, key=cap_verdict, default=None)

    @property
    def reason(self) -> str:
        """What is wrong."""
        if self.diagnosis:
            return self.diagnosis.sentence
        return self.result.reason if self.result else self.row.why

    @property
    def verdict(self) -> Verdict:
        """What it counts as."""
        if self.result is None:
            return self.row.outcome or Verdict.ERROR
        return min(self.diagnosis.verdict if self.diagnosis else Verdict.FAIL, self.result.overall)

    @property
    def remedy(self) -> Remedy:
        """What it calls for."""
        if self.diagnosis:
            return self.diagnosis.remedy
        return self.result.remedy if self.result else Remedy.RERUN

    @property
    def topic(self) -> tuple[str, ...]:
        """What is the same of this fault on other nodes and parts."""
        if self.diagnosis:
            return (self.diagnosis.part_kind, *self.diagnosis.faults)
        checks = self.row.node.checks
        return (self.row.state, *checks) if checks and not self.result else (self.reason,)


@dataclass(frozen=True, slots=True)
class FaultGroup:
    """One fault and all nodes that have it, the worst of them first."""

    verdict: Verdict
    checks: tuple[str, ...]
    """Those that report it."""
    topic: tuple[str, ...]
    """The same for all its sightings."""
    metric: str
    """Empty, unless it is about one limit."""
    remedy: Remedy
    sightings: tuple[Sighting, ...]
    nodes_checked: int
    """Nodes that ran one of the checks."""

    @property
    def name(self) -> str:
        """The checks and the metric."""
        return " ".join(filter(None, (", ".join(self.checks), self.metric)))

    @property
    def common(self) -> bool:
        """Whether so many nodes have it that a common cause is likely."""
        count = len({sighting.row.node.name for sighting in self.sightings})
        return any(
            count >= few and count >= share * self.nodes_checked
            for few, share in COMMON_CAUSE_THRESHOLDS
        )


def group_faults(rows: Iterable[NodeRow]) -> tuple[FaultGroup, ...]:
    """Group equal faults of *rows*; the worst first, then the most frequent."""
    groups: dict[tuple[Verdict, tuple[str, ...], Remedy], list[Sighting]] = {}
    ran: Counter[str] = Counter()
    for row in rows:
        ran.update(result.check for result in row.said)
        for sighting in _list_sightings(row):
            key = (sighting.verdict, sighting.topic, sighting.remedy)
            groups.setdefault(key, []).append(sighting)
    faults = [_build_fault(*key, sightings, ran) for key, sightings in groups.items()]
    return tuple(sorted(faults, key=lambda f: (f.verdict, len(f.sightings)), reverse=True))


def _build_fault(
    verdict: Verdict,
    topic: tuple[str, ...],
    remedy: Remedy,
    sightings: Sequence[Sighting],
    ran: Counter[str],
) -> FaultGroup:
    checks = dict.fromkeys(result.check for s in sightings for result in s.results)
    first = sightings[0].diagnosis
    return FaultGroup(
        verdict=verdict,
        checks=tuple(checks) or ("",),
        topic=topic,
        metric=first.metric if first else "",
        remedy=remedy,
        sightings=tuple(sightings),
        nodes_checked=max((ran[check] for check in checks), default=0),
    )


def _list_sightings(row: NodeRow) -> Iterator[Sighting]:
    """Yield the faults of *row*; without a result, what its state rests on."""
    by_diagnosis: dict[tuple[str, Diagnosis], list[LastResult]] = {}
    for result in row.said:
        for diagnosis in result.diagnoses:
            by_diagnosis.setdefault((result.run, diagnosis), []).append(result)
    for (_, diagnosis), results in by_diagnosis.items():
        yield Sighting(row, tuple(results), diagnosis)
    if row.attention and row.worst < Verdict.ERROR:
        yield Sighting(row)


def list_widespread(faults: Sequence[FaultGroup]) -> tuple[FaultGroup, ...]:
    """List the *faults* to look into as a whole before any part is touched."""
    return tuple(f for f in faults if f.common and f.verdict >= Verdict.ERROR)
