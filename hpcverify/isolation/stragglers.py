"""
Name the rank that holds the others up, and say what healing it would give back.

All ranks do the same work and then meet in a collective, again and again. There all wait
for the last, so how long the collective takes them tells nothing about who is slow; only
who arrives last does. A rank is named if it arrives later than the others, counted from when
the median rank had the last result, by more than is unknown of the clocks. If it takes no
longer over its own work, it was late to get the last result: then the transfers say why.

Who is slow to send or to receive shows where each rank sends to several others in turn: a
slow row of the matrix of transfers is a sender, a column a receiver (C4D, HPCA 2025). One
slow cell is a link, and names no rank; with one partner only, sender and receiver cannot be
told apart. Transfers within a node and between nodes are compared with their like.

What healing would give back is computed as in the what-if analysis of Lin et al.,
"Understanding Stragglers in Large Model Training" (OSDI 2025): the same steps once more,
with one rank as fast as the median of the others. All other stragglers are
healed on both sides, else two that are equally slow would hide each other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from statistics import median, median_low
from typing import TypeVar

from msgspec import Struct

from hpcverify.isolation.outliers import MIN_STEPS, find_outliers
from hpcverify.records.collectives import (
    RankDelay,
    RankPlace,
    RankSteps,
    Straggler,
    Transfers,
)

MIN_GAIN = 0.05
"""Of a step's time: less is not worth a node. Good nodes differ by up to 2 %."""
MIN_OWN_PART = 0.2
"""Of its delay: no network makes a rank slower over its own work."""
MIN_PARTNERS = 2
"""With one, a slow transfer may be due to either."""
LATE = "arrives_late"
HOW_IN_WORDS = {
    LATE: "arrives {} late at each step",
    "sends_slowly": "takes {} longer to send than the others",
    "receives_slowly": "takes {} longer to receive than the others",
    "computes_slowly": "computes {} longer than the others in each step",
    "waits_for_input": "waits {} longer for its input than the others in each step",
}

SIDES = ("sends_slowly", "receives_slowly")
"""How a rank is slow whose row, or whose column, of the matrix is."""

Cell = tuple[int, int]
"""Sender and receiver."""
Ranks = frozenset[int]
"""Who is judged as one: a rank, or all ranks of a node."""
Key = TypeVar("Key", bound=Hashable)
Series = Mapping[int, Sequence[float]]
"""Rank -> a value for each step."""


class _Suspect(Struct, frozen=True):
    ranks: Ranks
    how: str
    seconds: float
    is_certain: bool = True
    """Whether it is this, and not only looks like it."""


def find_stragglers(
    places: Sequence[RankPlace],
    steps: Sequence[RankSteps],
    transfers: Sequence[Transfers] = (),
) -> tuple[Straggler, ...]:
    """Find who holds all others up, the worst first; empty if nobody stands out."""
    log = _StepLog.build(steps)
    late = _find_late(log, places)
    matrix = _Matrix(places, transfers)
    unknown = 2 * max((one.clock_error for one in steps), default=0.0)
    slow = [one for one in _find_slow_links(matrix, places) if one.seconds > unknown]
    # Who is late without more work of its own may be late for what it got late.
    explained = frozenset[int]().union(*(one.ranks for one in slow))
    late = [one for one in late if one.is_certain or not one.ranks <= explained]
    named = _weigh(late, log.replay, places) if log else []
    known = _list_ranks(named, places)
    named += _weigh([one for one in slow if not one.ranks & known], matrix.replay, places)
    return tuple(sorted(named, key=lambda one: -one.gain))


def _weigh(
    suspects: Sequence[_Suspect],
    replay: Callable[[Collection[_Suspect]], float],
    places: Sequence[RankPlace],
) -> list[Straggler]:
    """Name those of *suspects* whose healing gives back enough."""
    named = []
    for suspect in suspects:
        with_it = replay([one for one in suspects if one is not suspect])
        gain = 1 - replay(suspects) / with_it
        if gain >= MIN_GAIN:
            named.append(_build_straggler(suspect, gain, places))
    return named


def _list_ranks(named: Iterable[Straggler], places: Sequence[RankPlace]) -> set[int]:
    whole = {one.node for one in named if one.node}
    return {one.rank for one in named} | {p.rank for p in places if p.node in whole}


def _build_straggler(suspect: _Suspect, gain: float, places: Sequence[RankPlace]) -> Straggler:
    first = min(suspect.ranks)
    node = next((p.node for p in places if p.rank == first), "")
    whole = node if len(suspect.ranks) > 1 else ""
    return Straggler(first, suspect.how, suspect.seconds, gain, whole)


def describe_straggler(straggler: Straggler, places: Sequence[RankPlace]) -> str:
    """Say in one line who it is, what it does and what healing it gives back."""
    place = next((p for p in places if p.rank == straggler.rank), None)
    if straggler.node:
        who = f"node {straggler.node} (all its ranks)"
    else:
        where = f" (node {place.node}, {place.device})" if place else ""
        who = f"rank {straggler.rank}{where}"
    does = HOW_IN_WORDS[straggler.how].format(format_seconds(straggler.seconds))
    return f"{who} {does}: without it a step would take {straggler.gain:.0%} less"


def format_seconds(seconds: float) -> str:
    """Print a time with its unit: 41 ms, 180 us, 1.2 s."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} us"


def compute_delays(operation: str, size: int, steps: Sequence[RankSteps]) -> tuple[RankDelay, ...]:
    """Compute how each rank differs from the others: the medians over all *steps*."""
    count = min((len(one.ends) for one in steps), default=0)
    if not count:
        return ()
    first = [min(one.arrivals[i] for one in steps) for i in range(count)]
    last = [max(one.arrivals[i] for one in steps) for i in range(count)]
    return tuple(
        RankDelay(
            rank=one.rank,
            operation=operation,
            size=size,
            arrival=median(one.arrivals[i] - first[i] for i in range(count)),
            inside=median(max(0.0, one.ends[i] - last[i]) for i in range(count)),
            clock_error=one.clock_error,
        )
        for one in steps
    )


class _StepLog(Struct, frozen=True):
    """Steps as they were."""

    arrivals: dict[int, list[float]]
    """After the median rank had the last result."""
    work: dict[int, list[float]]
    """After the rank itself had it, by its own clock."""
    collective: list[float]
    """From the last arrival to the end of the median rank."""
    clock_error: float
    """What is unknown of the difference between a rank and the others, at most."""

    @classmethod
    def build(cls, steps: Sequence[RankSteps]) -> _StepLog | None:
        """Build it of what all ranks have; None if that is too little."""
        count = min((len(one.ends) for one in steps), default=0)
        if count <= MIN_STEPS:
            return None
        used = range(1, count)  # nobody knows when the work before the first began
        last = [max(one.arrivals[i] for one in steps) for i in range(count)]
        done = [median(one.ends[i] for one in steps) for i in range(count)]
        return cls(
            {one.rank: [one.arrivals[i] - done[i - 1] for i in used] for one in steps},
            {one.rank: [one.arrivals[i] - one.ends[i - 1] for i in used] for one in steps},
            [done[i] - last[i] for i in used],
            2 * max(one.clock_error for one in steps),
        )

    def replay(self, healed: Collection[_Suspect]) -> float:
        """Run all steps once more with some ranks *healed*; return what the median step takes."""
        ill = frozenset[int]().union(*(one.ranks for one in healed))
        arrivals = heal(self.arrivals, ill)
        last: list[float] = [max(step) for step in zip(*arrivals.values(), strict=True)]
        return median(a + b for a, b in zip(last, self.collective, strict=True))

    def measure_own_part(self, ranks: Ranks) -> float:
        """Measure how much longer than the median rank some *ranks* take over their own work."""
        typical = median(median(values) for values in self.work.values())
        return min(median(self.work[rank]) for rank in ranks) - typical


def heal(series: Mapping[Key, Sequence[float]], ill: Collection[Key]) -> dict[Key, Sequence[float]]:
    """
    Take from the times of the *ill* what they take longer than the others, in the median.

    Pauses, which the others have as well, stay.
    """
    well = [values for key, values in series.items() if key not in ill]
    if not well:
        return dict(series)
    typical = [median(step) for step in zip(*well, strict=True)]
    healed = dict(series)
    for key in ill:
        more = median(v - middle for v, middle in zip(series[key], typical, strict=True))
        healed[key] = [value - more for value in series[key]]
    return healed


def find_slow_ranks(series: Series, places: Sequence[RankPlace]) -> dict[Ranks, float]:
    """Find nodes of which all ranks, and then ranks, that take longer than the others."""
    typical = [median(step) for step in zip(*series.values(), strict=True)]
    excess = {
        rank: [value - middle for value, middle in zip(values, typical, strict=True)]
        for rank, values in series.items()
    }
    found: dict[Ranks, float] = {}
    by_node: dict[str, list[int]] = {}
    for place in places:
        if place.rank in excess:
            by_node.setdefault(place.node, []).append(place.rank)
    if any(len(ranks) > 1 for ranks in by_node.values()):
        # The least of its ranks: a node is slow if all of them are.
        least = {
            frozenset(ranks): [min(step) for step in zip(*(excess[r] for r in ranks), strict=True)]
            for ranks in by_node.values()
        }
        found.update(find_outliers(least))
    left = {r: steps for r, steps in excess.items() if not any(r in ranks for ranks in found)}
    found.update({frozenset([r]): more for r, more in find_outliers(left).items()})
    return found


def _find_late(log: _StepLog | None, places: Sequence[RankPlace]) -> list[_Suspect]:
    if log is None:
        return []
    return [
        _Suspect(ranks, LATE, more, log.measure_own_part(ranks) > MIN_OWN_PART * more)
        for ranks, more in find_slow_ranks(log.arrivals, places).items()
        if more > log.clock_error
    ]


class _Matrix:
    """Who sent to whom, and how long it took in each round."""

    def __init__(self, places: Sequence[RankPlace], transfers: Sequence[Transfers]) -> None:
        node_of = {place.rank: place.node for place in places}
        self.rounds = min((len(one.times) for one in transfers), default=0)
        self.times = {(t.sender, t.receiver): t.times[: self.rounds] for t in transfers}
        kinds: dict[bool, list[Cell]] = {}
        for sender, receiver in self.times:
            is_local = node_of.get(sender) == node_of.get(receiver)
            kinds.setdefault(is_local, []).append((sender, receiver))
        self.kinds = list(kinds.values())
        """Transfers within a node, and between nodes: each is compared with its like."""

    def summarize(self, cells: Sequence[Cell], side: int) -> dict[int, list[float]]:
        """
        Summarize the *cells* of each sender (side 0) or receiver (1): a time for each round.

        Of its transfers to several partners, the lower median: most are as slow or slower.
        """
        mine: dict[int, list[Sequence[float]]] = {}
        for cell in cells:
            mine.setdefault(cell[side], []).append(self.times[cell])
        return {
            rank: [median_low(times[i] for times in some) for i in range(self.rounds)]
            for rank, some in mine.items()
            if len(some) >= MIN_PARTNERS
        }

    def replay(self, healed: Collection[_Suspect]) -> float:
        """
        Repeat all rounds with some ranks *healed*; return what the median round takes.

        All their transfers are healed: who is slow to send is often late to confirm what it
        receives, too.
        """
        ill = frozenset[int]().union(*(one.ranks for one in healed))
        rounds = [0.0] * self.rounds
        for cells in self.kinds:
            sick = {cell for cell in cells if ill.intersection(cell)}
            times = heal({cell: self.times[cell] for cell in cells}, sick)
            for i, some in enumerate(zip(*times.values(), strict=False)):
                rounds[i] += max(some)  # all wait for the slowest
        return median(rounds)


def _find_slow_links(matrix: _Matrix, places: Sequence[RankPlace]) -> list[_Suspect]:
    found: list[_Suspect] = []
    for cells in matrix.kinds:
        for side, how in enumerate(SIDES):
            times = matrix.summarize(cells, side)
            found += [
                _Suspect(ranks, how, more) for ranks, more in find_slow_ranks(times, places).items()
            ]
    # A rank that is slow at both has one name: what it is slower at.
    found.sort(key=lambda one: -one.seconds)
    return [
        one
        for i, one in enumerate(found)
        if not any(one.ranks & worse.ranks for worse in found[:i])
    ]
