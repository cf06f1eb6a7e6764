"""Torch's Flight Recorder says where ranks wait, and accuses nobody."""

from __future__ import annotations

from hpcverify.records.collectives import RecordedCollective
from hpcverify_checks.collectives.recorder import describe_records


def record(rank: int, number: int) -> RecordedCollective:
    return RecordedCollective(rank, number, "all_reduce", is_done=False)


def test_who_is_behind_is_named_among_those_that_could_be_asked() -> None:
    text = describe_records({0: record(0, 37), 2: record(2, 36), 3: record(3, 37)})

    assert text == (
        "torch's Flight Recorder: 2 ranks began all_reduce, collective 37 of the group, and "
        "rank 2 did not"
    )


def test_of_ranks_that_are_equally_far_nobody_is_behind() -> None:
    assert describe_records({0: record(0, 37)}).endswith("collective 37 of the group")


def test_without_a_record_nothing_is_said() -> None:
    assert describe_records({}) == ""
