"""All metrics of a fleet, judged; and what a good fleet teaches for later."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median

from msgspec import Struct

from hpcverify.model import Verdict
from hpcverify.peers.fleet import MetricJudgement, judge_metric
from hpcverify.peers.floors import FindFloor
from hpcverify.peers.level import measure_spread
from hpcverify.peers.reference import FleetReference, ReferenceEntry, format_day, list_versions
from hpcverify.peers.rule import MIN_PEERS
from hpcverify.peers.values import MetricName, PartRuns, PartValue, reduce_runs
from hpcverify.units import format_percent

BLIND, LISTED = 2.0, 3
"""What takes so many times as much as most is listed, the first few of it."""


class PeersDocument(Struct, frozen=True, kw_only=True):
    """What is said of a fleet, as ``hpcverify peers --json`` prints it."""

    source: str
    reference: str
    """The day on which the reference was learned; empty if there is none."""
    metrics: tuple[MetricJudgement, ...]
    unjudged: tuple[str, ...]
    """Metrics whose worse side is unknown, since their check is not installed here,
    and those with values that cannot be reckoned with."""
    screened: int = 0
    """Metrics that were looked at by their summary alone: nothing in them is far."""
    least: dict[str, float] = {}
    """How much worse than its peers a single part has to be until it is named, by the metric."""

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of all."""
        return max((entry.verdict for entry in self.metrics), default=Verdict.PASS)


def judge_fleet(
    fleet: Mapping[MetricName, Sequence[PartValue]],
    *,
    source: str,
    find_floor: FindFloor,
    reference: FleetReference | None = None,
    screened: int = 0,
) -> PeersDocument:
    """
    Judge each metric of *fleet* by its peers, and by *reference* if there is one.

    Args:
        fleet: The values of the parts in each metric; at least one in each.
        source: Where they are from, for people.
        find_floor: What is worth a word, and which side is bad.
        reference: What the same fleet measured when it was good.
        screened: How many other metrics a screen turned away.

    """
    judged, unjudged = [], []
    for name, parts in sorted(fleet.items()):
        floor = find_floor(name.check, name.metric)
        if floor.worse_side:
            entry = reference.find(name) if reference else None
            try:
                judged.append(judge_metric(name, parts, floor, floor.worse_side, entry))
            except (ArithmeticError, ValueError) as exc:  # of absurd values; the others are judged
                unjudged.append(f"{name} ({exc})")
        elif floor.worse is None:
            unjudged.append(str(name))
    return PeersDocument(
        source=source,
        reference=reference.learned if reference else "",
        metrics=tuple(judged),
        unjudged=tuple(unjudged),
        screened=screened,
        least=list_least(judged),
    )


def list_least(judged: Iterable[MetricJudgement]) -> dict[str, float]:
    """List how much worse a single part has to be until it is named, by the metric."""
    return {str(entry.name): entry.least for entry in judged if entry.least is not None}


def describe_least(least: Mapping[str, float]) -> str:
    """Say how much worse than its peers a single part has to be until it is named."""
    if not least:
        return ""
    usual = median(least.values())
    blind = {name: d for name, d in least.items() if d > BLIND * usual}
    ranked = sorted(blind, key=lambda name: -blind[name])
    first = [f"{format_percent(blind[name])} in {name}" for name in ranked[:LISTED]]
    more = len(ranked) - len(first)
    few = [*first, *([f"more than {format_percent(BLIND * usual)} in {more} more"] if more else [])]
    sentence = f"one part would be named if it were {format_percent(usual)} worse"
    return f"{sentence}, but {', '.join(few)}" if few else sentence


def list_notes(document: PeersDocument) -> Iterator[str]:
    """Say what was not judged in full, and why."""
    for entry in document.metrics:
        if entry.note:
            yield f"{entry.name}: {entry.judgeability.value}: {entry.note}"
    if document.unjudged:
        yield (
            "not compared, as it is not known which side is worse (is their check installed "
            f"here?): {', '.join(document.unjudged)}"
        )


def reduce_fleet(
    runs: Mapping[MetricName, Mapping[tuple[str, str], PartRuns]],
) -> dict[MetricName, list[PartValue]]:
    """Reduce the runs of each part to a value; metrics without a number are left out."""
    reduced = {
        name: [value for part in parts.values() if (value := reduce_runs(part))]
        for name, parts in runs.items()
    }
    return {name: values for name, values in reduced.items() if values}


def learn_reference(
    fleet: Mapping[MetricName, Sequence[PartValue]], source: str, now: float
) -> FleetReference:
    """Learn from a good fleet what it measures: of metrics with enough parts, and no outliers."""
    everyone = [part for parts in fleet.values() for part in parts]
    times = [time for part in everyone for time in part.times]
    return FleetReference(
        learned=format_day(now),
        source=source,
        first=format_day(min(times)) if times else "",
        last=format_day(max(times)) if times else "",
        versions=list_versions(part.groups for part in everyone),
        metrics=tuple(
            _learn(name, parts) for name, parts in sorted(fleet.items()) if len(parts) >= MIN_PEERS
        ),
    )


def _learn(name: MetricName, parts: Sequence[PartValue]) -> ReferenceEntry:
    """Learn one metric; the median and the spread are robust to a few bad parts."""
    centre = median(part.value for part in parts)
    share = [part.value / centre for part in parts] if centre else [0.0] * len(parts)
    return ReferenceEntry(
        metric=name.metric,
        check=name.check,
        mode=name.mode,
        unit=name.unit,
        median=centre,
        spread=measure_spread(share, 0.0, len(parts)).spread,
        parts=len(parts),
        nodes=len({part.node for part in parts if part.node}),
    )
