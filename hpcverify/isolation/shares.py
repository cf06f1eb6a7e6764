"""
Say of a training job whether one of its ranks slows it, from how each spends its steps.

In synchronous training all steps take all ranks as long. Who is slow does not wait: it has
more work of its own, computation or the wait for its input, and less communication, since
the others wait for it there. Ranks are compared with those of the same role: a stage of a
pipeline that has more layers is a matter of how the job was cut, and not of its nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from msgspec import Struct

from hpcverify.isolation.outliers import HALF, find_outliers
from hpcverify.isolation.stragglers import MIN_GAIN
from hpcverify.records.collectives import Straggler


class RankShares(Struct, frozen=True):
    """How one rank spent its steps: seconds, a value for each step."""

    rank: int
    computing: tuple[float, ...]
    communicating: tuple[float, ...]
    """With the wait for others."""
    waiting_for_input: tuple[float, ...] = ()
    role: str = ""
    """Ranks of the same role have the same work, as those of a stage of a pipeline."""

    @property
    def working(self) -> list[float]:
        """What it does without the others, in each step."""
        inputs = self.waiting_for_input or (0.0,) * len(self.computing)
        return [a + b for a, b in zip(self.computing, inputs, strict=True)]


def find_slow_ranks_of_training(shares: Sequence[RankShares]) -> tuple[Straggler, ...]:
    """
    Find the ranks that slow a job, the worst first; empty if there is none.

    The gain is computed as if a step took the longest own work of any rank and what else
    that rank needs: an overlap of the two is taken to stay as it is.
    """
    if not shares:
        return ()
    work = {one.rank: one.working for one in shares}
    excess: dict[int, list[float]] = {}
    for role in {one.role for one in shares}:
        like = [one.rank for one in shares if one.role == role]
        typical = [median(step) for step in zip(*(work[rank] for rank in like), strict=True)]
        for rank in like:
            excess[rank] = [v - middle for v, middle in zip(work[rank], typical, strict=True)]
    slow = find_outliers(excess)
    healed = {rank: [v - slow.get(rank, 0.0) for v in values] for rank, values in work.items()}
    # What a step takes besides the own work of the rank that has most.
    rest = _time_step(shares) - _time_longest(work)
    found = []
    for rank, more in slow.items():
        with_it = _time_longest(healed | {rank: work[rank]})
        gain = (with_it - _time_longest(healed)) / (with_it + rest)
        if gain >= MIN_GAIN:
            found.append(Straggler(rank, _explain(rank, shares), more, gain))
    return tuple(sorted(found, key=lambda one: -one.gain))


def _time_step(shares: Sequence[RankShares]) -> float:
    return median(
        own + with_others
        for one in shares
        for own, with_others in zip(one.working, one.communicating, strict=True)
    )


def _time_longest(work: Mapping[int, Sequence[float]]) -> float:
    """Time the median step, which takes as long as the rank with the most work."""
    longest: list[float] = [max(step) for step in zip(*work.values(), strict=True)]
    return median(longest)


def _explain(rank: int, shares: Sequence[RankShares]) -> str:
    """Say of what a slow rank has more than its like."""
    (mine,) = (one for one in shares if one.rank == rank)
    like = [one for one in shares if one.role == mine.role]
    computing = median(mine.computing) - median(median(one.computing) for one in like)
    working = median(mine.working) - median(median(one.working) for one in like)
    return "waits_for_input" if computing < HALF * working else "computes_slowly"
