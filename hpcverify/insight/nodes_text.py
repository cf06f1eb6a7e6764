"""How a terminal shows the nodes of a fleet, and the past of a single node."""

from __future__ import annotations

from datetime import datetime

from rich.text import Text

from hpcverify.fleet.event_log import AuditEntry
from hpcverify.fleet.states import Hold, Node, State
from hpcverify.insight.drift import list_drift_lines
from hpcverify.insight.judgement import (
    FleetJudgement,
    list_judgement_lines,
)
from hpcverify.insight.node_names import fold_names
from hpcverify.insight.outlook import NodeOutlook
from hpcverify.insight.overview import (
    NodeRow,
    Overview,
    count_states,
    describe_links,
    list_malfunction_lines,
    summarize_fleet,
)
from hpcverify.model import Verdict
from hpcverify.summary.terminal import Console, print_items, print_table, render_badge
from hpcverify.summary.verdict import shorten
from hpcverify.units import format_count, format_time_since

NO_NODES_TEXT = (
    "no node is known yet. List the nodes of Slurm: hpcverify fleet collect. "
    "Verify this node: hpcverify run"
)
COLUMN_HEADS = ("node", "state", "verdict", "last full pass", "last run", "why")
OUTAGE_HEADS = ("began (UTC)", "ended (UTC)", "found by", "reason")
DRIFT_TITLE = "versions and settings, compared with identical nodes:"
MAX_HEALTHY_ROWS = 8
"""Of more healthy nodes, only the names are printed."""
MAX_DRIFT_LINES = 20
"""Lines on versions that are printed; JSON has all."""
MAX_JUDGED_LINES = 20
"""The same of lines on peers and the past."""
OVERDUE_STYLE = "bold red"
ATTENTION_STYLE = "bold"


def print_fleet(
    fleet: Overview,
    log: list[AuditEntry],
    judgement: FleetJudgement | None,
    outlook: NodeOutlook | None,
) -> None:
    """Print the counts, a table of the nodes, how they differ, and the past of a single one."""
    console = Console(highlight=False)
    if not fleet.rows:
        console.print(NO_NODES_TEXT)
        return
    style = OVERDUE_STYLE if fleet.tripped else ""
    console.print(Text(summarize_fleet(fleet), style=style))
    for doubt in fleet.doubts:
        console.print(Text(f"a check is doubted: {doubt.text}", style=OVERDUE_STYLE))
    console.print(f"states: {count_states(fleet.rows)}")
    if tried := describe_links(fleet):
        console.print(f"links tried: {tried}")
    for line in list_malfunction_lines(fleet):
        console.print(Text(line, style=OVERDUE_STYLE))
    if judgement:
        show_judgement(console, judgement)
    console.print()
    show_nodes(console, fleet)
    if lines := list_drift_lines(fleet.drift, fleet.made):
        console.print()
        console.print(DRIFT_TITLE)
        told = [
            ": ".join(filter(None, (line.kind, line.hosts, line.text)))
            for line in lines[:MAX_DRIFT_LINES]
        ]
        print_items(console, [*told, *count_more(len(lines) - MAX_DRIFT_LINES)])
    if outlook:
        show_outlook(console, outlook, fleet.rows[0].node)
    if log:
        console.print()
        head = ("when (UTC)", "who", "what", "detail")
        print_table(
            console, head, ((format_moment(e.time), e.actor, e.what, e.detail) for e in log)
        )


def show_nodes(console: Console, fleet: Overview) -> None:
    """Print a row for each node; of many healthy ones, the names in one line."""
    healthy = {row.node.name: row for row in fleet.rows if is_healthy(row)}
    if len(healthy) <= MAX_HEALTHY_ROWS:
        healthy = {}
    rows = [row for row in fleet.rows if row.node.name not in healthy]
    if rows:
        print_table(console, COLUMN_HEADS, (format_row(row, fleet.made) for row in rows))
    if healthy:
        oldest = min(row.node.last_pass_at for row in healthy.values())
        since = format_time_since(oldest, fleet.made)
        passed = f"{format_count(len(healthy), 'node')}; the oldest full pass was {since} ago"
        console.print(f"healthy: {fold_names(healthy)} ({passed})", markup=False)


def is_healthy(row: NodeRow) -> bool:
    """Whether there is nothing to say about a node but that it passed."""
    passed = row.known and row.node.last_pass_at > 0 and row.outcome is Verdict.PASS
    noted = row.attention or row.overdue or row.failures or row.why
    return passed and row.state == State.HEALTHY and not noted


def show_judgement(console: Console, judgement: FleetJudgement) -> None:
    """Print who is worse than its peers or than it was, and what could have been seen."""
    lines = list_judgement_lines(judgement)
    if not (lines or judgement.least or judgement.coverage.nodes):
        return
    console.print()
    night = f"compared with peers and the past, as of the night of {judgement.night}"
    console.print(f"{night}:" if lines else f"{night}: no outliers")
    if lines:
        more = count_more(len(lines) - MAX_JUDGED_LINES)
        print_items(console, [*lines[:MAX_JUDGED_LINES], *more])
    for line in filter(None, (str(judgement.coverage), judgement.least)):
        console.print(line, markup=False)


def count_more(left: int) -> list[str]:
    """Say where lines are that are not printed; nothing if there are none."""
    return [f"and {left} more: hpcverify nodes --json"] if left > 0 else []


def show_outlook(console: Console, outlook: NodeOutlook, node: Node) -> None:
    """Print the risk of *node*, and its outages."""
    console.print()
    if risk := outlook.risk:
        reasons = "; ".join(risk.reasons) or "nothing sets it apart"
        console.print(f"risk: {risk.score:.1f}x that of an average node: {reasons}", markup=False)
    elif node.foreign or node.desired_hold is not Hold.NONE:
        console.print("risk: none while it is out of service")
    else:
        console.print("risk: not ranked until what it failed is settled; sweeps take it first")
    if outlook.outages:
        console.print("outages of the last two years:")
        rows = (
            (
                format_moment(o.began),
                format_moment(o.ended) or "not over",
                o.cause,
                shorten(o.reason),
            )
            for o in outlook.outages
        )
        print_table(console, OUTAGE_HEADS, rows)
    else:
        console.print("no outage in the last two years")


def format_moment(when: datetime | None) -> str:
    """Print a time (UTC); empty if it is unknown."""
    return f"{when:%Y-%m-%d %H:%M:%S}" if when else ""


def format_row(row: NodeRow, now: float) -> tuple[str | Text, ...]:
    """Print the columns of a node; words say what colours say."""
    passed = format_time_since(row.node.last_pass_at, now) if row.known else "none ordered"
    return (
        Text(row.node.name, style=ATTENTION_STYLE if row.attention else ""),
        row.state_label,
        render_badge(row.verdict) if row.verdict else "-",
        Text(f"{passed}, overdue", style=OVERDUE_STYLE) if row.overdue and row.known else passed,
        format_time_since(row.heard, now),
        shorten(row.why),
    )
