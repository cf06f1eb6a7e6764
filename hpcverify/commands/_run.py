"""What ``hpcverify run`` does, apart from its options."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TextIO

import click
import msgspec
from msgspec import Struct

from hpcverify import documents, plain
from hpcverify.cli import read_or_not, say
from hpcverify.conclusion import hard_evidence
from hpcverify.config import Site, load_site, node_name, state_dir
from hpcverify.documents import STDOUT
from hpcverify.early import Forked
from hpcverify.errors import StoreError, UnusableError
from hpcverify.executors.local import LocalExecutor
from hpcverify.folders import own_folder
from hpcverify.lock import node_lock
from hpcverify.model import Run, Verdict
from hpcverify.orchestrator import TELEMETRY, Memory, Progress, Verification
from hpcverify.plain import PlainProgress, Unheard
from hpcverify.stop import Stop, stop_on_signals
from hpcverify.store import Store
from hpcverify.suite import Plan, load_suite, plan, refuse_endless

EXIT = {
    Verdict.PASS: 0,
    Verdict.SKIP: 3,
    Verdict.WARN: 0,
    Verdict.ERROR: 3,
    Verdict.FAIL: 1,
}


KEPT = 1000
"""Runs of this node that it keeps itself: months of nights, or a busy day's jobs."""
TAKE_IN_S = 3.0
"""Seconds that a passive run spends on documents that the index lacks: a job waits."""
TOKEN = "HPCVERIFY_TOKEN"  # noqa: S105 - where it is, not what it is
"""The variable that has the token of who ordered the run."""


class Wish(Struct, frozen=True, kw_only=True):
    """What was asked for on the command line."""

    suite: str
    checks: tuple[str, ...]
    json_file: str | None
    html_file: str | None
    strict: bool
    force: bool
    accept_parts: bool
    spool: str | None = None
    wait: float = 0.0
    """Seconds for which another run may hold the node."""
    fail_closed: tuple[str, ...] | None = None
    """The checks whose hard evidence is all that the exit status tells of, if so."""


def carry_out(wish: Wish, early: Forked) -> int:
    """Verify this node as *wish* says, with the worker *early*; return the status."""
    site = load_site()
    suite = load_suite(wish.suite)
    early.get_ready(wish.checks or (entry.name for entry in suite.check))
    todo = plan(suite, site, wish.checks)
    refuse_endless(todo)
    for file in filter(None, (wish.json_file, wish.html_file)):
        documents.refuse_unwritable(file)
    if wish.html_file:
        from hpcverify.commands.report import reports

        reports("node")  # what is missing shows now, and not after an hour
    passive = not any(step.is_active for step in todo.steps)
    store = Store(state_dir(), seconds=TAKE_IN_S if passive else math.inf)
    for complaint in store.broken:
        say(complaint)
    known = len(store.broken)
    with stop_on_signals() as stop:
        with node_lock(wait=wish.wait, stopped=stop) as hold:
            if hold.beside is not None:
                say(f"not waiting for {hold.beside.said}, which holds the node's lock")
            if hold.waited:  # what it saw meanwhile was the other run's doing
                early.end()
            ready = {} if hold.waited else {TELEMETRY: early}
            run = verify(todo, site, store, wish, early=ready, stop=stop)
            mishaps = [*tried(lambda: store.keep(run))]
        # Not under the lock: the spool may be on a file server that does not answer.
        if spool := wish.spool:
            mishaps += tried(lambda: leave(run, Path(spool)))
    show(run, to_stderr=wish.json_file == STDOUT)
    mishaps += hand_out(run, wish, store)
    mishaps += tried(lambda: store.prune(run.node, KEPT))
    if not passive:
        mishaps += tried(store.shrink)
    for mishap in (*mishaps, *store.broken[known:]):
        say(str(mishap))
    if wish.fail_closed is not None:
        return int(refuses(run, wish.fail_closed))
    return status(run, mishaps, strict=wish.strict)


def hand_out(run: Run, wish: Wish, store: Store) -> Iterator[StoreError]:
    """Say where *run* is kept, and write what was asked for; yield what went wrong."""
    where = sys.stderr if wish.json_file == STDOUT else sys.stdout
    html, json = wish.html_file, wish.json_file
    if store.document(run.id).exists():
        tell(f"kept as {run.id}: hpcverify show {run.id}", where)
        if run.verdict is Verdict.FAIL and not html:
            page = f"hpcverify report --run {run.id} -o report.html"
            tell(f"for the vendor: {page}", where)
    if html:
        mishaps = [*tried(lambda: write_html(run, store, Path(html)))]
        yield from mishaps
        if not mishaps:
            tell(f"wrote {html}", where)
    if json:
        yield from tried(lambda: write_json(run, json))


def tell(text: str, stream: TextIO) -> None:
    """Print *text*, if anyone reads *stream*: what was found counts all the same."""
    with read_or_not(stream):
        click.echo(text, file=stream)


def leave(run: Run, spool: Path) -> None:
    """
    Leave *run* in the *spool*, and take the controller's word on this node from there.

    The token is in that copy alone: whoever may read this node's runs has no business
    with it.
    """
    from hpcverify import spool as room
    from hpcverify import standing

    # First: what we are told must not depend on whether we can say something.
    standing.fetch(spool, state_dir(), run.node)
    room.deposit(run, spool, os.environ.get(TOKEN, ""))


def refuses(run: Run, checks: Sequence[str]) -> bool:
    """Whether one of *checks* has evidence that no rerun could take back."""
    return any(
        hard_evidence(result, run.inventory)
        for result in run.results
        if result.check in checks
    )


def tried(write: Callable[[], object]) -> Iterator[StoreError]:
    """Call *write*; a mishap must not keep anyone from hearing the verdict."""
    try:
        write()
    except StoreError as exc:
        yield exc


def status(run: Run, mishaps: Sequence[StoreError], *, strict: bool) -> int:
    """Choose the exit status: who failed has failed, whatever else went wrong."""
    if mishaps and run.verdict is not Verdict.FAIL:
        return mishaps[0].exit_code
    warned = strict and run.verdict is Verdict.WARN
    return 1 if warned else EXIT[run.verdict]


def verify(
    todo: Plan,
    site: Site,
    store: Store,
    wish: Wish,
    *,
    early: Mapping[str, Forked],
    stop: Stop,
) -> Run:
    """Run *todo* on this node, in directories that are gone afterwards."""
    node = node_name()
    if told := store.clock_told(node):
        say(told)
    memory = Memory(
        previous=None if wish.accept_parts else store.previous(node),
        past=lambda check: store.past(node, todo.suite, check),
        marks=store.marks(node),
        runs=store.count(node),
    )
    with ExitStack() as stack:
        state = store.documents.parent
        folder = stack.enter_context(own_folder(state / "work", node, say=say))
        root = Path(site.scratch) if site.scratch else state / "scratch"
        scratch, unusable = root / "unusable", ""
        try:
            scratch = stack.enter_context(
                own_folder(root, node, say=say, make=not site.scratch)
            )
        except UnusableError as exc:  # its disk may be what is broken on this node
            unusable = str(exc)
            say(unusable)
        progress = stack.enter_context(choose_progress())
        executor = LocalExecutor(
            stopped=stop,
            tick=progress.tick,
            early=early,
            budget=todo.budget,
        )
        stack.callback(lambda: executor.close(hurry=stop()))
        return Verification(
            plan=todo,
            node=node,
            packages=site.packages,
            executor=executor,
            folder=folder,
            scratch=scratch,
            unusable=unusable,
            memory=memory,
            progress=progress,
            force=wish.force,
        ).run()


@contextmanager
def choose_progress() -> Generator[Progress]:
    """Show progress on standard error: a line that lives, or plain lines in a log."""
    if not sys.stderr.isatty():
        yield Unheard(PlainProgress())
        return
    from hpcverify.view import LiveProgress

    with LiveProgress() as progress:
        yield Unheard(progress)


def show(run: Run, *, to_stderr: bool) -> None:
    """Print all results, worst first, and the verdict: a table, or lines in a log."""
    stream = sys.stderr if to_stderr else sys.stdout
    if stream.isatty():
        from hpcverify.view import show_run

        with read_or_not(stream):
            show_run(run, stderr=to_stderr)
    else:
        tell("\n".join(plain.run_lines(run)), stream)


def write_json(run: Run, file: str) -> None:
    """Write *run* to *file*, or print it."""
    if file == STDOUT:
        text = msgspec.json.format(msgspec.json.encode(run), indent=1)
        tell(text.decode(), sys.stdout)
        return
    documents.write(run, Path(file))


def write_html(run: Run, store: Store, file: Path) -> None:
    """Write the report on *run*."""
    from hpcverify.commands.report import render_html

    documents.write_bytes(file, render_html(run, store).encode())
