"""The sections on peers, the past, what is next and what it is worth; or what is missing."""

from __future__ import annotations

from msgspec.structs import replace

from hpcverify.insight.judgement import FleetJudgement
from hpcverify.insight.outlook import FleetOutlook
from hpcverify_reports.outlook import MAX_FIGURES, MAX_FOLDED_FIGURES, build_outlook
from hpcverify_reports.tables import PageSection
from tests.reports import fleets

OUTLOOK = fleets.foresee(None)


def build(judgement: FleetJudgement | None, error: str = "") -> tuple[PageSection, PageSection]:
    """Build the sections on peers and the past; one node has a page."""
    outlook = fleets.foresee(judgement, judgement_error=error)
    peers, past, _, _ = build_outlook(outlook, {fleets.name_of(44): "nodes/n/idle.html"})
    return peers, past


def build_next(outlook: FleetOutlook) -> PageSection:
    """Build the section on the nodes that are due; one of them has a page."""
    return build_outlook(outlook, {fleets.name_of(5): "nodes/n/idle.html"})[2]


def texts(section: PageSection) -> list[list[str]]:
    """List the rows of the table of *section*: the texts of its cells."""
    return [[cell.text for cell in row.cells] for table in section.tables for row in table.rows]


def test_an_outlier_is_named_with_its_distance_its_first_night_and_its_cause() -> None:
    peers, _ = build(fleets.judge())
    part, worse, since, cause = peers.tables[0].rows[1].cells

    assert (part.text, part.href) == ("gpu-r002-n13 GPU 3", "nodes/n/idle.html")
    assert worse.text == f"4.6 % {fleets.GEMM}"
    assert (since.text, since.note) == ("2026-11-14", "(6 nights)")
    assert cause.text.startswith("throttles by heat")
    assert part.icon is not None
    assert part.icon.key == "warn"


def test_a_column_in_which_nothing_is_known_is_left_out() -> None:
    switch, *_ = fleets.judge().outliers
    peers, _ = build(fleets.judge(outliers=(switch,)))

    assert [column.head for column in peers.tables[0].columns] == [
        *("Outlier", "Worse than its peers", "Since"),
    ]


def test_a_change_is_shown_though_the_node_has_no_peers() -> None:
    _, past = build(fleets.judge(outliers=(), unconfirmed=(), metrics=(), screened=0))

    assert len(texts(past)) == 2


def test_a_page_has_no_more_pictures_than_can_be_looked_at() -> None:
    slow = fleets.judge().outliers[1]
    names = [f"gemm size{i}" for i in range(100)]
    judgement = fleets.judge(
        metrics=tuple(fleets.distribute(name, "TFLOP/s", 700.0, 0.01, 500.0) for name in names),
        outliers=tuple(
            replace(slow, metric=name, node=f"n{i}", name=f"n{i} GPU 3")
            for i, name in enumerate(names[:50])
        ),
    )
    peers, _ = build(judgement)

    assert len(peers.pictures) == MAX_FIGURES
    assert len(peers.folded_pictures) == MAX_FOLDED_FIGURES


def test_a_part_that_stands_out_in_many_metrics_has_one_open_picture() -> None:
    slow = fleets.judge().outliers[1]
    names = [f"gemm size{i}" for i in range(12)]
    judgement = fleets.judge(
        metrics=tuple(fleets.distribute(name, "TFLOP/s", 700.0, 0.01, 500.0) for name in names),
        outliers=tuple(replace(slow, metric=name) for name in names),
    )
    peers, _ = build(judgement)

    assert (len(peers.pictures), len(peers.folded_pictures)) == (1, 11)


def test_what_is_said_of_one_part_is_one_row_with_a_line_for_each_metric() -> None:
    before = fleets.judge()
    switch, slow, _ = before.outliers
    worse = replace(slow, metric=fleets.COPIES, distance=0.3, cause="")
    trend, _ = before.changes
    faded = replace(trend, metric=fleets.GEMM, size=0.02)
    peers, past = build(fleets.judge(outliers=(worse, switch, slow), changes=(trend, faded)))

    first, *_ = texts(peers)
    assert first[1] == f"30 % {fleets.COPIES}\n4.6 % {fleets.GEMM}"
    assert first[3].startswith("throttles by heat")
    assert (peers.count, past.count) == (2, 1)
    assert len(texts(past)[0][1].splitlines()) == 2
    assert texts(past)[0][2] == trend.why


def test_a_fleet_in_which_nobody_stands_out_says_so() -> None:
    peers, past = build(fleets.judge(outliers=(), changes=(), notes=(), unconfirmed=()))

    assert peers.intro[0].endswith("No part, node or place is an outlier.")
    assert past.intro == ("No part is worse than it was.",)
    assert not texts(peers) + texts(past)


def test_without_a_judgement_the_page_says_which_command_makes_one() -> None:
    never, without_duckdb = build(None), build(FleetJudgement(night=fleets.judge().night))

    for section in (*never, *without_duckdb):
        assert "hpcverify fleet collect" in section.intro[0]
        assert not section.pictures


def test_a_judgement_that_cannot_be_read_is_named_in_both_sections() -> None:
    for section in build(None, "judgement.json is damaged"):
        assert section.intro == ("judgement.json is damaged",)


def test_a_node_that_is_due_has_its_risk_and_why_it_is_next() -> None:
    section = build_next(OUTLOOK)
    suspect, returned, *_ = texts(section)

    assert suspect[1:] == ["1.0x", "", "suspect: nvlink: GPU 0 link 7 is down"]
    assert returned[1:3] == ["9.3x", "came back 26 h ago; 3 outages in 90 days"]
    assert section.tables[0].rows[1].cells[0].href == "nodes/n/idle.html"
    assert OUTLOOK.judged_by in section.intro[1]


def test_all_that_are_due_are_counted_though_not_all_are_listed() -> None:
    section = build_next(replace(OUTLOOK, due_count=900))

    assert section.count == 900
    assert section.tables[0].more == "and 892 more: hpcverify report --fleet --format json"


def test_a_fleet_of_which_nobody_is_due_says_so() -> None:
    section = build_next(replace(OUTLOOK, due=(), due_count=0))

    assert section.intro == (
        "No node is due: all were verified lately, are being verified or are held.",
    )
    assert not texts(section)


def test_without_a_history_there_is_no_figure() -> None:
    few = replace(OUTLOOK.reliability.reliability, outages=1, failure_rate=None, share_out=None)
    worth = replace(OUTLOOK.reliability, reliability=few)
    *_, section = build_outlook(replace(OUTLOOK, reliability=worth), {})

    assert section.intro[0].startswith("No history yet: 1 failure of 64 nodes")
    assert (texts(section), section.facts, section.notes) == ([], (), ())
