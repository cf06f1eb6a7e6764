"""How a terminal shows the parts that are worse than their peers or than they were."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.text import Text

from hpcverify.insight.judgement import (
    count_other_metrics,
    describe_day,
    group_by_part,
    name_judged,
)
from hpcverify.insight.night import list_changes
from hpcverify.peers.document import (
    PeersDocument,
    describe_least,
    list_notes,
)
from hpcverify.peers.fleet import (
    MetricJudgement,
    PeerOutlier,
)
from hpcverify.peers.values import MetricName
from hpcverify.summary.terminal import Console, print_items, print_table, render_badge
from hpcverify.trends.fleet import (
    PartChange,
    TrendJudgement,
    describe_shared,
)
from hpcverify.units import format_count, format_percent

HEADS = ("verdict", "level", "who", "worse by", "metric; why")
PAST_HEADS = ("verdict", "who", "worse by", "when", "metric; why")


def show(document: PeersDocument) -> None:
    """Print how much was judged, who is worse than its peers, and what could not be judged."""
    console = Console(highlight=False)
    outliers = [(entry, outlier) for entry in document.metrics for outlier in entry.outliers]
    console.print(summarize(document, len(outliers)), markup=False)
    for line in filter(None, [document.compared, describe_least(document.least)]):
        console.print(line, markup=False)
    if outliers:
        console.print()
        groups = group_by_part(outliers, lambda found: (found[1].node, found[1].name)).items()
        print_table(console, HEADS, (format_outliers(*group) for group in groups))
    if notes := [*list_notes(document)]:
        console.print("\nnot judged in full:")
        print_items(console, notes)


def summarize(document: PeersDocument, outliers: int) -> str:
    """Say in a line how much was compared, and how many outliers there are."""
    metrics = format_count(len(document.metrics) + document.screened, "metric")
    parts = max((entry.parts for entry in document.metrics), default=0)
    nodes = max((entry.nodes for entry in document.metrics), default=0)
    most = f" of up to {format_count(parts, 'part')} on {format_count(nodes, 'node')}"
    return f"{metrics}{most if parts else ''}: {format_count(outliers, 'outlier')}"


MetricOutlier = tuple[MetricJudgement, PeerOutlier]
"""A metric and what stands out in it."""


def format_outliers(title: str, group: Sequence[MetricOutlier]) -> tuple[str | Text, ...]:
    """Print the columns of a part or a node by its worst metric, and count the others."""
    entry, outlier = max(group, key=lambda pair: (pair[1].verdict, pair[1].distance))
    others = count_other_metrics(str(entry.name), (str(metric.name) for metric, _ in group))
    once = "" if outlier.runs > len(outlier.members) else "in one run only: run it again"
    return (
        render_badge(outlier.verdict),
        outlier.level if title == outlier.name else "node",
        title,
        format_percent(outlier.distance),
        "; ".join(filter(None, [f"{entry.name}{others}", outlier.cause, once])),
    )


def show_past(past: Mapping[MetricName, TrendJudgement]) -> None:
    """Print the parts that became worse, and what many have in common; JSON has all runs."""
    console = Console(highlight=False)
    shared = [(name, change) for name, judged in past.items() for change in judged.shared]
    changes = list_changes(past)
    if shared or changes:
        console.print("\ncompared with their own past:")
    if changes:
        groups = group_by_part(changes, name_judged).items()
        print_table(console, PAST_HEADS, (format_changes(*group) for group in groups))
    print_items(console, [f"{name}: {describe_shared(change)}" for name, change in shared])


def format_changes(title: str, changes: Sequence[PartChange]) -> tuple[str | Text, ...]:
    """Print the columns of a part or a node by what changed most, and count the others."""
    change = max(changes, key=lambda change: (change.verdict, change.size))
    others = count_other_metrics(change.metric, (other.metric for other in changes))
    return (
        render_badge(change.verdict),
        title,
        format_percent(change.size),
        describe_day(change),
        "; ".join(filter(None, [f"{change.metric}{others}", change.why])),
    )
