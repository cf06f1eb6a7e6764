"""``hpcverify history``: the runs of a node."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import click
from msgspec import Struct, convert
from msgspec.structs import asdict

from hpcverify.commands._options import NODE, json_option, since_option
from hpcverify.console import echo, print_json, say
from hpcverify.errors import NO_RUNS_MESSAGE, ConfigError, UnknownNameError
from hpcverify.insight.overview import describe_outer_result, read_outer_results
from hpcverify.model import Verdict
from hpcverify.plan.config import node_name, state_dir
from hpcverify.records import documents
from hpcverify.records.store import RunEntry, Store
from hpcverify.summary.terminal import Console, print_table
from hpcverify.summary.wording import format_duration
from hpcverify.units import UtcTime

SCHEMA: Literal[1] = 1
"""The version of the document of ``--json``."""
MIN_WIDE_COLUMNS = 120
"""Terminal columns needed to show when a run began and how long it took."""


class HistoryRun(Struct, frozen=True, kw_only=True):
    """A run, in the words of its own document."""

    id: str
    suite: str
    started: UtcTime
    seconds: float
    verdict: Verdict
    complete: bool
    """Whether every check had its turn."""
    rounds: int
    reason: str
    """Its verdict in one clause, the worst part first; empty if it passed."""


class HistoryDocument(Struct, frozen=True, kw_only=True):
    """The runs of a node, newest first: the document of ``--json``."""

    schema: Literal[1]
    node: str
    runs: tuple[HistoryRun, ...]


@click.command("list")
@click.argument("node", type=NODE, metavar="[NODE]", required=False)
@click.option(
    "--limit",
    type=click.IntRange(1, 100_000),
    metavar="N",
    default=20,
    show_default=True,
    help="List the newest N runs.",
)
@json_option
@click.option(
    "--format",
    "form",
    type=click.Choice(["parquet", "csv"]),
    help="Export measurements of NODE or all nodes to -o FILE (on the controller).",
)
@click.option("-o", "--output", metavar="FILE", help="Write the export to FILE.")
@since_option("Export only nights from DATE on.")
@click.option("--rebuild", is_flag=True, help="Rebuild the measurements from all run documents.")
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

    Each line has the worst problem of a run and the number of other problems; `hpcverify show`
    lists all. The controller also keeps the measurements of all nodes in one DuckDB file: see
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
    name = node or node_name()
    entries = store.list_runs(name, limit)
    outer = [] if as_json else read_outer_results(state_dir(), name)
    if not entries and node and not outer:
        raise UnknownNameError("node", node, store.list_run_nodes())
    if as_json:
        runs = tuple(map(convert_entry, entries))
        print_json(HistoryDocument(schema=SCHEMA, node=name, runs=runs))
    elif entries:
        show(entries)
    else:
        echo(NO_RUNS_MESSAGE)
    for result in outer:
        echo(f"not found by a run: {describe_outer_result(result)}")
    for problem in store.warnings:
        say(problem)


def convert_entry(entry: RunEntry) -> HistoryRun:
    """Convert *entry* to what JSON has of it; a time without a zone is UTC."""
    aware = entry.started if entry.started.tzinfo else entry.started.replace(tzinfo=UTC)
    started = aware.astimezone(UTC).replace(microsecond=0)
    return convert({**asdict(entry), "started": started}, HistoryRun)


def show(entries: Iterable[RunEntry]) -> None:
    """Print a line for each run; on a wide terminal also when it began and how long it took."""
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
    echo(f"wrote {output}: {count} measurements", sys.stderr if to_stdout else None)


def rebuild_all() -> None:
    """Make the measurements again, as the controller does it: nobody else writes then."""
    from hpcverify.fleet.claim import hold_controller_lock
    from hpcverify.history.rebuild import rebuild_measurements

    state, problems = state_dir(), list[str]()
    with hold_controller_lock(state / "fleet.lock", say):
        count = rebuild_measurements(state, problems)
    for problem in problems:
        say(problem)
    echo(f"documents read: {count}; see: hpcverify history --format csv -o FILE")
