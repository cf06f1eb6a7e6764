"""What ``hpcverify run`` does, apart from its options."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TextIO

import msgspec

from hpcverify.check import TELEMETRY_WORKER, Rule, write_clauses
from hpcverify.commands._request import RunRequest
from hpcverify.console import echo, ignore_closed_pipe, say
from hpcverify.errors import ConfigError, StoreError
from hpcverify.model import Run, Verdict
from hpcverify.plan.config import Site, find_uid, load_site, node_name, state_dir
from hpcverify.plan.suite import Plan, Suite, make_plan, refuse_endless
from hpcverify.records import documents
from hpcverify.records.documents import STDOUT_NAME
from hpcverify.records.store import Store
from hpcverify.run.conclude import list_conclusive
from hpcverify.run.folders import explain_silence, make_run_folders
from hpcverify.run.history import NodeHistory
from hpcverify.run.local import LocalExecutor
from hpcverify.run.lock import node_lock
from hpcverify.run.orchestrator import Verification
from hpcverify.run.process import ForkedWorker
from hpcverify.run.stop import StopFlag, stop_on_signals
from hpcverify.summary import wording
from hpcverify.summary.printable import format_json
from hpcverify.summary.progress import Progress
from hpcverify.summary.verdict import needs_vendor
from hpcverify.summary.wording import PlainProgress, SilentProgress, TolerantProgress

DOCUMENT_SUFFIX = ".json"
"""The suffix of a file that gets the run document, and not the page."""
INVENTORY = "inventory"
"""The check that counts GPUs."""
MAX_KEPT_RUNS = 1000
"""Runs that a node keeps of itself: months of nights, or one busy day of jobs."""
INDEXING_SECONDS = 3.0
"""Seconds that a passive run may spend on documents missing from the index: a job waits."""
TOKEN_VARIABLE = "HPCVERIFY_TOKEN"  # noqa: S105 - where it is, not what it is
"""The environment variable with the token of the order for this run."""


def carry_out(request: RunRequest, suite: Suite, early: ForkedWorker) -> int:
    """Run *suite* with the options of *request* and the worker *early*; return the exit status."""
    site = load_site()
    todo = expect_gpus(make_plan(suite, site, request.checks), request.expect_gpus)
    refuse_endless(todo)
    for file in request.outputs:
        documents.refuse_unwritable(file)
    if list_pages(request):
        from hpcverify.commands.report import import_report_module

        import_report_module("node")  # a missing package shows now, not after an hour
    passive = not any(step.is_active for step in todo.steps)
    store = Store(state_dir(), seconds=INDEXING_SECONDS if passive else math.inf)
    for fault in store.warnings:
        say(fault)
    known = len(store.warnings)
    with stop_on_signals() as stop:
        with node_lock(wait=request.wait, should_stop=stop) as hold:
            if hold.other_holder is not None:
                say(f"not waiting for {hold.other_holder.description}, which holds the node's lock")
            if hold.waited:  # what it saw meanwhile was the load of the other run
                early.end()
            ready = {} if hold.waited else {TELEMETRY_WORKER: early}
            run = verify(todo, site, store, request, early=ready, stop=stop)
            mishaps = [*catch_store_errors(lambda: store.save(run))]
        # Not under the lock: the spool may be on a file server that does not answer.
        if spool := request.spool:
            mishaps += exchange_with_spool(run, Path(spool), site.fleet.user)
    show(run, store, request)
    mishaps += write_outputs(run, request, store)
    mishaps += catch_store_errors(lambda: store.prune(run.node, MAX_KEPT_RUNS))
    if not passive:
        mishaps += catch_store_errors(store.shrink)
    unwritten = write_metrics(run, Path(folder)) if (folder := site.metrics.directory) else ()
    for mishap in dict.fromkeys(map(str, (*mishaps, *store.warnings[known:], *unwritten))):
        say(mishap)
    if request.fail_closed is not None:
        return print_refusals(list_refusals(run, request.fail_closed.split()))
    return choose_exit_status(run, mishaps, strict=request.strict)


def expect_gpus(todo: Plan, count: int | None) -> Plan:
    """
    Return *todo* with *count*, if given, as the number of GPUs that the inventory must show.

    Raises:
        ConfigError: the inventory is not among its checks.

    """
    if count is None:
        return todo
    limit = Rule(metric="gpus", low=count, high=count, source="--expect-gpus")
    steps = [
        msgspec.structs.replace(step, overrides=(limit, *step.overrides))
        if step.name == INVENTORY
        else step
        for step in todo.steps
    ]
    if all(step.name != INVENTORY for step in steps):
        raise ConfigError(f"--expect-gpus needs the check {INVENTORY}: add --check {INVENTORY}")
    return msgspec.structs.replace(todo, steps=tuple(steps))


def write_outputs(run: Run, request: RunRequest, store: Store) -> Iterator[StoreError]:
    """Print where *run* is stored and write the requested files; yield the errors."""
    stream = sys.stderr if _takes_stdout(request) else sys.stdout
    pages = list_pages(request)
    if store.get_document_path(run.id).exists():
        print_to(f"kept as {run.id}: hpcverify show {run.id}", stream)
        if needs_vendor(run) and not pages:
            page = f"hpcverify report --run {run.id} -o report.html"
            print_to(f"for the vendor: {page}", stream)
    for page in pages:
        mishaps = [*catch_store_errors(partial(write_html, run, store, page))]
        yield from mishaps
        if not mishaps and page != STDOUT_NAME:
            print_to(f"wrote {page}", stream)
    for file in request.outputs:
        if file not in pages:
            yield from catch_store_errors(partial(documents.write, run, Path(file)))
    if request.as_json:
        print_to(format_json(run).decode(), sys.stdout)


def list_pages(request: RunRequest) -> list[str]:
    """List the files of *request* that are pages."""
    return [file for file in request.outputs if not file.endswith(DOCUMENT_SUFFIX)]


def _takes_stdout(request: RunRequest) -> bool:
    """Whether standard output is for a document, and must not contain anything else."""
    return request.as_json or STDOUT_NAME in request.outputs


def print_to(text: str, stream: TextIO) -> None:
    """Print *text*; if the reader of *stream* is gone, continue: the verdict still counts."""
    with ignore_closed_pipe(stream):
        echo(text, stream)


def exchange_with_spool(run: Run, spool: Path, user: str) -> Iterator[StoreError]:
    """
    Fetch the controller's decision on this node from *spool*, and leave *run* there.

    Both only if root and *user* alone can change it. Yield why not. Only that copy has the
    token: those who may read this node's runs must not see it.
    """
    from hpcverify.records import spool as room

    owner, token = find_uid(user), os.environ.get(TOKEN_VARIABLE, "")
    # First, so that a spool that we cannot write to still gives us its decision.
    yield from catch_store_errors(lambda: room.fetch_gate(spool, state_dir(), run.node, owner))
    yield from catch_store_errors(lambda: room.deposit(run, spool, token, owner=owner))


def write_metrics(run: Run, folder: Path) -> Iterator[StoreError]:
    """
    Write the metrics of *run* into *folder*, for node_exporter; yield why that failed.

    Not of some checks that a person chose, nor for a user who may not write there: the file
    has what the last whole run of its suite says of this node.
    """
    if run.chosen:
        return
    if silence := explain_silence(folder):
        yield StoreError(f"no metrics: {silence}")
        return
    if not os.access(folder, os.W_OK):
        return
    from hpcverify.metrics.node import list_run_families, name_run_file
    from hpcverify.records.text_files import write_text_file

    path = folder / name_run_file(run.suite)
    yield from catch_store_errors(lambda: write_text_file(path, list_run_families(run)))


def print_refusals(refusals: Sequence[str]) -> int:
    """Print *refusals*, and return the exit status: 1 if there are any."""
    for line in refusals:
        print_to(" ".join(line.split()), sys.stdout)
    return int(bool(refusals))


def list_refusals(run: Run, checks: Sequence[str]) -> list[str]:
    """
    Name each of *checks* that has conclusive evidence, with the first piece of it.

    Slurm's prolog reads these lines, not the summary, which groups checks by cause.
    """
    evidence = [
        (result, list_conclusive(result, Verdict.FAIL))
        for result in run.results
        if result.check in checks
    ]
    return [
        f"FAIL  {result.check}: {write_clauses(failures, run.inventory.recall(result.findings))[0]}"
        for result, failures in evidence
        if failures
    ]


def catch_store_errors(write: Callable[[], object]) -> Iterator[StoreError]:
    """Call *write* and yield its error, which must not hide the verdict."""
    try:
        write()
    except StoreError as exc:
        yield exc


def choose_exit_status(run: Run, mishaps: Sequence[StoreError], *, strict: bool) -> int:
    """Choose the exit status: a FAIL counts, whatever else went wrong."""
    if run.verdict is Verdict.FAIL:
        return 1
    if mishaps:
        return mishaps[0].exit_code
    if run.verdict is Verdict.WARN:
        return int(strict)
    return 0 if run.verdict is Verdict.PASS else 3


def verify(
    todo: Plan,
    site: Site,
    store: Store,
    request: RunRequest,
    *,
    early: Mapping[str, ForkedWorker],
    stop: StopFlag,
) -> Run:
    """Run *todo* on this node, in directories that are removed afterwards."""
    node = node_name()
    if warning := store.explain_future_runs(node):
        say(warning)
    history = NodeHistory(
        previous=None if request.accept_parts else store.load_previous_inventory(node),
        past_values=lambda check: store.make_past_lookup(node, todo.suite, check),
        carry_overs=store.load_carry_overs(node),
        run_count=store.count_runs(node),
        accepts_parts=request.accept_parts,
    )
    with ExitStack() as stack:
        folders = stack.enter_context(
            make_run_folders(store.documents.parent, site.scratch, node, say)
        )
        if folders.scratch_problem and not any(step.is_active for step in todo.steps):
            say(folders.scratch_problem.reason)  # else the checks that write there do
        expect = partial(estimate_seconds, store, node, todo, request.checks)
        progress = stack.enter_context(choose_progress(expect, quiet=request.quiet))
        executor = LocalExecutor(should_stop=stop, tick=progress.tick, early_workers=early)
        stack.callback(lambda: executor.close(hurry=stop()))
        return Verification(
            plan=todo,
            node=node,
            packages=site.packages,
            executor=executor,
            folder=folders.shared,
            scratch=folders.scratch,
            scratch_problem=folders.scratch_problem,
            history=history,
            progress=progress,
            force=request.force,
        ).run()


def estimate_seconds(store: Store, node: str, todo: Plan, checks: Collection[str]) -> float | None:
    """Estimate what *todo* takes, by the last run of the same checks of that suite on *node*."""
    for entry in store.list_runs(node):
        if (entry.suite, entry.rounds, entry.complete) == (todo.suite, todo.rounds, True):
            last = store.load(entry.id)
            if {*last.chosen} == {*checks}:
                return last.seconds
    return None


@contextmanager
def choose_progress(
    expect: Callable[[], float | None] = lambda: None, *, quiet: bool = False
) -> Generator[Progress]:
    """
    Show progress on standard error unless *quiet*: a live line, or plain lines in a log.

    *expect* estimates the seconds that the run takes.
    """
    if quiet:
        yield SilentProgress()
        return
    if not sys.stderr.isatty():
        yield TolerantProgress(PlainProgress())
        return
    from hpcverify.summary.terminal import LiveProgress

    with LiveProgress(expect()) as progress:
        yield TolerantProgress(progress)


def show(run: Run, store: Store, request: RunRequest) -> None:
    """Print the result of *run*, and all values if *request* is verbose."""
    stream = sys.stderr if _takes_stdout(request) else sys.stdout
    if not (stream.isatty() or request.verbose):
        print_to("\n".join(wording.format_run(run)), stream)
        return
    from hpcverify.summary.terminal import Console, show_run

    console = Console(file=stream, highlight=False)
    with ignore_closed_pipe(stream):
        if request.verbose:
            from hpcverify.commands.show import show_values

            show_values(run, store, console)
        show_run(run, console)


def write_html(run: Run, store: Store, file: str) -> None:
    """Write the HTML report on *run* to *file*, or print it."""
    from hpcverify.commands.report import render_html

    page = render_html(run, store)
    if file == STDOUT_NAME:
        print_to(page, sys.stdout)
    else:
        documents.write_bytes(Path(file), page.encode())
