"""A finding has a life: it is opened once, changed, and closed by what may clear its node."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from hpcverify.events.event import Event, EventKind, Severity
from hpcverify.fleet.evidence import FaultReport, build_fault, weigh_faults
from hpcverify.fleet.finding_log import MAX_NODE_FINDINGS, FindingCount
from hpcverify.fleet.states import State
from hpcverify.model import (
    Cause,
    Fault,
    FaultKind,
    Finding,
    FindingRule,
    Remedy,
    Result,
    Source,
    Verdict,
)
from hpcverify.plan.config import Quarantine, Site, Suppression
from hpcverify.records.spool import deposit
from hpcverify.summary.verdict import MAX_REASON_CHARACTERS
from tests.doubles import a_result, a_run
from tests.fleet.builders import NOW, Room, make_wrong_word

SOFT = make_wrong_word("gemm", conclusive=False)
GOOD = a_result("gemm")
WARNED = a_result(
    "gemm",
    verdict=Verdict.WARN,
    findings=(Finding("corruption", "cpu", "a wrong word"),),
    rulings={"corruption": FindingRule(Verdict.WARN, Remedy.INSPECT)},
)
OPENED, CHANGED, CLOSED = (
    EventKind.FINDING_OPENED,
    EventKind.FINDING_CHANGED,
    EventKind.FINDING_CLOSED,
)


def list_events(room: Room, prefix: str = "finding") -> list[Event]:
    lines = room.ledger.read_lines(0, 10_000)
    events = [msgspec.json.decode(line, type=Event) for _, line in lines]
    return [event for event in events if event.kind.startswith(f"{prefix}.")]


def list_kinds(room: Room) -> list[EventKind]:
    return [event.kind for event in list_events(room)]


def leave(room: Room, number: int, *results: Result, **changes: Any) -> None:
    """Have n1 leave a run that nobody ordered."""
    verdict = max(result.verdict for result in results)
    run = a_run(
        id=f"20270115-010000-{number:06x}", node="n1", verdict=verdict, results=results, **changes
    )
    deposit(run, room.folder / "spool")


def test_a_finding_has_one_uid_from_its_opening_to_its_closing(room: Room) -> None:
    room.finds("n1", SOFT)
    room.collect()
    room.finds("n1", SOFT)
    room.collect()
    assert list_kinds(room) == [OPENED]
    room.finds("n1", WARNED)
    room.collect()
    room.finds("n1", GOOD)
    room.collect()

    events = list_events(room)
    assert [event.kind for event in events] == [OPENED, CHANGED, CLOSED]
    (uid,) = {event.finding.uid for event in events if event.finding}
    first = events[0].finding
    assert first is not None
    assert (first.check, first.code, first.part) == ("gemm", "corruption", "cpu")
    assert (first.verdict, first.remedy, first.enforced) == (Verdict.FAIL, Remedy.REPLACE, True)
    assert [event.severity for event in events] == [
        *(Severity.HIGH, Severity.LOW, Severity.INFORMATIONAL)
    ]
    assert uid


def test_a_check_that_did_not_run_or_gave_no_answer_closes_nothing(room: Room) -> None:
    room.finds("n1", SOFT)
    room.collect()
    unanswered = a_result("gemm", verdict=Verdict.ERROR, cause=Cause.CRASHED, findings=())
    for results in ((a_result("sdc"),), (unanswered,)):
        room.finds("n1", *results)
        room.collect()

    assert list_kinds(room) == [OPENED]


def test_a_warning_of_a_check_that_its_suite_no_longer_has_is_closed(room: Room) -> None:
    room.finds("n1", WARNED)
    room.collect()
    room.finds("n1", a_result("sdc"))
    room.collect()
    assert list_kinds(room) == [OPENED, CLOSED]


def test_a_part_that_could_not_be_judged_keeps_its_finding(room: Room) -> None:
    room.finds("n1", SOFT)
    room.collect()
    shortfall = Fault(
        kind=FaultKind.SHORTFALL,
        part_id="cpu",
        check="gemm",
        code="crashed",
        text="it crashed",
        verdict=Verdict.ERROR,
    )
    other = Fault(
        kind=FaultKind.FINDING,
        part_id="node",
        check="gemm",
        code="corruption",
        text="a wrong word",
        verdict=Verdict.FAIL,
        remedy=Remedy.REPLACE,
    )
    room.finds("n1", a_result("gemm", verdict=Verdict.FAIL, faults=(other, shortfall)))
    room.collect()

    assert list_kinds(room) == [OPENED, OPENED]


def test_a_run_that_nobody_ordered_opens_what_failed_and_closes_nothing(room: Room) -> None:
    leave(room, 1, WARNED)
    room.collect()
    assert list_kinds(room) == []
    leave(room, 2, SOFT)
    room.collect()
    leave(room, 3, GOOD)
    room.collect()

    assert list_kinds(room) == [OPENED]


def test_conclusive_evidence_that_no_rerun_takes_back_stays_open(room: Room) -> None:
    room.finds("n1", SOFT)
    room.collect()
    room.ledger.trip("3 of 4 nodes")
    for result in (make_wrong_word("gemm"), GOOD):
        room.finds("n1", result)
        room.collect()

    assert room.node("n1").conclusive
    assert list_kinds(room) == [OPENED]


def test_what_no_suite_of_a_node_can_show_is_closed_when_the_node_is_healthy(room: Room) -> None:
    report = FaultReport(
        node="n1",
        source=Source.PEERS,
        at=room.now,
        key=("slow",),
        faults=(build_fault("peers", "outlier", "5 % worse than its peers"),),
        examined=frozenset({"peers"}),
    )
    for _ in range(2):
        room.controller.take_faults([report])
    (fault,) = room.ledger.list_outer_faults()
    assert (fault.node, fault.source) == ("n1", Source.PEERS)
    assert fault.text == "5 % worse than its peers"
    assert NOW < fault.since < room.now
    assert room.node("n1").state is State.SUSPECT
    assert list_kinds(room) == [OPENED]
    room.finds("n1", GOOD)
    room.collect()

    assert room.node("n1").state is State.HEALTHY
    assert list_kinds(room) == [OPENED, CLOSED]
    assert room.ledger.list_outer_faults() == []
    room.controller.take_faults([report])
    assert room.node("n1").state is State.HEALTHY


def test_a_node_that_is_forgotten_has_no_findings(room: Room) -> None:
    room.finds("n1", SOFT)
    room.collect()
    room.ledger.forget("n1", "ada", "sold")
    assert list_kinds(room) == [OPENED, CLOSED]
    assert [count.open for count in room.ledger.count_findings()] == [0]


def test_what_is_opened_is_counted_and_the_count_only_grows(room: Room) -> None:
    for _ in range(2):
        room.finds("n1", SOFT)
        room.finds("n2", SOFT)
        room.collect()
        room.finds("n1", GOOD)
        room.collect()

    assert room.ledger.count_findings() == [FindingCount("gemm", "corruption", "fail", 3, 1)]


def test_a_node_that_invents_faults_has_no_more_than_so_many_findings(room: Room) -> None:
    for number in range(3):
        inventions = tuple(
            Finding(f"code{number}-{other}", "cpu", "x") for other in range(MAX_NODE_FINDINGS)
        )
        rulings = {finding.code: FindingRule(Verdict.FAIL) for finding in inventions}
        bad = a_result("gemm", verdict=Verdict.FAIL, findings=inventions, rulings=rulings)
        leave(room, number, bad)
        room.collect()

    assert len(list_kinds(room)) == MAX_NODE_FINDINGS


def test_a_run_that_nobody_ordered_makes_a_finding_graver_and_changes_nothing_else(
    room: Room,
) -> None:
    rules = [FindingRule(Verdict.FAIL, remedy) for remedy in (Remedy.INSPECT, Remedy.REPLACE)]
    room.finds("n1", WARNED)
    room.collect()
    for number in range(10):
        leave(room, number, replace(SOFT, rulings={"corruption": rules[number % 2]}))
    room.collect()

    changed = [e.finding for e in list_events(room) if e.kind is CHANGED]
    assert [(f.verdict, f.remedy) for f in changed if f] == [(Verdict.FAIL, Remedy.INSPECT)]

    room.finds("n1", replace(SOFT, rulings={"corruption": rules[1]}))
    room.finds("n1", WARNED)
    room.collect()

    changed = [e.finding for e in list_events(room) if e.kind is CHANGED][1:]
    assert [(f.verdict, f.remedy) for f in changed if f] == [
        (Verdict.FAIL, Remedy.REPLACE),
        (Verdict.WARN, Remedy.INSPECT),
    ]


def test_what_a_finding_says_of_itself_does_not_leave(room: Room) -> None:
    room.finds("n1", SOFT)
    room.collect()
    assert b"a wrong word" not in b"".join(line for _, line in room.ledger.read_lines(0, 1000))
    assert room.node("n1").state is State.SUSPECT
    assert "a wrong word" in room.ledger.read_audit("n1")[-1].detail


def test_a_run_that_nobody_ordered_is_an_event_if_it_says_something_new(room: Room) -> None:
    for number, results in enumerate([(GOOD,), (GOOD,), (SOFT,), (SOFT,), (GOOD,)]):
        leave(room, number, *results)
        room.collect()
    room.finds("n1", GOOD)
    room.finds("n1", GOOD)
    room.collect()

    runs = [event.run for event in list_events(room, "run")]
    verdicts = [run.verdict for run in runs if run]
    assert verdicts == [Verdict.FAIL, *[Verdict.PASS] * 3]
    assert {run.coverage for run in runs if run} == {"1 of 1 check answered"}


def report_peers(room: Room, *faults: Fault, key: str = "slow") -> FaultReport:
    """Report *faults* of n1 now, or an outlier."""
    return FaultReport(
        node="n1",
        source=Source.PEERS,
        at=room.now,
        key=(key,),
        faults=faults or (build_fault("peers", "outlier", "5 % worse than its peers"),),
        examined=frozenset({"peers"}),
    )


def test_no_invention_of_a_node_hides_what_its_peers_show(room: Room) -> None:
    same = Finding("outlier", "node", "nothing to see")
    forged = tuple(Finding(f"code{number}", "cpu", "x") for number in range(MAX_NODE_FINDINGS))
    for number, (check, findings) in enumerate([("peers", (same,)), ("gemm", forged)]):
        rulings = {finding.code: FindingRule(Verdict.FAIL) for finding in findings}
        bad = a_result(check, verdict=Verdict.FAIL, findings=findings, rulings=rulings)
        leave(room, number, bad, suite="peers")
        room.collect()
    room.controller.take_faults([report_peers(room)])

    texts = [fault.text for fault in room.ledger.list_outer_faults()]
    assert texts == ["5 % worse than its peers"]


def test_no_run_that_leaves_a_node_suspect_closes_what_others_found(room: Room) -> None:
    room.finds("n1", SOFT)
    room.collect()
    room.controller.take_faults([report_peers(room)])
    room.finds("n1", SOFT, a_result("peers"))
    room.collect()

    assert room.node("n1").state is State.QUARANTINED
    assert len(room.ledger.list_outer_faults()) == 1


def test_a_whole_suite_closes_what_others_found_of_a_node_that_stays_healthy(room: Room) -> None:
    room.finds("n1", GOOD)
    room.collect()
    known = build_fault("jobs", "black_hole", "jobs die")
    controller = room.controller
    until = datetime.fromtimestamp(room.now + 1e6, UTC).date()
    suppressed = Suppression(nodes="n1", check="jobs", reason="known", until=until, by="ada")
    controller.site = replace(controller.site, suppress=(suppressed,))
    controller.take_faults([report_peers(room, known)])
    assert room.node("n1").state is State.HEALTHY
    assert len(room.ledger.list_outer_faults()) == 1
    assert [event.node for event in list_events(room, "suppression")] == ["n1"]
    room.finds("n1", GOOD)
    room.collect()

    assert list_kinds(room) == [OPENED, CLOSED]


def test_what_was_found_before_a_node_was_forgotten_is_not_of_it(room: Room) -> None:
    report = report_peers(room)
    room.ledger.forget("n1", "ada", "sold")
    room.controller.take_faults([report])

    assert room.ledger.list_outer_faults() == []
    assert room.node("n1").state is State.UNVERIFIED


def test_each_fault_of_a_report_counts_by_itself(room: Room) -> None:
    hard = replace(build_fault("peers", "corrupt", "a wrong word"), conclusive=True)
    soft = build_fault("peers", "outlier", "5 % worse than its peers")
    other = build_fault("jobs", "black_hole", "jobs die")
    site = Site(quarantine=Quarantine(enforce=("jobs",)))
    evidence = weigh_faults(report_peers(room, hard, soft, other), "1", None, site, room.now)

    assert evidence.failures == {"peers": True, "jobs": False}
    assert [fault.enforced for fault in evidence.found] == [False, False, True]


def test_ten_thousand_faults_of_a_report_are_bounded(room: Room) -> None:
    faults = [build_fault("peers", f"code{number}", "slow") for number in range(10_000)]
    room.controller.take_faults([report_peers(room, *faults)])

    assert len(room.ledger.list_outer_faults()) == MAX_NODE_FINDINGS
    assert len(room.node("n1").reason) <= MAX_REASON_CHARACTERS


def test_a_round_over_bmcs_closes_nothing_that_peers_found_after_the_last_pass(room: Room) -> None:
    def ask_bmc(number: int, result: Result) -> None:
        run = a_run(
            id=f"20270115-010000-{number:06x}",
            node="n1",
            suite="bmc",
            verdict=result.verdict,
            results=(result,),
        )
        deposit(run, room.folder / "spool", room.ledger.sign(run))
        room.collect()

    ask_bmc(1, make_wrong_word("chassis", conclusive=False))
    room.finds("n1", GOOD)
    room.collect()
    assert room.node("n1").state is State.SUSPECT
    room.controller.take_faults([report_peers(room)])
    ask_bmc(2, a_result("chassis"))
    assert room.node("n1").state is State.HEALTHY
    assert len(room.ledger.list_outer_faults()) == 1
    room.finds("n1", GOOD)
    room.collect()

    assert list_kinds(room) == [OPENED, OPENED, CLOSED, CLOSED]


@pytest.mark.parametrize("source", sorted(Source))
def test_a_suite_with_the_name_of_a_source_gives_a_node_no_word_of_it(
    room: Room, source: Source
) -> None:
    room.finds("n1", SOFT)
    room.collect()
    room.controller.take_faults([report_peers(room)])
    before = room.node("n1")
    check = "collectives" if source is Source.FABRIC else source.value
    leave(room, 1, GOOD, a_result(check), a_result("peers"), suite=source.value)
    leave(room, 2, make_wrong_word(check, conclusive=False), suite=source.value)
    room.collect()

    assert room.node("n1").state is State.SUSPECT
    assert room.node("n1").checks == before.checks
    assert room.node("n1").bmc_failures == {}
    assert list_kinds(room) == [OPENED, OPENED, OPENED]
