"""
The qualification of hpcverify on one kind of node, as Markdown.

Every figure stands beside its reference, and every count beside the rate that it excludes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from hpcverify.model import Verdict
from hpcverify.qualification import Count, MeasuredFigure, Qualification
from hpcverify.summary.figures import format_scaled
from hpcverify.summary.wording import format_duration
from hpcverify_reports.labels import ICONS, format_time
from hpcverify_reports.text import escape

CONTENTS_NOTE = (
    "This file names no node, serial number or address. The run documents and pages in "
    "runs/ have the serial numbers, UUIDs and addresses of parts, and lines of the kernel log."
)
MAX_BOUND = 0.1
"""A bound above one in ten says nothing."""
FIGURE_HEADS = ("Measured", "Part", "Median", "Lowest to highest", "Beside")
COUNT_HEADS = ("Counted", "Events", "In", "Excluded at 95 %")


def markdown(report: Qualification) -> str:
    """Write *report* as Markdown."""
    return "\n".join(_list_lines(report)) + "\n"


def _list_lines(report: Qualification) -> Iterator[str]:
    models = Counter(report.gpus)
    gpus = ", ".join(f"{count} x {name}" for name, count in models.items())
    verdicts = Counter(step.verdict for step in report.steps)
    counts = ", ".join(f"{verdicts[v]} {ICONS[v].word}" for v in Verdict if verdicts[v])
    interrupted = "" if report.complete else "; it was interrupted"
    took = format_duration(report.seconds)
    yield from (f"# hpcverify on {escape(gpus)}: {report.verdict.name}", "")
    yield from (f"{len(report.steps)} steps in {took}: {counts}{interrupted}.", "")
    facts = {"started": format_time(report.started), **report.machine, **report.versions}
    yield from _write_table(("", ""), facts.items())
    for done in report.steps:
        budget = f"{format_duration(done.seconds)} of {format_duration(done.step.budget)}"
        yield from (f"## {escape(done.step.name)}: {ICONS[done.verdict].word}", "")
        yield from (f"{escape(done.step.question)} ({budget})", "")
        yield from (escape(done.reason), "") if done.reason else ()
        figures = (_format_figure(figure, several=len(models) > 1) for figure in done.figures)
        yield from _write_table(FIGURE_HEADS, figures)
        yield from _write_table(COUNT_HEADS, map(_format_count, done.counts))
        yield from (f"- {escape(note)}" for note in done.notes)
        yield from [""] if done.notes else []
    yield from ("## Lines for gpu_reached.csv", "", "```csv", *report.reached, "```", "")
    yield from (f"- no line: {escape(why)}" for why in report.not_reached)
    yield from [""] if report.not_reached else []
    yield CONTENTS_NOTE


def _write_table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    lines = [f"| {' | '.join(map(escape, row))} |" for row in rows]
    if lines:
        yield from (f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}", *lines, "")


def _format_figure(figure: MeasuredFigure, *, several: bool) -> tuple[str, ...]:
    """Print a figure; the model of its GPUs only where the node has *several*."""
    model = figure.model if several else "GPU"
    spread = ""
    if figure.parts > 1:
        low, high = (format_scaled(v, figure.unit) for v in (figure.lowest, figure.highest))
        spread = f"{low} ({figure.lowest_part}) to {high}" if low != high else "all alike"
    compared = [
        f"{figure.median / value * 100:.1f} % of {what} {format_scaled(value, figure.unit)}"
        if value
        else f"{what} {format_scaled(value, figure.unit)}"
        for what, value in figure.compared
    ]
    return (
        f"{figure.check} {figure.quantity}",
        f"{figure.parts} x {model}" if figure.model else "node",
        format_scaled(figure.median, figure.unit),
        spread,
        "; ".join(compared),
    )


def _format_count(count: Count) -> tuple[str, ...]:
    return (
        count.what,
        f"{count.events:,}",
        f"{count.tries:,}",
        f"more than 1 in {1 / count.bound:,.0f}" if count.bound < MAX_BOUND else "too few to say",
    )
