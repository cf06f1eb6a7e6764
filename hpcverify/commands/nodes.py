"""``hpcverify nodes``: what is known of the fleet, worst first."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

import click
from msgspec.structs import replace
from rich.text import Text

from hpcverify.commands._options import NODE, json_option, optional_hostlist_argument
from hpcverify.console import print_json, say
from hpcverify.errors import UnknownNameError
from hpcverify.fleet.event_log import AuditEntry
from hpcverify.fleet.ledger import Ledger
from hpcverify.fleet.states import Hold, Node, State
from hpcverify.insight.drift import keep_nodes, list_drift_lines
from hpcverify.insight.judgement import (
    FleetJudgement,
    keep_judged_nodes,
    list_judgement_lines,
)
from hpcverify.insight.node_names import fold_names
from hpcverify.insight.outlook import NodeOutlook, read_node_outlook, read_shown_judgement
from hpcverify.insight.overview import (
    NodeRow,
    Overview,
    add_judgement,
    build_nodes_document,
    count_states,
    describe_links,
    list_malfunction_lines,
    read_overview,
    summarize_fleet,
)
from hpcverify.model import Verdict
from hpcverify.plan.config import load_site, state_dir
from hpcverify.plan.hostlist import expand
from hpcverify.records.store import Store
from hpcverify.summary.terminal import Console, print_items, print_table, render_badge
from hpcverify.summary.verdict import shorten
from hpcverify.units import format_count, format_time_since

NO_NODES_TEXT = (
    "no node is known yet. List the nodes of Slurm: hpcverify fleet collect. "
    "Verify this node: hpcverify run"
)
COLUMN_HEADS = ("node", "state", "verdict", "last full pass", "last run", "why")
OUTAGE_HEADS = ("began (UTC)", "ended (UTC)", "found by", "reason")
DRIFT_TITLE = "versions and settings, compared with like nodes:"
MAX_HEALTHY_ROWS = 8
"""Of more healthy nodes, only the names are printed."""
MAX_DRIFT_LINES = 20
"""Lines on versions that are printed; JSON has all."""
MAX_JUDGED_LINES = 20
"""The same of lines on peers and the past."""
OVERDUE_STYLE = "bold red"
ATTENTION_STYLE = "bold"


@click.command("list")
@optional_hostlist_argument
@json_option
def command(hostlist: str | None, *, as_json: bool) -> None:
    """
    List the nodes of HOSTLIST (default: all), worst first.

    "Observed only": the node failed, but the site does not act on failures. "Overdue": the
    last full pass is too long ago. "None ordered": the controller does not know the node.
    The last run can be of any suite, including those of the hooks. The lists below the table
    show versions and settings that differ from identical nodes, and parts that are worse
    than their peers or than their own past.

    \b
    Example:
      hpcverify nodes list gpu[001-032]
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    show_fleet(expand(hostlist) if hostlist is not None else None, as_json=as_json)


@click.command("show")
@click.argument("node", type=NODE, metavar="NODE")
@json_option
def show(node: str, *, as_json: bool) -> None:
    """
    Show NODE: its state, its risk to fail next, its outages and its audit log.

    \b
    Example:
      hpcverify nodes show gpu001
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    show_fleet([node], as_json=as_json, with_past=True)


def show_fleet(names: list[str] | None, *, as_json: bool, with_past: bool = False) -> None:
    """Print the nodes called *names*, or all; *with_past* also the past of the only one."""
    ledger = Ledger(state_dir())
    judgement, fault = read_shown_judgement(state_dir())
    fleet = add_judgement(read_overview(ledger, Store(state_dir())), judgement)
    if fault:
        say(fault)
    log: list[AuditEntry] = []
    outlook: NodeOutlook | None = None
    if names is not None:
        fleet = keep_only(fleet, names)
        judgement = keep_judged_nodes(judgement, names) if judgement else None
    if names and with_past:
        log = ledger.read_audit(names[0])
        if fleet.rows[0].known:
            outlook = read_node_outlook(ledger, load_site().fleet, names[0])
    if as_json:
        print_json(build_nodes_document(fleet, judgement, fault, outlook=outlook, audit=log))
    else:
        print_fleet(fleet, log, judgement, outlook)


def keep_only(fleet: Overview, names: Iterable[str]) -> Overview:
    """
    Keep of *fleet* the nodes called *names*.

    Raises:
        UnknownNameError: one of them is unknown.

    """
    rows = {row.node.name: row for row in fleet.rows}
    wanted = set(names)
    for stranger in sorted(wanted - rows.keys()):
        raise UnknownNameError("node", stranger, rows)
    kept = tuple(row for row in fleet.rows if row.node.name in wanted)
    return replace(fleet, rows=kept, drift=keep_nodes(fleet.drift, wanted))


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
