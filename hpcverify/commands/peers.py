"""``hpcverify fleet peers``: which parts of a fleet are worse than their peers."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import click
import msgspec
from msgspec.structs import replace
from rich.text import Text

from hpcverify.commands._options import json_option, since_option
from hpcverify.console import print_json_text
from hpcverify.errors import ConfigError
from hpcverify.fleet.ledger import Ledger
from hpcverify.history.reader import Choice
from hpcverify.history.table import TableScreen, open_table
from hpcverify.insight.comparison import (
    describe_compared,
    exceeds,
    judge_past,
    judge_peers,
    make_locator,
    map_kinds,
)
from hpcverify.insight.judgement import (
    count_other_metrics,
    describe_day,
    group_by_part,
    name_judged,
)
from hpcverify.insight.night import PAST_NIGHTS, PEER_NIGHTS, list_changes
from hpcverify.model import Limit, Verdict
from hpcverify.peers.document import (
    PeersDocument,
    describe_least,
    list_least,
    list_notes,
)
from hpcverify.peers.fleet import (
    MetricJudgement,
    PeerOutlier,
    build_plain_judgement,
    judge_metric,
)
from hpcverify.peers.floors import Worse, make_floor_finder
from hpcverify.peers.foreign import make_foreign_side_finder
from hpcverify.peers.rule import MIN_COMPARED
from hpcverify.peers.values import MetricName, PartRuns, PartValue, reduce_runs
from hpcverify.plan.catalog import make_side_finder
from hpcverify.plan.config import load_site, state_dir
from hpcverify.summary.terminal import Console, print_items, print_table, render_badge
from hpcverify.trends.fleet import (
    PartChange,
    TrendJudgement,
    build_past,
    describe_shared,
    judge_histories,
)
from hpcverify.trends.levels import PartHistory
from hpcverify.units import format_count, format_percent

EXIT_FAIL = 1
HEADS = ("verdict", "level", "who", "worse by", "metric; why")
PAST_HEADS = ("verdict", "who", "worse by", "when", "metric; why")


def read_pairs(_: click.Context, option: click.Parameter, text: str) -> dict[str, str]:
    """Read an option of the form ``role=column,role=column``."""
    pairs = [pair.partition("=") for pair in filter(None, text.split(","))]
    for role, equals, column in pairs:
        if not column:
            how = f"{role}=COLUMN" if equals else f"ROLE={role}, as in value={role}"
            raise click.BadParameter(f"{role!r} names no column: write {how}", param=option)
    return {role.strip(): column.strip() for role, _equals, column in pairs}


def read_names(_: click.Context, __: click.Parameter, text: str) -> tuple[str, ...]:
    """Read an option that lists names, with commas between them."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


@click.command("peers")
@click.argument("file", required=False, type=click.Path(path_type=Path, dir_okay=False))
@since_option("Compare runs from DATE on (default: a week ago); without FILE.")
@click.option(
    "--columns",
    default="",
    callback=read_pairs,
    metavar="ROLE=COLUMN,...",
    help="Map columns of FILE, for example node=host,value=tflops.",
)
@click.option(
    "--by",
    default="",
    callback=read_names,
    metavar="COLUMN,...",
    help="Compare groups by these columns (default: cabinet, rack, switch, driver and others).",
)
@click.option(
    "--worse",
    type=click.Choice(["low", "high"]),
    help="Treat low or high values as worse, if the unit does not imply it.",
)
@json_option
def command(
    *,
    file: Path | None,
    since: datetime | None,
    columns: Mapping[str, str],
    by: Sequence[str],
    worse: Worse | None,
    as_json: bool,
) -> None:
    """
    Compare each part with identical parts of the fleet, and with its own past.

    Without FILE, compares the runs of the last week with each other and with 90 nights before.
    FILE is CSV or Parquet with a row for each run of each part: node, part, metric, value,
    unit and, if known, time, cabinet, rack, driver, limit, clock, temperature, power.

    \b
    Example:
      hpcverify fleet peers sgemm.csv --columns part=gpu,value=milliseconds
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    if file is not None:
        with open_table(file, columns, by, map_kinds(load_site())) as table:
            document, past = judge_table(file, table, worse)
    else:
        document, past = judge_history(since)
    if as_json:
        print_json_text(msgspec.json.format(encode(document, past), indent=1))
    else:
        show(document)
        show_past(past)
    sys.exit(EXIT_FAIL if document.verdict is Verdict.FAIL else 0)


def judge_history(
    since: datetime | None,
) -> tuple[PeersDocument, dict[MetricName, TrendJudgement]]:
    """Judge the runs of the history from *since* on by each other, and all by their past."""
    site, state = load_site(), state_dir()
    first = (since or datetime.now(UTC) - timedelta(days=PEER_NIGHTS)).date()
    ledger = Ledger(state)
    peers = judge_peers(state, Choice(since=first), site, make_locator(site, ledger))
    compared = describe_compared(peers.fleet, ledger.list_nodes(), first)
    quarter = Choice(since=first - timedelta(days=PAST_NIGHTS))
    return replace(peers.document, compared=compared), judge_past(state, quarter, site)


def _exceeds_own(metric: str, worse: Worse, part: PartValue) -> bool:
    own = Limit(metric, part.limit) if worse == "low" else Limit(metric, high=part.limit)
    return exceeds(part.value, metric, [own])


def judge_table(
    file: Path, table: TableScreen, worse: Worse | None
) -> tuple[PeersDocument, dict[MetricName, TrendJudgement]]:
    """Judge the runs of *table*."""
    site = load_site()
    find_side = make_foreign_side_finder(make_side_finder(site.packages), worse)
    find_floor = make_floor_finder(site.peers, find_side)
    judged: list[MetricJudgement] = []
    past: dict[MetricName, TrendJudgement] = {}
    metrics = table.screen(find_floor)
    unjudged = [str(n) for n in metrics if find_floor(n.check, n.metric).worse is None]
    too_few: list[str] = []
    for name, metric in metrics.items():
        floor = find_floor(name.check, name.metric)
        if not floor.worse_side:
            continue
        if metric.is_plain:
            judged.append(build_plain_judgement(name, metric.summary, metric.nodes, floor))
            continue
        runs = table.read_runs(metric)[name]
        parts = list(filter(None, map(reduce_runs, runs.values())))
        if len(parts) < MIN_COMPARED:
            too_few.append(str(name))
        else:
            fails = partial(_exceeds_own, name.metric, floor.worse_side)
            judged.append(judge_metric(name, parts, floor, floor.worse_side, fails))
        if histories := list(filter(None, map(make_history, runs.values()))):
            limits = {(own.node, own.part): own.limit for own in runs.values()}
            past[name] = judge_histories(
                build_past(histories),
                low_is_bad=floor.worse_side == "low",
                find_limit=lambda *part, limits=limits: limits[part],
            )
    if not metrics:
        raise ConfigError(f"{file} has no value that is a number")
    if not judged and not too_few and unjudged:
        raise ConfigError(
            f"{file}: it is not known which values of {', '.join(unjudged)} are worse: "
            "add --worse low or --worse high"
        )
    document = PeersDocument(
        source=str(file),
        metrics=tuple(judged),
        unjudged=tuple(unjudged),
        too_few=tuple(too_few),
        least=list_least(judged),
    )
    return document, past


def make_history(runs: PartRuns) -> PartHistory | None:
    """Put the runs of a part in order; None if no run has a time."""
    order = [
        i
        for _, i in sorted(zip(runs.times, range(len(runs.times)), strict=True))
        if math.isfinite(runs.times[i]) and math.isfinite(runs.values[i])
    ]
    if not order:
        return None
    return PartHistory(
        node=runs.node,
        part=runs.part,
        times=tuple(runs.times[i] for i in order),
        values=tuple(runs.values[i] for i in order),
        marks={field: tuple(seen[i] for i in order) for field, seen in runs.marks.items()},
    )


def encode(document: PeersDocument, past: Mapping[MetricName, TrendJudgement]) -> bytes:
    """Build the document of ``--json``."""
    return msgspec.json.encode(
        {
            "verdict": document.verdict,
            **msgspec.structs.asdict(document),
            "past": [
                {"name": name, **msgspec.structs.asdict(judged)} for name, judged in past.items()
            ],
        }
    )


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
