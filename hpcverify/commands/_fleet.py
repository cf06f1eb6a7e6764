"""The fleet as the ledger and the store have it, for commands that show it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import quote

from hpcverify import documents
from hpcverify.config import load_site
from hpcverify.errors import StoreError
from hpcverify.fleet.overview import FAILURE_WINDOW_S, Overview, build_overview, choose_page_results
from hpcverify.fleet.said import LastResult
from hpcverify.model import Run
from hpcverify.quarantine.ledger import Ledger
from hpcverify.store import RunEntry, Store

MAX_CLOCK_LEAD = timedelta(days=1)
"""A run that is dated further ahead is of a node whose clock was wrong."""
PAGES_FOLDER = "nodes"
"""The folder beside the fleet's page: in it a folder a node, in that a page a suite."""


def read_fleet(ledger: Ledger, store: Store, since: datetime | None = None) -> Overview:
    """Put together what is known of every node, with what checks said from *since*."""
    now = time.time()
    today = datetime.fromtimestamp(now, UTC)
    until = today + MAX_CLOCK_LEAD
    week = today - timedelta(seconds=FAILURE_WINDOW_S)
    lately = max(week, since.replace(tzinfo=UTC)) if since else week
    forgotten = ledger.list_forgotten()

    def is_current(run: RunEntry | LastResult) -> bool:
        """Whether its node was not forgotten since: such runs are kept, not shown."""
        return run.started.timestamp() > forgotten.get(run.node, -math.inf)

    return build_overview(
        ledger.list_nodes(),
        filter(is_current, store.list_newest(since, until)),
        filter(is_current, store.list_last_results(since, until)),
        now=now,
        tripped=ledger.read_trip_reason(),
        overdue_days=load_site().fleet.overdue_days,
        failures=(
            (node, when)
            for node, when in store.list_failures(lately, until)
            if when > forgotten.get(node, -math.inf)
        ),
    )


def write_pages(
    fleet: Overview, store: Store, folder: Path, render: Callable[[Run], str]
) -> dict[tuple[str, str], str]:
    """
    Write the pages of runs that *fleet* links to into *folder*, and say where they lie.

    A page that shows the same run already is left as it is. A run whose document cannot
    be read gets none; the store keeps the complaint.
    """
    links: dict[tuple[str, str], str] = {}
    for row in fleet.rows:
        for said in choose_page_results(row):
            path = Path(
                PAGES_FOLDER, _make_file_name(said.node), f"{_make_file_name(said.suite)}.html"
            )
            if _ensure_page(folder / path, said.run, store, render):
                links[said.node, said.suite] = quote(path.as_posix())
    return links


def _ensure_page(path: Path, run: str, store: Store, render: Callable[[Run], str]) -> bool:
    """Whether the page *path* shows *run*, if need be because it is written now."""
    if _shows(path, run):
        return True
    try:
        document = documents.read(store.get_document_path(run))
    except StoreError as exc:
        store.warnings.append(str(exc))
        return False
    documents.write_bytes(path, render(document).encode(), make=True)
    return True


def _shows(path: Path, run: str) -> bool:
    """Whether there is a page of *run*: its id stands in the page's head."""
    try:
        # Only a file: to read a pipe, which others may have put there, never ends.
        there = path.is_file()
        return there and f"<span>run {run}</span>".encode() in path.read_bytes()
    except OSError:
        return False


def _make_file_name(name: str) -> str:
    """Make a file's name of a node's or a suite's: no way out of its folder."""
    safe = quote(name, safe="")
    return f"%2E{safe[1:]}" if safe.startswith(".") else safe
