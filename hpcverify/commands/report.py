"""``hpcverify report``: a page about a node, the fleet or collectives that opens anywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from urllib.parse import quote

import click
import msgspec

from hpcverify.commands._options import NODE, RUN, since_option
from hpcverify.console import echo, say
from hpcverify.errors import (
    ConfigError,
    NoRunsError,
    StoreError,
    UnknownNameError,
    write_install_command,
)
from hpcverify.fleet.ledger import Ledger
from hpcverify.insight.judgement import FleetJudgement
from hpcverify.insight.month import read_month
from hpcverify.insight.outlook import read_outlook, read_shown_judgement
from hpcverify.insight.overview import (
    Overview,
    add_judgement,
    choose_page_results,
    describe_outer_result,
    read_outer_results,
    read_overview,
)
from hpcverify.isolation.answer import is_answer, parse_answer
from hpcverify.model import Run, Verdict
from hpcverify.plan.config import load_site, node_name, state_dir
from hpcverify.records import documents
from hpcverify.records.collectives import parse_collective_run
from hpcverify.records.store import Store
from hpcverify.summary.exclusions import (
    Exclusions,
    PastRun,
    PastVerdict,
    Repetition,
    count_repetition,
    get_facts,
)
from hpcverify.summary.faults import (
    PartFaults,
    choose_deciding,
    group_by_part,
    group_by_step,
    list_checks,
    list_run_faults,
    recall_gone_parts,
)
from hpcverify.summary.printable import format_json

MAX_HISTORY_RUNS = 30
"""Earlier runs that a report shows."""
MAX_READ_DOCUMENTS = 100
"""Documents of failed runs that are read to count how often a part has failed."""
PAGES_FOLDER = "nodes"
"""Beside the fleet's page, with a folder for each node and in it a page for each suite."""
PAGE_HEAD_BYTES = 512
"""The head of a page says which run it shows: 10,000 pages are not read whole for that."""


@click.command("report")
@click.argument("file", required=False)
@click.option("--node", type=NODE, help="Report on this node (default: this host).")
@click.option("--fleet", is_flag=True, help="Report on all nodes, with a page for each.")
@click.option("--run", "run_id", type=RUN, help="Report on this run (default: the newest).")
@since_option("Include only runs from DATE on (UTC).")
@click.option("--full", is_flag=True, help="Print the folded details of the page too.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["html", "json", "junit", "markdown"]),
    default="html",
    show_default=True,
    help="Write this format.",
)
@click.option(
    "-o", "--output", required=True, metavar="FILE", help="Write to FILE; - is standard output."
)
def command(
    file: str | None,
    node: str | None,
    run_id: str | None,
    since: datetime | None,
    form: str,
    *,
    output: str,
    fleet: bool,
    full: bool,
) -> None:
    """
    Write a report on a node: its newest run, and its earlier runs.

    With --fleet, report on all nodes. The page of each node goes into the folder "nodes" next
    to the output; a page that already shows the newest run is not written again. With FILE,
    report on the output of `hpcverify fabric test -o FILE` or `hpcverify fabric bisect --json`.

    On paper, a page has what a person needs: the verdict, the pictures, the faults and the
    hardware. With --full, it has every measurement.

    \b
    Examples:
      hpcverify report -o node.html
      hpcverify report --node n17 --format junit -o n17.xml
      hpcverify report --fleet -o fleet.html
      hpcverify report collectives.json -o ranks.html
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    documents.refuse_unwritable(output)
    if file:
        if node or run_id or since or fleet or form != "html":
            raise ConfigError("with FILE, only -o is allowed")
        content = documents.read_bytes(Path(file))
        if is_answer(content):
            text = import_report_module("isolation").render(parse_answer(content, file))
        else:
            text = import_report_module("collectives").render(parse_collective_run(content, file))
        write_text(text, output)
        return
    store = Store(state_dir())
    if fleet:
        if node or run_id:
            raise ConfigError("--fleet is about all nodes: leave out --node and --run")
        text = render_fleet(store, since, form, output)
    else:
        text = render_node(store, node, run_id, since, form, full=full)
    write_text(text, output)


def write_text(text: str, output: str) -> None:
    """Write *text* to the file *output*, or print it."""
    if output == documents.STDOUT_NAME:
        click.echo(text.encode())  # noqa: TID251 - bytes, as in a file, whatever the terminal can show
    else:
        documents.write_bytes(Path(output), text.encode())
        echo(f"wrote {output}")


def render_node(
    store: Store,
    node: str | None,
    run_id: str | None,
    since: datetime | None,
    form: str,
    *,
    full: bool,
) -> str:
    """Render one run in the form that was asked for."""
    run = store.load(run_id) if run_id else read_newest(store, node)
    notice = "; ".join(map(describe_outer_result, read_outer_results(state_dir(), run.node)))
    writers: dict[str, Callable[[], str]] = {
        "html": lambda: render_html(
            run,
            store,
            since,
            notice,
            judgement=read_shown_judgement(state_dir())[0],
            full=full,
        ),
        "json": lambda: format_json(add_actions(run, store, since)).decode(),
        "junit": lambda: render_text("junit", run, store, since),
        "markdown": lambda: render_text("markdown", run, store, since),
    }
    return writers[form]()


def render_fleet(store: Store, since: datetime | None, form: str, output: str) -> str:
    """
    Render the fleet; as a page in a file, write the pages of its nodes too.

    Raises:
        ConfigError: there is no such form of it.

    """
    outlook = read_outlook(state_dir(), load_site())
    if outlook.judgement_error:
        say(outlook.judgement_error)
    ledger = Ledger(state_dir())
    fleet = add_judgement(read_overview(ledger, store, since), outlook.judgement)
    month = read_month(ledger, store, fleet.made)
    whole = msgspec.structs.replace(fleet, outlook=outlook, month=month)
    if form == "json":
        return format_json(whole).decode()
    if form != "html":
        raise ConfigError(f"--fleet has no form {form}: html or json")
    links: dict[tuple[str, str], str] = {}
    if output != documents.STDOUT_NAME:
        links = write_pages(
            whole,
            store,
            Path(output).parent,
            lambda run, standing: render_html(
                run, store, since, standing, judgement=outlook.judgement
            ),
        )
    page: str = import_report_module("fleet").render(whole, links)
    return page


def write_pages(
    fleet: Overview, store: Store, folder: Path, render: Callable[[Run, str], str]
) -> dict[tuple[str, str], str]:
    """
    Write the pages of runs that *fleet* links to into *folder*; return their links.

    A page that shows the same run and the same judgement already is left alone. A run whose
    document cannot be read gets no page but a warning of the store.
    """
    links: dict[tuple[str, str], str] = {}
    for row in fleet.rows:
        for result in choose_page_results(row):
            path = Path(
                PAGES_FOLDER, _make_file_name(result.node), f"{_make_file_name(result.suite)}.html"
            )
            if _ensure_page(folder / path, result.run, row.notice, store, render):
                links[result.node, result.suite] = quote(path.as_posix())
    return links


def _ensure_page(
    path: Path, run: str, standing: str, store: Store, render: Callable[[Run, str], str]
) -> bool:
    """Write the page *path* unless it shows all this already; return whether it is there."""
    if _shows(path, import_report_module("node").make_mark(run, standing)):
        return True
    try:
        document = documents.read(store.get_document_path(run))
    except StoreError as exc:
        store.warnings.append(str(exc))
        return False
    documents.write_bytes(path, render(document, standing).encode(), make=True)
    return True


def _shows(path: Path, shown: str) -> bool:
    """Whether the page *path* has the mark *shown*, which is the first thing in it."""
    mark = f'<meta name="hpcverify-run" content="{shown}">'
    try:
        # Only a file: reading a pipe, which others may have put there, never ends.
        if not path.is_file():
            return False
        with path.open("rb", buffering=0) as page:
            return mark.encode() in page.read(PAGE_HEAD_BYTES)
    except OSError:
        return False


def _make_file_name(name: str) -> str:
    """Turn the name of a node or a suite into a file name that cannot leave its folder."""
    safe = quote(name, safe="")
    return f"%2E{safe[1:]}" if safe.startswith(".") else safe


def add_actions(run: Run, store: Store, since: datetime | None) -> dict[str, object]:
    """Add to the document of *run* what to do about which part, and why."""
    past, inventory = count_repetitions(run, store, since), recall_gone_parts(run)
    parts = group_by_part(list_run_faults(run), inventory)
    exclusions = Exclusions(run, parts)

    def describe_part(faults: PartFaults) -> dict[str, object]:
        part_id = faults[0].part_id
        ruled_out, left = exclusions.weigh(faults, past.get(part_id))
        return {
            "part_id": part_id,
            "label": inventory.find_label(part_id),
            "facts": get_facts(part_id, inventory),
            "faults": faults,
            "past": past.get(part_id),
            "ruled_out": ruled_out,
            "not_ruled_out": left,
        }

    actions = [
        {"verdict": verdict, "remedy": remedy, "parts": [*map(describe_part, some)]}
        for (verdict, remedy), some in group_by_step(parts.values()).items()
    ]
    return {**msgspec.structs.asdict(run), "actions": actions}


def count_repetitions(
    run: Run, store: Store, since: datetime | None = None
) -> dict[str, Repetition]:
    """
    Count how often each part that *run* fails has failed before, by its id.

    The index does not show which part of a failed run failed: `MAX_READ_DOCUMENTS` documents
    of such runs are read, each once for all parts.
    """
    known = store.load_previous_inventory(run.node)
    list_runs = cache(lambda checks: store.list_runs_judging(checks, run))
    read_part_ids, read = cache(store.read_part_ids), dict[str, PastRun | None]()

    def list_verdicts(part_id: str, checks: tuple[str, ...]) -> Iterator[PastVerdict]:
        """Yield the verdicts of the node's earlier runs on a part, newest first."""
        for entry in list_runs(checks):
            if since and entry.started < since.replace(tzinfo=UTC):
                return
            if entry.verdict is not Verdict.FAIL:
                if part_id in read_part_ids(entry.id):
                    yield PastVerdict(started=entry.started, failed=False)
                continue
            if entry.id not in read:
                if len(read) >= MAX_READ_DOCUMENTS:
                    return
                document = next(store.read_documents([entry]), None)
                read[entry.id] = PastRun(document) if document else None
            past = read[entry.id]
            verdict = past.find_verdict(part_id, checks) if past else None
            yield from [verdict] if verdict else []

    inventory = recall_gone_parts(run)
    return {
        part_id: count_repetition(
            run,
            [*list_verdicts(part_id, list_checks(choose_deciding(faults)))],
            get_facts(part_id, inventory),
            get_facts(part_id, known),
        )
        for part_id, faults in group_by_part(list_run_faults(run), inventory).items()
        if faults[0].verdict is Verdict.FAIL
    }


def read_newest(store: Store, node: str | None) -> Run:
    """Read the newest run of *node*, or of this one."""
    entries = store.list_runs(node or node_name(), limit=1)
    if not entries:
        if node is None:
            raise NoRunsError
        raise UnknownNameError("node with a run", node, store.list_run_nodes())
    return documents.read(store.get_document_path(entries[0].id))


def render_html(
    run: Run,
    store: Store,
    since: datetime | None = None,
    standing: str = "",
    *,
    judgement: FleetJudgement | None = None,
    full: bool = False,
) -> str:
    """Render the page of *run* with the node's runs before it, and its *standing* in the fleet."""
    entries = store.list_runs(run.node, limit=-1)
    first = since.replace(tzinfo=UTC) if since else datetime.min.replace(tzinfo=UTC)
    earlier = [entry for entry in entries if first <= entry.started < run.started]
    history = list(store.read_documents(earlier[:MAX_HISTORY_RUNS]))
    past = count_repetitions(run, store, since)
    page: str = import_report_module("node").render(
        run,
        history=history,
        repetitions=past,
        standing=standing,
        judgement=judgement,
        full=full,
    )
    return page


def render_text(form: str, run: Run, store: Store, since: datetime | None) -> str:
    """Render *run* as text for another program, or for a ticket."""
    past = count_repetitions(run, store, since)
    text: str = getattr(import_report_module("text"), form)(run, past)
    return text


def import_report_module(module: str) -> ModuleType:
    """Import a module of the report package, or say how to install what it needs."""
    try:
        return import_module(f"hpcverify_reports.{module}")
    except ModuleNotFoundError as exc:
        raise ConfigError(
            f"reports need {exc.name}: {write_install_command(exc.name or 'jinja2')}"
        ) from exc
