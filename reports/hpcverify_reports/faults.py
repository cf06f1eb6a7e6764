"""
Group equal faults of many nodes: the check, the finding, what to do, and where.

Faults are equal if the gravest complaints of their results are about one metric, or have one
code, on parts of one kind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from hpcverify.insight.overview import NodeRow, cap_verdict
from hpcverify.model import Complaint, Remedy, Verdict
from hpcverify.records.last_result import LastResult

COMMON_CAUSE_THRESHOLDS = ((3, 0.1), (50, 0.02))
"""
Nodes with a fault, and their share of those that ran the check, from which the fault may
have a common cause: parts do not break in step. In a large fleet a smaller share is
enough, but not so small that weeks of ordinary failures look like one cause.
"""


@dataclass(frozen=True, slots=True)
class Sighting:
    """A fault on one node; *result* is None if no newest result explains it."""

    row: NodeRow
    result: LastResult | None

    @property
    def reason(self) -> str:
        """What was found."""
        return self.row.why if self.result is None else self.result.reason

    @property
    def topic(self) -> tuple[str, ...]:
        """What is the same of this fault on other nodes and parts."""
        if self.complaint is not None:
            return (self.complaint.name, self.complaint.part_kind)
        checks = self.row.node.checks
        return (self.row.state, *checks) if checks and not self.result else (self.reason,)

    @property
    def complaint(self) -> Complaint | None:
        """The gravest complaint of the result; None if there is none."""
        return next(iter(self.result.complaints), None) if self.result else None


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault and all nodes that have it, the worst of them first."""

    verdict: Verdict
    checks: tuple[str, ...]
    """Several, if they report the same on the same nodes."""
    topic: tuple[str, ...]
    """The same for all its sightings."""
    metric: str
    """Empty, unless the complaint is about a limit."""
    remedy: Remedy
    sightings: tuple[Sighting, ...]
    nodes_checked: int
    """Nodes that ran the check."""

    @property
    def name(self) -> str:
        """The checks and the metric."""
        return " ".join(filter(None, (", ".join(self.checks), self.metric)))

    @property
    def common(self) -> bool:
        """Whether so many nodes have it that a common cause is likely."""
        count = len(self.sightings)
        return any(
            count >= few and count >= share * self.nodes_checked
            for few, share in COMMON_CAUSE_THRESHOLDS
        )


def group_faults(rows: Iterable[NodeRow]) -> tuple[Fault, ...]:
    """Group equal faults of *rows*; the worst first, then the most frequent."""
    groups: dict[tuple[Verdict, str, tuple[str, ...], Remedy], list[Sighting]] = {}
    ran: Counter[str] = Counter()
    for row in rows:
        ran.update(result.check for result in row.said)
        for sighting in _list_sightings(row):
            result = sighting.result
            if result is None:
                key = (row.outcome or Verdict.ERROR, "", sighting.topic, Remedy.RERUN)
            else:
                # Nothing is replaced on a mere warning, such as that of a check in beta.
                capped = cap_verdict(result) is not result.verdict
                remedy = Remedy.INSPECT if capped else result.remedy
                key = (cap_verdict(result), result.check, sighting.topic, remedy)
            groups.setdefault(key, []).append(sighting)
    faults = [
        Fault(
            verdict=verdict,
            checks=(check,),
            topic=topic,
            metric=_name_metric(sightings[0].complaint),
            remedy=remedy,
            sightings=tuple(sightings),
            nodes_checked=ran[check],
        )
        for (verdict, check, topic, remedy), sightings in groups.items()
    ]
    return tuple(sorted(_merge(faults), key=lambda f: (f.verdict, len(f.sightings)), reverse=True))


def _list_sightings(row: NodeRow) -> Iterator[Sighting]:
    """Yield the faults of *row*; without a result, what its state rests on."""
    for result in row.said:
        if cap_verdict(result) >= Verdict.WARN:
            yield Sighting(row, result)
    if row.attention and row.worst < Verdict.ERROR:
        yield Sighting(row, None)


def _name_metric(complaint: Complaint | None) -> str:
    return complaint.name if complaint and complaint.limit else ""


def _merge(faults: Iterable[Fault]) -> Iterator[Fault]:
    """Merge the faults of several checks on the same nodes that have one cause."""
    alike: dict[tuple[object, ...], list[Fault]] = {}
    for fault in faults:
        nodes = tuple(sighting.row.node.name for sighting in fault.sightings)
        key = (fault.verdict, fault.topic, fault.remedy, nodes, _identify_cause(fault))
        alike.setdefault(key, []).append(fault)
    for some in alike.values():
        yield replace(some[0], checks=tuple(f.checks[0] for f in some))


def _identify_cause(fault: Fault) -> tuple[str, ...]:
    """Identify the cause as other checks would: by a shared code, or by equal words."""
    complaints = [sighting.complaint for sighting in fault.sightings]
    if fault.metric or not all(complaints):
        return fault.checks
    return tuple("" if c is None or c.shared else c.text for c in complaints)


def list_widespread(faults: Sequence[Fault]) -> tuple[Fault, ...]:
    """List the *faults* to look into as a whole before any part is touched."""
    return tuple(f for f in faults if f.common and f.verdict >= Verdict.ERROR)
