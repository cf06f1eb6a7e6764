"""``hpcverify report``: a page on a node that opens anywhere."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from importlib import import_module
from pathlib import Path
from types import ModuleType

import click
import msgspec

from hpcverify import documents
from hpcverify.commands import _fleet
from hpcverify.commands._since import DAY, began_by
from hpcverify.config import node_name, state_dir
from hpcverify.errors import ConfigError, NoRunsError, UnknownNameError
from hpcverify.fleet.overview import Overview
from hpcverify.model import Run
from hpcverify.quarantine.ledger import Ledger
from hpcverify.store import Store

HISTORY = 30
"""Earlier runs that a report shows."""


@click.command("report")
@click.option("--node", help="The node; this one when left out.")
@click.option("--fleet", is_flag=True, help="All nodes, and the page of each.")
@click.option("--run", "run_id", help="One run, not the newest.")
@click.option("--since", type=DAY, help="Only runs from then on (UTC).")
@click.option(
    "--format",
    "form",
    type=click.Choice(["html", "json", "junit", "markdown"]),
    default="html",
    show_default=True,
)
@click.option("-o", "--output", required=True, metavar="FILE", help="- prints it.")
def command(
    node: str | None,
    run_id: str | None,
    since: datetime | None,
    form: str,
    output: str,
    *,
    fleet: bool,
) -> None:
    """
    Write a report on a node: its newest run, and how it did before.

    With --fleet, on all nodes. Their own pages are written into the folder "nodes"
    beside FILE, but those that are there already and have nothing new.

    \b
    Examples:
      hpcverify report -o node.html
      hpcverify report --node n17 --format junit -o n17.xml
      hpcverify report --fleet -o fleet.html
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    documents.refuse_unwritable(output)
    store = Store(state_dir())
    if fleet:
        if node or run_id:
            raise ConfigError("--fleet is about all nodes: leave out --node and --run")
        text = fleet_form(store, since, form, output)
    else:
        text = node_form(store, node, run_id, since, form)
    if output == documents.STDOUT:
        click.echo(text.encode())  # as in a file, whatever the terminal can show
    else:
        documents.write_bytes(Path(output), text.encode())
        click.echo(f"wrote {output}")


def node_form(
    store: Store,
    node: str | None,
    run_id: str | None,
    since: datetime | None,
    form: str,
) -> str:
    """Render one run in the form that was asked for."""
    run = store.load(run_id) if run_id else newest(store, node)
    writers: dict[str, Callable[[], str]] = {
        "html": lambda: render_html(run, store, since),
        "json": lambda: as_json(run),
        "junit": lambda: text_form("junit", run),
        "markdown": lambda: text_form("markdown", run),
    }
    return writers[form]()


def fleet_form(store: Store, since: datetime | None, form: str, output: str) -> str:
    """
    Render the fleet; as a page in a file, write the pages of its nodes too.

    Raises:
        ConfigError: there is no such form of it.

    """
    whole = _fleet.read(Ledger(state_dir()), store, since)
    if form == "json":
        return as_json(whole)
    if form != "html":
        raise ConfigError(f"--fleet has no form {form}: html or json")
    links: dict[tuple[str, str], str] = {}
    if output != documents.STDOUT:
        links = _fleet.write_pages(
            whole,
            store,
            Path(output).parent,
            lambda run: render_html(run, store, since),
        )
    page: str = reports("fleet").render(whole, links)
    return page


def as_json(value: Run | Overview) -> str:
    """Print *value* as JSON that a person can read."""
    return msgspec.json.format(msgspec.json.encode(value), indent=1).decode()


def newest(store: Store, node: str | None) -> Run:
    """Read the newest run of *node*, or of this one."""
    entries = store.runs(node or node_name(), limit=1)
    if not entries:
        if node is None:
            raise NoRunsError
        known = {entry.node for entry in store.runs(limit=-1)}
        raise UnknownNameError("node with a run", node, known)
    return documents.read(store.document(entries[0].id))


def render_html(run: Run, store: Store, since: datetime | None = None) -> str:
    """Render the page of *run* with the node's runs before it."""
    entries = store.runs(run.node, limit=-1)
    earlier = [
        entry
        for entry in entries
        if entry.started < run.started and began_by(entry, since)
    ]
    history = list(store.readable(earlier[:HISTORY]))
    page: str = reports("node").render(run, history=history)
    return page


def text_form(form: str, run: Run) -> str:
    """Render *run* as text for another program, or for a ticket."""
    text: str = getattr(reports("text"), form)(run)
    return text


def reports(module: str) -> ModuleType:
    """Import a module of the report package, or say how to install what it needs."""
    try:
        return import_module(f"hpcverify_reports.{module}")
    except ModuleNotFoundError as exc:
        raise ConfigError(
            f"reports need {exc.name}: pip install 'hpcverify[report]'"
        ) from exc
