"""
Group equal faults of many nodes: the check, the finding, what to do, and where.

Faults are equal if the same metric is outside its limit, or if their reasons differ only
in numbers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from hpcverify.insight.overview import NodeRow, cap_verdict
from hpcverify.model import Remedy, Verdict
from hpcverify.records.last_result import LastResult

COMMON_CAUSE_THRESHOLDS = ((3, 0.1), (50, 0.02))
"""
Nodes with a fault, and their share of those that ran the check, from which the fault may
have a common cause: parts do not break in step. In a large fleet a smaller share is
enough, but not so small that weeks of ordinary failures look like one cause.
"""

_COMPARED_CHARACTERS = 300
"""Characters of a reason that are compared."""
_PARENTHESES = re.compile(r" \([^()]*\)")
"""Text in parentheses: the tail of an id, or the source of a limit."""
_METRIC = re.compile(r": ([a-z][\w.-]*) (?:\S+(?: \S+)? [<>] |not a number)")
"""The metric in a complaint about a limit: "GPU 3: bf16.burst 612 TFLOP/s < 702"."""
_ALL_PARTS = re.compile(r"\ball \d+ (\w+?)s\b")
_DIMM = re.compile(r"\b\w*[-_]?DIMM[-_]?\w*\b")
"""The name of a memory module, which each maker of boards prints in its own way."""
_NUMBER = re.compile(r"0x[0-9a-f]+|[0-9]+(?:[.,:][0-9]+)*")
_REPEATED = re.compile(r"(\b[^,:#]+ #)(?:, \1)+")


@dataclass(frozen=True, slots=True)
class Sighting:
    """A fault on one node; *result* is None if no newest result explains it."""

    row: NodeRow
    result: LastResult | None

    @property
    def reason(self) -> str:
        """What was found."""
        return self.row.why if self.result is None else self.result.reason


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault and all nodes that have it, the worst of them first."""

    verdict: Verdict
    checks: tuple[str, ...]
    """Several, if they report the same on the same nodes."""
    topic: str
    metric: str
    """Empty, unless a value is outside its limit."""
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
    groups: dict[tuple[Verdict, str, str, Remedy], list[Sighting]] = {}
    ran: Counter[str] = Counter()
    for row in rows:
        ran.update(one.check for one in row.said)
        for one in row.said:
            if cap_verdict(one) >= Verdict.WARN:
                # Nothing is replaced on a mere warning, such as that of a check in beta.
                capped = cap_verdict(one) is not one.verdict
                remedy = Remedy.INSPECT if capped else one.remedy
                key = (cap_verdict(one), one.check, extract_topic(one.reason), remedy)
                groups.setdefault(key, []).append(Sighting(row, one))
        if row.attention and row.worst < Verdict.ERROR:
            key = (row.outcome or Verdict.ERROR, "", extract_topic(row.why), Remedy.RERUN)
            groups.setdefault(key, []).append(Sighting(row, None))
    faults = [
        Fault(
            verdict=verdict,
            checks=(check,),
            topic=topic,
            metric=parse_metric(some[0].reason),
            remedy=remedy,
            sightings=tuple(some),
            nodes_checked=ran[check],
        )
        for (verdict, check, topic, remedy), some in groups.items()
    ]
    return tuple(sorted(_merge(faults), key=lambda f: (f.verdict, len(f.sightings)), reverse=True))


def _merge(faults: Iterable[Fault]) -> Iterator[Fault]:
    """Merge what several checks report in the same words, such as a lost GPU."""
    alike: dict[tuple[object, ...], list[Fault]] = {}
    for fault in faults:
        nodes = tuple(sighting.row.node.name for sighting in fault.sightings)
        own = fault.checks if fault.metric else ()
        key = (fault.verdict, fault.topic, fault.remedy, nodes, own)
        alike.setdefault(key, []).append(fault)
    for some in alike.values():
        yield replace(some[0], checks=tuple(f.checks[0] for f in some))


def parse_metric(reason: str) -> str:
    """Parse from *reason* which metric is outside its limit; empty if none is."""
    found = _METRIC.search(_extract_complaint(reason))
    return found[1] if found else ""


def extract_topic(reason: str) -> str:
    """Reduce *reason* to what is the same on other nodes and parts."""
    first = _DIMM.sub("DIMM #", _ALL_PARTS.sub(r"\1 #", _extract_complaint(reason)))
    return parse_metric(reason) or _REPEATED.sub(r"\1", _NUMBER.sub("#", first))


def _extract_complaint(reason: str) -> str:
    """Extract the first complaint of *reason*, without parentheses."""
    return _PARENTHESES.sub("", reason[:_COMPARED_CHARACTERS]).split("; ", maxsplit=1)[0]


def list_widespread(faults: Sequence[Fault]) -> tuple[Fault, ...]:
    """List the *faults* to look into as a whole before any part is touched."""
    return tuple(f for f in faults if f.common and f.verdict >= Verdict.ERROR)
