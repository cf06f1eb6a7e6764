"""
What the fleet reached each night: each run of a part is divided by it.

A rollout, a drift of all parts or a hot night is in the median of the night, so what is left is
the part's own. Parts with the same driver and firmware are compared with each other, if at least
`MIN_PEERS` of them ran in some night; the others with all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from msgspec import Struct
from msgspec.structs import replace

from hpcverify.peers.rule import MIN_PEERS
from hpcverify.stats import median
from hpcverify.units import DAY_SECONDS

MIN_LEVEL_PARTS = 3
"""Fewer parts, or those of one node, say nothing of a night: half of them may be faulty."""
MIN_PERIOD = 3
"""Runs with a driver, from which on it is known what it does."""

Mark = tuple[str, ...]
"""What a part ran in a run, as its driver and its firmware."""


class MarkChange(Struct, frozen=True, order=True):
    """A new driver, firmware or part, between two runs that both name theirs."""

    field: str
    before: str
    after: str

    def __str__(self) -> str:
        """Print it for people."""
        return f"{self.field} {self.before} to {self.after}"


class PartHistory(Struct, frozen=True, kw_only=True):
    """The runs of one part in one metric, in the order of time."""

    node: str
    part: str
    times: tuple[float, ...]
    """Seconds since 1970."""
    values: tuple[float, ...]
    levels: tuple[float, ...] = ()
    """What the fleet reached in the nights of these runs; empty: not known yet."""
    marks: dict[str, tuple[str, ...]] = {}
    """What the part ran in each run, by name: driver, firmware, the serial number in a slot."""

    @property
    def ratios(self) -> list[float]:
        """The values, each divided by the level of its night."""
        pairs = zip(self.values, self.levels, strict=True)
        return [value / abs(level) for value, level in pairs]

    def list_marks(self) -> list[Mark]:
        """List what the part ran, run by run."""
        return (
            list(zip(*self.marks.values(), strict=True)) if self.marks else [()] * len(self.times)
        )


class NightLevel(Struct, frozen=True):
    """The median of a night, over the parts with one mark or over all."""

    night: int
    """Days since 1970; a night begins at noon, UTC."""
    mark: Mark | None
    """None: of all parts."""
    level: float
    parts: int
    several: bool
    """Whether they are parts of several nodes."""

    @property
    def is_known(self) -> bool:
        """Whether the parts are enough to say what the fleet reached."""
        return self.parts >= MIN_LEVEL_PARTS and self.several


class FleetLevels(Struct, frozen=True):
    """By what each run is divided."""

    by_mark: Mapping[Mark | None, Mapping[int, NightLevel]]
    own: frozenset[Mark]
    """The marks of enough parts to be compared with each other."""
    usual: Mapping[Mark | None, float]
    """The level of most nights."""

    def find(self, night: int, mark: Mark) -> float:
        """Find the level of a *night*; of one with too few parts, that of most nights."""
        source = mark if mark in self.own else None
        level = self.by_mark[source][night]
        return level.level if level.is_known else self.usual[source]


def collect_levels(found: Iterable[NightLevel]) -> FleetLevels:
    """Collect the medians of nights: those of all parts, and those of each mark."""
    by_mark: defaultdict[Mark | None, dict[int, NightLevel]] = defaultdict(dict)
    for level in found:
        by_mark[level.mark][level.night] = level
    own = {
        mark
        for mark, nights in by_mark.items()
        if mark is not None
        and any(one.several and one.parts >= MIN_PEERS for one in nights.values())
    }
    usual = {mark: median(one.level for one in of.values()) for mark, of in by_mark.items()}
    return FleetLevels(by_mark, frozenset(own), usual)


def find_night_number(time: float) -> int:
    """Find the night of a *time* (s since 1970), in days since 1970."""
    return int(time // DAY_SECONDS - (time % DAY_SECONDS < DAY_SECONDS / 2))


def measure_levels(histories: Iterable[PartHistory]) -> FleetLevels:
    """Measure what the parts of *histories* reached in each night."""
    runs: defaultdict[tuple[int, Mark | None], list[tuple[str, float]]] = defaultdict(list)
    for history in histories:
        marks = history.list_marks()
        for time, value, mark in zip(history.times, history.values, marks, strict=True):
            for of in (None, mark):
                runs[find_night_number(time), of].append((history.node, value))
    return collect_levels(
        NightLevel(
            night=night,
            mark=mark,
            level=median(value for _, value in found),
            parts=len(found),
            several=len({node for node, _ in found}) > 1,
        )
        for (night, mark), found in runs.items()
    )


def divide(history: PartHistory, levels: FleetLevels) -> PartHistory:
    """Add to a *history* the levels of its nights; runs of nights in which most have 0 are lost."""
    marks = history.list_marks()
    found = [
        levels.find(find_night_number(time), mark)
        for time, mark in zip(history.times, marks, strict=True)
    ]
    kept = [i for i, level in enumerate(found) if level]

    def keep(values: Sequence[float]) -> tuple[float, ...]:
        return tuple(values[i] for i in kept)

    return replace(
        history,
        times=keep(history.times),
        values=keep(history.values),
        levels=keep(found),
        marks={field: tuple(seen[i] for i in kept) for field, seen in history.marks.items()},
    )


def list_mark_changes(history: PartHistory, first: int, last: int) -> tuple[MarkChange, ...]:
    """List what was new on a part between its runs *first* and *last*."""
    return tuple(
        MarkChange(field, seen[first], seen[last])
        for field, seen in history.marks.items()
        if seen[first] and seen[last] and seen[first] != seen[last]
    )


def list_mark_periods(history: PartHistory) -> list[tuple[int, int]]:
    """List from which run to which a part ran the same, where it did so for enough runs."""
    marks = history.list_marks()
    periods = [list(group) for _, group in groupby(range(len(marks)), lambda i: marks[i])]
    return [(group[0], group[-1]) for group in periods if len(group) >= MIN_PERIOD]
