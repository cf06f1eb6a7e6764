"""The page of the fleet: who needs attention, the map, and nothing that could harm."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import cache

import pytest
from msgspec.structs import replace

from hpcverify.fleet.breaker import Doubt
from hpcverify.fleet.ledger import Malfunction
from hpcverify.fleet.states import Caveat, Node, State
from hpcverify.insight.overview import Overview, build_overview
from hpcverify.model import Maturity, Remedy, Result, Verdict
from hpcverify.records.reported_facts import ReportedFacts
from hpcverify_reports.fleet import (
    MAX_FAULT_NODES,
    MAX_NODE_ROWS,
    MAX_OPEN_RACKS,
    NodeNames,
    lay_out,
    render,
)
from hpcverify_reports.squares import BLOCK_ROWS, PITCH_PIXELS, Block
from hpcverify_reports.tables import MAX_LISTED_ROWS, PageSection, TableCell, TableRow
from tests.reports import fleets
from tests.reports.dom import Dom

BUDGET = 1_500_000
"""Bytes of the page of a thousand nodes by twenty checks."""
HOSTILE = '"><script>alert(1)</script>\u202e'


@cache
def text() -> str:
    shown = fleets.fleet()
    return render(shown, fleets.links(shown))


@cache
def dom() -> Dom:
    return Dom(text())


def of(*nodes: Node, **changes: object) -> Overview:
    """Make the overview of *nodes* of which no run is known."""
    made = build_overview({n.name: n for n in nodes}, (), (), now=fleets.NOW)
    return replace(made, **changes)


def drawn(shown: Overview) -> list[Block]:
    """List the blocks of the map of *shown*."""
    return [block for rack in lay_out(shown, {}).racks for block in rack.blocks]


def test_a_doubted_check_is_named_where_its_nodes_stay_in_service() -> None:
    spared = Node(
        name="n1",
        state=State.SUSPECT,
        checks=("gemm",),
        caveat=Caveat.SPARED,
        caveat_why="gemm fails on 3 of the 4 nodes that ran it",
    )
    why = "gemm fails on 3 of the 4 nodes"
    doubt = Doubt(check="gemm", why=why, nodes=("n1",), until=None)
    head = Dom(render(of(spared, doubts=(doubt,)), {})).text

    assert "1 failed node still in service (a check is doubted, or draining is paused)." in head
    assert "observed only" not in head
    assert "gemm fails on 3 of the 4 nodes" in head
    assert "not for checks in doubt" in head


def test_what_does_not_work_is_named_as_by_the_command_nodes() -> None:
    broken = Malfunction(
        "nightly judgement", datetime.fromtimestamp(fleets.NOW - 7200, UTC), "the disk is full"
    )
    shown = of(Node(name="n1"), malfunctions=(broken,))

    assert facts(shown)["Not working"] == "nightly judgement: not working for 2 h: the disk is full"
    assert "the disk is full" in Dom(render(shown, {})).text
    assert "Not working" not in facts(of(Node(name="n1")))


def test_the_lists_come_before_the_map_which_can_be_skipped() -> None:
    order = [a["id"] for a in dom().every("h2")]

    assert order[0] == "attention"
    assert order[-1] == "map"
    assert "#after-map" in set(dom().values("href"))


def facts(shown: Overview) -> dict[str, str]:
    """Map the facts on top to their texts or to the nodes that they name."""
    return {
        name: ", ".join(node for node, _ in fact.nodes) if isinstance(fact, NodeNames) else fact
        for name, fact in lay_out(shown, {}).facts
    }


def find_section(shown: Overview, name: str) -> PageSection:
    """Find the section called *name*."""
    sections: tuple[PageSection, ...] = lay_out(shown, {}).sections
    return next(section for section in sections if section.id == name)


def rows(shown: Overview, name: str) -> list[TableRow]:
    """List the rows of the table in the section called *name*."""
    (table,) = find_section(shown, name).tables
    return [*table.rows, *table.folded]


def texts(shown: Overview, name: str) -> list[list[str]]:
    """List the texts of the cells of these rows."""
    return [[cell.text for cell in row.cells] for row in rows(shown, name)]


def list_faults(shown: Overview) -> list[tuple[TableCell, ...]]:
    """List the cells of each fault: fault, nodes, finding, what to do, last seen."""
    return [row.cells for row in rows(shown, "attention")]


def test_a_fleet_that_is_verified_and_well_is_green() -> None:
    shown = of(fleets.well("n1"), fleets.well("n2"))
    laid, page = lay_out(shown, {}), Dom(render(shown, {})).text

    assert (laid.headline, laid.icon.key) == ("All 2 nodes passed", "pass")
    assert "Each had a full pass in the last 7 days." in page
    assert "Failures and warnings" not in page
    assert "Out of service" not in page


def by_hand(*names: str, failures: Iterable[tuple[str, float]] = ()) -> Overview:
    """Make the overview of nodes that passed a run that nobody ordered."""
    runs = [fleets.said(name, overall=Verdict.PASS) for name in names]
    return build_overview({}, (), runs, now=fleets.NOW, failures=failures)


def test_nodes_that_nobody_verified_are_not_green_though_they_passed() -> None:
    laid = lay_out(by_hand("n1", "n2"), {})

    assert (laid.headline, laid.icon.key) == ("No node is verified", "skip")
    assert "2 nodes unknown to the controller" in laid.lede
    assert facts(by_hand("n1", "n2"))["Results"] == "2 passed"
    assert texts(by_hand("n1", "n2"), "unverified")[0][1:] == [
        "never",
        "unverified",
        "pass, 2026-11-21 03:21 UTC (3 h ago), not started by the controller",
    ]


def test_some_that_are_not_verified_are_not_green_either() -> None:
    laid = lay_out(of(fleets.well("n1"), Node(name="n2")), {})

    assert laid.headline == "No node failed, but 1 of 2 is not verified"
    assert laid.icon.key == "skip"


def test_nodes_that_have_not_run_yet_have_not_passed() -> None:
    assert lay_out(fleets.bare(), {}).headline == "No node is verified"
    joined = {name: fleets.well(name) for name in ("n1", "n2")} | {"n3": Node(name="n3")}
    ran = [fleets.said("n1"), fleets.said("n2")]
    shown = build_overview(joined, (), ran, now=fleets.NOW)

    assert lay_out(shown, {}).headline == "No node failed, but 1 of 3 is not verified"


def test_a_node_in_service_that_failed_a_run_of_its_own_is_in_the_headline() -> None:
    runs = [fleets.bad("n1", "xid", Verdict.FAIL, Remedy.REBOOT, "Xid 79")]
    laid = lay_out(build_overview({"n1": fleets.well("n1")}, (), runs, now=fleets.NOW), {})

    assert laid.headline == "1 of 1 node failed"
    assert laid.lede == "1 failed node still in service (run not started by the controller)."


def test_runs_that_failed_before_the_newest_one_passed_are_in_the_headline() -> None:
    nights = [("n1", fleets.NOW - night * fleets.DAY) for night in (1, 2, 30)]
    shown = by_hand("n1", "n2", failures=nights)
    laid = lay_out(shown, {})

    assert laid.headline == "1 of 2 nodes failed in the last 7 days"
    assert laid.icon.key == "warn"
    assert shown.rows[0].why == "2 failed runs in the last 7 days"
    assert [row[:2] for row in texts(shown, "lately")] == [["n1", "2"]]


def test_a_full_pass_takes_back_the_failures_before_it() -> None:
    nodes, before = {"n1": fleets.well("n1")}, [("n1", fleets.NOW - fleets.DAY)]
    shown = build_overview(nodes, (), (), now=fleets.NOW, failures=before)

    assert lay_out(shown, {}).headline == "The node passed"


def test_what_is_new_since_yesterday_is_named() -> None:
    new = replace(fleets.well("n1"), state=State.SUSPECT, since=fleets.NOW - 3600)
    old = replace(new, name="n2", since=fleets.NOW - 2 * fleets.DAY)

    assert facts(of(new, old))["New in the last 24 h"] == "n1"
    assert facts(of(old))["New in the last 24 h"] == ""
    assert "New in the last 24 h none" in Dom(render(of(old), {})).text


def test_what_is_new_since_yesterday_has_links() -> None:
    shown = fleets.fleet()
    links = fleets.links(shown)
    new = dict(lay_out(shown, links).facts)["New in the last 24 h"]

    assert isinstance(new, NodeNames)
    assert new.nodes
    assert all(page in links.values() for _, page in new.nodes)


def test_an_empty_fleet_is_a_page_too() -> None:
    assert "No node is known yet" in Dom(render(of(), {})).text


def test_a_tripped_breaker_is_on_top_with_the_fix() -> None:
    head = Dom(render(fleets.fleet(tripped="9 of 64 nodes"), {})).text

    assert "Automatic draining is paused: the breaker tripped (9 of 64 nodes)" in head
    assert "hpcverify fleet breaker reset" in head
    assert "hpcverify fleet breaker reset" not in dom().text


def test_every_square_that_did_not_pass_is_a_sign_with_a_link_and_a_name() -> None:
    signs = re.findall(r'<a href="([^"]*)"><title>([^<]*)</title><use href="#cell-(\w+)"', text())
    gemm = next(sign for sign in signs if ", gemm" in sign[1])

    assert gemm[0] == "nodes/gpu-r001-n06/idle.html#gemm"
    assert gemm[1].startswith("gpu-r001-n06, gemm: fail, GPU 3")
    assert gemm[2] == "fail"
    # Six of checks, three of states.
    assert len(signs) == 9


def test_a_square_lies_in_the_row_of_its_node_and_the_column_of_its_check() -> None:
    block = drawn(fleets.fleet())[0]
    sign = next(sign for sign in block.squares if ", nvlink" in sign.title)
    head = next(head for head in block.heads if head.text == "nvlink")
    name = next(name for name in block.names if name.text == "gpu-r001-n24")

    assert 0 < head.x - block.left - sign.x < PITCH_PIXELS
    assert 0 < name.y - sign.y < PITCH_PIXELS


def test_racks_in_which_nothing_failed_are_folded() -> None:
    racks = lay_out(fleets.fleet(400), {}).racks
    rotten = lay_out(fleets.rotten(400, 50), {}).racks

    assert [rack.name for rack in racks if rack.is_open] == ["gpu-r001", "gpu-r002"]
    assert racks[1].summary == (
        "32 nodes: 1 could not be judged, 1 with warnings, 28 passed, 2 without a run"
    )
    assert len(racks) == len(rotten) == 13
    assert [rack.is_open for rack in rotten] == [True] * MAX_OPEN_RACKS + [False] * 9


def test_nodes_of_one_switch_are_one_rack_whatever_their_names() -> None:
    names = ("n1", "n2", "r2c1", "r3c1")
    some = replace(of(*map(fleets.well, names)), places={"n1": "s7", "r2c1": "s7"})

    racks = lay_out(some, {}).racks

    assert [rack.name for rack in racks] == ["s7", "nxx", "r3"]


def test_what_passed_is_ground_what_did_not_run_is_blank_and_skips_are_strokes() -> None:
    one = fleets.said("n1", "b", verdict=Verdict.SKIP)
    runs = [fleets.said("n1", "a"), one, fleets.said("n2", "c")]
    nodes = {name: fleets.well(name) for name in ("n1", "n2")}
    (block,) = drawn(build_overview(nodes, (), runs, now=fleets.NOW))

    columns = [head.x - block.heads[0].x for head in block.heads]
    assert block.passed_path.split("z")[:-1] == [
        f"M{columns[x]} {y * PITCH_PIXELS}h{PITCH_PIXELS}v{PITCH_PIXELS}h-{PITCH_PIXELS}"
        for x, y in ((0, 0), (1, 0), (0, 1), (3, 1))
    ]
    assert block.skipped_path.count("M") == 1
    assert block.squares == ()


def test_a_bad_node_without_a_bad_check_is_listed_with_its_reason() -> None:
    gone = Node(name="n1", state=State.SUSPECT, reason="sdc: 1 word", verdict="fail")

    ((fault, _, finding, *_),) = list_faults(of(gone))

    assert (fault.text, finding.text) == ("no result is kept", "sdc: 1 word")


def test_equal_faults_are_one_row_with_a_host_list() -> None:
    shown = fleets.rotten(1000, 20)
    (row,) = rows(shown, "attention")
    fault, node, *_ = row.cells

    assert fault.text == "allreduce bf16.sustained"
    assert (node.text, node.note) == ("gpu-r001-n01", "and 999 more")
    assert row.details is not None
    assert row.details.code == "gpu-r[001-031]-n[01-32],gpu-r032-n[01-08]"
    assert len(row.details.table.rows) == MAX_FAULT_NODES
    assert row.details.table.more == "and 980 more: hpcverify report --fleet --format json"


def test_a_fault_of_very_many_nodes_is_no_reason_to_replace_their_parts() -> None:
    laid = lay_out(fleets.rotten(1000, 20), {})

    assert [text for text, _, _ in laid.actions] == [
        "Look for a common cause of allreduce bf16.sustained"
    ]
    ((_, _, _, step, _),) = list_faults(fleets.rotten(1000, 20))
    assert "On 1000 of 1000 nodes" in step.lead


def test_a_check_in_beta_can_do_no_more_than_warn() -> None:
    (judged,) = fleets.list_last(
        "n1",
        Result(
            check="gemm",
            verdict=Verdict.FAIL,
            maturity=Maturity.BETA,
            remedy=Remedy.REPLACE,
            reason="slow",
        ),
    )
    beta = replace(judged, overall=Verdict.WARN)
    shown = build_overview({"n1": fleets.well("n1")}, (), [beta], now=fleets.NOW)
    ((fault, _, _, step, _),) = list_faults(shown)

    assert not shown.rows[0].attention
    assert [s.square.verdict for s in drawn(shown)[0].squares] == [Verdict.WARN]
    assert (fault.icon and fault.icon.key, "replace" in step.text) == ("warn", False)


def test_a_reason_that_is_a_fault_above_is_not_repeated_where_nodes_are_out_of_service() -> None:
    slow = fleets.bad("n1", "gemm", Verdict.FAIL, Remedy.REPLACE, fleets.SLOW)
    (diagnosis,) = slow.diagnoses
    first, second = (
        replace(fleets.well(name), state=State.QUARANTINED, reason=reason, checks=("gemm",))
        for name, reason in (("n1", diagnosis.reason), ("n2", "gemm: quarantined 3 times"))
    )
    results = [slow, replace(slow, node="n2")]
    shown = build_overview({"n1": first, "n2": second}, (), results, now=fleets.NOW)

    assert {row[0]: row[3] for row in texts(shown, "held")} == {
        "n1": "see Failures and warnings",
        "n2": "gemm: quarantined 3 times",
    }


def test_flakes_are_listed_the_most_first() -> None:
    some = [replace(fleets.well(f"n{n}"), flakes=n) for n in range(3)]

    assert [row[:2] for row in texts(of(*some), "flaky")] == [["n2", "2"], ["n1", "1"]]


def test_the_page_holds_no_script_and_needs_no_network() -> None:
    assert "script" not in dom().tags()
    assert not [name for _, attrs in dom().elements for name in attrs if name[:2] == "on"]
    assert "default-src 'none'" in text()
    for place in (*dom().values("href"), *dom().values("src")):
        assert place.startswith(("#", "nodes/"))


def test_links_within_the_page_lead_somewhere_and_ids_are_unique() -> None:
    ids = list(dom().values("id"))
    inner = {place[1:] for place in dom().values("href") if place[0] == "#"}
    labels = set(dom().values("aria-labelledby"))

    assert len(ids) == len(set(ids))
    assert inner | labels <= set(ids)


def test_a_picture_with_links_is_a_group_with_a_name() -> None:
    maps = [svg for svg in dom().every("svg") if "role" in svg]

    assert [svg["role"] for svg in maps] == ["group"] * 2
    assert all(svg["aria-label"] for svg in maps)


def test_without_pages_there_are_no_links_but_within() -> None:
    bare = Dom(render(fleets.fleet(), {}))

    assert {place[0] for place in bare.values("href")} == {"#"}
    assert bare.tags_in_order("use")


@pytest.mark.parametrize("field", ["name", "reason", "foreign", "by"])
def test_hostile_text_comes_out_as_text(field: str) -> None:
    changes = {field: HOSTILE}
    bad = replace(Node(name="n1", state=State.SUSPECT, reason="slow"), **changes)
    one = fleets.bad(bad.name, HOSTILE, Verdict.FAIL, Remedy.REPLACE, HOSTILE)
    page = render(build_overview({bad.name: bad}, (), [one], now=fleets.NOW), {})

    assert "script" not in Dom(page).tags()
    assert "\u202e" not in page
    assert '"><script>alert(1)</script>\ufffd' in Dom(page).text


def test_the_same_fleet_gives_the_same_bytes() -> None:
    shown = fleets.fleet()

    assert render(shown, fleets.links(shown)) == text()


@pytest.mark.parametrize("one_in", [50, 5])
def test_a_thousand_nodes_keep_to_the_budget(one_in: int) -> None:
    shown = fleets.rotten(1000, one_in)
    page = render(shown, fleets.links(shown))

    assert len(page.encode()) < BUDGET
    assert page.count('<use href="#cell-fail" x=') == 20_000 // one_in


def test_what_a_list_has_no_room_for_is_folded_and_then_counted() -> None:
    some = [Node(name=f"n{n}", state=State.HELD) for n in range(MAX_LISTED_ROWS + 7)]
    held = find_section(of(*some), "held")

    assert (len(rows(of(*some), "held")), held.count) == (MAX_LISTED_ROWS, MAX_LISTED_ROWS + 7)
    assert held.tables[0].more == "and 7 more: hpcverify report --fleet --format json"


def test_too_many_nodes_are_shown_by_rack_the_worst_of_each() -> None:
    shown = fleets.rotten(MAX_NODE_ROWS + 48, 640 * 2)
    laid = lay_out(shown, fleets.links(shown))
    names = [name.text for r in laid.racks for b in r.blocks for name in b.names]
    sign = laid.racks[0].blocks[0].squares[0]

    assert laid.unit == "block of nodes"
    assert names[0] == "gpu-r001 (32)"
    assert len(names) == 64 == 2 * BLOCK_ROWS
    assert sign.title.startswith("gpu-r001 (32), allreduce: fail on 1 of 32, e.g. gpu-r001-n01: ")
    assert sign.square.href == "nodes/gpu-r001-n01/idle.html#allreduce"


def test_rows_are_in_the_order_that_people_count() -> None:
    some = of(*(fleets.well(name) for name in ("n10", "n9", "n100", "m1", "n09")))
    names = [name.text for block in drawn(some) for name in block.names]

    assert names[0] == "m1"
    assert names[3:] == ["n10", "n100"]


def judged() -> Overview:
    return fleets.judged(fleets.judge())


def test_a_picture_of_a_metric_has_a_name_and_a_description() -> None:
    page = Dom(render(judged(), {}))
    pictures = [svg for svg in page.every("svg") if "aria-labelledby" in svg]
    ids = list(page.values("id"))

    assert len(pictures) == 6  # three metrics, and three counts of a month
    assert {name for svg in pictures for name in (svg["aria-labelledby"] or "").split()} <= set(ids)
    assert len(ids) == len(set(ids))


def test_a_past_that_is_not_known_has_its_sections_all_the_same() -> None:
    laid = lay_out(fleets.judged(None, due=(), due_count=0), {})

    assert {"peers", "past", "next"} <= {section.id for section in laid.sections}


def test_a_name_that_is_cut_has_the_full_name_as_a_title() -> None:
    (cut, *_) = [name for block in drawn(fleets.bare()) for name in block.names if name.title]

    assert cut.title.startswith(cut.text.removesuffix("…"))
    assert cut.title.endswith(".example.org")


def test_hostile_text_of_a_judgement_comes_out_as_text() -> None:
    shown = judged()
    one, change = fleets.judge().outliers[1], fleets.judge().changes[0]
    bad = fleets.judge(
        outliers=(replace(one, name=HOSTILE, node=HOSTILE, metric=HOSTILE, cause=HOSTILE),),
        changes=(replace(change, node=HOSTILE, part=HOSTILE, why=HOSTILE, unit=HOSTILE),),
        notes=(HOSTILE,),
        metrics=(fleets.distribute(HOSTILE, HOSTILE, 700.0, 0.01),),
    )
    evil = fleets.due(3, 2.0, HOSTILE, why=HOSTILE)
    page = render(replace(shown, outlook=fleets.foresee(bad, due=(evil,))), {})

    assert "script" not in Dom(page).tags()
    assert "\u202e" not in page


def test_very_many_differences_are_folded_and_counted() -> None:
    odd = [
        ReportedFacts(
            node=f"n{i}",
            source="parts",
            first=fleets.NOW - 9,
            last=fleets.NOW - 9,
            facts={"system": "A", "BIOS": f"1.{i}" if i < 600 else "2.0"},
        )
        for i in range(3000)
    ]
    shown = build_overview({}, (), (), now=fleets.NOW, told=odd)
    (table,) = find_section(shown, "versions").tables

    assert (len(table.rows), len(table.rows) + len(table.folded)) == (20, MAX_LISTED_ROWS)
    assert table.more == "and 100 more: hpcverify report --fleet --format json"


def test_no_version_can_be_more_than_text() -> None:
    evil = [
        ReportedFacts(
            node=f"n{i}",
            source="parts",
            first=fleets.NOW - 9,
            last=fleets.NOW - 9,
            facts={"system": "A", "BIOS": HOSTILE if i == 1 else "2.0"},
        )
        for i in range(8)
    ]
    page = render(build_overview({}, (), (), now=fleets.NOW, told=evil), {})

    assert "alert(1)" in page
    assert "<script" not in page
    assert "\u202e" not in page
