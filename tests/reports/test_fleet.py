"""The page of the fleet: who needs attention, the map, and nothing that could harm."""

from __future__ import annotations

import re
from functools import cache

import pytest
from msgspec.structs import replace

from hpcverify.fleet.overview import Overview, overview
from hpcverify.model import Remedy, Verdict
from hpcverify.quarantine.life import Node, State
from hpcverify_reports.fleet import LISTED, RACKS, lay_out, render
from hpcverify_reports.heat import PITCH, ROWS
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
    made = overview({n.name: n for n in nodes}, (), (), now=fleets.NOW)
    return replace(made, **changes)


def test_the_verdict_and_what_to_do_come_first_in_words() -> None:
    head = dom().text.split("Every check on every node", maxsplit=1)[0]

    assert "4 of 64 nodes need attention" in head
    assert "1 lemon, 1 quarantined, 1 suspect, 1 held" in head
    assert "Take the part out of service and replace it: gpu-r001-n18" in head
    assert "Drain the node and reset the GPU: gpu-r001-n24" in head


def test_a_fleet_without_trouble_says_so() -> None:
    well = Dom(render(of(fleets.well("n1"), fleets.well("n2")), {})).text

    assert "None of 2 nodes needs attention" in well
    assert "What did not pass" not in well
    assert "Out of service" not in well


def test_an_empty_fleet_is_a_page_too() -> None:
    assert "No node is known yet" in Dom(render(of(), {})).text


def test_a_tripped_breaker_stands_on_top_with_the_way_out() -> None:
    head = Dom(render(fleets.fleet(tripped="9 of 64 nodes"), {})).text

    assert "nobody is acted on: 9 of 64 nodes" in head
    assert "hpcverify breaker reset" in head
    assert "hpcverify breaker reset" not in dom().text


def test_every_square_that_did_not_pass_is_a_sign_with_a_link_and_a_name() -> None:
    signs = re.findall(
        r'<a href="([^"]*)"><title>([^<]*)</title><use href="#mark-(\w+)"', text()
    )
    gemm = next(sign for sign in signs if " gemm" in sign[1])

    assert gemm[0] == "nodes/gpu-r001-n06/idle.html#gemm"
    assert gemm[1].startswith("gpu-r001-n06 gemm: fail, GPU 3")
    assert gemm[2] == "fail"
    # Six of checks, three of states.
    assert len(signs) == 9


def test_a_square_lies_in_the_row_of_its_node_and_the_column_of_its_check() -> None:
    shown = fleets.fleet()
    block = lay_out(shown, {}).blocks[0]
    sign = next(sign for sign in block.signs if " nvlink" in sign.title)
    head = next(head for head in block.heads if head.text == "nvlink")
    name = next(name for name in block.names if name.text == "gpu-r001-n24")

    assert 0 < head.x - block.left - sign.x < PITCH
    assert 0 < name.y - sign.y < PITCH


def test_what_passed_is_ground_what_did_not_run_is_blank_and_skips_are_strokes() -> (
    None
):
    one = fleets.said("n1", "b", verdict=Verdict.SKIP)
    runs = [fleets.said("n1", "a"), one, fleets.said("n2", "c")]
    nodes = {name: fleets.well(name) for name in ("n1", "n2")}
    (block,) = lay_out(overview(nodes, (), runs, now=fleets.NOW), {}).blocks

    # Columns: state, a gap, a, b, c.
    assert block.passed.split("z")[:-1] == [
        f"M{x * PITCH} {y * PITCH}h14v14h-14"
        for x, y in ((0, 0), (2, 0), (0, 1), (4, 1))
    ]
    assert block.skipped.count("M") == 1
    assert block.signs == ()


def test_of_what_failed_all_is_told_in_a_table_too() -> None:
    shown = fleets.fleet()
    laid = lay_out(shown, {})
    told = {(t.node, t.check) for t in laid.troubles}
    bad = {
        (one.node, one.check)
        for one in fleets.complaints()
        if one.verdict >= Verdict.WARN
    }

    assert told == bad
    assert all(fleets.SLOW in t.found for t in laid.troubles if t.check == "gemm")


def test_a_bad_node_without_a_bad_check_is_told_by_its_reason() -> None:
    gone = Node(name="n1", state=State.SUSPECT, reason="sdc: 1 word", verdict="fail")

    (trouble,) = lay_out(of(gone), {}).troubles

    assert (trouble.check, trouble.found) == ("", "sdc: 1 word")


def test_a_check_in_beta_can_do_no_more_than_warn() -> None:
    beta = fleets.said("n1", verdict=Verdict.FAIL, overall=Verdict.WARN)
    shown = overview({"n1": fleets.well("n1")}, (), [beta], now=fleets.NOW)

    assert not shown.rows[0].attention
    assert [s.mark.key for s in lay_out(shown, {}).blocks[0].signs] == ["warn"]


def test_holds_of_ours_and_of_others_and_what_is_overdue_have_lists_of_their_own() -> (
    None
):
    lists = {each.id: each for each in lay_out(fleets.fleet(), {}).lists}

    assert lists["others"].rows[0].cells[0] == "bad fan, ticket 4711 (root)"
    assert {row.name for row in lists["unverified"].rows} == {
        *map(fleets.name_of, (17, 33, 40, 50))
    }
    assert lists["unverified"].rows[0].cells[0] == "never"
    assert "firmware of the switch (by anna)" in lists["held"].rows[-2].cells
    assert "flaky" not in lists


def test_flakes_are_listed_the_most_first() -> None:
    some = [replace(fleets.well(f"n{n}"), flakes=n) for n in range(3)]

    (flaky,) = lay_out(of(*some), {}).lists

    assert [(row.name, row.cells[0]) for row in flaky.rows] == [
        ("n2", "2"),
        ("n1", "1"),
    ]


def test_the_page_holds_no_script_and_needs_no_network() -> None:
    assert "script" not in dom().tags()
    assert not [
        name for _, attrs in dom().elements for name in attrs if name[:2] == "on"
    ]
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
    assert all("aria-labelledby" in svg for svg in maps)


def test_without_pages_there_are_no_links_but_within() -> None:
    bare = Dom(render(fleets.fleet(), {}))

    assert {place[0] for place in bare.values("href")} == {"#"}
    assert bare.tags_in_order("use")


@pytest.mark.parametrize("field", ["name", "reason", "foreign", "by"])
def test_hostile_text_comes_out_as_text(field: str) -> None:
    changes = {field: HOSTILE}
    bad = replace(Node(name="n1", state=State.SUSPECT, reason="slow"), **changes)
    one = fleets.bad(bad.name, HOSTILE, Verdict.FAIL, Remedy.REPLACE, HOSTILE)
    page = render(overview({bad.name: bad}, (), [one], now=fleets.NOW), {})

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
    assert page.count('<use href="#mark-fail" x=') == 20_000 // one_in


def test_what_a_table_has_no_room_for_is_counted() -> None:
    laid = lay_out(fleets.rotten(1000, 5), {})

    assert len(laid.troubles) == LISTED
    assert laid.more == ("and 3500 more: hpcverify report --fleet --format json",)


def test_too_many_nodes_are_shown_by_rack_the_worst_of_each() -> None:
    shown = fleets.rotten(RACKS + 48, 640 * 2)
    laid = lay_out(shown, fleets.links(shown))
    names = [name.text for block in laid.blocks for name in block.names]
    sign = laid.blocks[0].signs[0]

    assert laid.unit == "rack"
    assert names[0] == "gpu-r001 (32)"
    assert len(names) == 64 == 2 * ROWS
    assert "fail on 1 of 32, as gpu-r001-n01 allreduce" in sign.title
    assert sign.href == "nodes/gpu-r001-n01/idle.html#allreduce"


def test_rows_are_in_the_order_that_people_count() -> None:
    some = of(*(fleets.well(name) for name in ("n10", "n9", "n100", "m1", "n09")))
    names = [name.text for name in lay_out(some, {}).blocks[0].names]

    assert names[0] == "m1"
    assert names[3:] == ["n10", "n100"]
