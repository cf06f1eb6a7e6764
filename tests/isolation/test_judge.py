"""What a test of a group passes by, what it fails by, and what says nothing."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from hpcverify.isolation.group_tests import GroupOutcome, GroupPurpose, GroupTest
from hpcverify.isolation.judge import GroupJudgement, PeerReference
from hpcverify.records.collectives import CollectiveRun, CollectiveTiming, RankPlace, WrongResult

BIG, SMALL = 2**28, 2**12


def make_run(
    busbw: float, nodes: int = 16, *, operation: str = "all_reduce", size: int = BIG
) -> CollectiveRun:
    return CollectiveRun(
        id="a",
        started="",
        ended="",
        version="",
        ranks=tuple(RankPlace(r, f"n{r}", "cpu") for r in range(nodes)),
        timings=(CollectiveTiming(operation, size, 20, 0.1, 0.1, 0.1, busbw, busbw),),
    )


def judge(
    reference: PeerReference,
    *runs: CollectiveRun | None,
    purpose: GroupPurpose = GroupPurpose.GROUP,
) -> list[GroupJudgement]:
    tests = [
        GroupTest(tuple(place.node for place in run.ranks) if run else ("a", "b"), purpose)
        for run in runs
    ]
    return reference.judge_round(tests, list(runs))


def list_outcomes(judged: list[GroupJudgement]) -> list[GroupOutcome]:
    return [one.outcome for one in judged]


PASSED, FAILED, UNKNOWN = GroupOutcome.PASSED, GroupOutcome.FAILED, GroupOutcome.UNKNOWN


def test_a_group_far_below_the_others_of_its_round_fails() -> None:
    judged = judge(PeerReference(), *(make_run(bw) for bw in (40, 40, 39, 20)))
    assert list_outcomes(judged) == [PASSED, PASSED, PASSED, FAILED]
    assert judged[3].reason == "all_reduce 20 GB/s, 50% of the busbw of other tests"


FORTY = [make_run(40)] * 4
SHORT = [make_run(bw, size=SMALL) for bw in (0.10, 0.11, 0.06, 0.02)]
ROUNDS: dict[str, tuple[list[CollectiveRun], list[CollectiveRun], list[GroupOutcome]]] = {
    # Five bad nodes may be in five of seven groups, and nothing has passed before.
    "a round in which most groups are slow does not pass": (
        [],
        [make_run(bw) for bw in (20, 20, 40, 20, 20, 40, 20)],
        [FAILED, FAILED, PASSED, FAILED, FAILED, PASSED, FAILED],
    ),
    "of two groups the slow one fails": ([], [make_run(40), make_run(25)], [PASSED, FAILED]),
    "groups that differ by a little pass": (
        [],
        [make_run(bw) for bw in (40, 32, 36, 42, 38)],
        [PASSED] * 5,
    ),
    "later rounds are compared with what passed": (
        [*FORTY, make_run(10)],
        [make_run(28), make_run(29)],
        [FAILED, FAILED],
    ),
    "a smaller group must be as fast as larger ones": (FORTY, [make_run(20, 8)], [FAILED]),
    "a smaller group may be faster than larger ones": (FORTY, [make_run(60, 8)], [PASSED]),
    "a larger group may be slower by what its ring is longer": (
        FORTY,
        [make_run(20, 232)],
        [PASSED],
    ),
    "a larger group may not be slower than that": (FORTY, [make_run(12, 233)], [FAILED]),
    "where latency decides far more is allowed": ([], SHORT, [PASSED, PASSED, PASSED, FAILED]),
    "where latency decides groups of another size show nothing": (
        [make_run(0.1, 2, size=SMALL)] * 4,
        [make_run(0.01, 64, size=SMALL)],
        [PASSED],
    ),
    "each operation counts by itself": (FORTY, [make_run(5, operation="broadcast")], [PASSED]),
    "each size counts by itself": (FORTY, [make_run(5, size=2**24)], [PASSED]),
    "what failed is no reference": ([*FORTY[:3], *[make_run(10)] * 3], [make_run(12)], [FAILED]),
}


@pytest.mark.parametrize(("before", "now", "outcomes"), ROUNDS.values(), ids=ROUNDS)
def test_round(
    before: list[CollectiveRun], now: list[CollectiveRun], outcomes: list[GroupOutcome]
) -> None:
    reference = PeerReference()
    judge(reference, *before)
    assert list_outcomes(judge(reference, *now)) == outcomes


def test_nodes_alone_are_compared_with_nodes_alone() -> None:
    """Their adapters do what all nodes' adapters do in a group, or less."""
    reference = PeerReference()
    judge(reference, *[make_run(40)] * 4)
    judged = judge(reference, *[make_run(9, 1)] * 3, make_run(4, 1), purpose=GroupPurpose.INSIDE)
    assert list_outcomes(judged) == [PASSED, PASSED, PASSED, FAILED]


def test_a_slow_cluster_does_not_pass_by_its_own_measure() -> None:
    """All groups are alike, and far below what others published of this platform."""
    slow = make_run(40, 2, size=2**30)
    ranks = tuple(
        RankPlace(number, f"n{number // 8}", f"GPU-{number}", "NVIDIA H200", 400.0)
        for number in range(16)
    )

    judged = judge(PeerReference(), *[replace(slow, ranks=ranks, algorithm="ring")] * 4)

    assert set(list_outcomes(judged)) == {FAILED}
    assert judged[0].reason == "all_reduce 40 GB/s, 18% of the minimum of this platform"


def test_the_worst_of_several_timings_decides() -> None:
    reference = PeerReference()
    both = [
        replace(make_run(40), timings=make_run(40).timings + make_run(bw, size=2**24).timings)
        for bw in (30, 30, 30, 9)
    ]

    judged = judge(reference, *both)

    assert list_outcomes(judged) == [PASSED, PASSED, PASSED, FAILED]
    assert judged[3].reason.startswith("all_reduce 9 GB/s")


def test_a_wrong_result_fails_however_fast_it_came() -> None:
    wrong = WrongResult(3, "all_reduce", BIG, 7, 1, 0, "1", "2")
    judged = judge(PeerReference(), replace(make_run(40), wrong=(wrong,)), make_run(40))

    assert judged[0] == GroupJudgement(
        FAILED, "1 wrong result, the first on n3: all_reduce of 268435456 bytes"
    )
    assert judged[1].outcome is PASSED


def test_a_missing_rank_fails_and_names_its_node() -> None:
    judged = judge(PeerReference(), replace(make_run(40), timings=(), missing=(2, 5)))
    assert judged == [GroupJudgement(FAILED, "no response from n2, n5")]


@pytest.mark.parametrize(
    ("run", "why"),
    [
        (None, "no result"),
        (replace(make_run(40), unable="no NCCL"), "no NCCL"),
        (replace(make_run(40), timings=()), "nothing was measured"),
    ],
)
def test_what_could_not_be_measured_says_nothing(run: CollectiveRun | None, why: str) -> None:
    assert judge(PeerReference(), run) == [GroupJudgement(UNKNOWN, why)]


@pytest.mark.parametrize("nonsense", [0.0, -3.0, float("inf")])
def test_a_bandwidth_that_cannot_be_is_no_measure_for_others(nonsense: float) -> None:
    """The logarithm of it would end the isolation."""
    reference = PeerReference()
    judged = judge(reference, *[make_run(40)] * 3, make_run(nonsense))
    assert list_outcomes(judged)[:3] == [PASSED] * 3
    assert list_outcomes(judge(reference, make_run(39), make_run(nonsense)))[0] is PASSED
