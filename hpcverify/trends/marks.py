"""
The runs of each part over time, and what changed on many parts: a driver, a firmware.

Such a change is a *mark*. What a mark usually does to a value is known where many parts have it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from statistics import median

from msgspec import Struct

from hpcverify.trends.change import MIN_AFTER, MIN_PAST

ROLLOUT_SHARE, MIN_ROLLOUT = 0.5, 3
"""Of the parts with a new mark, so many changed alike, on so many nodes: then the mark did it."""
MARK_RUNS = 2
"""A step is known to so many runs."""


class PartHistory(Struct, frozen=True, kw_only=True):
    """The runs of one part in one metric, in the order of time."""

    node: str
    part: str
    times: tuple[float, ...]
    """Seconds since 1970."""
    values: tuple[float, ...]
    marks: dict[str, tuple[str, ...]] = {}
    """What the part ran in each run, by name: driver, firmware, the serial number in a slot."""
    limit: float | None = None


class MarkChange(Struct, frozen=True, order=True):
    """A new driver, firmware or part, between two runs that both name theirs."""

    field: str
    before: str
    after: str

    def __str__(self) -> str:
        """Print it for people."""
        return f"{self.field} {self.before} to {self.after}"


class HistoryPopulation(Struct, frozen=True, kw_only=True):
    """The fleet of which a screen has chosen the histories that are judged."""

    parts: int
    """Parts with a past that is long enough for a step."""
    carriers: Mapping[MarkChange, int]
    """How many of them have made each change of a mark."""
    weight: float = 1.0
    """For how many parts that the screen has found each history stands."""
    spread: float = 0.0
    """Between the runs of a part, as most have it: relative."""
    series: int = 1
    """Series of runs that were screened, in all metrics: so many chances of a false change."""


def count_population(histories: Iterable[PartHistory]) -> HistoryPopulation:
    """Count the parts with a long past, and the marks that each has changed."""
    carriers: dict[MarkChange, int] = {}
    parts = 0
    for history in filter(is_long, histories):
        parts += 1
        for mark in list_all_marks(history):
            carriers[mark] = carriers.get(mark, 0) + 1
    return HistoryPopulation(parts=parts, carriers=carriers)


def is_long(history: PartHistory) -> bool:
    """Whether a part has enough runs for a step."""
    return len(history.values) >= MIN_PAST + MIN_AFTER


def list_marks(history: PartHistory, index: int) -> tuple[MarkChange, ...]:
    """List the marks that are new around the run at *index*, as near as a step is known."""
    first, last = max(1, index - MARK_RUNS), min(len(history.values), index + MARK_RUNS + 1)
    return tuple(
        MarkChange(field, values[i - 1], values[i])
        for field, values in sorted(history.marks.items())
        for i in range(first, last)
        if values[i - 1] and values[i] and values[i - 1] != values[i]
    )


def list_all_marks(history: PartHistory) -> set[MarkChange]:
    """List the marks that were ever new on a part."""
    return {
        MarkChange(field, before, after)
        for field, values in history.marks.items()
        for before, after in pairwise(values)
        if before and after and before != after
    }


def find_mark_effects(
    histories: Iterable[PartHistory], population: HistoryPopulation
) -> dict[MarkChange, float]:
    """Find by which factor values usually changed with each mark that is new on many parts."""
    ratios: dict[MarkChange, list[float]] = {}
    nodes: dict[MarkChange, set[str]] = {}
    for history in histories:
        for mark in list_all_marks(history):
            index = find_mark(history, mark)
            if before := median(history.values[:index]):
                ratios.setdefault(mark, []).append(median(history.values[index:]) / before)
                nodes.setdefault(mark, set()).add(history.node)
    return {
        mark: median(known)
        for mark, known in ratios.items()
        if len(nodes[mark]) >= MIN_ROLLOUT
        and len(known) * population.weight >= ROLLOUT_SHARE * population.carriers.get(mark, 0)
    }


def find_mark(history: PartHistory, mark: MarkChange) -> int:
    """Return the first run with *mark*, which was new on the part."""
    pairs = enumerate(pairwise(history.marks[mark.field]), 1)
    return next(i for i, pair in pairs if pair == (mark.before, mark.after))
