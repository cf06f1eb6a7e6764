"""The numbers that one asks for first, ready to print."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hpcverify.model import Run
from hpcverify.summary.figures import Figure, choose_figures
from hpcverify.summary.rounds import choose_worst_rounds
from hpcverify_reports.judged import Labeler
from hpcverify_reports.labels import make_anchor


@dataclass(frozen=True, slots=True)
class Speed:
    """One figure: what, how much, and which part had the least."""

    href: str
    name: str
    value: str
    notes: tuple[str, ...]


def list_speeds(run: Run, label: Labeler) -> Iterator[Speed]:
    """Lay out the figures of every check of *run* that has some, in its order."""
    for result in choose_worst_rounds(run.results):
        for figure in choose_figures(result, run.inventory):
            yield Speed(
                href=make_anchor(result.check),
                name=f"{figure.check} {figure.name}",
                value=figure.format_value(figure.typical),
                notes=tuple(_write_notes(figure, label)),
            )


def _write_notes(figure: Figure, label: Labeler) -> Iterator[str]:
    if figure.share:
        yield figure.share
    if figure.parts > 1:
        least = figure.format_value(figure.slowest.value or 0.0)
        yield f"median of {figure.parts}; least: {label(figure.slowest.where)} {least}"
