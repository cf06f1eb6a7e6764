"""``hpcverify run``: verify this node, now."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import click
import msgspec

from hpcverify import documents
from hpcverify.cli import say
from hpcverify.commands.report import render_html, reports
from hpcverify.config import Site, load_site, node_name, state_dir
from hpcverify.documents import STDOUT
from hpcverify.errors import ConfigError, StoreError
from hpcverify.executors.local import LocalExecutor
from hpcverify.lock import node_lock
from hpcverify.model import Run, Verdict
from hpcverify.orchestrator import Memory, Progress, Verification
from hpcverify.stop import Stop, stop_on_signals
from hpcverify.store import Store
from hpcverify.suite import Plan, load_suite, plan
from hpcverify.view import (
    Console,
    LiveProgress,
    PlainProgress,
    Unheard,
    conclusion,
    results_table,
)

EXIT = {
    Verdict.PASS: 0,
    Verdict.SKIP: 3,
    Verdict.WARN: 0,
    Verdict.ERROR: 3,
    Verdict.FAIL: 1,
}


@click.command("run")
@click.option("--suite", default="quick", show_default=True, help="What to run.")
@click.option(
    "--check", "checks", multiple=True, metavar="NAME", help="Only this; repeatable."
)
@click.option("--json", "json_file", metavar="FILE", help="Write the run; - prints it.")
@click.option("--html", "html_file", metavar="FILE", help="Write the report.")
@click.option("--strict", is_flag=True, help="Exit with 1 on a warning.")
@click.option("--force", is_flag=True, help="Run though others use the GPUs.")
@click.option(
    "--accept-parts", is_flag=True, help="Take today's parts as the reference."
)
def command(
    suite: str,
    checks: tuple[str, ...],
    json_file: str | None,
    html_file: str | None,
    *,
    strict: bool,
    force: bool,
    accept_parts: bool,
) -> None:
    """
    Verify this node, now.

    \b
    Examples:
      hpcverify run
      hpcverify run --suite idle --html report.html
      hpcverify run --check sdc --json -
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    site = load_site()
    todo = plan(load_suite(suite), site, checks)
    for file in filter(None, (json_file, html_file)):
        documents.refuse_unwritable(file)
    if html_file:
        reports("node")  # what is missing shows now, and not after an hour
    store = Store(state_dir())
    for complaint in store.broken:
        say(complaint)
    console = Console(stderr=json_file == STDOUT, highlight=False)
    with node_lock(), stop_on_signals() as stop:
        run = verify(
            todo, site, store, stop=stop, force=force, accept_parts=accept_parts
        )
        documents.write(run, store.document(run.id))
    try:
        store.take_in()
    except StoreError as exc:
        say(f"{exc}; the run is kept in {store.document(run.id)}")
    show(run, console)
    console.print(f"kept as {run.id}: hpcverify show {run.id}", soft_wrap=True)
    if html_file:
        write_html(run, store, Path(html_file))
    if json_file:
        write_json(run, json_file)
    warned = strict and run.verdict is Verdict.WARN
    sys.exit(1 if warned else EXIT[run.verdict])


def verify(
    todo: Plan,
    site: Site,
    store: Store,
    *,
    stop: Stop,
    force: bool,
    accept_parts: bool,
) -> Run:
    """Run *todo* on this node, in directories that are gone afterwards."""
    node = node_name()
    memory = Memory(
        previous=None if accept_parts else store.previous(node),
        past=lambda check: store.past(node, todo.suite, check),
        runs=store.count(node),
    )
    with ExitStack() as stack:
        state = store.documents.parent
        folder = stack.enter_context(own_directory(state / "work", node))
        root = Path(site.scratch) if site.scratch else state / "scratch"
        scratch = stack.enter_context(own_directory(root, node, made=not site.scratch))
        progress = stack.enter_context(choose_progress())
        executor = LocalExecutor(folder=folder, stopped=stop, tick=progress.tick)
        stack.callback(lambda: executor.close(hurry=stop()))
        return Verification(
            plan=todo,
            node=node,
            packages=site.packages,
            executor=executor,
            folder=folder,
            scratch=scratch,
            memory=memory,
            progress=progress,
            force=force,
        ).run()


@contextmanager
def choose_progress() -> Generator[Progress]:
    """Show progress on standard error: a line that lives, or plain lines in a log."""
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield Unheard(PlainProgress(console))
        return
    with LiveProgress(console) as progress:
        yield Unheard(progress)


@contextmanager
def own_directory(root: Path, node: str, *, made: bool = True) -> Generator[Path]:
    """
    Make an empty directory in *root*, and remove it whatever happens.

    What a run that was killed by -9 left there goes first: no other can be at work,
    since we hold the node. The name says whose it is, for *root* may be shared.
    """
    prefix = f"hpcverify-{''.join(c if c.isalnum() else '_' for c in node)}-"
    try:
        if made:
            root.mkdir(parents=True, exist_ok=True)
        for stale in root.glob(f"{prefix}*"):
            shutil.rmtree(stale, ignore_errors=True)
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=root))
    except OSError as exc:
        raise ConfigError(
            f"directory {root} cannot be used: {exc.strerror}; "
            "make it, or set scratch in the site file to another"
        ) from exc
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def show(run: Run, console: Console) -> None:
    """Print one table, worst first, and the verdict."""
    console.print()
    console.print(results_table(run, console.width))
    console.print()
    console.print(conclusion(run))


def write_json(run: Run, file: str) -> None:
    """Write *run* to *file*, or print it."""
    if file == STDOUT:
        click.echo(msgspec.json.format(msgspec.json.encode(run), indent=1))
        sys.stdout.flush()
        return
    documents.write(run, Path(file))


def write_html(run: Run, store: Store, file: Path) -> None:
    """Write the report on *run*."""
    documents.write_bytes(file, render_html(run, store).encode())
