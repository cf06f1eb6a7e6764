"""``hpcverify history``: the runs of a node."""

from __future__ import annotations

import click
import msgspec

from hpcverify.console import say
from hpcverify.errors import NO_RUNS_MESSAGE, UnknownNameError
from hpcverify.model import Verdict
from hpcverify.plan.config import node_name, state_dir
from hpcverify.records.store import RunEntry, Store
from hpcverify.summary.terminal import Console, print_table
from hpcverify.summary.verdict import explain_verdict
from hpcverify.summary.wording import format_duration

MIN_WIDE_COLUMNS = 120
"""Terminal columns needed to show when a run began and how long it took."""


@click.command("history")
@click.argument("node", required=False)
@click.option(
    "--limit",
    type=click.IntRange(1, 100_000),
    default=20,
    show_default=True,
    help="How many runs, newest first.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(node: str | None, limit: int, *, as_json: bool) -> None:
    """
    List the runs of NODE (default: this node), one line each.

    Each line names the worst problem and counts the others; hpcverify show has them all.

    \b
    Example:
      hpcverify history n17 --limit 5
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    store = Store(state_dir())
    entries = store.list_runs(node or node_name(), limit)
    if not entries and node:
        raise UnknownNameError("node", node, {e.node for e in store.list_runs(limit=-1)})
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(entries), indent=1))
        return
    if not entries:
        click.echo(NO_RUNS_MESSAGE)
        return
    console = Console(highlight=False)
    wide = console.width >= MIN_WIDE_COLUMNS
    timed = ("when (UTC)", "took") if wide else ()
    head = ("run", *timed, "suite", "verdict", "why")
    rows = [
        (
            e.id,
            *((f"{e.started:%Y-%m-%d %H:%M}", format_duration(e.seconds)) if wide else ()),
            e.suite + (f", {e.rounds} rounds" if e.rounds > 1 else ""),
            e.verdict.name + ("" if e.complete else " (interrupted)"),
            explain_run(e, store),
        )
        for e in entries
    ]
    print_table(console, head, rows, cut=True)
    for complaint in store.warnings:
        say(complaint)


def explain_run(entry: RunEntry, store: Store) -> str:
    """Say in one clause why the run did not pass, from its document if it can be read."""
    if entry.verdict is Verdict.PASS:
        return ""
    document = next(store.read_documents([entry]), None)
    return explain_verdict(document) if document else entry.reason
