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
told apart. Transfers within a node and between nodes are compared apart.

What healing would give back is computed as in the what-if analysis of Lin et al.,
"Understanding Stragglers in Large Model Training" (OSDI 2025): the same steps once more,
with one rank as fast as the median of the others. All other stragglers are
healed on both sides, else two that are equally slow would hide each other.

Where no median stands out, means are asked: of a rank's own work, and of its transfers to
each partner. When a rank arrives is not asked for them: a message that the network lost
makes its healthy receiver late.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from itertools import chain
from statistics import fmean, median, median_low
from typing import TypeVar

from msgspec import Struct

from hpcverify.isolation.outliers import MIN_STEPS, find_outliers, find_unsteady
from hpcverify.records.collectives import (
    RankDelay,
    RankPlace,
    RankSteps,
    Straggler,
    Transfers,
)

MIN_GAIN = 0.05
"""The share of a step's time that is worth a report. Good nodes differ by up to 2 %."""
MIN_OWN_SHARE = 0.2
"""The share of its delay: no network makes a rank slower over its own work."""
MIN_EXCESS = 0.5
"""The share of what all take, over its own work, or in rare delays: less is usual on a busy
machine."""
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
Ranks = frozenset[int]
"""Who is judged as one: a rank, or all ranks of a node."""
Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")
Series = Mapping[int, Sequence[float]]
"""Rank -> a value for each step."""


class _Suspect(Struct, frozen=True):
    ranks: Ranks
    how: str
    seconds: float
    is_certain: bool = True
    """Whether it is this, and not only looks like it."""
    is_steady: bool = True
    """Whether it is slow in most steps, and not only in some, again and again."""


def find_stragglers(
    places: Sequence[RankPlace],
    steps: Sequence[RankSteps],
    transfers: Sequence[Transfers] = (),
) -> tuple[Straggler, ...]:
    """Find who holds all others up, the worst first; empty if nobody stands out."""
    log = _StepLog.build(steps)
    matrix = _Matrix(places, transfers)
    unknown = 2 * max((record.clock_error for record in steps), default=0.0)
    slow = _find_slow_links(matrix, places, unknown)
    named: list[tuple[_Suspect, float]] = []
    if log:
        # Who is late without more work of its own may be late for what it got late.
        explained = frozenset[int]().union(*(suspect.ranks for suspect in slow))
        late = _find_late(log, places)
        late = [other for other in late if other.is_certain or not other.ranks <= explained]
        named += _weigh(late, log.replay)
    known = frozenset[int]().union(*(suspect.ranks for suspect, _ in named))
    named += _weigh([suspect for suspect in slow if not suspect.ranks & known], matrix.replay)
    node_of = {place.rank: place.node for place in places}
    stragglers = []
    for suspect, gain in named:
        first = min(suspect.ranks)
        whole = node_of.get(first, "") if len(suspect.ranks) > 1 else ""
        stragglers.append(Straggler(first, suspect.how, suspect.seconds, gain, whole))
    return tuple(sorted(stragglers, key=lambda straggler: -straggler.gain))


def _weigh(
    suspects: Sequence[_Suspect], replay: Callable[[Collection[_Suspect]], Sequence[float]]
) -> Iterator[tuple[_Suspect, float]]:
    """Yield the *suspects* that are worth a report, and the share of a step that each costs."""
    for suspect in suspects:
        middle = median if suspect.is_steady else fmean
        with_it = middle(replay([other for other in suspects if other is not suspect]))
        gain = 1 - middle(replay(suspects)) / with_it
        if gain >= MIN_GAIN:
            yield suspect, gain


def describe_straggler(straggler: Straggler, places: Sequence[RankPlace]) -> str:
    """Say in one line who it is, what it does and what healing it gives back."""
    place = next((p for p in places if p.rank == straggler.rank), None)
    if straggler.node:
        who = f"node {straggler.node} (all its ranks)"
    else:
        where = f" (node {place.node}, {place.device})" if place else ""
        who = f"rank {straggler.rank}{where}"
    does = HOW_IN_WORDS[straggler.how].format(format_seconds(straggler.seconds))
    return f"{who} {does}: without this delay a step would take {straggler.gain:.0%} less"


def format_seconds(seconds: float) -> str:
    """Print a time with its unit: 41 ms, 180 us, 1.2 s."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} us"


def compute_delays(operation: str, size: int, steps: Sequence[RankSteps]) -> tuple[RankDelay, ...]:
    """Compute how each rank differs from the others: the medians over all *steps*."""
    count = min((len(record.ends) for record in steps), default=0)
    if not count:
        return ()
    first = [min(record.arrivals[i] for record in steps) for i in range(count)]
    last = [max(record.arrivals[i] for record in steps) for i in range(count)]
    return tuple(
        RankDelay(
            rank=record.rank,
            operation=operation,
            size=size,
            arrival=median(record.arrivals[i] - first[i] for i in range(count)),
            inside=median(max(0.0, record.ends[i] - last[i]) for i in range(count)),
            clock_error=record.clock_error,
        )
        for record in steps
    )


class _StepLog(Struct, frozen=True):
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
        count = min((len(record.ends) for record in steps), default=0)
        if count <= MIN_STEPS:
            return None
        used = range(1, count)  # nobody knows when the work before the first began
        last = [max(record.arrivals[i] for record in steps) for i in range(count)]
        done = [median(record.ends[i] for record in steps) for i in range(count)]
        return cls(
            {record.rank: [record.arrivals[i] - done[i - 1] for i in used] for record in steps},
            {
                record.rank: [record.arrivals[i] - record.ends[i - 1] for i in used]
                for record in steps
            },
            [done[i] - last[i] for i in used],
            2 * max(record.clock_error for record in steps),
        )

    def replay(self, healed: Collection[_Suspect]) -> list[float]:
        """Return the time of each round with all transfers of *healed* ranks healed."""
        arrivals: Mapping[int, Sequence[float]] = self.arrivals
        for steady in (True, False):
            arrivals = _heal(arrivals, _list_ill(healed, steady=steady), steady=steady)
        last: list[float] = [max(step) for step in zip(*arrivals.values(), strict=True)]
        return [a + b for a, b in zip(last, self.collective, strict=True)]


def _heal(
    series: Mapping[Key, Sequence[float]], ill: Collection[Key], *, steady: bool
) -> dict[Key, Sequence[float]]:
    """Give the *ill* the median times of the others, but keep pauses, which others have too."""
    healed = dict(series)
    well = [values for key, values in series.items() if key not in ill]
    if well and ill:
        typical = [median(step) for step in zip(*well, strict=True)]
        for key in ill:
            more = median(v - middle for v, middle in zip(series[key], typical, strict=True))
            healed[key] = [value - more for value in series[key]] if steady else typical
    return healed


def _list_ill(healed: Collection[_Suspect], *, steady: bool) -> Ranks:
    return frozenset[int]().union(
        *(suspect.ranks for suspect in healed if suspect.is_steady == steady)
    )


def find_slow_ranks(
    series: Series, places: Sequence[RankPlace], min_excess: float = 0.0
) -> dict[Ranks, float]:
    """Find nodes whose ranks are all slow, then single ranks, by at least *min_excess*."""
    typical = [median(step) for step in zip(*series.values(), strict=True)]
    excess = {
        rank: [value - middle for value, middle in zip(values, typical, strict=True)]
        for rank, values in series.items()
    }

    def find_least(values: Sequence[Sequence[float]]) -> list[float]:
        return [min(step) for step in zip(*values, strict=True)]

    least = min_excess * median(typical) if typical else 0.0
    return _judge_nodes_first(excess, places, find_least, lambda units: find_outliers(units, least))


def find_unsteady_ranks(
    series: Mapping[int, Sequence[Sequence[float]]], places: Sequence[RankPlace]
) -> dict[Ranks, float]:
    """Find nodes, and then ranks, with delays that the others have not, with all partners."""
    everyone = [values for own in series.values() for values in own]
    if not everyone or not everyone[0]:
        return {}
    typical = [median(step) for step in zip(*everyone, strict=True)]
    excess = {
        rank: [[v - middle for v, middle in zip(values, typical, strict=True)] for values in own]
        for rank, own in series.items()
    }
    least = MIN_EXCESS * fmean(typical)
    return _judge_nodes_first(
        excess,
        places,
        lambda own: list(chain(*own)),
        lambda own: find_unsteady(own, least),
    )


def _judge_nodes_first(
    excess: Mapping[int, Value],
    places: Sequence[RankPlace],
    join: Callable[[Sequence[Value]], Value],
    find: Callable[[Mapping[Ranks, Value]], Mapping[Ranks, float]],
) -> dict[Ranks, float]:
    excesses: dict[Ranks, float] = {}
    by_node: dict[str, list[int]] = {}
    for place in places:
        if place.rank in excess:
            by_node.setdefault(place.node, []).append(place.rank)
    if any(len(ranks) > 1 for ranks in by_node.values()):
        whole = by_node.values()
        excesses.update(
            find({frozenset(ranks): join([excess[r] for r in ranks]) for ranks in whole})
        )
    left = {
        frozenset([rank]): values
        for rank, values in excess.items()
        if not any(rank in ranks for ranks in excesses)
    }
    excesses.update(find(left))
    return excesses


def _find_late(log: _StepLog, places: Sequence[RankPlace]) -> list[_Suspect]:
    own_work = {rank: median(values) for rank, values in log.work.items()}
    typical = median(own_work.values())
    late: list[_Suspect] = []
    for ranks, more in find_slow_ranks(log.arrivals, places).items():
        if more > log.clock_error:
            own = min(own_work[rank] for rank in ranks) - typical
            late.append(_Suspect(ranks, LATE, more, own > MIN_OWN_SHARE * more))
    steady = find_slow_ranks(log.work, places, MIN_EXCESS)
    unsteady = find_unsteady_ranks({rank: [own] for rank, own in log.work.items()}, places)
    return _keep_first(
        [
            *(suspect for suspect in late if suspect.is_certain),
            *(_Suspect(ranks, LATE, more) for ranks, more in steady.items()),
            *(_Suspect(ranks, LATE, more, is_steady=False) for ranks, more in unsteady.items()),
            *late,
        ]
    )


def _keep_first(suspects: Sequence[_Suspect]) -> list[_Suspect]:
    return [
        suspect
        for i, suspect in enumerate(suspects)
        if not any(suspect.ranks & other.ranks for other in suspects[:i])
    ]


class _Matrix:
    """Who sent to whom, and how long it took in each round."""

    def __init__(self, places: Sequence[RankPlace], transfers: Sequence[Transfers]) -> None:
        node_of = {place.rank: place.node for place in places}
        self.rounds = min((len(record.times) for record in transfers), default=0)
        self.times = {(t.sender, t.receiver): t.times[: self.rounds] for t in transfers}
        kinds: dict[bool, list[Cell]] = {}
        for sender, receiver in self.times:
            is_local = node_of.get(sender) == node_of.get(receiver)
            kinds.setdefault(is_local, []).append((sender, receiver))
        self.kinds = list(kinds.values())
        """Transfers within a node, and between nodes: each is compared with its own kind."""

    def list_times(self, cells: Sequence[Cell], side: int) -> dict[int, list[Sequence[float]]]:
        """List the times of the *cells* of each sender (side 0) or receiver (1)."""
        mine: dict[int, list[Sequence[float]]] = {}
        for cell in cells:
            mine.setdefault(cell[side], []).append(self.times[cell])
        return {rank: partners for rank, partners in mine.items() if len(partners) >= MIN_PARTNERS}

    def list_round_trips(self, cells: Sequence[Cell]) -> dict[int, list[Sequence[float]]]:
        """List the times there and back, of each rank with each partner."""
        mine: dict[int, list[Sequence[float]]] = {}
        for rank, partner in set(cells) & {(b, a) for a, b in cells}:
            ways = zip(self.times[rank, partner], self.times[partner, rank], strict=True)
            mine.setdefault(rank, []).append([there + back for there, back in ways])
        return {rank: partners for rank, partners in mine.items() if len(partners) >= MIN_PARTNERS}

    def summarize(self, times: Mapping[int, Sequence[Sequence[float]]]) -> dict[int, list[float]]:
        """Summarize the *times* of each rank by the lower median over its partners, per round."""
        return {
            rank: [median_low(values[i] for values in partners) for i in range(self.rounds)]
            for rank, partners in times.items()
        }

    def replay(self, healed: Collection[_Suspect]) -> list[float]:
        """
        Repeat all rounds with some ranks *healed*; return what each round takes.

        All their transfers are healed: who is slow to send is often late to confirm what it
        receives, too.
        """
        rounds = [0.0] * self.rounds
        for cells in self.kinds:
            times: dict[Cell, Sequence[float]] = {cell: self.times[cell] for cell in cells}
            for steady in (True, False):
                ill = _list_ill(healed, steady=steady)
                slow = {cell for cell in cells if ill.intersection(cell)}
                times = _heal(times, slow, steady=steady)
            for i, round_times in enumerate(zip(*times.values(), strict=False)):
                rounds[i] += max(round_times)  # all wait for the slowest
        return rounds


def _find_slow_links(
    matrix: _Matrix, places: Sequence[RankPlace], unknown: float
) -> list[_Suspect]:
    slow: list[_Suspect] = []
    for cells in matrix.kinds:
        steady: list[_Suspect] = []
        unsteady: list[_Suspect] = []
        middles: list[Series] = []
        for side, how in enumerate(SIDES):
            times = matrix.list_times(cells, side)
            middles.append(matrix.summarize(times))
            delays = find_slow_ranks(middles[side], places)
            steady += [_Suspect(ranks, how, delay) for ranks, delay in delays.items()]
            delays = find_unsteady_ranks(times, places)
            unsteady += [_Suspect(r, how, delay, is_steady=False) for r, delay in delays.items()]
        for group in (steady, unsteady):
            # A rank that is slow at both has one name: what it is slower at.
            group.sort(key=lambda suspect: -suspect.seconds)
            slow += [suspect for suspect in group if suspect.seconds > unknown]
        # Who is slow there and back: what a wrong clock adds to one way it takes from the other.
        distant = find_slow_ranks(matrix.summarize(matrix.list_round_trips(cells)), places)
        for ranks, more in distant.items():
            there, back = (sum(median(times[rank]) for rank in ranks) for times in middles)
            slow.append(_Suspect(ranks, SIDES[there < back], more))
    return _keep_first(slow)
