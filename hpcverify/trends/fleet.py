"""
Judge the past of each part of a fleet in one metric: who changed, and is it the part?

A change on many parts at once is not their fault: where they have a mark in common, a new driver
or firmware, it is a *rollout*; where they only share the day, or a trend, it is something else that
they share, as cooling. What a mark did is found over all parts that have it. Shared changes are
taken off the runs first; what is left is one series, and a change in it is the part's own.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from statistics import NormalDist

from msgspec import Struct

from hpcverify.model import Verdict
from hpcverify.peers.rule import FALSE_SHARE, SCREEN_SCORE
from hpcverify.stats import CONFIDENCE_SCORE, MEDIAN_ERROR, median
from hpcverify.trends.change import DEFAULT_STEP, MIN_AFTER, MIN_PAST, LevelChange, find_changes
from hpcverify.trends.marks import (
    LASTING_RUNS,
    MUCH_MORE,
    HistoryPopulation,
    MarkChange,
    MarkEffect,
    PartHistory,
    count_population,
    find_mark,
    list_all_marks,
    list_marks,
    take_off,
)
from hpcverify.trends.slope import Crossing, Slope, find_slope, project_crossing
from hpcverify.units import DAY_SECONDS, format_count, format_percent

MIN_SHARED_SHARE, MIN_SHARED = 0.2, 5
"""The share and the number of the parts that ran around a day, and changed alike."""
SAME_DAYS = 2.0
STEP, TREND = "step", "trend"
EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
NORMAL = NormalDist()


class PartChange(Struct, frozen=True, kw_only=True):
    """A part that is no longer what it was."""

    node: str
    part: str
    verdict: Verdict
    kind: str
    """step or trend."""
    size: float
    """Relative to its past; positive is worse."""
    before: float
    """Where the part was before the step, or at the beginning of the trend."""
    after: float
    """Where it is now."""
    day: float
    """Days since 1970: when the step was, or the trend's last run."""
    runs: int
    """Runs since a step, or of the trend."""
    marks: tuple[MarkChange, ...] = ()
    crossing: Crossing | None = None
    """When the trend crosses the limit of the part."""
    why: str = ""


class SharedChange(Struct, frozen=True, kw_only=True):
    """A change that many parts have in common."""

    kind: str = STEP
    """step or trend."""
    mark: MarkChange | None
    """What they have in common; None: only the time."""
    day: float
    """Days since 1970: when the step was, or the trend's last run."""
    size: float
    changed: int
    compared: int
    """The parts with that mark, or with runs around that day."""
    along: tuple[MarkChange, ...] = ()
    """Marks that most of these parts took at once with it: it may be one of them."""


class TrendJudgement(Struct, frozen=True, kw_only=True):
    """What is said of the past of a fleet in one metric."""

    parts: int
    """Parts with a past that is long enough for a step."""
    changes: tuple[PartChange, ...]
    shared: tuple[SharedChange, ...]


def judge_histories(
    histories: Sequence[PartHistory],
    *,
    low_is_bad: bool,
    least: float = DEFAULT_STEP,
    population: HistoryPopulation | None = None,
) -> TrendJudgement:
    """
    Judge the past of each part; changes smaller than *least* (relative) are none.

    If *histories* are those that a screen has chosen, *population* is what it chose from. Changes
    that chance explains among so many series are none either.
    """
    whole = population or count_population(histories)
    levelled = [_take_off_marks(history, whole.effects) for history in histories]

    def find(series: Iterable[PartHistory]) -> list[tuple[PartHistory, LevelChange]]:
        return list(_find_steps(series, least, whole, low_is_bad=low_is_bad))

    days = list(_find_shared_days(levelled, find(levelled), population))
    if days:
        levelled = [_take_off_days(one, days, low_is_bad=low_is_bad) for one in levelled]
    rollouts = _find_rollouts(whole, least, low_is_bad=low_is_bad)
    found = find(levelled)
    shared = [*rollouts, *days]
    steps = [_describe_step(h, c, whole, low_is_bad=low_is_bad) for h, c in found]
    stepped = {id(history) for history, _ in found}
    trends = [
        trend
        for history in levelled
        if id(history) not in stepped
        and (slope := find_slope(history.times, history.values))
        and not _is_slope_by_chance(history, slope, whole)
        and (trend := _describe_trend(history, slope, least, low_is_bad=low_is_bad))
    ]
    if alike_trend := _find_shared_trend(trends, whole):
        shared.append(alike_trend)
        trends = [trend for trend in trends if trend.size > MUCH_MORE * alike_trend.size]
    changes = sorted([*steps, *trends], key=lambda change: -change.size)
    return TrendJudgement(parts=whole.parts, changes=tuple(changes), shared=tuple(shared))


def _find_steps(
    histories: Iterable[PartHistory],
    least: float,
    population: HistoryPopulation,
    *,
    low_is_bad: bool,
) -> Iterable[tuple[PartHistory, LevelChange]]:
    """Find the lasting step of each part that has one, and no trend that explains it better."""
    for history in histories:
        change = find_lasting_step(history, least, low_is_bad=low_is_bad)
        if change is None or _is_step_by_chance(history, change, population):
            continue
        slope = find_slope(history.times, history.values)
        if slope is None or not _is_rather_a_line(history, change, slope):
            yield history, change


def _take_off_marks(history: PartHistory, effects: Mapping[MarkChange, MarkEffect]) -> PartHistory:
    """Take off what marks did, one after the other: a later one finds what is left."""
    marks = list_all_marks(history) & effects.keys()
    found = [(i, effects[m]) for i, m in sorted((find_mark(history, mark), mark) for mark in marks)]
    for place, (index, effect) in enumerate(found, 1):
        later = [(i, other.factor) for i, other in found[place:]]
        history = take_off(history, [(index, effect.factor, effect.scatter)], later)
    return history


def _take_off_days(
    history: PartHistory, days: Iterable[SharedChange], *, low_is_bad: bool
) -> PartHistory:
    """Take off what each of the *days* did to most parts: it may have left out some of them."""
    sign = -1 if low_is_bad else 1
    changes = [
        (
            bisect_left(history.times, shared.day * DAY_SECONDS),
            1 + sign * shared.size,
            abs(shared.size),
        )
        for shared in days
    ]
    return take_off(history, changes)


def _is_step_by_chance(
    history: PartHistory, change: LevelChange, population: HistoryPopulation
) -> bool:
    """Whether normal values with the spread of the runs make such a step in one of the series."""
    spread = max(abs(change.size / change.score), population.spread)
    before = change.index - change.before
    after = min(LASTING_RUNS, len(history.values) - change.index)
    error = MEDIAN_ERROR * spread * math.sqrt(1 / before + 1 / after)
    return _is_by_chance(
        abs(change.size) / math.hypot(error, history.taken_error), population.series
    )


def _is_slope_by_chance(history: PartHistory, slope: Slope, population: HistoryPopulation) -> bool:
    taken = history.taken_error * abs(median(history.values) * slope.middle / slope.change)
    error = math.hypot((slope.most - slope.least) / (2 * CONFIDENCE_SCORE), taken)
    return bool(error) and _is_by_chance(abs(slope.middle) / error, population.series)


def _is_by_chance(score: float, series: int) -> bool:
    return NORMAL.cdf(-score) * series > FALSE_SHARE


def find_lasting_step(
    history: PartHistory, least: float, *, low_is_bad: bool
) -> LevelChange | None:
    """Find the latest step of a part that its last runs still show."""
    sign = -1.0 if low_is_bad else 1.0
    values = [sign * value for value in history.values]
    changes = find_changes(values, least)
    if not changes:
        return None
    last = changes[-1]
    before = median(values[last.before : last.index])
    now = median(values[max(last.index, len(values) - LASTING_RUNS) :])
    lasting = (now - before) / abs(before)
    return last if lasting * last.size > 0 and abs(lasting) >= least else None


def _find_day(history: PartHistory, index: int) -> float:
    return history.times[index] / DAY_SECONDS


SteppedParts = Sequence[tuple[PartHistory, LevelChange]]


def _find_rollouts(
    population: HistoryPopulation, least: float, *, low_is_bad: bool
) -> list[SharedChange]:
    """
    Find the marks after which most parts changed, by their effect over all that have them.

    A single part need not show it: the error of the effect falls with their number.
    """
    sign = -1 if low_is_bad else 1
    rollouts: dict[MarkChange, SharedChange] = {}
    for mark, effect in sorted(population.effects.items(), key=lambda e: -abs(e[1].factor - 1)):
        is_large = abs(effect.factor - 1) >= max(least, SCREEN_SCORE * effect.error)
        if is_large and rollouts.keys().isdisjoint(effect.along):
            rollouts[mark] = SharedChange(
                mark=mark,
                day=effect.day,
                size=sign * (effect.factor - 1),
                changed=round(effect.share * effect.parts),
                compared=effect.parts,
                along=effect.along,
            )
    return [shared for _, shared in sorted(rollouts.items())]


def _find_shared_days(
    histories: Sequence[PartHistory], stepped: SteppedParts, population: HistoryPopulation | None
) -> Iterable[SharedChange]:
    weight = population.weight if population else 1.0
    rest = [(h, c) for h, c in stepped if not list_marks(h, c.index)]
    while rest:
        crowd = _find_largest_crowd(rest)
        day = median(_find_day(history, change.index) for history, change in crowd)
        ran = population.parts if population else sum(_ran_around(h, day) for h in histories)
        if len(crowd) * weight < max(MIN_SHARED, MIN_SHARED_SHARE * ran):
            return
        yield SharedChange(
            mark=None,
            day=day,
            size=median(change.size for _, change in crowd),
            changed=round(len(crowd) * weight),
            compared=ran,
        )
        inside = {id(history) for history, _ in crowd}
        rest = [(history, change) for history, change in rest if id(history) not in inside]


def _find_shared_trend(
    trends: Sequence[PartChange], population: HistoryPopulation
) -> SharedChange | None:
    """Find whether so many parts became worse that it is no wear of each."""
    changed = round(len(trends) * population.weight)
    if changed < max(MIN_SHARED, MIN_SHARED_SHARE * population.parts):
        return None
    return SharedChange(
        kind=TREND,
        mark=None,
        day=median(trend.day for trend in trends),
        size=median(trend.size for trend in trends),
        changed=changed,
        compared=population.parts,
    )


def _find_largest_crowd(stepped: SteppedParts) -> SteppedParts:
    """Find those that changed alike around the same day as one of them did: the most of all."""
    crowd: SteppedParts = ()
    for better in (False, True):
        alike = [(h, c) for h, c in stepped if (c.size < 0) is better]
        alike.sort(key=lambda step: _find_day(step[0], step[1].index))
        days = [_find_day(h, c.index) for h, c in alike]
        for day in days:
            first, end = bisect_left(days, day - SAME_DAYS), bisect_right(days, day + SAME_DAYS)
            if end - first > len(crowd):
                crowd = alike[first:end]
    return crowd


def _ran_around(history: PartHistory, day: float) -> bool:
    days = [time / DAY_SECONDS for time in history.times]
    before, after = sum(d < day for d in days), sum(d >= day for d in days)
    return before >= MIN_PAST and after >= MIN_AFTER


def _describe_step(
    history: PartHistory, change: LevelChange, population: HistoryPopulation, *, low_is_bad: bool
) -> PartChange:
    marks = list_marks(history, change.index)
    return PartChange(
        node=history.node,
        part=history.part,
        verdict=Verdict.WARN if change.size > 0 else Verdict.PASS,
        kind=STEP,
        size=change.size,
        before=median(history.values[change.before : change.index]),
        after=median(history.values[change.index :]),
        day=_find_day(history, change.index),
        runs=len(history.values) - change.index,
        marks=marks,
        why=_describe_mark(marks[0], population, low_is_bad=low_is_bad) if marks else "",
    )


def _describe_mark(mark: MarkChange, population: HistoryPopulation, *, low_is_bad: bool) -> str:
    """Say what a *mark* did to the parts that have it: not what one of them may have hidden."""
    effect = population.effects.get(mark)
    if effect is None:
        return f"with {mark}, which too few other parts have to compare"
    size = (effect.factor - 1) * (-1 if low_is_bad else 1)
    changed = f"{format_percent(abs(size))} {'worse' if size > 0 else 'better'}"
    if abs(size) <= SCREEN_SCORE * effect.error:
        changed = "what they were"
    return f"with {mark}; {format_count(effect.parts, 'part')} with it are {changed} in the median"


def _is_rather_a_line(history: PartHistory, change: LevelChange, slope: Slope) -> bool:
    level = slope.level - slope.middle * slope.last
    line = (
        abs(value - level - slope.middle * time / DAY_SECONDS)
        for time, value in zip(history.times, history.values, strict=True)
    )
    halves = history.values[: change.index], history.values[change.index :]
    levels = (abs(value - median(half)) for half in halves for value in half)
    return sum(line) < sum(levels)


def _describe_trend(
    history: PartHistory, slope: Slope, least: float, *, low_is_bad: bool
) -> PartChange | None:
    centre = median(history.values)
    size = slope.change / abs(centre) * (-1 if low_is_bad else 1) if centre else 0.0
    if size < max(least, SCREEN_SCORE * history.taken_error):
        return None
    return PartChange(
        node=history.node,
        part=history.part,
        verdict=Verdict.WARN,
        kind=TREND,
        size=size,
        before=slope.level - slope.change,
        after=slope.level,
        day=slope.last,
        runs=len(history.values),
        crossing=project_crossing(slope, history.limit) if history.limit is not None else None,
    )


def describe_shared(shared: SharedChange) -> str:
    """Say what many parts have in common."""
    side = "worse" if shared.size > 0 else "better"
    parts = f"{shared.changed} of {format_count(shared.compared, 'part')}"
    by = f"{format_percent(shared.size)} {side}"
    if shared.mark:
        marks = " and ".join(map(str, (shared.mark, *shared.along)))
        return f"rollout: {parts} with {marks} became {by}: not a fault of the parts"
    when = f"{'around' if shared.kind == STEP else 'in a trend until'} {format_date(shared.day)}"
    return f"{parts} became {by} {when}: look for what they share, such as cooling or software"


def format_crossing(crossing: Crossing) -> str:
    """Print when a limit is crossed, with its uncertainty."""
    day, early = format_date(crossing.day), format_date(crossing.earliest)
    late = format_date(crossing.latest) if crossing.latest is not None else "open"
    return f"crosses its limit about {day} ({early} to {late})"


def format_date(day: float) -> str:
    """Print days since 1970 as a date (UTC)."""
    farthest = date.max.toordinal()
    return date.fromordinal(min(farthest, EPOCH_ORDINAL + int(day))).isoformat()
