"""What ranks left becomes a document that accuses no rank of the silence of most."""

from __future__ import annotations

from hpcverify.records.collectives import CollectiveRun, RankPlace
from hpcverify_checks.collectives.combine import RankReport, combine_reports

PLACES = [RankPlace(rank, f"n{rank}", "cpu") for rank in range(4)]


def combine(*reporting: int, waiting: tuple[int, ...] = ()) -> CollectiveRun:
    """Combine the reports of some of four ranks; nothing else is known of the ranks."""
    reports = {rank: RankReport(place=PLACES[rank]) for rank in reporting}
    return combine_reports(PLACES, reports, [], gone={}, waiting=waiting, algorithm="ring")


def test_the_rank_that_says_nothing_more_is_missing() -> None:
    run = combine(0, 1, 3)

    assert run.reasons == {2: "reported nothing more"}


def test_a_silent_rank_that_waits_for_others_is_not_missing() -> None:
    assert combine(0, 1, waiting=(2,)).missing == (3,)
    assert combine(0, 1, 3, waiting=(2,)).missing == ()
    assert combine(0, 1, 3, waiting=(2,)).unable == "1 of 4 ranks reported nothing more"


def test_if_no_rank_says_anything_more_none_is_missing() -> None:
    run = combine()

    assert run.missing == ()
    assert run.unable == "4 of 4 ranks reported nothing more"
