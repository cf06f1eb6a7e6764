"""How the parts of a fleet stand: compared with their peers, and with their own past."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from hpcverify.insight.judgement import (
    FleetJudgement,
    JudgedChange,
    JudgedMetric,
    JudgedOutlier,
    describe_day,
    group_by_title,
)
from hpcverify.units import choose_unit, format_count, format_percent
from hpcverify_reports.histogram import Histogram, OutlierPoint, draw_histogram
from hpcverify_reports.labels import ICONS, format_number, format_with_unit
from hpcverify_reports.listing import ListedRow, Listing, build_listing

MAX_FIGURES, MAX_FOLDED_FIGURES = 12, 36
"""Metrics that have a picture, with outliers and without."""
NOT_JUDGED = (
    "No night was judged yet. hpcverify collect keeps what runs measure, and judges each night "
    "when it is over. That needs DuckDB: hpcverify collect prints the command that installs it."
)

Pages = Mapping[str, str]
"""Node -> the relative URL of its page."""


def build_standing(
    judgement: FleetJudgement | None, pages: Pages, error: str = ""
) -> Iterator[Listing]:
    """Yield the sections on peers and on the past; they say so if there is nothing in them."""
    known = judgement if judgement and (judgement.metrics or judgement.screened) else None
    unjudged = error or NOT_JUDGED
    yield _build_peers(known, pages, unjudged)
    yield _build_past(known, pages, unjudged)


def _build_peers(judgement: FleetJudgement | None, pages: Pages, unjudged: str) -> Listing:
    outliers = judgement.outliers if judgement else ()
    figures, folded = _draw_metrics(judgement) if judgement else ([], [])
    return build_listing(
        "peers",
        "Compared with peers",
        list(_introduce_peers(judgement, unjudged)),
        ("Worse than its peers", "Since", "Cause"),
        [_build_outlier(found, pages) for found in group_by_title(outliers)],
        head="Outlier",
        notes=list(_list_unconfirmed(judgement)) if judgement else (),
        figures=figures,
        folded_figures=folded,
    )


def _build_outlier(found: Sequence[JudgedOutlier], pages: Pages) -> ListedRow:
    """Build the row of a part, a node or a place, which may stand out in several metrics."""
    first = min(found, key=lambda one: one.since)
    causes = dict.fromkeys(one.cause for one in found if one.cause)
    return ListedRow(
        name=first.title,
        page=pages.get(first.node, ""),
        cells=(
            "\n".join(f"{format_percent(one.distance)} {one.metric}" for one in found),
            f"{first.since}\n({format_count(first.nights, 'night')})",
            "\n".join(causes),
        ),
        icon=ICONS[max(one.verdict for one in found)],
    )


def _introduce_peers(judgement: FleetJudgement | None, unjudged: str) -> Iterator[str]:
    if judgement is None:
        yield unjudged
        return
    compared = format_count(len(judgement.metrics) + judgement.screened, "metric")
    night = f"{compared} of like parts, up to the night of {judgement.night}."
    if judgement.outliers:
        yield f"{night} An outlier stood out from its peers on two nights at least."
    else:
        yield f"{night} No part, node or place stands out from its peers."
    if judgement.metrics:
        yield "In each picture, the dashed line is the median."


def _list_unconfirmed(judgement: FleetJudgement) -> Iterator[str]:
    """Name who stood out on one night only."""
    if found := judgement.unconfirmed:
        names = dict.fromkeys(outlier.title for outlier in found)
        yield f"Stood out on one night, and has not run since: {', '.join(names)}."


def _draw_metrics(judgement: FleetJudgement) -> tuple[list[Histogram], list[Histogram]]:
    """Draw the metrics with an outlier, and then some of the others."""
    by_metric: dict[str, list[JudgedOutlier]] = {}
    for one in judgement.outliers:
        by_metric.setdefault(one.metric, []).append(one)
    with_some = [metric for metric in judgement.metrics if metric.name in by_metric]
    with_some.sort(key=lambda metric: -max(one.distance for one in by_metric[metric.name]))
    without = [metric for metric in judgement.metrics if metric.name not in by_metric]
    drawn = [_draw(metric, by_metric[metric.name]) for metric in with_some]
    folded = drawn[MAX_FIGURES:] + [_draw(metric, ()) for metric in without]
    return drawn[:MAX_FIGURES], folded[:MAX_FOLDED_FIGURES]


def _draw(metric: JudgedMetric, outliers: Sequence[JudgedOutlier]) -> Histogram:
    worse = -1 if metric.worse == "low" else 1
    spread = "" if metric.spread is None else f", spread {format_percent(metric.spread)}"
    return draw_histogram(
        metric,
        [
            OutlierPoint(
                name=one.title,
                value=metric.median + worse * one.distance * abs(metric.median),
                distance=f"{format_percent(one.distance)} too {metric.worse}",
                icon=ICONS[one.verdict],
            )
            for one in outliers
        ],
        f"{format_count(metric.parts, 'part')} on {format_count(metric.nodes, 'node')}{spread}",
    )


def _build_past(judgement: FleetJudgement | None, pages: Pages, unjudged: str) -> Listing:
    changes = judgement.changes if judgement else ()
    intro = unjudged
    if judgement:
        intro = (
            "Parts that are worse than they were. What a rollout did to many parts is no fault "
            "of theirs: it is told below the table."
            if changes
            else "No part is worse than it was."
        )
    return build_listing(
        "past",
        "Compared with their own past",
        [intro],
        ("Worse than it was", "What is known"),
        [_build_change(found, pages) for found in group_by_title(changes)],
        head="Part",
        notes=judgement.notes if judgement else (),
    )


def _build_change(found: Sequence[JudgedChange], pages: Pages) -> ListedRow:
    """Build the row of a part, which may be worse in several metrics."""
    return ListedRow(
        name=found[0].title,
        page=pages.get(found[0].node, ""),
        cells=(
            "\n".join(map(_describe_change, found)),
            "\n".join(dict.fromkeys(one.why for one in found if one.why)),
        ),
        icon=ICONS[max(one.verdict for one in found)],
    )


def _describe_change(one: JudgedChange) -> str:
    unit, factor = choose_unit((one.before, one.after), one.unit)
    levels = f"{format_number(one.before * factor)} to {format_with_unit(one.after * factor, unit)}"
    return f"{format_percent(one.size)} {one.metric}: {levels}, {describe_day(one)}"
