"""
Judge the tests of a round: did the collective of a group run as it should?

A wrong result, and a rank that the others waited for in vain, fail a test. So does a
bandwidth far below that of the tests that passed so far; in the first round, below the
median of the round. Where somebody published what the platform reaches, all have to reach a
share of that as well, so that a slow cluster does not pass by its own measure. What did not
come to its end for any other reason says nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from msgspec import Struct, field

from hpcverify.isolation.search import GroupTest, Outcome, Purpose
from hpcverify.records.collectives import CollectiveRun, CollectiveTiming
from hpcverify.units import format_count

SLOW_SHARE = 0.75
"""Of the bandwidth of other groups. Groups of good nodes differ by less, by how many they are
and where; a link at half its rate, or one adapter of two, is well below."""

Key = tuple[str, int, bool]
"""The operation, the size, and whether each node was alone."""


class Judgement(Struct, frozen=True):
    """What came of a test, and why."""

    outcome: Outcome
    reason: str
    """One line; for a test that passed, its bandwidth."""


class Reference(Struct):
    """What tests that passed have reached, and what the platform does."""

    passed: dict[Key, list[float]] = field(default_factory=dict)
    floors: Mapping[str, float] = field(default_factory=dict)
    """Operation -> the least busbw in GB/s, where it is known."""

    def judge_round(
        self, tests: Sequence[GroupTest], runs: Sequence[CollectiveRun | None]
    ) -> list[Judgement]:
        """Judge the *tests* of a round by their *runs*; None is one that left no document."""
        fresh: dict[Key, list[float]] = {}
        for test, run in zip(tests, runs, strict=True):
            for timing in run.timings if run else ():
                fresh.setdefault(_make_key(test, timing), []).append(timing.busbw)
        expected = {key: median(self.passed.get(key) or values) for key, values in fresh.items()}
        judged = [self._judge(*both, expected) for both in zip(tests, runs, strict=True)]
        for test, run, one in zip(tests, runs, judged, strict=True):
            if one.outcome is Outcome.PASSED and run:
                for timing in run.timings:
                    self.passed.setdefault(_make_key(test, timing), []).append(timing.busbw)
        return judged

    def _judge(
        self, test: GroupTest, run: CollectiveRun | None, expected: Mapping[Key, float]
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
        shares = {timing: self._compare(test, timing, expected) for timing in run.timings}
        worst = min(run.timings, key=lambda timing: shares[timing])
        speed = f"{worst.operation} {worst.busbw:.4g} GB/s"
        if shares[worst] < SLOW_SHARE:
            return Judgement(Outcome.FAILED, f"{speed}, {shares[worst]:.0%} of what others reach")
        return Judgement(Outcome.PASSED, speed)

    def _compare(
        self, test: GroupTest, timing: CollectiveTiming, expected: Mapping[Key, float]
    ) -> float:
        """Compute the share that a timing is of what it should be."""
        floor = self.floors.get(timing.operation, 0.0) if test.purpose is not Purpose.INSIDE else 0
        goal = max(expected[_make_key(test, timing)], floor / SLOW_SHARE)
        return timing.busbw / goal if goal else 1.0


def _make_key(test: GroupTest, timing: CollectiveTiming) -> Key:
    return timing.operation, timing.size, test.purpose is Purpose.INSIDE
