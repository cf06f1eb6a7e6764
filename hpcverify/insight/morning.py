"""What a person reads first in the morning: what is new, what to do, and the trend."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Literal

from msgspec import Struct

from hpcverify.fleet.ledger import Ledger
from hpcverify.fleet.outages import NodeOutage
from hpcverify.fleet.states import DAY_S, FAILED_STATES, State, needs_repair
from hpcverify.insight.node_names import fold_names
from hpcverify.insight.overview import NodeRow, Overview, summarize_fleet
from hpcverify.model import Verdict
from hpcverify.summary.verdict import shorten
from hpcverify.units import UtcTime, format_count

WEEK_S = 7 * DAY_S
"""Seconds in each of the two periods that the trend compares."""
CLEAR_SIGMAS = 2.0
"""Standard deviations by which two Poisson counts must differ to show a trend."""
MAX_NEW_LINES = 5
"""Changes that are printed; JSON has all."""
MAX_TASKS = 8
"""Tasks that are printed; JSON has all."""
COMMANDS = {
    State.REPEAT_OFFENDER: "hpcverify nodes release {nodes} --reason …",
    State.QUARANTINED: "hpcverify nodes repaired {nodes} --reason …",
    State.HELD: "hpcverify nodes release {nodes} --reason …",
}
"""The command that ends a hold after the repair or the decision, by state."""


class MorningChange(Struct, frozen=True, kw_only=True):
    """A change of some nodes since yesterday."""

    nodes: tuple[str, ...]
    state: str
    """The state that the nodes came into."""
    reason: str
    """Why; empty for nodes that are back in service."""


class MorningTask(Struct, frozen=True, kw_only=True):
    """One thing that a person has to do or to decide today."""

    nodes: tuple[str, ...]
    """The nodes that it is about; empty for the whole fleet."""
    reason: str
    command: str
    """The command for it, or the command that comes after the repair."""


class FailureTrend(Struct, frozen=True, kw_only=True):
    """The failures of the last seven days, compared with the seven days before."""

    failures: int
    failures_before: int
    out_of_service: int
    """Nodes out of service now."""
    out_of_service_before: int
    """Nodes out of service seven days ago."""
    direction: Literal["better", "worse", "no clear change", "unknown"]
    """Unknown: the ledger is younger than two weeks."""


class MorningReport(Struct, frozen=True, kw_only=True):
    """The morning overview: the document of ``hpcverify fleet --json``."""

    schema: Literal[1]
    time: UtcTime
    summary: str
    """The outcomes of all nodes in one line."""
    new: tuple[MorningChange, ...]
    """The changes of the last 24 hours, the worst first."""
    tasks: tuple[MorningTask, ...]
    """What needs a person today, the most urgent first."""
    trend: FailureTrend


def build_morning_report(fleet: Overview, ledger: Ledger) -> MorningReport:
    """Build the report of this morning from the *fleet* and the outages in *ledger*."""
    outages = ledger.list_outages(fleet.made - 2 * WEEK_S)
    return MorningReport(
        schema=1,
        time=datetime.fromtimestamp(int(fleet.made), UTC),
        summary=summarize_fleet(fleet),
        new=tuple(_list_changes(fleet, outages)),
        tasks=tuple(_list_tasks(fleet)),
        trend=compare_weeks(outages, fleet.made, ledger.read_fleet_start()),
    )


def _list_changes(fleet: Overview, outages: Iterable[NodeOutage]) -> Iterator[MorningChange]:
    yesterday = fleet.made - DAY_S
    ended = {outage.node for outage in outages if outage.ended > yesterday}
    worse = [row for row in fleet.rows if row.attention and row.node.since > yesterday]
    for (state, reason), nodes in _group_nodes((row.state_label, row.why, row) for row in worse):
        yield MorningChange(nodes=nodes, state=state, reason=reason)
    if back := [row.node.name for row in fleet.rows if row.node.name in ended and _serves(row)]:
        yield MorningChange(nodes=tuple(back), state="back in service", reason="")


def _serves(row: NodeRow) -> bool:
    return row.state in {State.HEALTHY, State.UNVERIFIED} and not row.attention


def _list_tasks(fleet: Overview) -> Iterator[MorningTask]:
    """Yield what concerns the whole fleet, then the nodes, the worst first."""
    if fleet.tripped:
        reason = f"automatic draining is paused: {fleet.tripped}"
        yield MorningTask(nodes=(), reason=reason, command="hpcverify fleet breaker")
    for doubt in fleet.doubts:
        reason = f"a check is doubted: {doubt.text}"
        yield MorningTask(nodes=(), reason=reason, command="hpcverify fleet breaker")
    for item in fleet.malfunctions:
        reason = f"{item.name} does not work: {item.why}"
        yield MorningTask(nodes=(), reason=reason, command="hpcverify fleet collect")
    due = [
        (f"{row.state_label}: {row.why}", command, row)
        for row in fleet.rows
        if (command := _find_command(row, fleet))
    ]
    for (reason, command), nodes in _group_nodes(due):
        folded = command.format(nodes=fold_names(nodes))
        yield MorningTask(nodes=nodes, reason=reason, command=folded)
    if overdue := tuple(row.node.name for row in fleet.rows if row.overdue and row.known):
        reason = f"no full pass for {format_count(fleet.overdue_days, 'day')}"
        command = "hpcverify fleet sweep --dry-run --explain"
        yield MorningTask(nodes=overdue, reason=reason, command=command)


def _find_command(row: NodeRow, fleet: Overview) -> str:
    """Find the command for a node that needs a person; empty if the controller handles it."""
    node = row.node
    if node.foreign or not row.attention:
        return ""
    if node.state in COMMANDS and (node.enforced or node.state is State.HELD):
        return COMMANDS[node.state]
    if node.state in FAILED_STATES and not node.enforced and node.state is not State.SUSPECT:
        return "hpcverify nodes hold {nodes} --reason …"
    if needs_repair(node, fleet.made):
        return "hpcverify nodes hold {nodes} --reason …"
    if row.outcome in (Verdict.ERROR, Verdict.FAIL) and node.state not in FAILED_STATES:
        return "hpcverify nodes {nodes}"
    return ""


def _group_nodes(
    rows: Iterable[tuple[str, str, NodeRow]],
) -> Iterator[tuple[tuple[str, str], tuple[str, ...]]]:
    """Group nodes that have the same two texts, in the order of the first node of each."""
    groups: dict[tuple[str, str], list[str]] = {}
    for first, second, row in rows:
        groups.setdefault((first, second), []).append(row.node.name)
    return ((texts, tuple(nodes)) for texts, nodes in groups.items())


def compare_weeks(outages: Iterable[NodeOutage], now: float, began: float) -> FailureTrend:
    """Compare the last seven days with the seven days before; the ledger *began* at a time."""
    outages = list(outages)
    middle = now - WEEK_S
    failed = [outage.began for outage in outages if outage.is_failure]
    late = sum(at > middle for at in failed)
    early = sum(middle - WEEK_S < at <= middle for at in failed)
    spread = CLEAR_SIGMAS * math.sqrt(late + early)
    direction: Literal["better", "worse", "no clear change", "unknown"] = "no clear change"
    if began > now - 2 * WEEK_S:
        direction = "unknown"
    elif abs(late - early) > spread:
        direction = "worse" if late > early else "better"
    return FailureTrend(
        failures=late,
        failures_before=early,
        out_of_service=_count_held(outages, now),
        out_of_service_before=_count_held(outages, middle),
        direction=direction,
    )


def _count_held(outages: Iterable[NodeOutage], at: float) -> int:
    return len({o.node for o in outages if o.held and o.began <= at and not 0 < o.ended <= at})


def describe_morning(report: MorningReport) -> Iterator[str]:
    """Yield the lines of *report* for a terminal."""
    yield report.summary
    yield ""
    yield "New since yesterday:" if report.new else "Nothing is new since yesterday."
    for change in report.new[:MAX_NEW_LINES]:
        reason = f": {change.reason}" if change.reason else ""
        yield shorten(f"  {fold_names(change.nodes)} {change.state}{reason}")
    yield from _count_more(len(report.new) - MAX_NEW_LINES)
    yield ""
    yield "Needs a person today:" if report.tasks else "Nothing needs a person today."
    for number, task in enumerate(report.tasks[:MAX_TASKS], start=1):
        where = f"{fold_names(task.nodes)} " if task.nodes else ""
        yield shorten(f"  {number}. {where}{task.reason}")
        yield f"     {task.command}"
    yield from _count_more(len(report.tasks) - MAX_TASKS)
    yield ""
    yield from describe_trend(report.trend)


def _count_more(left: int) -> Iterator[str]:
    if left > 0:
        yield f"  and {left} more: hpcverify fleet --json"


def describe_trend(trend: FailureTrend) -> Iterator[str]:
    """Yield whether the fleet gets better or worse, and the figures for it."""
    is_young = trend.direction == "unknown"
    yield f"Trend: {'needs two weeks of history' if is_young else trend.direction}"
    yield (
        f"  failures in 7 days: {trend.failures} (before: {trend.failures_before}); "
        f"out of service: {trend.out_of_service} (7 days ago: {trend.out_of_service_before})"
    )
