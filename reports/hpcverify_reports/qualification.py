"""
The qualification of hpcverify on one kind of node: a page, and the same as Markdown.

Every figure stands beside its reference, and every count beside the rate that it excludes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace

from hpcverify.model import Verdict
from hpcverify.records.qualification import (
    Comparison,
    Count,
    MeasuredFigure,
    Qualification,
    StepReport,
    format_line,
)
from hpcverify.summary.figures import format_scaled
from hpcverify.summary.printable import make_printable
from hpcverify.summary.wording import format_duration
from hpcverify_reports.labels import ICONS, Icon, format_time, make_anchor
from hpcverify_reports.pages import render_page
from hpcverify_reports.tables import (
    MAX_LISTED_ROWS,
    Cells,
    Table,
    TableCell,
    TableColumn,
    build_table,
)
from hpcverify_reports.text import escape

CONTENTS_NOTE = (
    "This page and its JSON name no node, serial number or address. The run documents in "
    "runs/ have the serial numbers, UUIDs and addresses of parts, and lines of the kernel log."
)
MACHINE_LABELS = {"bios": "BIOS", "os": "OS"}
MAX_BOUND = 0.1
"""A bound above one in ten says nothing."""
FIGURE_HEADS = ("Measured", "Part", "Median", "Lowest to highest", "Beside")
COUNT_HEADS = ("Counted", "Events", "In", "Excluded at 95 %")
STEP_COLUMNS = ("Step", "Result", "Question", TableColumn("Took", "n"), TableColumn("At most", "n"))


def render(report: Qualification) -> str:
    """Render *report* as one HTML page."""
    page = SimpleNamespace(
        icons=tuple(ICONS.values()),
        icon=ICONS[report.verdict],
        verdict=report.verdict.name,
        headline=describe_gpus(report) or "No GPU",
        lede=summarize(report),
        facts=list(_list_facts(report)),
        overview=build_table("Steps", STEP_COLUMNS, list(map(_build_row, report.steps))),
        steps=list(_list_steps(report)),
        gpus=[(gpu.label, gpu.name, tuple(gpu.facts.items())) for gpu in report.gpus],
        versions=report.versions.items(),
        topology=list_lines(report.topology),
        lines=[format_line(line) for line in report.reached],
        not_reached=report.not_reached,
        contents=CONTENTS_NOTE,
    )
    return render_page("qualification.html.j2", page)


def markdown(report: Qualification) -> str:
    """Write *report* as Markdown."""
    return "\n".join(_list_markdown(report)) + "\n"


def _list_markdown(report: Qualification) -> Iterator[str]:
    yield f"# hpcverify on {escape(describe_gpus(report) or 'no GPU')}: {report.verdict.name}"
    yield ""
    yield escape(summarize(report))
    yield ""
    yield from _write_table(build_table("Facts", ("", ""), list(_list_facts(report))))
    for _, step, icon, tables in _list_steps(report):
        budget = f"{format_duration(step.seconds)} of {format_duration(step.budget)}"
        yield from (f"## {escape(step.name)}: {icon.word}", "")
        yield from (f"{escape(step.question)} ({budget})", "")
        yield from (escape(step.reason), "") if step.reason else ()
        for table in tables:
            yield from _write_table(table)
        yield from (f"- {escape(note)}" for note in step.notes)
        yield from [""] if step.notes else []
    if report.topology:
        yield from ("## Topology", "", "```", *list_lines(report.topology), "```", "")
    yield "## Lines for gpu_reached.csv"
    yield ""
    yield "```csv"
    yield from map(format_line, report.reached)
    yield "```"
    yield ""
    yield from (f"- no line: {escape(why)}" for why in report.not_reached)
    yield from [""] if report.not_reached else []
    yield escape(CONTENTS_NOTE)


def _write_table(table: Table) -> Iterator[str]:
    if not table.rows:
        return
    yield f"| {' | '.join(column.head for column in table.columns)} |"
    yield f"|{'---|' * len(table.columns)}"
    for row in (*table.rows, *table.folded):
        yield f"| {' | '.join(escape(cell.text) for cell in row.cells)} |"
    yield ""


def list_lines(text: str) -> list[str]:
    """List the lines of *text*, printable, and none of them the end of a block."""
    lines = (make_printable(line.expandtabs()) for line in text.splitlines())
    return [line.replace("```", "") for line in lines]


def describe_gpus(report: Qualification) -> str:
    """Count the GPUs of each model, as in "8 x NVIDIA H100"."""
    models = Counter(gpu.name or "GPU" for gpu in report.gpus)
    return ", ".join(f"{count} x {name}" for name, count in models.items())


def summarize(report: Qualification) -> str:
    """Say how many steps there were, and what they came to."""
    verdicts = Counter(step.verdict for step in report.steps)
    counts = ", ".join(f"{verdicts[v]} {ICONS[v].word}" for v in Verdict if verdicts[v])
    interrupted = "" if report.complete else "; it was interrupted"
    return f"{len(report.steps)} steps in {format_duration(report.seconds)}: {counts}{interrupted}."


def _list_facts(report: Qualification) -> Iterator[tuple[str, str]]:
    yield "hpcverify", report.hpcverify
    yield "Started", format_time(report.started)
    yield "Took", format_duration(report.seconds)
    yield from ((MACHINE_LABELS.get(n, n.capitalize()), text) for n, text in report.machine.items())


def _list_steps(report: Qualification) -> Iterator[tuple[str, StepReport, Icon, list[Table]]]:
    """List the steps, each with its anchor, its icon and its tables."""
    several = len({gpu.name for gpu in report.gpus}) > 1
    for step in report.steps:
        figures = [_format_figure(figure, several=several) for figure in step.figures]
        counts = list(map(_format_count, step.counts))
        tables = [
            build_table(f"Figures of {step.name}", FIGURE_HEADS, figures, shown=MAX_LISTED_ROWS),
            build_table(f"Counts of {step.name}", COUNT_HEADS, counts),
        ]
        yield make_anchor(step.name), step, ICONS[step.verdict], tables


def _build_row(step: StepReport) -> Cells:
    name, result = (
        TableCell(step.name, f"#{make_anchor(step.name)}"),
        TableCell("", icon=ICONS[step.verdict]),
    )
    took, budget = format_duration(step.seconds), format_duration(step.budget)
    return name, result, step.question, took, budget


def _format_figure(figure: MeasuredFigure, *, several: bool) -> tuple[str, ...]:
    """Print a figure; the model of its GPUs only where the node has *several*."""
    model = figure.model if several else "GPU"
    part = f"{figure.parts} x {model}" if figure.model else "node"
    spread = ""
    if figure.parts > 1:
        low, high = (format_scaled(v, figure.unit) for v in (figure.lowest, figure.highest))
        spread = f"{low} ({figure.lowest_part}) to {high}" if low != high else "all alike"
    return (
        f"{figure.check} {figure.quantity}",
        part,
        format_scaled(figure.median, figure.unit),
        spread,
        "; ".join(_format_comparison(figure, beside) for beside in figure.compared),
    )


def _format_comparison(figure: MeasuredFigure, beside: Comparison) -> str:
    value = f"{beside.what} {format_scaled(beside.value, figure.unit)}"
    return f"{figure.median / beside.value * 100:.1f} % of {value}" if beside.value else value


def _format_count(count: Count) -> tuple[str, ...]:
    return (
        count.what,
        f"{count.events:,}",
        f"{count.tries:,}",
        f"more than 1 in {1 / count.bound:,.0f}" if count.bound < MAX_BOUND else "too few to say",
    )
