"""
Judge the past of each part of a fleet in one metric: who changed, and is it the part?

A change on many parts at once is no fault of each: where they have a mark in common, a new driver
or firmware, it is a *rollout*; where they only share the day, or a trend, it is something else that
they share, as cooling. A part that changed where others with the same mark did not is named itself.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from statistics import NormalDist, median

from msgspec import Struct

from hpcverify.model import Verdict
from hpcverify.peers.rule import FALSE_SHARE
from hpcverify.peers.values import MEDIAN_ERROR
from hpcverify.trends.change import DEFAULT_STEP, MIN_AFTER, MIN_PAST, LevelChange, find_changes
from hpcverify.trends.marks import (
    MIN_ROLLOUT,
    ROLLOUT_SHARE,
    HistoryPopulation,
    MarkChange,
    PartHistory,
    count_population,
    find_mark,
    find_mark_effects,
    list_all_marks,
    list_marks,
)
from hpcverify.trends.slope import CONFIDENCE, Crossing, Slope, find_slope, project_crossing
from hpcverify.units import format_count, format_percent

SHARED_SHARE, MIN_SHARED = 0.2, 5
"""Of all parts that ran around that day, so many changed alike."""
SAME_DAYS = 2.0
LASTING_RUNS = 5
"""The last runs, which say whether a change is still there."""
DAY_SECONDS = 86400.0
STEP, TREND = "step", "trend"
MUCH_MORE = 2.0
"""A part that changed so many times as much as the others has a reason of its own."""
EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
NORMAL = NormalDist()
CONFIDENCE_SCORE = NORMAL.inv_cdf((1 + CONFIDENCE) / 2)


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

    If *histories* are those that a screen has chosen, *population* is what it chose from. Then
    changes that chance explains among so many series are none either.
    """
    whole = population or count_population(histories)
    slopes = {id(h): s for h in histories if (s := find_slope(h.times, h.values))}
    found = [
        (h, c)
        for h in histories
        if (c := find_lasting_step(h, least, low_is_bad=low_is_bad))
        and (id(h) not in slopes or not _is_rather_a_line(h, c, slopes[id(h)]))
        and not (population and _is_step_by_chance(h, c, population))
    ]
    shared = [*_find_rollouts(found, whole), *_find_shared_days(histories, found, population)]
    single = [(h, c) for h, c in found if not any(_explains(one, h, c) for one in shared)]
    alike = Counter((mark, c.size > 0) for h, c in found for mark in list_marks(h, c.index))
    stepped = {id(history) for history, _ in found}
    effects = find_mark_effects(histories, whole)
    days = _find_day_effects(shared, low_is_bad=low_is_bad)
    steps = [_describe_step(history, change, whole, alike) for history, change in single]
    trends = [
        trend
        for history in histories
        if id(history) in slopes.keys() - stepped
        and (slope := _find_own_slope(history, slopes[id(history)], effects, days))
        and not (population and _is_slope_by_chance(slope, population))
        and (trend := _describe_trend(history, slope, least, low_is_bad=low_is_bad))
    ]
    if alike_trend := _find_shared_trend(trends, whole):
        shared.append(alike_trend)
        trends = [trend for trend in trends if trend.size > MUCH_MORE * alike_trend.size]
    changes = sorted([*steps, *trends], key=lambda change: -change.size)
    return TrendJudgement(parts=whole.parts, changes=tuple(changes), shared=tuple(shared))


def _is_step_by_chance(
    history: PartHistory, change: LevelChange, population: HistoryPopulation
) -> bool:
    """Whether normal values with the spread of the runs make such a step in one of the series."""
    spread = max(abs(change.size / change.score), population.spread)
    after = min(LASTING_RUNS, len(history.values) - change.index)
    error = MEDIAN_ERROR * spread * math.sqrt(1 / change.index + 1 / after)
    return _is_by_chance(abs(change.size) / error, population.series)


def _is_slope_by_chance(slope: Slope, population: HistoryPopulation) -> bool:
    """Whether such a slope is among those that chance makes of so many series."""
    error = (slope.most - slope.least) / (2 * CONFIDENCE_SCORE)
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
    begin = changes[-2].index if len(changes) > 1 else 0
    before = median(values[begin : last.index])
    now = median(values[max(last.index, len(values) - LASTING_RUNS) :])
    lasting = (now - before) / abs(before)
    return last if lasting * last.size > 0 and abs(lasting) >= least else None


def _find_day(history: PartHistory, index: int) -> float:
    return history.times[index] / DAY_SECONDS


Found = Sequence[tuple[PartHistory, LevelChange]]


def _find_rollouts(found: Found, population: HistoryPopulation) -> Iterable[SharedChange]:
    """Find the marks after which most parts changed alike."""
    by_mark: dict[tuple[MarkChange, bool], list[tuple[PartHistory, LevelChange]]] = {}
    for history, change in found:
        for mark in list_marks(history, change.index):
            by_mark.setdefault((mark, change.size > 0), []).append((history, change))
    for (mark, _), alike in sorted(by_mark.items()):
        carriers = population.carriers.get(mark, 0)
        nodes = len({history.node for history, _ in alike})
        if nodes >= MIN_ROLLOUT and len(alike) * population.weight >= ROLLOUT_SHARE * carriers:
            yield _describe_shared(mark, alike, carriers, population.weight)


def _find_shared_days(
    histories: Sequence[PartHistory], found: Found, population: HistoryPopulation | None
) -> Iterable[SharedChange]:
    """Find the days around which many parts changed alike, with no new mark."""
    weight = population.weight if population else 1.0
    rest = [(h, c) for h, c in found if not list_marks(h, c.index)]
    while rest:
        crowds = ([(h, c) for h, c in rest if _is_near(h, c, *one)] for one in rest)
        crowd = max(crowds, key=len)
        day = median(_find_day(history, change.index) for history, change in crowd)
        ran = population.parts if population else sum(_ran_around(h, day) for h in histories)
        if len(crowd) * weight < max(MIN_SHARED, SHARED_SHARE * ran):
            return
        yield _describe_shared(None, crowd, ran, weight)
        inside = {id(history) for history, _ in crowd}
        rest = [(history, change) for history, change in rest if id(history) not in inside]


def _find_shared_trend(
    trends: Sequence[PartChange], population: HistoryPopulation
) -> SharedChange | None:
    """Find whether so many parts became worse that it is no wear of each."""
    changed = round(len(trends) * population.weight)
    if changed < max(MIN_SHARED, SHARED_SHARE * population.parts):
        return None
    return SharedChange(
        kind=TREND,
        mark=None,
        day=median(trend.day for trend in trends),
        size=median(trend.size for trend in trends),
        changed=changed,
        compared=population.parts,
    )


def _is_near(
    history: PartHistory, change: LevelChange, other: PartHistory, like: LevelChange
) -> bool:
    """Whether two parts changed alike, at about the same time."""
    apart = _find_day(history, change.index) - _find_day(other, like.index)
    return abs(apart) <= SAME_DAYS and change.size * like.size > 0


def _ran_around(history: PartHistory, day: float) -> bool:
    """Whether a part has a past at *day*, and runs after it."""
    days = [time / DAY_SECONDS for time in history.times]
    before, after = sum(d < day for d in days), sum(d >= day for d in days)
    return before >= MIN_PAST and after >= MIN_AFTER


def _describe_shared(
    mark: MarkChange | None, alike: Found, compared: int, weight: float
) -> SharedChange:
    return SharedChange(
        mark=mark,
        day=median(_find_day(history, change.index) for history, change in alike),
        size=median(change.size for _, change in alike),
        changed=round(len(alike) * weight),
        compared=compared,
    )


def _explains(shared: SharedChange, history: PartHistory, change: LevelChange) -> bool:
    """Whether a step of a part is no more than a *shared* one."""
    if change.size * shared.size < 0 or abs(change.size) > MUCH_MORE * abs(shared.size):
        return False
    marks = list_marks(history, change.index)
    if shared.mark:
        return shared.mark in marks
    return not marks and abs(_find_day(history, change.index) - shared.day) <= 2 * SAME_DAYS


def _find_day_effects(shared: Iterable[SharedChange], *, low_is_bad: bool) -> dict[float, float]:
    """Find by which factor values usually changed on each day that many parts have in common."""
    sign = -1 if low_is_bad else 1
    return {one.day: 1 + sign * one.size for one in shared if one.mark is None}


def _find_own_slope(
    history: PartHistory,
    slope: Slope,
    effects: Mapping[MarkChange, float],
    days: Mapping[float, float],
) -> Slope | None:
    """
    Find what of the *slope* of a part is left without the *effects* of marks and shared *days*.

    A step that is too small to be found as one, or has too few runs before it, makes a slope.
    Not every part changes with the others: what they gained is not held against one that did
    not, so its slope is never larger than the one that it was measured with.
    """
    changes = [
        (find_mark(history, mark), effects[mark])
        for mark in list_all_marks(history) & effects.keys()
    ]
    seconds = {day * DAY_SECONDS: factor for day, factor in days.items()}
    changes += [(bisect_left(history.times, when), factor) for when, factor in seconds.items()]
    if not changes:
        return slope
    values = list(history.values)
    for index, factor in changes:
        values[:index] = [value * factor for value in values[:index]]
    own = find_slope(history.times, values)
    if own is None or own.change * slope.change < 0:
        return None
    return min(own, slope, key=lambda each: abs(each.change))


def _describe_step(
    history: PartHistory,
    change: LevelChange,
    population: HistoryPopulation,
    alike: Mapping[tuple[MarkChange, bool], int],
) -> PartChange:
    """
    Describe the step of one part, and what its marks say of it.

    *alike* counts the steps with each mark, to the worse and to the better.
    """
    marks = list_marks(history, change.index)
    why = ""
    if marks:
        changed = round(alike[marks[0], change.size > 0] * population.weight)
        steady = population.carriers.get(marks[0], 0) - changed
        others = format_count(steady, "other part") if steady > 0 else "no other part"
        why = f"with {marks[0]}, which {others} made without such a change"
    return PartChange(
        node=history.node,
        part=history.part,
        verdict=Verdict.WARN if change.size > 0 else Verdict.PASS,
        kind=STEP,
        size=change.size,
        before=median(history.values[: change.index]),
        after=median(history.values[change.index :]),
        day=_find_day(history, change.index),
        runs=len(history.values) - change.index,
        marks=marks,
        why=why,
    )


def _is_rather_a_line(history: PartHistory, change: LevelChange, slope: Slope) -> bool:
    """Whether the runs are nearer to a line than to two levels."""
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
    """Describe a trend to the worse, with the day on which it crosses the limit of the part."""
    centre = median(history.values)
    size = slope.change / abs(centre) * (-1 if low_is_bad else 1) if centre else 0.0
    if size < least:
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
        return f"rollout: {parts} with {shared.mark} became {by}: no fault of the parts"
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
