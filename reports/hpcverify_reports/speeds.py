"""The numbers that one asks for first, ready to print."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hpcverify.figures import Figure, figures
from hpcverify.model import Run
from hpcverify.rounds import worst_rounds
from hpcverify_reports.judged import Labels
from hpcverify_reports.words import anchor


@dataclass(frozen=True, slots=True)
class Speed:
    """One figure: what, how much, and which part had the least."""

    href: str
    name: str
    value: str
    notes: tuple[str, ...]


def speeds(run: Run, label: Labels) -> Iterator[Speed]:
    """Lay out the figures of every check of *run* that has some, in its order."""
    for result in worst_rounds(run.results):
        for figure in figures(result):
            yield Speed(
                href=anchor(result.check),
                name=f"{figure.check} {figure.name}",
                value=figure.told(figure.typical),
                notes=tuple(_notes(figure, label)),
            )


def _notes(figure: Figure, label: Labels) -> Iterator[str]:
    if figure.share:
        yield figure.share
    if figure.parts > 1:
        least = figure.told(figure.slowest.value or 0.0)
        yield f"median of {figure.parts}; least: {label(figure.slowest.where)} {least}"
