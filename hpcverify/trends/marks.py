"""
The runs of each part over time, and what changed on many parts: a driver, a firmware.

Such a change is a *mark*. What a mark usually does to a value is known where many parts have it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from msgspec import Struct
from msgspec.structs import replace

from hpcverify.peers.rule import SCREEN_SCORE
from hpcverify.stats import MAD_SCALE, MEDIAN_ERROR, find_mad, median
from hpcverify.trends.change import LEAST_SPREAD, MIN_AFTER, MIN_PAST
from hpcverify.units import DAY_SECONDS

MIN_ROLLOUT = 3
"""Nodes with a new mark, from which on it is known what it does."""
HALF = 0.5
MUCH_MORE = 2.0
"""A part that changed so many times as much as the others has a reason of its own."""
LASTING_RUNS = 5
"""The runs after a change, or the last ones, that say how large it is."""
MARK_RUNS = 2
"""A step is known to so many runs."""
MAX_ASKED = 400
"""Of so many parts or more, every n-th says what a mark did to all."""
ROUNDS = 3
"""Effects of marks that follow each other within some runs are then known to a tenth."""


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
    taken_error: float = 0.0
    """The relative standard deviation of the shared changes that were taken off its values."""


class MarkChange(Struct, frozen=True, order=True):
    """A new driver, firmware or part, between two runs that both name theirs."""

    field: str
    before: str
    after: str

    def __str__(self) -> str:
        """Print it for people."""
        return f"{self.field} {self.before} to {self.after}"


class MarkEffect(Struct, frozen=True, kw_only=True):
    """What a mark did to the values of the parts on which it is new."""

    factor: float
    """By which values changed with it, in the median over the parts."""
    error: float
    """The standard deviation of that median."""
    scatter: float
    """How far parts are from it without noise: one standard deviation."""
    share: float
    """The share of the parts that changed so, and not by less than half as much."""
    day: float
    """Days since 1970: when half of the parts had it."""
    parts: int
    """Parts on which it is new."""
    along: tuple[MarkChange, ...] = ()
    """Marks that most of these parts took at once with it."""


class HistoryPopulation(Struct, frozen=True, kw_only=True):
    """The fleet from which a screen has chosen the histories that are judged."""

    parts: int
    """Parts with a past that is long enough for a step."""
    effects: Mapping[MarkChange, MarkEffect]
    """The effects of marks that are new on several nodes, by parts that moved or did not."""
    weight: float = 1.0
    """The number of parts that the screen has found for each history."""
    spread: float = 0.0
    """Between the runs of a part, as most have it: relative."""
    series: int = 1
    """Series of runs that were screened, in all metrics: so many chances of a false change."""


def count_population(histories: Sequence[PartHistory]) -> HistoryPopulation:
    """Count the parts with a long past, and find how they vary and what their marks did."""
    long = list(filter(is_long, histories))
    return HistoryPopulation(
        parts=len(long),
        effects=find_mark_effects(long),
        spread=median(map(_find_spread, long)) if long else 0.0,
        series=max(1, len(long)),
    )


def _find_spread(history: PartHistory) -> float:
    """Find the relative spread of runs from one to the next: a step is in one difference alone."""
    differences = [abs(after - before) for before, after in pairwise(history.values)]
    usual = abs(median(history.values))
    return MAD_SCALE * median(differences) / (math.sqrt(2) * usual) if usual else 0.0


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
    histories: Iterable[PartHistory], carriers: Mapping[MarkChange, int] | None = None
) -> dict[MarkChange, MarkEffect]:
    """
    Find what each mark did that is new on parts of `MIN_ROLLOUT` nodes or more.

    If *histories* are a sample, *carriers* counts all the parts on which a mark is new. A part
    tells it once it has a step's runs on either side. What one mark did is taken off before
    another one is looked at, in turn (backfitting): a driver and a firmware of one week are two.
    """
    by_mark: dict[MarkChange, list[PartHistory]] = {}
    for history in histories:
        for mark in list_all_marks(history):
            index = find_mark(history, mark)
            is_known = min(index, len(history.values) - index) >= MIN_AFTER
            if is_known and find_factor(history, index):
                by_mark.setdefault(mark, []).append(history)
    marks = [m for m, own in by_mark.items() if len({h.node for h in own}) >= MIN_ROLLOUT]
    marks.sort(key=lambda mark: (median(_find_time(h, mark) for h in by_mark[mark]), mark))
    effects: dict[MarkChange, MarkEffect] = {}
    for _ in range(ROUNDS if len(marks) > 1 else 1):
        for mark in marks:
            others = {m: effect.factor for m, effect in effects.items() if m != mark}
            own = by_mark[mark]
            asked = own[:: max(1, len(own) // MAX_ASKED)]
            found = [_find_carrier(history, mark, others) for history in asked]
            effects[mark] = replace(
                _describe_effect(found, (carriers or {}).get(mark, len(own))),
                along=tuple(m for m in marks if m != mark and _go_together(asked, mark, m)),
            )
    return effects


def _find_time(history: PartHistory, mark: MarkChange) -> float:
    return history.times[find_mark(history, mark)]


def _find_carrier(
    history: PartHistory, mark: MarkChange, others: Mapping[MarkChange, float]
) -> _Carrier:
    """Find what *mark* did on a part, without what the *others* did."""
    there = list_all_marks(history) & others.keys()
    levelled = _level(history, [(find_mark(history, other), others[other]) for other in there])
    index = find_mark(history, mark)
    return _Carrier(
        history.node,
        find_factor(levelled, index),
        _find_factor_error(levelled, index),
        history.times[index] / DAY_SECONDS,
    )


def _go_together(carriers: Sequence[PartHistory], mark: MarkChange, other: MarkChange) -> bool:
    """Whether most *carriers* of a *mark* took the *other* one at once: nobody can part them."""
    near = sum(
        abs(find_mark(history, mark) - find_mark(history, other)) < MARK_RUNS
        for history in carriers
        if other in list_all_marks(history)
    )
    return near > HALF * len(carriers)


class _Carrier(Struct, frozen=True):
    """A part on which a mark is new: by which factor it changed, and when."""

    node: str
    factor: float
    error: float
    day: float


def _describe_effect(carriers: Sequence[_Carrier], parts: int) -> MarkEffect:
    factors = [carrier.factor for carrier in carriers]
    middle = median(factors)
    spread = MAD_SCALE * find_mad(factors, middle)
    noise = median(carrier.error for carrier in carriers)
    alike = [factor for factor in factors if (factor - 1) / (middle - 1 or 1) >= HALF]
    return MarkEffect(
        factor=middle,
        error=MEDIAN_ERROR * max(spread, noise) / math.sqrt(len(factors)),
        scatter=math.sqrt(max(0.0, spread**2 - noise**2)),
        share=len(alike) / len(factors),
        day=median(carrier.day for carrier in carriers),
        parts=parts,
    )


def find_factor(history: PartHistory, index: int) -> float:
    """Find by which factor values changed at the run *index*; 0: there is nothing to compare."""
    before = median(history.values[max(0, index - MIN_PAST) : index] or [0.0])
    after = median(history.values[index : index + LASTING_RUNS] or [0.0])
    return max(0.0, after / before) if before else 0.0


def _level(history: PartHistory, changes: Iterable[tuple[int, float]]) -> PartHistory:
    """Bring what was before each of the *changes*, a run and a factor, to the level after it."""
    values = list(history.values)
    for index, factor in changes:
        values[:index] = [value * factor for value in values[:index]]
    return replace(history, values=tuple(values))


def take_off(
    history: PartHistory,
    changes: Iterable[tuple[int, float, float]],
    later: Iterable[tuple[int, float]] = (),
) -> PartHistory:
    """
    Take shared *changes* off a history.

    Each is a run, by which factor most parts changed there, and how far they are from it: one
    standard deviation of parts without noise. What *later* ones usually do, runs and factors, is
    not counted for what a part did at these.
    """
    seen = _level(history, later)
    values, variance = list(history.values), history.taken_error**2
    for index, usual, scatter in changes:
        if (own := find_factor(seen, index)) and usual != 1:
            taken = _choose_factor(own, usual, scatter, _find_factor_error(seen, index))
            values[:index] = [value * taken.factor for value in values[:index]]
            variance += taken.error**2
    return replace(history, values=tuple(values), taken_error=math.sqrt(variance))


class _TakenFactor(Struct, frozen=True):
    factor: float
    error: float


def _choose_factor(own: float, usual: float, scatter: float, error: float) -> _TakenFactor:
    """
    Choose what to take off a part that changed by its *own* factor, where most did by the *usual*.

    Where parts differ by no more than the *error* of each, all have the same factor, but those
    that are too far from it: some do not change at all. Otherwise each has its own. One that
    changed far more than others has a reason for what is left, and of one that changed the other
    way all is left.
    """
    share = (own - 1) / (usual - 1)
    are_alike = scatter <= error and abs(own - usual) <= SCREEN_SCORE * error
    if are_alike or share > MUCH_MORE:
        return _TakenFactor(usual, 0.0)
    return _TakenFactor(own if share > 0 else 1.0, error)


def _find_factor_error(history: PartHistory, index: int) -> float:
    """Find the error of the factor at the run *index*, from how far runs are from the next."""
    steps = [abs(b / a - 1) for a, b in pairwise(history.values) if a]
    spread = max(LEAST_SPREAD, MAD_SCALE * median(steps or [0.0]) / math.sqrt(2))
    before = min(MIN_PAST, index)
    after = min(LASTING_RUNS, len(history.values) - index)
    return MEDIAN_ERROR * spread * math.sqrt(1 / before + 1 / after)


def find_mark(history: PartHistory, mark: MarkChange) -> int:
    """Return the first run with *mark*, which was new on the part."""
    pairs = enumerate(pairwise(history.marks[mark.field]), 1)
    return next(i for i, pair in pairs if pair == (mark.before, mark.after))
