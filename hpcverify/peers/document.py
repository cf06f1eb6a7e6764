"""All metrics of a fleet, judged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from statistics import median

from msgspec import Struct

from hpcverify.model import Verdict
from hpcverify.peers.fleet import MetricJudgement, judge_metric
from hpcverify.peers.floors import FindFloor
from hpcverify.peers.rule import MIN_COMPARED
from hpcverify.peers.values import MetricName, PartValue
from hpcverify.units import format_percent

BLIND, LISTED = 2.0, 3
"""What takes so many times as much as most is listed, the first few of it."""


class PeersDocument(Struct, frozen=True, kw_only=True):
    """What is said of a fleet, as ``hpcverify fleet peers --json`` prints it."""

    source: str
    metrics: tuple[MetricJudgement, ...]
    unjudged: tuple[str, ...]
    """Metrics whose worse side is unknown, since their check is not installed here,
    and those with values that cannot be reckoned with."""
    compared: str = ""
    """How many nodes were compared, and why the others were not, in a sentence."""
    too_few: tuple[str, ...] = ()
    """Metrics that so few parts have that none of them can be compared."""
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
    screened: int = 0,
    fails: Callable[[MetricName, PartValue], bool] = lambda _name, _part: False,
) -> PeersDocument:
    """
    Judge each metric of *fleet* by its peers.

    Args:
        fleet: The values of the parts in each metric; at least one in each.
        source: Where they are from, for people.
        find_floor: What is worth a word, and which side is bad.
        screened: How many other metrics a screen turned away.
        fails: Says whether a part fails by its own limits on a metric.

    """
    judged, unjudged = [], []
    for name, parts in sorted(fleet.items()):
        floor = find_floor(name.check, name.metric)
        if floor.worse_side:
            try:
                judged.append(
                    judge_metric(name, parts, floor, floor.worse_side, partial(fails, name))
                )
            except (ArithmeticError, ValueError) as exc:  # of absurd values; the others are judged
                unjudged.append(f"{name} ({exc})")
        elif floor.worse is None:
            unjudged.append(str(name))
    return PeersDocument(
        source=source,
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
    sentence = f"a part is reported if it is {format_percent(usual)} worse"
    return f"{sentence}, but {', '.join(few)}" if few else sentence


def describe_too_few(document: PeersDocument) -> str:
    """Name the metrics that too few parts have."""
    if not document.too_few:
        return ""
    more = len(document.too_few) - LISTED
    listed = [*document.too_few[:LISTED], *([f"{more} more"] if more > 0 else [])]
    return f"not compared (fewer than {MIN_COMPARED} parts): {', '.join(listed)}"


def list_notes(document: PeersDocument) -> Iterator[str]:
    """Say what was not judged in full, and why."""
    if few := describe_too_few(document):
        yield few
    for entry in document.metrics:
        if entry.note:
            yield f"{entry.name}: {entry.judgeability.value}: {entry.note}"
    if document.unjudged:
        yield (
            "not compared, because their check is not installed here: "
            f"{', '.join(document.unjudged)}"
        )
