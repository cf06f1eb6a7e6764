"""What the history of a fleet shows: outliers, changes, what is next, and how reliable it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from hpcverify.insight.judgement import (
    FleetJudgement,
    JudgedOutlier,
    describe_day,
    group_by_part,
    name_judged,
    set_known_aside,
)
from hpcverify.insight.outlook import (
    FleetOutlook,
    ReliabilityReport,
    introduce_reliability,
    list_reliability_facts,
)
from hpcverify.peers.distribution import Distribution
from hpcverify.peers.fleet import MetricJudgement
from hpcverify.trends.fleet import PartChange
from hpcverify.units import choose_unit, format_count, format_percent
from hpcverify_reports.histogram import Histogram, OutlierPoint, draw_histogram
from hpcverify_reports.labels import ICONS, format_number, format_with_unit
from hpcverify_reports.tables import Cells, PageSection, Picture, TableCell, build_list, build_table

Pages = Mapping[str, str]
"""Node -> the relative URL of its page."""

MAX_FIGURES, MAX_FOLDED_FIGURES = 12, 36
"""Metrics that have a picture, with outliers and without."""
PEER_HEADS = ("Outlier", "Worse than its peers", "Since", "Cause")
PAST_HEADS = ("Part", "Worse than it was", "What is known")
NEXT_HEADS = ("Node", "Risk", "Why", "Due")
NOT_JUDGED = (
    "No night was judged yet. `hpcverify fleet collect` keeps measurements, and judges each night "
    "when it is over. That needs DuckDB: `hpcverify fleet collect` prints how to install it."
)
ORDER_NOTE = (
    "In the order of a sweep, as if all of them were idle: first those with a finding, those that "
    "came back and those that have waited too long, then by risk. One in ten is chosen because "
    "it has waited longest."
)


def build_outlook(outlook: FleetOutlook, pages: Pages) -> tuple[PageSection, ...]:
    """Build the sections on peers, the past, the next nodes and reliability."""
    judgement = outlook.judgement
    known = judgement if judgement and _says_something(judgement) else None
    unjudged = outlook.judgement_error or NOT_JUDGED
    return (
        _build_peers(known, pages, unjudged),
        _build_past(known, pages, unjudged),
        _build_next(outlook, pages),
        _build_reliability(outlook.reliability),
    )


def _says_something(judgement: FleetJudgement) -> bool:
    """Whether anything was compared: with peers, or with the past, which takes none."""
    return bool(judgement.metrics or judgement.screened or judgement.outliers or judgement.changes)


def _build_peers(judgement: FleetJudgement | None, pages: Pages, unjudged: str) -> PageSection:
    if judgement is None:
        return PageSection("peers", "Compared with peers", (unjudged,))
    figures, folded = _draw_metrics(judgement)
    new, known = set_known_aside(judgement)
    groups = group_by_part(new.outliers, name_judged)
    rows = [_build_outlier(title, outliers, pages) for title, outliers in groups.items()]
    return PageSection(
        "peers",
        "Compared with peers",
        tuple(_introduce_peers(judgement)),
        tables=(build_table("Compared with peers", PEER_HEADS, rows),),
        notes=(*_list_unconfirmed(judgement), *([f"{known}."] if known else [])),
        pictures=tuple(Picture(h.name, histogram=h) for h in figures),
        folded_pictures=tuple(Picture(h.name, histogram=h) for h in folded),
    )


def _build_outlier(title: str, outliers: Sequence[JudgedOutlier], pages: Pages) -> Cells:
    """Build the row of a part, a node or a place, which may stand out in several metrics."""
    first = min(outliers, key=lambda outlier: outlier.since)
    icon = ICONS[max(outlier.verdict for outlier in outliers)]
    return (
        TableCell(title, pages.get(first.node, ""), icon),
        "\n".join(_list_largest((o.metric, o.distance) for o in outliers)),
        TableCell(str(first.since), note=f"({format_count(first.nights, 'night')})"),
        "\n".join(dict.fromkeys(o.cause for o in outliers if o.cause)),
    )


def _list_largest(distances: Iterable[tuple[str, float]]) -> Iterator[str]:
    """List each metric once, with its largest distance."""
    largest: dict[str, float] = {}
    for metric, distance in distances:
        largest[metric] = max(distance, largest.get(metric, distance))
    yield from (f"{format_percent(distance)} {metric}" for metric, distance in largest.items())


def _introduce_peers(judgement: FleetJudgement) -> Iterator[str]:
    compared = format_count(len(judgement.metrics) + judgement.screened, "metric")
    night = f"{compared} of parts of the same kind, up to the night of {judgement.night}."
    if judgement.outliers:
        yield f"{night} An outlier stood out from its peers in two of its last ten runs at least."
    else:
        yield f"{night} No part, node or place is an outlier."
    if judgement.coverage.nodes:
        yield f"{judgement.coverage}."
    if judgement.metrics:
        yield "In each picture, the dashed line is the median."


def _list_unconfirmed(judgement: FleetJudgement) -> Iterator[str]:
    """Name who stood out in one of its last ten runs only, or by chance."""
    if judgement.unconfirmed:
        names = dict.fromkeys(outlier.title for outlier in judgement.unconfirmed)
        yield f"Stood out, but not often enough to be named: {', '.join(names)}."


def _draw_metrics(
    judgement: FleetJudgement,
) -> tuple[tuple[Histogram, ...], tuple[Histogram, ...]]:
    """Draw the worst metric of each outlier, the worst first, and then some of the others."""
    named = {str(metric.name): (metric, values) for metric, values in judgement.metrics}
    by_metric: dict[str, list[JudgedOutlier]] = {name: [] for name in named}
    for outlier in judgement.outliers:
        by_metric.setdefault(outlier.metric, []).append(outlier)
    worst = {
        name: max((outlier.distance for outlier in outliers), default=0.0)
        for name, outliers in by_metric.items()
    }
    groups = group_by_part(judgement.outliers, name_judged).values()
    first = {max(group, key=lambda outlier: outlier.distance).metric for group in groups}
    ordered = sorted(named, key=lambda name: (name not in first, -worst[name]))
    shown = min(MAX_FIGURES, sum(name in first for name in ordered))
    drawn = tuple(
        _draw(*named[name], by_metric[name]) for name in ordered[: shown + MAX_FOLDED_FIGURES]
    )
    return drawn[:shown], drawn[shown:]


def _draw(
    metric: MetricJudgement, values: Distribution, outliers: Sequence[JudgedOutlier]
) -> Histogram:
    centre = metric.median or 0.0
    worse = -1 if metric.worse == "low" else 1
    spread = "" if metric.spread is None else f", spread {format_percent(metric.spread)}"
    points = [
        OutlierPoint(
            name=outlier.title,
            value=centre + worse * outlier.distance * abs(centre),
            distance=f"{format_percent(outlier.distance)} too {metric.worse}",
            icon=ICONS[outlier.verdict],
        )
        for outlier in outliers
    ]
    parts, nodes = format_count(metric.parts, "part"), format_count(metric.nodes, "node")
    return draw_histogram(metric.name, values, centre, points, f"{parts} on {nodes}{spread}")


def _build_past(judgement: FleetJudgement | None, pages: Pages, unjudged: str) -> PageSection:
    title = "Compared with their own past"
    if judgement is None:
        return PageSection("past", title, (unjudged,))
    groups = group_by_part(set_known_aside(judgement)[0].changes, name_judged)
    rows = [_build_change(title, changes, pages) for title, changes in groups.items()]
    worse = "Parts that are worse than they were. Changes caused by a rollout are listed below."
    intro = worse if rows else "No part is worse than it was."
    return build_list("past", title, (intro,), PAST_HEADS, rows, notes=judgement.notes)


def _build_change(title: str, changes: Sequence[PartChange], pages: Pages) -> Cells:
    """Build the row of a part, which may be worse in several metrics."""
    icon = ICONS[max(change.verdict for change in changes)]
    return (
        TableCell(title, pages.get(changes[0].node, ""), icon),
        "\n".join(map(_describe_change, changes)),
        "\n".join(dict.fromkeys(change.why for change in changes if change.why)),
    )


def _describe_change(change: PartChange) -> str:
    unit, factor = choose_unit((change.before, change.after), change.unit)
    after = format_with_unit(change.after * factor, unit)
    levels = f"{format_number(change.before * factor)} to {after}"
    return f"{format_percent(change.size)} {change.metric}: {levels}, {describe_day(change)}"


def _build_next(outlook: FleetOutlook, pages: Pages) -> PageSection:
    title = "Next to be verified"
    rows = [
        (
            TableCell(due.node, pages.get(due.node, "")),
            f"{due.risk.score:.1f}x",
            "; ".join(due.risk.reasons),
            due.why,
        )
        for due in outlook.due
    ]
    risk = f"Risk of failing next (1 = an average node), judged {outlook.judged_by}."
    nobody = "No node is due: all were verified lately, are being verified or are held."
    intro = (ORDER_NOTE, risk) if rows else (nobody,)
    notes = ("What a sweep would do now: hpcverify fleet sweep --dry-run --explain",)
    count = outlook.due_count
    return build_list("next", title, intro, NEXT_HEADS, rows, count=count, notes=notes)


def _build_reliability(report: ReliabilityReport) -> PageSection:
    facts = [(_capitalize(name), figure) for name, figure in list_reliability_facts(report)]
    intro = f"{_capitalize(introduce_reliability(report))}."
    return PageSection(
        "reliability",
        "Reliability",
        (f"{intro} Intervals are of 95 %." if facts else intro,),
        facts=tuple(facts),
    )


def _capitalize(text: str) -> str:
    return text[:1].upper() + text[1:]
