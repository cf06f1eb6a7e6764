"""Judge the parts of a table of any tool by their peers and by their past."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

from hpcverify.errors import ConfigError
from hpcverify.history.table import TableScreen
from hpcverify.insight.comparison import (
    exceeds,
)
from hpcverify.model import Limit
from hpcverify.peers.document import (
    PeersDocument,
    list_least,
)
from hpcverify.peers.fleet import (
    MetricJudgement,
    build_plain_judgement,
    judge_metric,
)
from hpcverify.peers.floors import Worse, make_floor_finder
from hpcverify.peers.foreign import make_foreign_side_finder
from hpcverify.peers.rule import MIN_COMPARED
from hpcverify.peers.values import MetricName, PartRuns, PartValue, reduce_runs
from hpcverify.plan.catalog import make_side_finder
from hpcverify.plan.config import load_site
from hpcverify.trends.fleet import (
    TrendJudgement,
    build_past,
    judge_histories,
)
from hpcverify.trends.levels import PartHistory


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
