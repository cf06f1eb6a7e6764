"""
An isolation from its first round to its end: plan, test, judge, write down.

The plan is made anew from the journal when an isolation is resumed: the same seed and
outcomes give the same rounds.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from random import Random
from statistics import mean
from typing import Protocol

from msgspec.structs import replace

from hpcverify.errors import StoreError
from hpcverify.isolation.group_tests import (
    GroupOutcome,
    GroupPurpose,
    GroupTest,
    Outcomes,
    Round,
    name_members,
)
from hpcverify.isolation.journal import ConcludedIsolation, Journal, JudgedRound, PlannedRound
from hpcverify.isolation.judge import PeerReference
from hpcverify.isolation.rounds import TestEnd
from hpcverify.isolation.stages import Isolation, isolate, try_pairs
from hpcverify.units import format_count

USUAL_TEST_MINUTES = 1.0
"""The time of a test, until some were measured: start and end of a job, and torch on each rank."""
MAX_TESTS, MAX_TESTS_PER_NODE = 300, 4
"""The limits without a budget: three times as many tests as it takes to find ten nodes of 232."""

PURPOSE_NAMES = {
    GroupPurpose.GROUP: "groups",
    GroupPurpose.PAIRS: "pairs",
    GroupPurpose.HALF: "halves of groups that failed",
    GroupPurpose.PAIR: "suspects with a partner",
    GroupPurpose.REST: "all others",
    GroupPurpose.WHOLE: "repeated",
    GroupPurpose.BETWEEN: "between groups",
    GroupPurpose.SEND: "one way",
    GroupPurpose.INSIDE: "nodes alone",
    GroupPurpose.CONTROL: "controls",
}
"""What an operator reads of a round."""


class VersionError(StoreError):
    """Another version has begun an isolation, and would go on in another way."""


class Tester(Protocol):
    """What tests the rounds."""

    gone: dict[str, str]

    def test_round(self, number: int, tests: Sequence[GroupTest]) -> Sequence[TestEnd]:
        """Test round *number*, or what is left of it."""
        ...

    def read_ends(self, number: int) -> Sequence[TestEnd]:
        """Read what the tests of a round left that has ended."""
        ...


@dataclass
class IsolationRunner:
    """Carries out the isolation that *journal* has, from where it is."""

    journal: Journal
    tester: Tester
    say: Callable[[str], None]
    clock: Callable[[], float] = time.time
    end_reason: str = ""
    """Why it ended before its time, if it did."""
    _number: int = 0
    _reference: PeerReference = field(default_factory=PeerReference)

    def run(self) -> Isolation:
        """
        Test until the cause is known, or the budget is spent.

        Raises:
            Interrupted: it can be resumed.
            VersionError: the journal is of another version.
            StoreError: it cannot be written.
            ActionError: Slurm takes no job, or does not answer.

        """
        plan = self._make_plan()
        self._reference.recall(self.journal.order.usual)
        try:
            tests = next(plan)
            while True:
                tests = plan.send(self._find_outcomes(tests))
        except StopIteration as end:
            isolation: Isolation = end.value
        return isolation

    def conclude(self) -> None:
        """Write down that this is the end, once all that follows from it is done."""
        if self.journal.concluded is None:
            ended = ConcludedIsolation(at=self.clock(), end_reason=self.end_reason)
            self.journal.append(ended)

    def _make_plan(self) -> Generator[Round, Outcomes, Isolation]:
        order, random = self.journal.order, Random(self.journal.order.seed)
        inside, gone = order.inside, self.tester.gone
        if not order.pairs:
            return isolate(order.nodes, order.switches, random, inside=inside, gone=gone)
        paired = set(chain.from_iterable(order.pairs))
        spare = [node for node in order.nodes if node not in paired]
        return try_pairs(order.pairs, spare, order.switches, random, inside=inside, gone=gone)

    def _find_outcomes(self, tests: tuple[GroupTest, ...]) -> Outcomes:
        """Find what comes of the next round: from the journal, or by testing it."""
        if self.end_reason:
            return None
        self._number += 1
        if self._number > len(self.journal.rounds):
            ended = self.journal.concluded
            self.end_reason = ended.end_reason if ended else self._explain_budget(tests)
            if self.end_reason:
                return None
            self.journal.append(PlannedRound(number=self._number, tests=tests))
        record = self.journal.rounds[self._number - 1]
        if record.tests != tests:
            raise VersionError(
                f"{self.journal.folder} was begun by another version, which plans other tests: "
                "begin a new isolation"
            )
        judged = self._replay(record.judged) if record.judged else self._test(tests)
        return [judgement.outcome for judgement in judged.judgements]

    def _replay(self, judged: JudgedRound) -> JudgedRound:
        self.tester.gone.update(judged.gone)
        runs = [end.run for end in self.tester.read_ends(judged.number)]
        self._reference.learn(
            self.journal.rounds[judged.number - 1].tests,
            runs,
            [judgement.outcome for judgement in judged.judgements],
        )
        return judged

    def _test(self, tests: Sequence[GroupTest]) -> JudgedRound:
        before = set(self.tester.gone)
        self.say(self._announce(tests))
        ends = self.tester.test_round(self._number, tests)
        judgements = self._reference.judge_round(tests, [end.run for end in ends])
        judged = JudgedRound(
            number=self._number,
            judgements=tuple(
                replace(judgement, reason=end.reason)
                if end.reason and end.run is None
                else judgement
                for judgement, end in zip(judgements, ends, strict=True)
            ),
            gone={n: why for n, why in self.tester.gone.items() if n not in before},
        )
        self.journal.append(judged)
        for test, judgement in zip(tests, judged.judgements, strict=True):
            if judgement.outcome is GroupOutcome.FAILED:
                self.say(f"  failed: {name_members(test.members)}: {judgement.reason}")
        return judged

    def _announce(self, tests: Sequence[GroupTest]) -> str:
        nodes = {node for test in tests for node in test.members}
        purposes = Counter(PURPOSE_NAMES[test.purpose] for test in tests)
        counts = ", ".join(f"{name}: {count}" for name, count in purposes.items())
        return (
            f"round {self._number}: {format_count(len(tests), 'test')} of "
            f"{format_count(len(nodes), 'node')} ({counts})"
        )

    def _explain_budget(self, tests: Sequence[GroupTest]) -> str:
        budget = self.journal.order.budget
        if not budget:
            return self._explain_bound(tests)
        spent = count_node_minutes(self.journal)
        needed = estimate_node_minutes(tests, estimate_test_minutes(self.journal))
        if spent + needed <= budget:
            return ""
        return (
            f"the budget of {budget:g} node-minutes: {spent:.0f} are spent, and the next round "
            f"would take about {needed:.0f}"
        )

    def _explain_bound(self, tests: Sequence[GroupTest]) -> str:
        most = MAX_TESTS + MAX_TESTS_PER_NODE * len(self.journal.order.nodes)
        done = sum(len(record.tests) for record in self.journal.rounds)
        if done + len(tests) <= most:
            return ""
        return (
            f"{done} tests could not separate the causes, and without --budget it stops at "
            f"{most}: look for what all share, or begin anew with --budget"
        )


def count_node_minutes(journal: Journal) -> float:
    """Count the node-minutes that the jobs of an isolation took."""
    return sum(job.node_minutes for record in journal.rounds for job in record.ended)


def estimate_test_minutes(journal: Journal) -> float:
    """Estimate the minutes of a test from those that have ended."""
    took = [
        job.node_minutes / len(job.nodes)
        for record in journal.rounds
        for job in record.ended
        if job.node_minutes
    ]
    return mean(took) if took else USUAL_TEST_MINUTES


def estimate_node_minutes(tests: Iterable[GroupTest], minutes: float) -> float:
    """Estimate the node-minutes of a round; both directions of a pair are in its job."""
    return sum(map(len, {frozenset(test.members) for test in tests})) * minutes
