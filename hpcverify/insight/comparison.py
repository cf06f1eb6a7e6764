"""
Judge what the history has of a fleet: each part by its peers.

What the rows of the history do not say is looked up when it is needed: where a node is, and of
the few parts that stand apart the limit by which their own run judged them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import date
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from hpcverify.fleet.ledger import Ledger
from hpcverify.history.reader import Choice
from hpcverify.history.screen import open_screen
from hpcverify.history.values import Locate, ScreenedFleet, read_fleet
from hpcverify.insight.node_names import fold_names
from hpcverify.model import Limit, Run, Verdict
from hpcverify.peers.document import PeersDocument, judge_fleet
from hpcverify.peers.fleet import MetricJudgement, are_beyond_limits
from hpcverify.peers.floors import Worse, make_floor_finder
from hpcverify.peers.rule import MIN_COMPARED
from hpcverify.peers.values import NODE_PART, MetricName, PartValue
from hpcverify.plan.catalog import make_side_finder
from hpcverify.plan.config import Site
from hpcverify.plan.hostlist import expand
from hpcverify.records.store import Store
from hpcverify.selection.places import find_rack
from hpcverify.slurm.topology import index_switches
from hpcverify.units import format_count

SEARCHED_RUNS = 20
"""The newest runs of a node are searched for one of the suite."""


FindOwnLimit = Callable[[str, str, str, MetricName, Worse], "float | None"]
"""Takes a node, a part, a suite, a metric and its worse side."""


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
    Make what says where a node is: at its switch, as the site or the last sweep knows it.

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
    Map each node that differs by design to its kind, as the *site* says it.

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
    document = judge_fleet(
        fleet.values,
        source="history",
        find_floor=find_floor,
        screened=fleet.screened,
    )
    document = replace(
        document,
        unjudged=(*document.unjudged, *fleet.unjudged),
        too_few=fleet.too_few,
        least={**fleet.least, **document.least},
    )
    find_limit = make_limit_finder(Store(state))
    metrics = tuple(_fail_beyond_limits(entry, fleet, find_limit) for entry in document.metrics)
    return JudgedPeers(replace(document, metrics=metrics), fleet, last_nights, left_out)


def _fail_beyond_limits(
    entry: MetricJudgement, fleet: ScreenedFleet, find_limit: FindOwnLimit
) -> MetricJudgement:
    """Fail the outliers of *entry* whose parts are all beyond the limits of their own runs."""
    parts, suite = {p.name: p for p in fleet.values[entry.name]}, fleet.suites[entry.name]

    def limit_part(name: str) -> PartValue:
        part = parts[name]
        limit = find_limit(part.node, part.part, suite, entry.name, entry.worse)
        return replace(part, limit=limit)

    low_is_bad = entry.worse == "low"
    outliers = (
        replace(outlier, verdict=Verdict.FAIL)
        if are_beyond_limits(map(limit_part, outlier.members), low_is_bad=low_is_bad)
        else outlier
        for outlier in entry.outliers
    )
    return replace(entry, outliers=tuple(outliers))


def make_limit_finder(store: Store) -> FindOwnLimit:
    """Make what finds the limit by which a part failed, or would fail, in its own newest run."""

    @cache
    def read_run(node: str, suite: str) -> Run | None:
        entries = store.list_runs(node, SEARCHED_RUNS)
        of_suite = [entry for entry in entries if entry.suite == suite][:1]
        return next(store.read_documents(of_suite), None)

    def find(node: str, part: str, suite: str, name: MetricName, worse: Worse) -> float | None:
        if (run := read_run(node, suite)) is None:
            return None
        ids = {known.label: known.id for known in run.inventory.parts}
        part_id = NODE_PART if part == NODE_PART else ids.get(part, part)
        bounds = [
            bound
            for result in run.results
            if result.check == name.check
            for limit in result.limits
            if _fits(limit, name.metric, part_id)
            and (bound := limit.low if worse == "low" else limit.high) is not None
        ]
        return bounds[-1] if bounds else None

    return find


def _fits(limit: Limit, metric: str, part_id: str) -> bool:
    """Whether *limit* is one of a part, and one that fails: one that warns is too weak."""
    return (
        limit.otherwise is Verdict.FAIL
        and not limit.noisy
        and limit.part_id in ("", part_id)
        and fnmatchcase(metric, limit.name)
    )
