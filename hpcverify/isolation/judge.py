"""
Judge the tests of a round: did the collective of a group run as it should?

A wrong result, and a rank that the others waited for in vain, fail a test. So does a
bandwidth far below that of tests that passed before. Those that nothing like them passed
before are compared with each other: with the best quarter, since most may be bad. Where
somebody published what the platform reaches, all have to reach a share of that as well, so
that a slow cluster does not pass by its own measure. What did not come to its end for any
other reason says nothing.

More nodes never make a collective faster, and may make it slower: with n ranks a ring takes
n steps. So a test is compared with those of about as many nodes, or of more. If there are
only smaller ones, it may be slower by as much; and where latency decides, by far more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import log2
from statistics import median

from msgspec import Struct, field
from msgspec.structs import replace

from hpcverify.isolation.floors import floors_of
from hpcverify.isolation.search import GroupTest, Outcome, Purpose
from hpcverify.records.collectives import CollectiveRun, CollectiveTiming
from hpcverify.units import format_count

SLOW_SHARE = 0.75
"""Of the bandwidth of other groups. Groups of good nodes differ by less, by how many they are
and where; a link at half its rate, or one adapter of two, is well below."""
DOUBLING_SHARE = 0.85
"""Of that, for each doubling of the number of nodes: a longer ring takes more steps."""
LATENCY_SHARE = 0.35
LATENCY_BYTES = 2**20
"""A collective of less than this is a matter of latency, which noise and distance change."""
MIN_ALIKE = 2
"""So many tests at least can be compared with each other."""


class _Kind(Struct, frozen=True):
    """What makes timings comparable."""

    operation: str
    size: int
    inside: bool
    """Whether each node was alone."""
    scale: int
    """About log2 of the number of nodes."""


class Judgement(Struct, frozen=True):
    """What came of a test, and why."""

    outcome: Outcome
    reason: str
    """One line; for a test that passed, its bandwidth."""


class PairSpeed(Struct, frozen=True):
    """What pairs of nodes usually reach."""

    operation: str
    size: int
    busbw: float


class Reference(Struct):
    """What tests that passed have reached."""

    passed: dict[_Kind, list[float]] = field(default_factory=dict)

    def judge_round(
        self, tests: Sequence[GroupTest], runs: Sequence[CollectiveRun | None]
    ) -> list[Judgement]:
        """Judge the *tests* of a round by their *runs*; None is one that left no document."""
        fresh: dict[_Kind, list[float]] = {}
        for test, run in zip(tests, runs, strict=True):
            if run is None:
                continue
            for timing in run.timings:
                fresh.setdefault(_find_kind(test, run, timing), []).append(timing.busbw)
        goals = {kind: self._choose_goal(kind, values) for kind, values in fresh.items()}
        judged = [self._judge(*both, goals) for both in zip(tests, runs, strict=True)]
        self.learn(tests, runs, [one.outcome for one in judged])
        return judged

    def learn(
        self,
        tests: Sequence[GroupTest],
        runs: Sequence[CollectiveRun | None],
        outcomes: Sequence[Outcome],
    ) -> None:
        """Take those of *tests* that passed as what others are compared with."""
        for test, run, outcome in zip(tests, runs, outcomes, strict=True):
            if outcome is Outcome.PASSED and run:
                for timing in run.timings:
                    self.passed.setdefault(_find_kind(test, run, timing), []).append(timing.busbw)

    def recall(self, usual: Iterable[PairSpeed]) -> None:
        """Take what pairs usually reached in earlier sweeps for a test that passed."""
        for one in usual:
            kind = _Kind(one.operation, one.size, inside=False, scale=1)
            self.passed.setdefault(kind, []).append(one.busbw)

    def _choose_goal(self, kind: _Kind, values: Sequence[float]) -> tuple[float, float]:
        """Choose the busbw that tests of a *kind* are compared with, and the least share of it."""
        is_latency = kind.size < LATENCY_BYTES
        share = LATENCY_SHARE if is_latency else SLOW_SHARE
        if known := self.passed.get(kind):
            return median(known), share
        top = sorted(values)[-max(1, len(values) // 4)] if len(values) >= MIN_ALIKE else 0.0
        like = [
            one
            for one in self.passed
            if (one.operation, one.size, one.inside) == (kind.operation, kind.size, kind.inside)
        ]
        if is_latency or not like:
            return top, share
        nearest = min(like, key=lambda one: (one.scale < kind.scale, abs(one.scale - kind.scale)))
        doublings = max(0, kind.scale - nearest.scale)
        known_goal = median(self.passed[nearest]) * DOUBLING_SHARE**doublings
        return max(top, known_goal), share

    def _judge(
        self,
        test: GroupTest,
        run: CollectiveRun | None,
        goals: Mapping[_Kind, tuple[float, float]],
    ) -> Judgement:
        if run is None:
            return Judgement(Outcome.UNKNOWN, "it left no result")
        places = {place.rank: place for place in run.ranks}
        if run.wrong:
            first = run.wrong[0]
            node = places[first.rank].node
            text = f"{format_count(len(run.wrong), 'wrong result')}, the first on {node}"
            return Judgement(Outcome.FAILED, f"{text}: {first.operation} of {first.size} bytes")
        if run.missing:
            nodes = ", ".join(dict.fromkeys(places[rank].node for rank in run.missing))
            return Judgement(Outcome.FAILED, f"no answer from {nodes}")
        if run.unable or not run.timings:
            return Judgement(Outcome.UNKNOWN, run.unable or "nothing was measured")
        ratings = [self._rate(test, run, timing, goals) for timing in run.timings]
        worst = min(ratings, key=lambda one: one.share / one.least)
        speed = f"{worst.timing.operation} {worst.timing.busbw:.4g} GB/s"
        if worst.share < worst.least:
            return Judgement(Outcome.FAILED, f"{speed}, {worst.share:.0%} of {worst.of}")
        return Judgement(Outcome.PASSED, speed)

    def _rate(
        self,
        test: GroupTest,
        run: CollectiveRun,
        timing: CollectiveTiming,
        goals: Mapping[_Kind, tuple[float, float]],
    ) -> _Rating:
        """Compare a timing with its goal, and with what the platform surely reaches."""
        goal, least = goals[_find_kind(test, run, timing)]
        rating = _Rating(timing, timing.busbw / goal if goal else 1.0, least, "what others reach")
        floor = floors_of(replace(run, timings=(timing,))).get(timing.operation, 0.0)
        if timing.busbw < floor and rating.share >= least:
            return _Rating(timing, timing.busbw / floor, 1.0, "the least of this platform")
        return rating


class _Rating(Struct, frozen=True):
    timing: CollectiveTiming
    share: float
    """Of what it should be."""
    least: float
    of: str


def _find_kind(test: GroupTest, run: CollectiveRun, timing: CollectiveTiming) -> _Kind:
    inside = test.purpose is Purpose.INSIDE
    nodes = len({place.node for place in run.ranks})  # some members may be gone
    return _Kind(timing.operation, timing.size, inside, round(log2(max(1, nodes))))
