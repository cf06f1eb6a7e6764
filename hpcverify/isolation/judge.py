"""
Judge the tests of a round: did the collective of a group run as it should?

A wrong result, and a rank that the others waited for in vain, fail a test. So does a
bandwidth far below that of tests that passed before. Those that nothing like them passed
before are compared with each other: with the best quarter, since most may be bad. Where
it was published what the platform reaches, all have to reach a share of that as well, so
that a slow cluster does not pass by its own measure. What did not come to its end for any
other reason says nothing.

More nodes never make a collective faster, and may make it slower: with n ranks a ring takes
n steps. So a test is compared with those of about as many nodes, or of more. If there are
only smaller ones, it may be slower by as much; and where latency decides, by far more.

Users' traffic makes good groups differ too. How much is estimated from the tests themselves, and
the noisier the network is, the more is allowed: never so much that half the rate passes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import exp, isfinite, log, log2, pi, sqrt
from statistics import median, variance

from msgspec import Struct, field
from msgspec.structs import replace

from hpcverify.isolation.group_tests import GroupOutcome, GroupPurpose, GroupTest
from hpcverify.limits.fabric import find_fabric_floor
from hpcverify.records.collectives import CollectiveRun, CollectiveTiming
from hpcverify.units import GIB, format_count

SLOW_SHARE = 0.75
"""The share of the bandwidth of other groups, on a quiet network. Groups of good nodes differ
by less, by how many they are and where; a link at half its rate, or one adapter of two, is well
below."""
LEAST_SHARE = 0.55
"""On a network however noisy: a link at half its rate must fail."""
SPREADS = 2.0
"""A test is slow if it is below the others by so many standard deviations of theirs. One in 45
good ones is; it takes many such tests until a node is bad."""
DOUBLING_SHARE = 0.85
"""The share left at each doubling of the number of nodes: a longer ring takes more steps."""
USUAL_SPREAD, USUAL_WEIGHT = 0.1, 2
"""The standard deviation of logarithms before any test, and for how many tests it counts."""
ENOUGH_OTHERS = 4
"""Tests of other numbers of nodes, from the nearest on, that are compared with."""
ALL_SLOW_SHARE = 0.65
"""If the best of a round are below this share of what passed before, they are no measure."""
SCALE_SPREAD = 0.2
"""How well the bandwidth of one number of nodes follows from that of another: the standard
deviation of the logarithm."""
LATENCY_SHARE = 0.35
LATENCY_BYTES = 2**20
"""A collective of less than this is a matter of latency, which noise and distance change."""
MIN_COMPARED_TESTS = 2
"""Fewer tests cannot be compared with each other."""
JUDGED_OPERATION = "all_reduce"
"""What the figures are of."""
JUDGED_BYTES = GIB
"""From this size on, an all-reduce between nodes comes near its full bandwidth."""


class _GroupKind(Struct, frozen=True):
    """What makes timings comparable."""

    operation: str
    size: int
    inside: bool
    """Whether each node was alone."""
    scale: int
    """About log2 of the number of nodes."""

    def is_like(self, other: _GroupKind) -> bool:
        """Whether it is the same but for the number of nodes."""
        return replace(self, scale=other.scale) == other

    def allow(self, other: _GroupKind) -> float:
        """Say what share of the bandwidth of an *other* number of nodes is well."""
        return DOUBLING_SHARE ** max(0, self.scale - other.scale)


class GroupJudgement(Struct, frozen=True):
    """What came of a test, and why."""

    outcome: GroupOutcome
    reason: str
    """One line; for a test that passed, its bandwidth."""


class PairSpeed(Struct, frozen=True):
    """What pairs of nodes usually reach."""

    operation: str
    size: int
    busbw: float


class PeerReference(Struct):
    """What tests that passed have reached."""

    passed: dict[_GroupKind, list[float]] = field(default_factory=dict)

    def judge_round(
        self, tests: Sequence[GroupTest], runs: Sequence[CollectiveRun | None]
    ) -> list[GroupJudgement]:
        """Judge the *tests* of a round by their *runs*; None is one that left no document."""
        fresh: dict[_GroupKind, list[float]] = {}
        for test, run in zip(tests, runs, strict=True):
            if run is None:
                continue
            for timing in run.timings:
                values = fresh.setdefault(_find_kind(test, run, timing), [])
                values += [timing.busbw] if _is_rate(timing) else []
        goals = {kind: self._choose_goal(kind, fresh) for kind in fresh}
        judged = [self._judge(*both, goals) for both in zip(tests, runs, strict=True)]
        self.learn(tests, runs, [judgement.outcome for judgement in judged])
        return judged

    def learn(
        self,
        tests: Sequence[GroupTest],
        runs: Sequence[CollectiveRun | None],
        outcomes: Sequence[GroupOutcome],
    ) -> None:
        """Take passed *tests* for comparison, and all controls, which show how tests vary."""
        for test, run, outcome in zip(tests, runs, outcomes, strict=True):
            is_control = (
                test.purpose is GroupPurpose.CONTROL and outcome is not GroupOutcome.UNKNOWN
            )
            if run and (outcome is GroupOutcome.PASSED or is_control):
                for timing in filter(_is_rate, run.timings):
                    self.passed.setdefault(_find_kind(test, run, timing), []).append(timing.busbw)

    def recall(self, usual: Iterable[PairSpeed]) -> None:
        """Take what pairs usually reached in earlier sweeps for a test that passed."""
        for speed in usual:
            kind = _GroupKind(speed.operation, speed.size, inside=False, scale=1)
            self.passed.setdefault(kind, []).append(speed.busbw)

    def _choose_goal(
        self, kind: _GroupKind, fresh: Mapping[_GroupKind, Sequence[float]]
    ) -> tuple[float, float]:
        """Choose the busbw that tests of a *kind* are compared with, and the least share of it."""
        known = self.passed.get(kind, [])
        if kind.size < LATENCY_BYTES:
            values = fresh[kind]
            best = _find_best(values) if len(values) >= MIN_COMPARED_TESTS else 0.0
            return median(known) if known else best, LATENCY_SHARE
        others = self._list_others(kind)
        if not known:
            same = [
                other for other in fresh if other == kind or (other.is_like(kind) and not others)
            ]
            values = [value * kind.allow(other) for other in same for value in fresh[other]]
            known = self._choose_alike(values) if len(values) >= MIN_COMPARED_TESTS else []
            if others and known and median(known) < ALL_SLOW_SHARE * median(others):
                known = []  # all of them are slow
        if not others or not known:
            reached = known or others
            return (median(reached), self._choose_share(reached)) if reached else (0.0, SLOW_SHARE)
        weight = len(known) / self._estimate_spread(known) ** 2
        doubt = weight * SCALE_SPREAD**2  # one that was fast by chance is no measure
        goal = exp((doubt * log(median(known)) + log(median(others))) / (doubt + 1))
        return goal, self._choose_share(known)

    def _list_others(self, kind: _GroupKind) -> list[float]:
        """List what passed with other numbers of nodes, from the nearest on, as for *kind*."""
        others = [other for other in self.passed if other.is_like(kind) and other != kind]
        others.sort(key=lambda other: (other.scale < kind.scale, abs(other.scale - kind.scale)))
        speeds: list[float] = []
        for other in others:
            if len(speeds) < ENOUGH_OTHERS:
                speeds += [value * kind.allow(other) for value in self.passed[other]]
        return speeds

    def _choose_alike(self, values: Sequence[float]) -> list[float]:
        alike = [value for value in values if value >= SLOW_SHARE * _find_best(values)]
        while True:
            least = self._choose_share(alike) * median(alike)
            more = [value for value in values if value >= least]
            if len(more) <= len(alike):
                return alike
            alike = more

    def _choose_share(self, alike: Sequence[float]) -> float:
        # pi / 2n is the variance of a median of n, in that of one.
        deviations = SPREADS * sqrt(1 + pi / 2 / len(alike))
        spread = self._estimate_spread(alike)
        return min(SLOW_SHARE, max(LEAST_SHARE, exp(-deviations * spread)))

    def _estimate_spread(self, alike: Sequence[float]) -> float:
        """Estimate how much tests of one kind vary: the standard deviation of logarithms."""
        squares, degrees = USUAL_SPREAD**2 * USUAL_WEIGHT, USUAL_WEIGHT
        known = [v for kind, v in self.passed.items() if kind.size >= LATENCY_BYTES]
        for group in (alike, *(speeds for speeds in known if speeds is not alike)):
            if len(group) > 1:
                squares += variance(map(log, group)) * (len(group) - 1)
                degrees += len(group) - 1
        return sqrt(squares / degrees)

    def _judge(
        self,
        test: GroupTest,
        run: CollectiveRun | None,
        goals: Mapping[_GroupKind, tuple[float, float]],
    ) -> GroupJudgement:
        if run is None:
            return GroupJudgement(GroupOutcome.UNKNOWN, "no result")
        places = {place.rank: place for place in run.ranks}
        if run.wrong:
            first = run.wrong[0]
            node = places[first.rank].node
            text = f"{format_count(len(run.wrong), 'wrong result')}, the first on {node}"
            return GroupJudgement(
                GroupOutcome.FAILED, f"{text}: {first.operation} of {first.size} bytes"
            )
        if run.missing:
            nodes = ", ".join(dict.fromkeys(places[rank].node for rank in run.missing))
            return GroupJudgement(GroupOutcome.FAILED, f"no response from {nodes}")
        if run.unable or not run.timings:
            return GroupJudgement(GroupOutcome.UNKNOWN, run.unable or "nothing was measured")
        ratings = []
        for timing in run.timings:
            goal, least = goals[_find_kind(test, run, timing)]
            share, of = timing.busbw / goal if goal else 1.0, "the busbw of other tests"
            floor = floors_of(replace(run, timings=(timing,))).get(timing.operation, 0.0)
            if timing.busbw < floor and share >= least:
                share, least, of = timing.busbw / floor, 1.0, "the minimum of this platform"
            ratings.append((share, least, of, timing))
        share, least, of, worst = min(ratings, key=lambda rating: rating[0] / rating[1])
        speed = f"{worst.operation} {worst.busbw:.4g} GB/s"
        if share < least:
            return GroupJudgement(GroupOutcome.FAILED, f"{speed}, {share:.0%} of {of}")
        return GroupJudgement(GroupOutcome.PASSED, speed)


def _is_rate(timing: CollectiveTiming) -> bool:
    """Whether it says how fast something was: a broken node may write anything."""
    return isfinite(timing.busbw) and timing.busbw > 0


def _find_best(values: Sequence[float]) -> float:
    return sorted(values)[-max(1, len(values) // 4)]


def _find_kind(test: GroupTest, run: CollectiveRun, timing: CollectiveTiming) -> _GroupKind:
    inside = test.purpose is GroupPurpose.INSIDE
    nodes = len({place.node for place in run.ranks})  # some members may be gone
    return _GroupKind(timing.operation, timing.size, inside, round(log2(max(1, nodes))))


def floors_of(run: CollectiveRun) -> dict[str, float]:
    """
    Find the least busbw, in GB/s, of the operations of *run* for which a figure is known.

    Empty unless all ranks have the same part and all nodes the same network, whole nodes
    take part as in the figures, and no smaller message than `JUDGED_BYTES` was measured.
    """
    kinds = {(place.name, place.wire) for place in run.ranks}
    per_node = Counter(place.node for place in run.ranks)
    sizes = [timing.size for timing in run.timings if timing.operation == JUDGED_OPERATION]
    if len(kinds) != 1 or not sizes or min(sizes) < JUDGED_BYTES:
        return {}
    if len(per_node) == 1 or len(set(per_node.values())) != 1:
        return {}
    [(name, wire)] = kinds
    floor = find_fabric_floor(name, max(per_node.values()), wire, run.algorithm)
    return {JUDGED_OPERATION: floor.busbw} if floor else {}
