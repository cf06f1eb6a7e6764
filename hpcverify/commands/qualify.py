"""``hpcverify qualify``: the first hour on hardware that is new to hpcverify."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import click
import msgspec

from hpcverify.commands._options import has_flag
from hpcverify.commands._run import choose_progress
from hpcverify.commands.report import import_report_module
from hpcverify.console import echo, say
from hpcverify.errors import ConfigError
from hpcverify.model import Verdict
from hpcverify.plan.config import load_site, state_dir
from hpcverify.qualification import (
    NodeQualifier,
    Qualification,
    QualificationStep,
    StepReport,
    load_steps,
)
from hpcverify.records import documents
from hpcverify.run.lock import node_lock
from hpcverify.run.stop import stop_on_signals
from hpcverify.summary.verdict import shorten
from hpcverify.summary.wording import format_duration
from hpcverify.units import format_count

FACTS = "facts"
"""The step that is always taken: without it nobody knows what the figures are of."""
TEXT_NAME, RUNS_FOLDER = "qualification.md", "runs"
STATUSES = {Verdict.FAIL: 1, Verdict.ERROR: 3}


@click.command("qualify")
@click.option(
    "-o",
    "--output",
    metavar="DIR",
    help="Write into this new directory (default: a name with the date).",
)
@click.option(
    "--only", multiple=True, metavar="STEP", help="Run only this step, and facts; repeatable."
)
def command(output: str | None, only: tuple[str, ...]) -> None:
    """
    Validate hpcverify on this kind of node (about an hour on new GPUs).

    Measures the speed of the GPUs and compares it with a bare loop, nccl-tests and the data
    sheet; injects faults and counts false alarms; and measures the cost of a run. A failed
    step does not end the other steps, and Ctrl-C keeps finished steps. DIR gets all figures as
    Markdown, and the run documents with their pages. Documents and pages have serial numbers,
    addresses and lines of the kernel log; the Markdown file has none.

    Exit status 1 if hardware failed or a check missed a fault, 3 if a step could not run or
    there is no GPU.

    \b
    Examples:
      hpcverify qualify
      hpcverify qualify -o h200 --only products --only links
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    site = load_site()
    steps = load_steps(site, (FACTS, *only) if only else ())
    import_report_module("qualification")  # a missing package shows now
    folder = Path(output or f"hpcverify-qualification-{datetime.now(UTC):%Y%m%d-%H%M%S}")
    refuse_used(folder)
    report: Qualification | None = None
    with ExitStack() as stack:
        stack.callback(remove_unused, folder)
        stop = stack.enter_context(stop_on_signals())
        stack.enter_context(node_lock(should_stop=stop))
        qualifier = NodeQualifier(
            site=site,
            state=state_dir(),
            steps=steps,
            should_stop=stop,
            say=say,
            begin=partial(print_begin, steps),
            show_progress=partial(choose_progress, quiet=has_flag("quiet")),
        )
        bound = format_duration(sum(step.rest + step.budget for step in steps))
        echo(f"{format_count(len(steps), 'step')} into {folder}: {bound} at most")
        try:
            for report in qualifier.run():
                print_end(report.steps[-1])
                keep(report, folder)
        finally:
            print_reached(report)  # whatever the disk could keep
    assert report is not None  # noqa: S101 - there is a step
    whole = "" if report.complete else ", not complete"
    echo(
        f"{report.verdict.name} after {format_duration(report.seconds)}{whole}: "
        f"{folder / TEXT_NAME}, {RUNS_FOLDER}/"
    )
    sys.exit(STATUSES.get(report.verdict, 0) if report.complete else STATUSES[Verdict.ERROR])


def refuse_used(folder: Path) -> None:
    """
    Make *folder*, or refuse it if there is something in it.

    Raises:
        ConfigError: it is no empty directory, or cannot be made.

    """
    try:
        folder.mkdir(exist_ok=True)
        if any(folder.iterdir()):
            raise ConfigError(f"{folder} is not empty: name a new directory with -o")
    except OSError as exc:
        raise ConfigError(f"{folder} cannot be made: {exc.strerror}") from exc


def remove_unused(folder: Path) -> None:
    """Remove *folder* if nothing came to be in it."""
    with suppress(OSError):
        folder.rmdir()


def print_begin(steps: Sequence[QualificationStep], step: QualificationStep) -> None:
    """Say which of *steps* begins, and how long it may take."""
    bound = format_duration(step.budget)
    place = f"[{steps.index(step) + 1}/{len(steps)}]"
    echo(f"{place} {step.name}: {step.question} ({bound} at most)")


def print_end(report: StepReport) -> None:
    """Print what a step came to."""
    text = f"{report.verdict.name:5} {report.step.name} ({format_duration(report.seconds)})"
    echo(shorten(text + (f": {report.reason}" if report.reason else "")))


def keep(report: Qualification, folder: Path) -> None:
    """Write what all steps came to, and the document and the page of the last one's run."""
    markdown: str = import_report_module("qualification").markdown(report)
    documents.write_bytes(folder / TEXT_NAME, markdown.encode())
    *_, last = report.steps
    if last.run:
        path = folder / RUNS_FOLDER / f"{last.step.name}.json"
        text = msgspec.json.format(msgspec.json.encode(last.run), indent=1)
        documents.write_bytes(path, text, make=True)
        page: str = import_report_module("node").render(documents.read(path))
        documents.write_bytes(path.with_suffix(".html"), page.encode())


def print_reached(report: Qualification | None) -> None:
    """Print the lines for the table, or why there are none."""
    if report is None:
        return
    for why in report.not_reached:
        echo(f"no line for the table: {why}")
    if report.reached:
        echo(
            "lines for hpcverify/limits/gpu_reached.csv, each for the one of the same part, "
            "quantity and mode; without a checkout, send them to the project:"
        )
        echo("\n".join(report.reached))
