"""
Judge what the history has of a fleet: each part by its peers.

What the rows of the history do not say is looked up when it is needed: where a node is, and of
the few parts that stand apart the limit by which their own run judged them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import date
from fnmatch import fnmatchcase
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from hpcverify.check import judge
from hpcverify.fleet.ledger import Ledger
from hpcverify.history.reader import Choice
from hpcverify.history.screen import PeerMetric, open_screen
from hpcverify.history.trend import read_pasts
from hpcverify.history.values import Locate, ScreenedFleet, read_fleet
from hpcverify.insight.node_names import fold_names
from hpcverify.model import Inventory, Limit, Measurement, Result, Run, Verdict
from hpcverify.peers.document import PeersDocument, judge_fleet
from hpcverify.peers.floors import Worse, make_floor_finder
from hpcverify.peers.rule import DEFAULT_FLOOR, MIN_COMPARED
from hpcverify.peers.values import NODE_PART, MetricName
from hpcverify.plan.catalog import make_side_finder
from hpcverify.plan.config import Site
from hpcverify.plan.hostlist import expand
from hpcverify.records.store import Store
from hpcverify.selection.places import find_rack
from hpcverify.slurm.topology import index_switches
from hpcverify.trends.fleet import DEFAULT_STEP, FleetPast, TrendJudgement, judge_histories
from hpcverify.units import format_count

SEARCHED_RUNS = 20
"""The newest runs of a node are searched for one of the suite."""


class JudgedPeers(Struct, frozen=True):
    """What peers say of a fleet, and what they were judged on."""

    document: PeersDocument
    fleet: ScreenedFleet
    last_nights: Mapping[tuple[str, str], date]
    """The last night of each suite on each node."""
    left_out: Mapping[str, int]
    """Nodes that claim more metrics than any node has, and how many: they are not judged."""


def make_locator(site: Site, ledger: Ledger) -> Locate:
    """
    Make the function that locates a node: at its switch, from the site file or the last sweep.

    Without one, the name may show the rack.

    Raises:
        ConfigError: the site file names a switch of no node.

    """
    named = site.fabric.switches
    switches = index_switches(named.items()) if named else ledger.read_links().switches

    def locate(node: str) -> dict[str, str]:
        if switch := switches.get(node):
            return {"switch": switch}
        rack = find_rack(node)
        return {"rack": rack} if rack else {}

    return locate


def map_kinds(site: Site) -> dict[str, str]:
    """
    Map each node that differs by design to its kind, from the *site* file.

    Raises:
        ConfigError: a host list is not one.

    """
    return {node: kind.name for kind in site.kinds for node in expand(kind.nodes)}


def describe_compared(fleet: ScreenedFleet, known: Collection[str], since: date | None) -> str:
    """
    Say how many nodes were compared, and why the others were not.

    Args:
        fleet: What the history has of the nights from *since* on.
        known: The nodes of the site.
        since: The first of those nights.

    """
    absent = {*known} - fleet.compared - fleet.alone
    count = len(fleet.compared) + len(fleet.alone) + len(absent)
    nights = f"no value since the night of {since}" if since else "no value"
    reasons = (
        (fleet.alone, f"fewer than {MIN_COMPARED} parts like theirs"),
        (absent, nights),
    )
    others = (f"{fold_names(nodes)} not: {why}" for nodes, why in reasons if nodes)
    compared = f"{len(fleet.compared)} of {format_count(count, 'node')} were compared"
    return "; ".join([compared, *others])


def judge_peers(
    state: Path,
    choice: Choice,
    site: Site,
    locate: Locate,
    *,
    newest: bool = False,
) -> JudgedPeers:
    """
    Judge the parts of *choice* by each other; if *newest*, by the last night of each node.

    Raises:
        ConfigError: DuckDB is not installed.
        StoreError: there is no history, or a file is damaged.

    """
    find_floor = make_floor_finder(site.peers, make_side_finder(site.packages))
    with open_screen(state, choice, newest=newest, kinds=map_kinds(site)) as screen:
        fleet = read_fleet(screen, find_floor, locate)
        last_nights = screen.read_last_nights() if newest else {}
        left_out = screen.left_out
    limits = Limits(Store(state))
    document = judge_fleet(
        fleet.values,
        source="history",
        find_floor=find_floor,
        screened=fleet.screened,
        fails=lambda name, p: exceeds(
            p.value, name.metric, limits.list_failing(p.node, p.part, fleet.suites[name], name)
        ),
    )
    document = replace(
        document,
        unjudged=(*document.unjudged, *fleet.unjudged),
        too_few=fleet.too_few,
        least={**fleet.least, **document.least},
    )
    return JudgedPeers(document, fleet, last_nights, left_out)


def exceeds(value: float, metric: str, limits: Iterable[Limit]) -> bool:
    """Whether *value* of *metric* fails by *limits*, all of one part."""
    own = tuple(replace(limit, part_id="") for limit in limits)
    item = Measurement(metric, value)
    result = Result(check="", verdict=Verdict.PASS, measurements=(item,), limits=own)
    return judge(result, Inventory()).verdict is Verdict.FAIL


class Limits:
    """The limits by which parts failed or would fail in their own newest runs."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._runs: dict[tuple[str, str], Run | None] = {}

    def list_failing(self, node: str, part: str, suite: str, name: MetricName) -> list[Limit]:
        """List the limits of a *part* in a metric; none if its run had none that fails."""
        run = self._read_run(node, suite)
        if run is None:
            return []
        ids = {known.label: known.id for known in run.inventory.parts}
        part_id = NODE_PART if part == NODE_PART else ids.get(part, part)
        return [
            limit
            for result in run.results
            if result.check == name.check
            for limit in result.limits
            if _fits(limit, name.metric, part_id)
        ]

    def find(
        self, node: str, part: str, suite: str, name: MetricName, worse: Worse
    ) -> float | None:
        """Find the bound of a *part* in a metric on the side that is *worse*."""
        limits = self.list_failing(node, part, suite, name)
        bounds = [limit.low if worse == "low" else limit.high for limit in limits]
        return next((bound for bound in reversed(bounds) if bound is not None), None)

    def _read_run(self, node: str, suite: str) -> Run | None:
        if (node, suite) not in self._runs:
            entries = self._store.list_runs(node, SEARCHED_RUNS)
            of_suite = [entry for entry in entries if entry.suite == suite][:1]
            self._runs[node, suite] = next(self._store.read_documents(of_suite), None)
        return self._runs[node, suite]


def _fits(limit: Limit, metric: str, part_id: str) -> bool:
    """Whether *limit* is one of a part, and one that fails: one that warns is too weak."""
    return (
        limit.otherwise is Verdict.FAIL
        and not limit.noisy
        and limit.part_id in ("", part_id)
        and fnmatchcase(metric, limit.name)
    )


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
