"""Judge each part of a fleet by its own past, as the history has it."""

from __future__ import annotations

from pathlib import Path

from hpcverify.history.reader import Choice
from hpcverify.history.screen import PeerMetric, open_screen
from hpcverify.history.trend import read_pasts
from hpcverify.insight.comparison import Limits, map_kinds
from hpcverify.peers.floors import Worse, make_floor_finder
from hpcverify.peers.rule import DEFAULT_FLOOR
from hpcverify.peers.values import MetricName
from hpcverify.plan.catalog import make_side_finder
from hpcverify.plan.config import Site
from hpcverify.records.store import Store
from hpcverify.trends.fleet import DEFAULT_STEP, FleetPast, TrendJudgement, judge_histories

PAST_MIB = 256
"""What DuckDB may take for the past of 80,000 GPUs in a metric."""


def judge_past(state: Path, choice: Choice, site: Site) -> dict[MetricName, TrendJudgement]:
    """
    Judge the parts of *choice* by their own past, in each metric in which any changed.

    Raises:
        ConfigError: DuckDB is not installed.
        StoreError: there is no history, or a file is damaged.

    """
    find_own_limit = Limits(Store(state)).find
    find_floor = make_floor_finder(site.peers, make_side_finder(site.packages))

    def find_least(metric: PeerMetric) -> float | None:
        """Find the least change worth a word: as much less as the floor between peers is."""
        line = find_floor(metric.check, metric.metric)
        return DEFAULT_STEP * line.floor / DEFAULT_FLOOR if line.worse_side else None

    def judge(metric: PeerMetric, past: FleetPast, worse: Worse, least: float) -> TrendJudgement:
        def find_limit(node: str, part: str) -> float | None:
            return find_own_limit(node, part, metric.suite, metric.name, worse)

        return judge_histories(past, low_is_bad=worse == "low", least=least, find_limit=find_limit)

    kinds = map_kinds(site)
    with open_screen(state, choice, kinds=kinds, memory_mib=PAST_MIB) as screen:
        judged = {
            metric.name: judge(metric, past, worse, least)
            for metric, past in read_pasts(screen, find_least)
            if (worse := find_floor(metric.check, metric.metric).worse_side)
            and (least := find_least(metric)) is not None
        }
    return {name: one for name, one in judged.items() if one.changes or one.shared}
