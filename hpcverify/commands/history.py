"""``hpcverify history``: the runs of a node."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Literal

import click
import msgspec

from hpcverify.commands._since import SINCE_TYPE
from hpcverify.console import say
from hpcverify.errors import NO_RUNS_MESSAGE, ConfigError, UnknownNameError
from hpcverify.plan.config import node_name, state_dir
from hpcverify.records import documents
from hpcverify.records.store import Store
from hpcverify.summary.terminal import Console, print_table
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
@click.option(
    "--format",
    "form",
    type=click.Choice(["parquet", "csv"]),
    help="On a controller: write the measurements of NODE, or of all, to --output.",
)
@click.option("-o", "--output", metavar="FILE", help="The file for --format.")
@click.option("--since", type=SINCE_TYPE, help="Only nights from then on, for --format.")
@click.option("--rebuild", is_flag=True, help="Make the measurements again from all documents.")
def command(
    node: str | None,
    limit: int,
    form: Literal["parquet", "csv"] | None,
    output: str | None,
    since: datetime | None,
    *,
    as_json: bool,
    rebuild: bool,
) -> None:
    """
    List the runs of NODE (default: this node), newest first.

    Each names its worst problem and counts the others; hpcverify show has them all.
    The controller also keeps what all nodes measured, in Parquet files by night: see
    docs/reference/history.md.

    \b
    Examples:
      hpcverify history n17 --limit 5
      hpcverify history --format csv --since 2026-11-01 -o measurements.csv
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    if rebuild:
        if node or form or output or since or as_json:
            raise ConfigError("--rebuild reads all documents: leave out NODE and other options")
        rebuild_all()
        return
    if bool(form) != bool(output) or (since and not form):
        raise ConfigError("--format and --output belong together, and --since needs them")
    if form and output:
        export(node, since, form, output)
        return
    store = Store(state_dir())
    entries = store.list_runs(node or node_name(), limit)
    if not entries and node:
        raise UnknownNameError("node", node, store.list_run_nodes())
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
            e.reason,
        )
        for e in entries
    ]
    print_table(console, head, rows)
    for problem in store.warnings:
        say(problem)


def export(
    node: str | None, since: datetime | None, form: Literal["parquet", "csv"], output: str
) -> None:
    """Write the measurements of *node*, or of all nodes, into the file *output*."""
    from hpcverify.history.reader import Choice, export_measurements

    documents.refuse_unwritable(output)
    choice = Choice(nodes=(node,) if node else (), since=since.date() if since else None)
    path = Path(output)
    count = export_measurements(state_dir(), choice, form, path)
    to_stdout = documents.names_descriptor(path)  # which may be that of standard output
    click.echo(f"wrote {output}: {count} measurements", err=to_stdout)


def rebuild_all() -> None:
    """Make the measurements again, as the controller does it: nobody else writes then."""
    from hpcverify.fleet.claim import hold_controller_lock
    from hpcverify.history.rebuild import rebuild_measurements

    state, problems = state_dir(), list[str]()
    with hold_controller_lock(state / "fleet.lock", say):
        count = rebuild_measurements(state, problems)
    for problem in problems:
        say(problem)
    click.echo(f"documents read: {count}; see: hpcverify history --format csv -o FILE")
