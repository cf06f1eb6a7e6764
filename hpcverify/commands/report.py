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
from hpcverify.actions import Affected, actions, affected
from hpcverify.commands import _fleet
from hpcverify.commands._since import DAY, began_by
from hpcverify.config import node_name, state_dir
from hpcverify.errors import ConfigError, NoRunsError, UnknownNameError
from hpcverify.exclusions import (
    Look,
    Repetition,
    looked,
    remembered,
    repetition,
    ruled_out,
)
from hpcverify.model import Run, Verdict
from hpcverify.quarantine.ledger import Ledger
from hpcverify.store import Store

HISTORY = 30
"""Earlier runs that a report shows."""
MOST_READ = 100
"""Documents of failed runs that are read to count how often a part has failed."""


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
        "json": lambda: as_json(with_actions(run, store, since)),
        "junit": lambda: text_form("junit", run, store, since),
        "markdown": lambda: text_form("markdown", run, store, since),
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


def as_json(value: object) -> str:
    """Print *value* as JSON that a person can read."""
    return msgspec.json.format(msgspec.json.encode(value), indent=1).decode()


def with_actions(run: Run, store: Store, since: datetime | None) -> dict[str, object]:
    """Put beside the document of *run* what to do about which part, and why."""
    past = repetitions(run, store, since)
    told = [
        {
            "verdict": action.verdict,
            "remedy": action.remedy,
            "parts": [
                {
                    **msgspec.structs.asdict(part),
                    "past": past.get(part.where),
                    "ruled_out": ruled_out(part, run, past.get(part.where)),
                }
                for part in action.parts
            ],
        }
        for action in actions(run)
    ]
    return {**msgspec.structs.asdict(run), "actions": told}


def repetitions(
    run: Run, store: Store, since: datetime | None = None
) -> dict[str, Repetition]:
    """Count how often each part that *run* fails has failed before, by its id."""
    read: dict[str, Run | None] = {}
    before = store.previous(run.node)
    return {
        part.where: msgspec.structs.replace(
            repetition(part, run, looks(part, run, store, since, read)),
            facts=remembered(part, before),
        )
        for part in affected(run)
        if part.verdict is Verdict.FAIL
    }


def looks(
    part: Affected,
    run: Run,
    store: Store,
    since: datetime | None,
    read: dict[str, Run | None],
) -> list[Look]:
    """
    List what earlier runs of the node say of *part*, newest first.

    Only of a run that failed the index cannot say whether it was this part: *read*
    keeps their documents. After `MOST_READ` of them the past ends.
    """
    found: list[Look] = []
    for entry in store.looked_at(part.where, part.checks, run):
        failed = entry.verdict is Verdict.FAIL
        if not began_by(entry, since) or (failed and len(read) >= MOST_READ):
            break
        if not failed:
            found.append(Look(started=entry.started, failed=False))
            continue
        if entry.id not in read:
            read[entry.id] = next(store.readable([entry]), None)
        document = read[entry.id]
        look = looked(part.where, part.checks, document) if document else None
        found += [look] if look else []
    return found


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
    past = repetitions(run, store, since)
    page: str = reports("node").render(run, history=history, repetitions=past)
    return page


def text_form(form: str, run: Run, store: Store, since: datetime | None) -> str:
    """Render *run* as text for another program, or for a ticket."""
    past = repetitions(run, store, since)
    text: str = getattr(reports("text"), form)(run, past)
    return text


def reports(module: str) -> ModuleType:
    """Import a module of the report package, or say how to install what it needs."""
    try:
        return import_module(f"hpcverify_reports.{module}")
    except ModuleNotFoundError as exc:
        raise ConfigError(
            f"reports need {exc.name}: pip install 'hpcverify[report]'"
        ) from exc
