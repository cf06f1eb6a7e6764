"""``hpcverify nodes``: what is known of the fleet, worst first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

import click
import msgspec
from msgspec.structs import replace
from rich.text import Text

from hpcverify.commands import _fleet
from hpcverify.config import state_dir
from hpcverify.errors import UnknownNameError
from hpcverify.fleet.overview import Overview, Row, age, headline, tally
from hpcverify.plain import cut
from hpcverify.quarantine.ledger import Entry, Ledger
from hpcverify.store import Store
from hpcverify.view import Console, badge, plain_table

NOBODY = "no node is known yet: hpcverify sweep, or hpcverify run"
HEAD = ("node", "state", "verdict", "last full pass", "last run", "why")
OVERDUE = "bold red"
BLAMED = "bold"


@click.command("nodes")
@click.argument("hostlist", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(hostlist: str | None, *, as_json: bool) -> None:
    """
    List the nodes of HOSTLIST, or all, worst first; of one, what was done to it too.

    A node that failed and that the site does not act on is "observed only"; a last full
    pass that is long ago is "overdue". Of a node that the controller does not know, no
    full pass was ordered. The last run is of any suite: of the hooks too.

    \b
    Example:
      hpcverify nodes gpu[001-032]
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    ledger = Ledger(state_dir())
    fleet = _fleet.read(ledger, Store(state_dir()))
    log: list[Entry] = []
    if hostlist is not None:
        chosen = expand(hostlist)
        fleet = only(fleet, chosen)
        log = ledger.audit(chosen[0]) if len(chosen) == 1 else []
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(told(fleet, log)), indent=1))
    else:
        show(fleet, log)


def expand(hostlist: str) -> list[str]:
    """Name the nodes of *hostlist*, for which there is a library."""
    from hpcverify.slurm import hostlist as shorthand

    return shorthand.expand(hostlist)


def only(fleet: Overview, names: Iterable[str]) -> Overview:
    """
    Keep of *fleet* the nodes called *names*.

    Raises:
        UnknownNameError: nothing is known of one of them.

    """
    rows = {row.node.name: row for row in fleet.rows}
    wanted = set(names)
    for stranger in sorted(wanted - rows.keys()):
        raise UnknownNameError("node", stranger, rows)
    kept = tuple(row for row in fleet.rows if row.node.name in wanted)
    return replace(fleet, rows=kept)


def told(fleet: Overview, log: Iterable[Entry]) -> dict[str, object]:
    """Put what is shown into what JSON can hold: each node with what is made of it."""
    nodes = [
        {
            **msgspec.structs.asdict(row.node),
            "shown": row.state,
            "outcome": row.outcome,
            "attention": row.attention,
            "overdue": row.overdue,
            "why": row.why,
            "heard": row.heard,
            "failures": row.failures,
        }
        for row in fleet.rows
    ]
    return {"breaker": fleet.tripped, "nodes": nodes, "audit": list(log)}


def show(fleet: Overview, log: list[Entry]) -> None:
    """Print the counts, a table of the nodes, and the log if there is one."""
    console = Console(highlight=False)
    if not fleet.rows:
        console.print(NOBODY)
        return
    style = OVERDUE if fleet.tripped else ""
    console.print(Text(headline(fleet), style=style))
    console.print(f"states: {tally(fleet.rows)}")
    console.print()
    plain_table(console, HEAD, (cells(row, fleet.made) for row in fleet.rows))
    if log:
        console.print()
        head = ("when (UTC)", "who", "what", "detail")
        plain_table(console, head, audit_cells(log))


def cells(row: Row, now: float) -> tuple[str | Text, ...]:
    """Print the columns of a node; words say what colours say."""
    passed = age(row.node.passed, now) if row.known else "none ordered"
    return (
        Text(row.node.name, style=BLAMED if row.attention else ""),
        row.shown,
        badge(row.verdict) if row.verdict else "-",
        Text(f"{passed}, overdue", style=OVERDUE)
        if row.overdue and row.known
        else passed,
        age(row.heard, now),
        cut(row.why),
    )


def audit_cells(log: Iterable[Entry]) -> Iterator[tuple[str, ...]]:
    """Print the columns of lines of the audit log."""
    for line in log:
        when = datetime.fromtimestamp(line.when, UTC)
        yield f"{when:%Y-%m-%d %H:%M:%S}", line.actor, line.what, line.detail
