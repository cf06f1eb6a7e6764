"""``hpcverify nodes``: what is known of the fleet, worst first."""

from __future__ import annotations

from collections.abc import Iterable

import click
from msgspec.structs import replace

from hpcverify.commands._options import NODE, json_option, optional_hostlist_argument
from hpcverify.console import print_json, say
from hpcverify.errors import UnknownNameError
from hpcverify.fleet.event_log import AuditEntry
from hpcverify.fleet.ledger import Ledger
from hpcverify.insight.drift import keep_nodes
from hpcverify.insight.judgement import (
    keep_judged_nodes,
)
from hpcverify.insight.nodes_text import print_fleet
from hpcverify.insight.outlook import NodeOutlook, read_node_outlook, read_shown_judgement
from hpcverify.insight.overview import (
    Overview,
    add_judgement,
    build_nodes_document,
    read_overview,
)
from hpcverify.plan.config import load_site, state_dir
from hpcverify.plan.hostlist import expand
from hpcverify.records.store import Store


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
