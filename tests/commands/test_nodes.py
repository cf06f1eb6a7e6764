"""What the operator sees in the morning: the table, and the page of the fleet."""

from __future__ import annotations

import json
import re
import time
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from hpcverify.fleet.ledger import Ledger, LedgerChange
from hpcverify.fleet.states import DAY_S, Caveat, Node, State
from hpcverify.insight.judgement import FleetJudgement, JudgedOutlier, write_judgement
from hpcverify.isolation.links import LinkPair
from hpcverify.model import Verdict
from hpcverify.records import documents
from hpcverify.records.store import Store
from hpcverify.summary.verdict import MAX_LINE_CHARACTERS
from tests.cli import Cli
from tests.doubles import a_result, a_run
from tests.reports.dom import Dom

NOW = time.time()
BAD = Node(
    name="n2",
    state=State.QUARANTINED,
    enforced=True,
    reason="gemm: GPU 3 is slow",
    last_pass_at=NOW - 20 * DAY_S,
    verdict="fail",
)
WELL = Node(name="n1", state=State.HEALTHY, last_pass_at=NOW - 5000, verdict="pass")
FOREIGN = Node(name="n3", foreign="bad fan (root)", last_pass_at=NOW - 2 * DAY_S)


@pytest.fixture
def ledger(cli: Cli) -> Ledger:
    """Know of a node that is well, one that is not, and one that others hold."""
    ledger = Ledger(cli.state)
    ledger.put(WELL, "passed")
    ledger.put(BAD, "quarantined", "gemm: GPU 3 is slow", "anna")
    ledger.put(FOREIGN, "seen")
    return ledger


def keep(
    cli: Cli,
    run: str,
    day: int,
    verdict: Verdict,
    *,
    at: datetime | None = None,
    node: str = "n2",
    **changes: object,
) -> None:
    """Keep a run of *node* that ended so; it began *at* a time, or on a *day* long ago."""
    made = a_run(
        id=run,
        node=node,
        started=at or datetime(2026, 1, day, tzinfo=UTC),
        verdict=verdict,
        results=(a_result(verdict=verdict, reason=f"reason of {run}"),),
        **changes,
    )
    documents.write(made, Store(cli.state).get_document_path(run))


def lines(cli: Cli, *arguments: str) -> list[str]:
    done = cli("nodes", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.usefixtures("ledger")
def test_nodes_are_listed_worst_first_under_a_line_on_the_whole(cli: Cli) -> None:
    head, states, _, columns, *rows = lines(cli)

    assert head == ("3 nodes: 1 failed, 1 passed, 1 without a run; the breaker is not tripped")
    assert states == "states: 1 quarantined, 1 held by others, 1 healthy"
    assert columns.split("  ")[0] == "node"
    assert [row.split()[:2] for row in rows] == [
        ["n2", "quarantined"],
        ["n3", "held"],
        ["n1", "healthy"],
    ]


@pytest.mark.usefixtures("ledger")
def test_a_row_says_why_and_when_it_last_passed(cli: Cli) -> None:
    bad, foreign, well = lines(cli)[4:]

    assert bad.split(None, 2)[2].split("  ")[0] == "FAIL"
    assert "20 days, overdue" in bad
    assert "gemm: GPU 3 is slow" in bad
    assert "bad fan (root)" in foreign
    assert "overdue" not in foreign + well


def test_of_many_healthy_nodes_only_the_names_are_printed(cli: Cli, ledger: Ledger) -> None:
    for i in range(10, 20):
        ledger.put(replace(WELL, name=f"n{i}"), "passed")
    *rows, last = lines(cli)[4:]

    assert [row.split()[0] for row in rows] == ["n2", "n3"]
    assert last.startswith("healthy: n[1,10-19] (11 nodes; ")
    assert len(json.loads(cli("nodes", "--json").stdout)["nodes"]) == 13


def test_a_reason_of_many_parts_is_cut(cli: Cli) -> None:
    slow = "; ".join(f"GPU {i}: bf16.sustained 12 TFLOP/s < 702" for i in range(24))
    bad = Node(name="n2", state=State.QUARANTINED, enforced=True, reason=slow)
    Ledger(cli.state).put(bad, "x")
    shown = " ".join(" ".join(lines(cli)[3:]).split())

    assert "GPU 0: bf16" in shown
    assert "GPU 23" not in shown
    assert len(shown) < MAX_LINE_CHARACTERS + 100


def test_what_failed_and_is_not_acted_on_says_so(cli: Cli) -> None:
    Ledger(cli.state).put(Node(name="n2", state=State.SUSPECT, verdict="fail"), "x")
    assert "suspect (observed only)" in lines(cli)[4]


def test_a_suspect_that_is_in_service_is_not_said_to_be_out_of_it(cli: Cli) -> None:
    ledger = Ledger(cli.state)
    ledger.put(WELL, "passed")
    ledger.put(replace(WELL, state=State.SUSPECT, reason="fan"), "suspect")
    out = "\n".join(lines(cli, "show", "n1"))

    assert "out of service" not in out
    assert "risk: not ranked until" in out


def test_a_doubted_check_is_said_on_top(cli: Cli) -> None:
    """Three of four nodes failed it, and the site enforces it."""
    ledger = Ledger(cli.state)
    for number in range(1, 5):
        node = Node(name=f"n{number}", state=State.SUSPECT, caveat=Caveat.SPARED, caveat_why="…")
        ticket = ledger.issue_ticket(node.name, "sweep", "quick")
        failed = {"gemm": number > 1}
        ledger.record_judgments(
            [
                LedgerChange(
                    node=node,
                    run=f"r{number}",
                    outcomes=failed,
                    what="x",
                    detail="",
                    ticket=ticket.number,
                )
            ]
        )

    shown = lines(cli)
    (doubt,) = json.loads(cli("nodes", "--json").stdout)["doubts"]

    assert (doubt["check"], doubt["nodes"]) == ("gemm", ["n2", "n3", "n4"])
    assert doubt["why"].startswith("gemm fails on 3 of the 4 nodes that ran it")
    assert shown[1].startswith("a check is doubted: gemm fails on 3 of the 4 nodes")
    assert "suspect (not acted on)" in "\n".join(shown)


def test_a_tripped_breaker_is_said_on_top(cli: Cli, ledger: Ledger) -> None:
    ledger.trip("6 of 40 nodes")

    assert "draining is paused: the breaker tripped (6 of 40 nodes)" in lines(cli)[0]
    assert json.loads(cli("nodes", "--json").stdout)["breaker"] == {
        "tripped": True,
        "reason": "6 of 40 nodes",
    }


@pytest.mark.usefixtures("ledger")
def test_one_node_comes_with_its_audit_log_and_several_without(cli: Cli) -> None:
    one, two = "\n".join(lines(cli, "show", "n2")), "\n".join(lines(cli, "n[1-2]"))
    assert "anna  quarantined  gemm: GPU 3 is slow" in one
    assert "anna" not in two
    assert "n3" not in two


@pytest.mark.usefixtures("ledger")
def test_json_has_the_record_and_what_is_made_of_it(cli: Cli) -> None:
    told = json.loads(cli("nodes", "show", "n2", "--json").stdout)
    (node,) = told["nodes"]
    assert (node["node"], node["state"]) == ("n2", "quarantined")
    assert (node["own_state"], node["attention"], node["overdue"]) == ("quarantined", True, True)
    assert [line["actor"] for line in told["audit"]] == ["anna"]


@pytest.mark.usefixtures("ledger")
def test_one_node_comes_with_its_outages_and_its_risk(cli: Cli, ledger: Ledger) -> None:
    ledger.put(replace(WELL, state=State.QUARANTINED, reason="fan", enforced=True), "quarantined")
    ledger.put(WELL, "released")
    back, out = "\n".join(lines(cli, "show", "n1")), "\n".join(lines(cli, "show", "n2"))
    told = json.loads(cli("nodes", "show", "n1", "--json").stdout)["outlook"]

    assert re.search(r"risk: [1-9][0-9.]*x that of an average node: .*1 outage in 30 days", back)
    assert re.search(r"outages of the last two years:\n *began .*\n.*own run +fan", back)
    assert "risk: none while it is out of service" in out
    assert "not over" in out
    assert "came back under 1 min ago" in told["risk"]["reasons"]
    assert [outage["reason"] for outage in told["outages"]] == ["fan"]


def test_a_node_that_the_controller_does_not_know_has_no_outages_to_tell(cli: Cli) -> None:
    keep(cli, "r1", 1, Verdict.FAIL)
    assert "risk" not in cli("nodes", "show", "n2").stdout
    assert json.loads(cli("nodes", "show", "n2", "--json").stdout)["outlook"] is None


@pytest.mark.usefixtures("ledger")
def test_several_nodes_come_without_outages(cli: Cli) -> None:
    assert "outage" not in cli("nodes", "n[1-2]").stdout


@pytest.mark.parametrize(
    ("hostlist", "fault"), [("n9", "no node is called 'n9'"), ("n[1", "is not a list of nodes")]
)
@pytest.mark.usefixtures("ledger")
def test_a_node_that_nobody_knows_is_named(cli: Cli, hostlist: str, fault: str) -> None:
    done = cli("nodes", hostlist)
    assert done.returncode == 2
    assert fault in done.stderr


def test_no_text_of_a_node_can_order_the_terminal_about(cli: Cli) -> None:
    evil = "\x1b]0;owned\x07\u202e"
    Ledger(cli.state).put(Node(name="n1", foreign=evil), "seen", evil)
    told = cli("nodes", "show", "n1").stdout
    assert "owned" in told
    assert not {"\x1b", "\x07", "\u202e"} & set(told)


def test_without_nodes_it_says_how_to_come_by_some(cli: Cli) -> None:
    assert "hpcverify fleet collect" in lines(cli)[0]


def test_a_node_that_was_only_run_by_hand_is_there_unverified(cli: Cli) -> None:
    keep(cli, "r1", 1, Verdict.FAIL)

    (row,) = lines(cli)[4:]

    assert row.split()[:3] == ["n2", "unverified", "FAIL"]
    assert "gemm: reason of r1" in row
    assert "none ordered" in row
    assert "overdue" not in row


def test_a_failed_run_is_told_though_the_newest_one_passed(cli: Cli) -> None:
    yesterday = datetime.fromtimestamp(NOW - DAY_S, UTC)
    keep(cli, "r1", 1, Verdict.FAIL, at=yesterday)
    keep(cli, "r2", 1, Verdict.PASS, at=yesterday + timedelta(hours=1))

    head, *_, row = lines(cli)

    assert head.startswith("1 node: 1 passed;")
    assert "1 failed run in the last 7 days" in row
    assert "1 of 1 node failed in the last 7 days" in Dom(report(cli)).text


def test_a_run_that_was_interrupted_says_nothing_of_a_node(cli: Cli) -> None:
    keep(cli, "r1", 1, Verdict.PASS)
    keep(cli, "r2", 2, Verdict.ERROR, complete=False)
    assert lines(cli)[4].split()[:3] == ["n2", "unverified", "PASS"]


def report(cli: Cli, *arguments: str) -> str:
    """Write the report on the fleet into a file, and return it."""
    file = cli.state / "fleet.html"
    done = cli("report", "--fleet", "-o", str(file), *arguments)
    assert done.returncode == 0, done.stderr
    return file.read_text()


def page_of(cli: Cli) -> Path:
    return cli.state / "nodes" / "n2" / "quick.html"


@pytest.mark.usefixtures("ledger")
def test_the_page_of_the_fleet_links_to_pages_that_are_there(cli: Cli) -> None:
    keep(cli, "r1", 1, Verdict.FAIL)
    places = {p for p in Dom(report(cli)).values("href") if p[0] != "#"}
    assert places == {"nodes/n2/quick.html", "nodes/n2/quick.html#gemm"}
    assert 'id="gemm"' in page_of(cli).read_text()


def test_the_page_of_a_node_is_written_again_only_for_another_run(cli: Cli) -> None:
    keep(cli, "r1", 1, Verdict.FAIL)
    report(cli)
    first = page_of(cli).stat().st_ino
    report(cli)
    same = page_of(cli).stat().st_ino
    keep(cli, "r2", 2, Verdict.PASS)
    report(cli)

    assert same == first
    assert "run r2" in page_of(cli).read_text()


def test_each_suite_has_a_page_if_something_came_out(cli: Cli) -> None:
    keep(cli, "r1", 1, Verdict.PASS)
    keep(cli, "r2", 2, Verdict.PASS, suite="prolog")
    report(cli)
    # What gemm said last it said in the prolog; nothing is left of the other run.
    assert [p.name for p in page_of(cli).parent.iterdir()] == ["prolog.html"]


def test_no_name_leads_out_of_the_folder(cli: Cli) -> None:
    made = a_run(id="r1", node="../../x", suite="..")
    documents.write(made, Store(cli.state).get_document_path("r1"))
    (place,) = {p for p in Dom(report(cli)).values("href") if p[0] != "#"}
    assert place == "nodes/%252E.%252F..%252Fx/%252E..html"
    assert (cli.state / "nodes" / "%2E.%2F..%2Fx" / "%2E..html").exists()


def test_since_leaves_out_what_was_before(cli: Cli) -> None:
    keep(cli, "r1", 1, Verdict.FAIL)
    assert "reason of r1" in report(cli)
    assert "reason of r1" not in report(cli, "--since", "2026-01-02")


@pytest.mark.usefixtures("ledger")
def test_the_fleet_as_json_has_every_row(cli: Cli) -> None:
    keep(cli, "r1", 1, Verdict.FAIL)
    done = cli("report", "--fleet", "--format", "json", "-o", "-")
    rows = json.loads(done.stdout)["rows"]
    assert [row["node"]["name"] for row in rows] == ["n2", "n3", "n1"]
    assert [(said["check"], said["verdict"]) for said in rows[0]["said"]] == [("gemm", "fail")]


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [(("--node", "n1"), "leave out --node"), (("--format", "junit"), "no form junit")],
)
def test_what_a_fleet_cannot_be_is_named(cli: Cli, arguments: tuple[str, ...], fault: str) -> None:
    done = cli("report", "--fleet", "-o", "-", *arguments)
    assert done.returncode == 2
    assert fault in done.stderr


def test_how_many_links_were_tried_is_told_where_a_site_wants_them_tried(
    cli: Cli, ledger: Ledger
) -> None:
    ledger.record_fabric({"n1": ("", "a"), "n2": ("", "b"), "n3": ("", "c"), "n4": ("", "")})
    ledger.record_tried_links([LinkPair(("n1", "n2"), ("a", "b"))], time.time())
    told = "2 of 4 nodes, 1 of 3 pairs of switches in the last 7 days"
    assert "links tried" not in cli("nodes").stdout

    cli.site("[fabric]\nperiod_days = 7")
    page = cli.state / "fleet.html"
    cli("report", "--fleet", "-o", str(page))

    assert f"links tried: {told}\n" in cli("nodes").stdout
    assert json.loads(cli("nodes", "--json").stdout)["links"]["untried"] == ["n3", "n4"]
    assert f"Links tried {told}" in Dom(page.read_text()).text


@pytest.mark.usefixtures("ledger")
def test_a_part_that_is_worse_than_its_peers_is_listed_above_the_table(cli: Cli) -> None:
    judge_night(cli)
    told = " ".join(cli("nodes").stdout.split())
    document = json.loads(cli("nodes", "--json").stdout)

    assert "peers: WARN n1 GPU 3: gemm bf16.sustained (idle, H100) 4.1 % worse" in told
    assert "clock 1410 MHz (peers 1500); since 12 Nov" in told
    assert told.index("peers: WARN") < told.index("last full pass")
    assert "n2 GPU 0" not in told
    assert document["judgement"]["outliers"][0]["name"] == "n1 GPU 3"


@pytest.mark.usefixtures("ledger")
def test_all_views_say_the_same_of_a_node_that_is_worse_than_its_peers(cli: Cli) -> None:
    keep(cli, "r1", 1, Verdict.PASS, node="n1")
    healthy = cli("nodes").stdout
    report(cli)
    page = cli.state / "nodes" / "n1" / "quick.html"
    assert "Nothing to do" in page.read_text()

    judge_night(cli)
    told = " ".join(cli("nodes").stdout.split())
    (row,) = (r for r in json.loads(cli("nodes", "--json").stdout)["nodes"] if r["node"] == "n1")
    fleet = Dom(report(cli)).text
    judged = page.read_text()

    assert "with warnings" not in healthy
    assert "1 with warnings" in told
    assert row["outcome"] == "warn"
    assert row["standing"] == row["why"] != ""
    assert "1 node with warnings" in fleet
    assert "4.1 % worse than its peers" in judged
    assert "Nothing to do" not in judged

    write_judgement(cli.state, FleetJudgement(night=date(2026, 11, 15)))
    report(cli)
    assert "Nothing to do" in page.read_text()


def judge_night(cli: Cli) -> None:
    """Write the judgement of a night in which GPU 3 of n1 stood out."""
    outlier = JudgedOutlier(
        level="part",
        name="n1 GPU 3",
        node="n1",
        nodes=("n1",),
        suite="idle",
        metric="gemm bf16.sustained (idle, H100)",
        verdict=Verdict.WARN,
        distance=0.041,
        cause="a low clock: clock 1410 MHz (peers 1500)",
        since=date(2026, 11, 12),
        last=date(2026, 11, 14),
        shown=(True,) * 3,
    )
    unconfirmed = replace(outlier, name="n2 GPU 0", node="n2", nodes=("n2",), shown=(True,))
    night = date(2026, 11, 14)
    write_judgement(
        cli.state, FleetJudgement(night=night, outliers=(outlier,), unconfirmed=(unconfirmed,))
    )
