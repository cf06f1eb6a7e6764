"""The sections on peers and the past: who, by how much, since when and why; or what is missing."""

from __future__ import annotations

from msgspec.structs import replace

from hpcverify.insight.judgement import FleetJudgement
from hpcverify_reports.listing import Listing
from hpcverify_reports.standing import MAX_FIGURES, MAX_FOLDED_FIGURES, build_standing
from tests.reports import fleets


def build(judgement: FleetJudgement | None) -> tuple[Listing, Listing]:
    """Build both sections; one node has a page."""
    peers, past = build_standing(judgement, {fleets.name_of(44): "nodes/n/idle.html"})
    return peers, past


def test_an_outlier_is_named_with_its_distance_its_first_night_and_its_cause() -> None:
    peers, _ = build(fleets.judge())
    part = peers.rows[1]

    assert (part.name, part.page) == ("gpu-r002-n13 GPU 3", "nodes/n/idle.html")
    assert part.cells[:2] == (f"4.6 % {fleets.GEMM}", "2026-11-14\n(6 nights)")
    assert part.cells[2].startswith("throttles by heat")
    assert part.icon is not None
    assert part.icon.key == "warn"


def test_a_group_is_named_with_its_kind_and_its_nodes() -> None:
    peers, _ = build(fleets.judge())

    assert peers.rows[0].name == "switch leaf7 (gpu-r001-n[09-12])"


def test_who_stood_out_on_one_night_is_named_but_not_listed() -> None:
    peers, _ = build(fleets.judge())

    assert peers.notes == ("Stood out on one night, and has not run since: gpu-r001-n03 GPU 0.",)
    assert peers.count == 3


def test_metrics_with_outliers_are_drawn_the_worst_first_and_the_others_folded() -> None:
    peers, _ = build(fleets.judge())

    assert [drawn.name for drawn in peers.figures] == [fleets.COPIES, fleets.GEMM]
    assert [drawn.name for drawn in peers.folded_figures] == [fleets.FSYNC]
    assert len(peers.figures[1].marks) == 2
    assert peers.folded_figures[0].caption == "512 parts on 64 nodes, spread 3 %"


def test_a_page_has_no_more_pictures_than_can_be_looked_at() -> None:
    slow = fleets.judge().outliers[1]
    names = [f"gemm size{i}" for i in range(100)]
    judgement = fleets.judge(
        metrics=tuple(fleets.distribute(name, "TFLOP/s", 700.0, 0.01, 500.0) for name in names),
        outliers=tuple(replace(slow, metric=name) for name in names[:50]),
    )
    peers, _ = build(judgement)

    assert len(peers.figures) == MAX_FIGURES
    assert len(peers.folded_figures) == MAX_FOLDED_FIGURES


def test_a_change_has_its_levels_its_day_and_what_is_known_of_it() -> None:
    _, past = build(fleets.judge())
    trend, step = past.rows

    assert trend.cells[0] == f"34 % {fleets.FSYNC}: 6.2 to 8.3 ms, trend until 2026-11-21"
    assert "crosses its limit about 2026-12-09" in trend.cells[1]
    assert step.cells[0] == f"1.2 % {fleets.GEMM}: 702.4 to 694 TFLOP/s, step on 2026-11-17"


def test_what_is_said_of_one_part_is_one_row_with_a_line_for_each_metric() -> None:
    before = fleets.judge()
    switch, slow, _ = before.outliers
    worse = replace(slow, metric=fleets.COPIES, distance=0.3, cause="")
    trend, _ = before.changes
    faded = replace(trend, metric=fleets.GEMM, size=0.02)
    peers, past = build(fleets.judge(outliers=(worse, switch, slow), changes=(trend, faded)))

    assert peers.rows[0].cells[0] == f"30 % {fleets.COPIES}\n4.6 % {fleets.GEMM}"
    assert peers.rows[0].cells[2].startswith("throttles by heat")
    assert (len(peers.rows), len(past.rows)) == (2, 1)
    assert len(past.rows[0].cells[0].splitlines()) == 2
    assert past.rows[0].cells[1] == trend.why


def test_a_rollout_is_told_below_and_names_no_part() -> None:
    _, past = build(fleets.judge())

    assert "rollout: 42 of 63 parts" in past.notes[0]
    assert past.count == 2


def test_a_fleet_in_which_nobody_stands_out_says_so() -> None:
    peers, past = build(fleets.judge(outliers=(), changes=(), notes=(), unconfirmed=()))

    assert peers.intro[0].endswith("No part, node or place stands out from its peers.")
    assert past.intro == ("No part is worse than it was.",)
    assert not peers.rows + past.rows


def test_without_a_judgement_the_page_says_which_command_makes_one() -> None:
    never, without_duckdb = build(None), build(FleetJudgement(night=fleets.judge().night))

    for section in (*never, *without_duckdb):
        assert "hpcverify collect" in section.intro[0]
        assert not section.figures


def test_a_judgement_that_cannot_be_read_is_named_in_both_sections() -> None:
    for section in build_standing(None, {}, "judgement.json is damaged"):
        assert section.intro == ("judgement.json is damaged",)
