"""
Judge the past of each part of a fleet in one metric: who changed, and what did all of them?

Each run is divided by what the fleet reached that night (`levels`). The last three and the last
five runs are compared with the 30 before them and with the first ten: in medians, with the spread
(MAD) of the runs of most parts, or of this one if it has more. A change is one that two runs in a
row show, and that chance does not make in any series of the fleet (Benjamini and Hochberg, as
between peers): neither by that spread, nor by single runs that are as far now and then.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date
from itertools import pairwise

from msgspec import Struct
from msgspec.structs import replace

from hpcverify.model import Verdict
from hpcverify.peers.rule import FALSE_SHARE, SCREEN_SCORE
from hpcverify.stats import (
    MAD_SCALE,
    MEDIAN_ERROR,
    compute_binomial_tail,
    compute_student_tail,
    find_mad,
    median,
)
from hpcverify.trends.levels import (
    FleetLevels,
    MarkChange,
    PartHistory,
    divide,
    list_mark_changes,
    list_mark_periods,
    measure_levels,
)
from hpcverify.trends.slope import Crossing, Slope, find_slope, project_crossing
from hpcverify.units import DAY_SECONDS, format_count, format_percent

LAST_RUNS = (3, 5)
"""The last runs say what a part is."""
RUNS_BEFORE, FIRST_RUNS, MIN_BEFORE = 30, 10, 7
"""The runs just before say what it was, and the first ones, which a slow drift has not reached."""
DEFAULT_STEP = 0.0075
"""The least relative change that is worth a word: four times the spread (0.19 %) by which the
halves of six weeks of a GPU differ."""
LEAST_SPREAD = 0.0012
"""No part is believed to repeat itself better; the median of 280 V100 is 0.11 %."""
MIN_RUNS = MIN_BEFORE + LAST_RUNS[0] + 1
"""Runs of a part with a past: those before, and the last ones now and a run ago."""
MARK_RUNS = 2
"""A step is known to so many runs."""
MIN_ROLLOUT = 3
"""Nodes with a new driver, from which on it is known what it does."""
COMPARISONS = 2 * len(LAST_RUNS)
"""Of each series: so many chances of a false change."""
PEAK_SHARE = 0.75
"""A run that is so far along shows the change; single runs that are as far may be as busy."""
STEP, TREND = "step", "trend"
EPOCH_ORDINAL = date(1970, 1, 1).toordinal()


class PartChange(Struct, frozen=True, kw_only=True):
    """A part that is no longer what it was, or many parts that changed alike."""

    node: str = ""
    """Empty if it is about several."""
    nodes: tuple[str, ...] = ()
    """Set if it is about several."""
    part: str
    """As GPU 3, or GPU 0-3; of several nodes, how many parts."""
    metric: str = ""
    """With its check, suite and model."""
    check: str = ""
    measurement: str = ""
    """What *metric* is made of, without suite and model."""
    verdict: Verdict
    kind: str
    """step or trend."""
    size: float
    """Relative to its past; positive is worse."""
    before: float
    """Where the part was before the step, or at the beginning of the trend."""
    after: float
    """Where it is now."""
    unit: str = ""
    day: date
    """When the step was, or the trend's last run."""
    time: float = 0.0
    """The same in days since 1970."""
    runs: int = 0
    """Runs since a step, or of the trend."""
    marks: tuple[MarkChange, ...] = ()
    """What was new on the part with its step."""
    crossing: Crossing | None = None
    """When the trend crosses the limit of the part."""
    why: str = ""
    """When a limit is crossed, and what changed with it: a driver."""


class SharedChange(Struct, frozen=True, kw_only=True):
    """A change that many parts have in common."""

    kind: str = STEP
    """step or trend."""
    marks: tuple[MarkChange, ...] = ()
    """What they have in common; empty: only the time."""
    day: float
    """Days since 1970."""
    size: float
    changed: int
    compared: int
    """The parts with these marks, or all."""


class TrendJudgement(Struct, frozen=True, kw_only=True):
    """What is said of the past of a fleet in one metric."""

    parts: int
    """Parts with a past that is long enough for a step."""
    changes: tuple[PartChange, ...]
    shared: tuple[SharedChange, ...]


class RunPeaks(Struct, frozen=True):
    """How often a single run is far from what is usual: relative distances, in rising order."""

    tops: Sequence[float] = ()
    """Of runs that are farther than those before and after them."""
    sides: Sequence[float] = ()
    """Of the farther one of those two."""
    runs: int = 0

    def find_share(self, distance: float) -> float:
        """
        Find the share p of runs that are at least so far by chance, from those alone in it.

        These are p (1 - p)^2 of all, if p is below a third. A step is not alone in being far.
        """
        beyond = len(self.tops) - bisect_left(self.tops, distance)
        together = len(self.sides) - bisect_left(self.sides, distance)
        alone = (beyond - together) / self.runs if self.runs else 0.0
        share = alone
        for _ in range(20):
            share = min(1 / 3, alone / (1 - share) ** 2)
        return share


def find_peaks(series: Iterable[Sequence[float]]) -> RunPeaks:
    """Find how often a single run is far, in some *series* of ratios."""
    tops, sides, runs = [], [], 0
    for ratios in series:
        if not (usual := median(ratios)):
            continue
        apart = [abs(ratio / usual - 1) for ratio in ratios]
        runs += len(apart)
        for before, run, after in zip(apart, apart[1:], apart[2:], strict=False):
            if run > (beside := max(before, after)):
                tops.append(run)
                sides.append(beside)
    return RunPeaks(sorted(tops), sorted(sides), runs)


class FleetPast(Struct, frozen=True, kw_only=True):
    """The past of a fleet in one metric."""

    histories: Sequence[PartHistory]
    """Of the parts that may have changed, divided by the levels."""
    carriers: Sequence[PartHistory] = ()
    """Parts that ran several drivers or the like: all, or some by chance."""
    weight: float = 1.0
    """So many parts stand for each carrier."""
    levels: FleetLevels
    parts: int
    """All that have a past."""
    spread: float
    """Between the runs of a part, as most have it: relative."""
    peaks: RunPeaks = RunPeaks()
    series: int
    """Series of runs in all metrics: so many chances of a false change."""


FindLimit = Callable[[str, str], "float | None"]
"""Takes a node and its part; returns the limit that the part has, if it has one."""


def find_no_limit(_node: str, _part: str) -> float | None:
    """Say that no part has a limit."""
    return None


def build_past(histories: Iterable[PartHistory]) -> FleetPast:
    """Build the past of a fleet from the runs of all its parts in one metric."""
    every = list(histories)
    levels = measure_levels(every)
    divided = [divide(history, levels) for history in every]
    long = [history for history in divided if len(history.times) >= MIN_RUNS]
    return FleetPast(
        histories=long,
        carriers=[history for history in every if len(list_mark_periods(history)) > 1],
        levels=levels,
        parts=len(long),
        spread=median(MAD_SCALE * find_mad(h.ratios, median(h.ratios)) for h in long)
        if long
        else 0.0,
        peaks=find_peaks(history.ratios for history in long if median(history.ratios)),
        series=max(1, len(long)),
    )


def judge_histories(
    past: FleetPast,
    *,
    low_is_bad: bool,
    least: float = DEFAULT_STEP,
    find_limit: FindLimit = find_no_limit,
) -> TrendJudgement:
    """Judge the past of each part by changes of at least *least* (relative)."""
    sign = -1 if low_is_bad else 1
    # Two runs in a row show a change that chance does not explain.
    chances = [_compute_chance(history.ratios, past, least) for history in past.histories]
    order = sorted(range(len(chances)), key=chances.__getitem__)
    compared = past.series * COMPARISONS
    ranks = (r for r, i in enumerate(order, 1) if chances[i] * compared <= FALSE_SHARE * r)
    changes = [
        _describe_change(past.histories[i], past.levels, sign, find_limit)
        for i in order[: max(ranks, default=0)]
    ]
    return TrendJudgement(
        parts=past.parts,
        changes=tuple(sorted(changes, key=lambda change: -change.size)),
        shared=(*_find_rollouts(past, least, sign), *_find_drifts(past, least, sign)),
    )


def _compute_chance(ratios: Sequence[float], past: FleetPast, least: float) -> float:
    now, then = _find_move(ratios, past, least), _find_move(ratios[:-1], past, least)
    return max(now.chance, then.chance) if now.size * then.size > 0 else 1.0


class _Move(Struct, frozen=True):
    """How far the last runs are from those before, and by which chance."""

    size: float = 0.0
    chance: float = 1.0


def _find_move(ratios: Sequence[float], past: FleetPast, least: float) -> _Move:
    """Find the move of the last *ratios* that chance explains least, if it is one and still is."""
    # The spread of runs from one to the next: neither a step nor a trend is in it.
    apart, usual = [abs(after - before) for before, after in pairwise(ratios)], abs(median(ratios))
    stepwise = MAD_SCALE * median(apart) / math.sqrt(2) / usual if usual else 0.0
    best, spread = _Move(), max(stepwise, past.spread, LEAST_SPREAD)
    for count in LAST_RUNS:
        for before in (ratios[:-count][-RUNS_BEFORE:], ratios[:-count][:FIRST_RUNS]):
            if len(before) < MIN_BEFORE or not (usual := median(before)):
                continue
            apart = [(ratio - usual) / abs(usual) for ratio in ratios[-count:]]
            size, still = median(apart), median(apart[-LAST_RUNS[0] :])
            if abs(size) < least or abs(still) < least or size * still < 0:
                continue
            error = MEDIAN_ERROR * spread * math.sqrt(1 / count + 1 / len(before))
            by_spread = compute_student_tail(abs(size) / error, len(ratios))
            share = past.peaks.find_share(PEAK_SHARE * abs(size))
            beyond = sum(run / size >= PEAK_SHARE for run in apart)
            by_peaks = compute_binomial_tail([share] * count, beyond)
            best = min(best, _Move(size, max(by_spread, by_peaks)), key=lambda move: move.chance)
    return best


def _describe_change(
    history: PartHistory, levels: FleetLevels, sign: int, find_limit: FindLimit = find_no_limit
) -> PartChange:
    ratios, scale = history.ratios, abs(history.levels[-1])
    # The first run of the new level is where two medians explain the runs best.
    split = min(
        range(1, len(ratios) - LAST_RUNS[0] + 1),
        key=lambda split: _sum_misfit(ratios[:split]) + _sum_misfit(ratios[split:]),
    )
    slope = find_slope(history.times, ratios)
    if slope and not _is_rather_a_line(history.times, ratios, split, slope):
        slope = None
    before, after = median(ratios[:split][-RUNS_BEFORE:]), median(ratios[split:][-LAST_RUNS[1] :])
    if slope:
        before, after = slope.level - slope.change, slope.level
    limit = find_limit(history.node, history.part) if slope else None
    # A step is known to two runs, before and after.
    last = min(len(history.values) - 1, split + MARK_RUNS - 1)
    marks = () if slope else list_mark_changes(history, max(0, split - MARK_RUNS), last)
    few = "" if history.list_marks()[-1] in levels.own else ", which too few other parts have"
    time = slope.last if slope else history.times[split] / DAY_SECONDS
    size = sign * (after - before) / abs(before) if before else 0.0
    return PartChange(
        node=history.node,
        part=history.part,
        verdict=Verdict.WARN if size > 0 else Verdict.PASS,
        kind=TREND if slope else STEP,
        size=size,
        before=before * scale,
        after=after * scale,
        day=find_date(time),
        time=time,
        runs=len(ratios) if slope else len(ratios) - split,
        marks=marks,
        crossing=project_crossing(slope, limit / scale) if slope and limit is not None else None,
        why=f"with {' and '.join(map(str, marks))}{few}" if marks else "",
    )


def _sum_misfit(ratios: Sequence[float]) -> float:
    usual = median(ratios)
    return sum(abs(ratio - usual) for ratio in ratios)


def _is_rather_a_line(
    times: Sequence[float], ratios: Sequence[float], split: int, slope: Slope
) -> bool:
    base = slope.level - slope.middle * slope.last
    line = (
        abs(ratio - base - slope.middle * time / DAY_SECONDS)
        for time, ratio in zip(times, ratios, strict=True)
    )
    return sum(line) < _sum_misfit(ratios[:split]) + _sum_misfit(ratios[split:])


def _find_rollouts(past: FleetPast, least: float, sign: int) -> Iterator[SharedChange]:
    """Find the effect of new drivers and the like over all parts that took them."""
    factors: defaultdict[tuple[MarkChange, ...], list[tuple[float, float, str]]] = defaultdict(list)
    for history in past.carriers:
        for (first, last), (new, end) in pairwise(list_mark_periods(history)):
            marks = list_mark_changes(history, last, new)
            before = median(history.values[first : last + 1][-FIRST_RUNS:])
            after = median(history.values[new : end + 1][: LAST_RUNS[1]])
            if marks and before:
                size = sign * (after - before) / abs(before)
                factors[marks].append((size, history.times[new], history.node))
    for marks, found in factors.items():
        sizes = [size for size, _, _ in found]
        usual = median(sizes)
        error = MEDIAN_ERROR * MAD_SCALE * find_mad(sizes, usual) / math.sqrt(len(sizes))
        nodes = {node for _, _, node in found}
        if len(nodes) >= MIN_ROLLOUT and abs(usual) >= max(least, SCREEN_SCORE * error):
            alike = sum(size / usual >= 1 / 2 for size in sizes)
            yield SharedChange(
                marks=marks,
                day=median(time for _, time, _ in found) / DAY_SECONDS,
                size=usual,
                changed=round(alike * past.weight),
                compared=round(len(sizes) * past.weight),
            )


def _find_drifts(past: FleetPast, least: float, sign: int) -> Iterator[SharedChange]:
    """Find whether the fleet as a whole is no longer what it was, driver by driver."""
    for mark in past.levels.own or {None}:
        known = [one for _, one in sorted(past.levels.by_mark[mark].items()) if one.is_known]
        if len(known) < MIN_RUNS:
            continue
        fleet = PartHistory(
            node="",
            part="",
            times=tuple((one.night + 1) * DAY_SECONDS for one in known),
            values=tuple(one.level for one in known),
            levels=(1.0,) * len(known),
        )
        chance = _compute_chance(fleet.ratios, replace(past, spread=0.0), least)
        if chance * past.series * COMPARISONS > FALSE_SHARE:
            continue
        change, parts = _describe_change(fleet, past.levels, sign), max(o.parts for o in known)
        yield SharedChange(
            kind=change.kind, day=change.time, size=change.size, changed=parts, compared=parts
        )


def describe_shared(shared: SharedChange) -> str:
    """Say what many parts have in common."""
    by = f"{format_percent(shared.size)} {'worse' if shared.size > 0 else 'better'}"
    if shared.marks:
        marks = " and ".join(map(str, shared.marks))
        parts = f"{shared.changed} of {format_count(shared.compared, 'part')}"
        return f"rollout: {parts} with {marks} became {by}, which is not a fault of the parts"
    when = f"{'around' if shared.kind == STEP else 'in a trend until'} {find_date(shared.day)}"
    return (
        f"the median of {format_count(shared.compared, 'part')} became {by} {when}. "
        "Fix: check what they share, such as cooling or software"
    )


def format_crossing(crossing: Crossing) -> str:
    """Print when a limit is crossed, with its uncertainty."""
    day, early = find_date(crossing.day), find_date(crossing.earliest)
    late = find_date(crossing.latest) if crossing.latest is not None else "open"
    return f"crosses its limit about {day} ({early} to {late})"


def find_date(day: float) -> date:
    """Find the date (UTC) of days since 1970."""
    return date.fromordinal(min(date.max.toordinal(), EPOCH_ORDINAL + int(day)))
