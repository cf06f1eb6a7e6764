"""What the controller has decided is kept: once, in order, and for good."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec.structs import replace

from hpcverify.errors import StoreError
from hpcverify.fleet.ledger import (
    BREAKER_RETENTION_S,
    LEDGER_VERSION,
    MAX_RUN_AGE_S,
    SPARE_DAYS,
    Ledger,
    LedgerChange,
)
from hpcverify.fleet.outages import OutageCause
from hpcverify.fleet.states import DAY_S, Node, NodeChange, State, Ticket
from hpcverify.isolation.judge import PairSpeed
from hpcverify.isolation.links import LinkPair
from hpcverify.model import Run
from hpcverify.units import convert_time
from tests.doubles import Clock, a_run

NOW = 1_800_000_000.0
HOUR = 3600.0
REPLACEMENT = (
    "insert or replace into events"
    " select number, at, kind, node, 'eve', what, detail, line, digest from events"
)
N1 = Node(name="n1", state=State.QUARANTINED, reason="slow", checks=("gemm",))


@pytest.fixture
def clock() -> Clock:
    return Clock(NOW)


@pytest.fixture
def again(tmp_path: Path, clock: Clock) -> Callable[[], Ledger]:
    """Give what opens one and the same ledger, as another process would."""
    return lambda: Ledger(tmp_path / "state", clock)


@pytest.fixture
def ledger(again: Callable[[], Ledger]) -> Ledger:
    return again()


@pytest.fixture
def database(ledger: Ledger) -> Iterator[sqlite3.Connection]:
    """Open its file, as somebody with root's rights might."""
    ledger.put(N1, "held", "a fan", "ada")
    db = sqlite3.connect(ledger.path)
    yield db
    db.close()


# -- the audit log


@pytest.mark.parametrize(
    "change", ["update events set actor = 'eve'", "delete from events", REPLACEMENT]
)
def test_the_audit_log_is_neither_rewritten_nor_shortened(
    database: sqlite3.Connection, ledger: Ledger, change: str
) -> None:
    with pytest.raises(sqlite3.IntegrityError, match="the audit log is not"):
        database.execute(change)
    (entry,) = ledger.read_audit()
    assert (entry.actor, entry.what, entry.detail) == ("ada", "held", "a fan")


def test_the_reason_of_somebody_elses_drain_is_shown_here_and_does_not_leave(
    ledger: Ledger,
) -> None:
    held = Node(name="n1", foreign="bob's course", reason="slow: xid 13, name=python3")
    ledger.put(held, "held by others", "bob's course")
    ledger.put(replace(held, foreign=""), "let go by others", "it was held: bob's course")
    intent = ledger.record_intent("n1", "drain", "fan", "bob's course")
    ledger.record_outcome(intent, "not done, since it is now drained (bob's course)", "")

    assert sum("bob's course" in entry.detail for entry in ledger.read_audit()) == 3
    reasons = [pending.reason for pending in ledger.list_pending_transitions(9)]
    assert reasons == ["bob's course", "slow: xid 13, name=python3"]
    lines = b"".join(line for _, line in ledger.read_lines(0, 10))
    assert b"bob" not in lines
    assert b"python3" not in lines


def test_the_log_of_a_node_is_its_own_and_the_newest_first(ledger: Ledger) -> None:
    for node in ("n1", "n2", "n1"):
        ledger.put(Node(name=node), f"{node} again")
    assert [e.what for e in ledger.read_audit("n1", limit=1)] == ["n1 again"]
    assert [e.node for e in ledger.read_audit()] == ["n1", "n2", "n1"]


def test_a_node_is_written_with_what_was_done_and_by_whom(again: Callable[[], Ledger]) -> None:
    again().put(N1, "quarantined", "run 7", "ada")
    assert again().list_nodes() == {"n1": N1}
    assert again().read_node("n1") == N1
    (entry,) = again().read_audit("n1")
    assert (entry.time, entry.actor, entry.detail) == (convert_time(NOW), "ada", "run 7")


@pytest.mark.parametrize(
    ("outcome", "detail"),
    [("it is drained (a fan)", "it is drained (a fan)"), ("it is free", "it is free: a fan")],
)
def test_the_log_gives_the_reason_of_a_write_once(
    ledger: Ledger, outcome: str, detail: str
) -> None:
    ledger.record_outcome(ledger.record_intent("n1", "drain", "a fan"), outcome)
    assert ledger.read_audit("n1", limit=1)[0].detail == detail


def test_a_node_that_nobody_knows_is_unverified(ledger: Ledger) -> None:
    assert (ledger.read_node("n9"), ledger.list_nodes()) == (Node(name="n9"), {})


# -- runs


def test_a_run_is_judged_once(ledger: Ledger) -> None:
    assert ledger.record_judgments(
        [LedgerChange(N1, "r1", {"gemm": True}, "quarantined", held=True)]
    )
    assert not ledger.record_judgments(
        [LedgerChange(Node(name="n1"), "r1", {"gemm": False}, "healthy")]
    )

    assert ledger.read_node("n1") == N1
    assert ledger.is_judged("r1")
    assert not ledger.is_judged("r2")
    assert [entry.what for entry in ledger.read_audit()] == ["quarantined"]
    assert ledger.read_outcomes(0) == {"gemm": {"n1": True}}


def test_a_run_uses_its_ticket_up(ledger: Ledger) -> None:
    ticket = ledger.issue_ticket("n1", "sweep", "idle")
    ledger.record_judgments([LedgerChange(N1, "r1", {}, "quarantined", ticket=ticket.number)])
    assert told(ledger, ticket).run == "r1"


def test_quarantines_are_counted_whether_repeated_or_not_and_no_others(
    ledger: Ledger, clock: Clock
) -> None:
    ledger.put(N1, "quarantined")
    clock.now += HOUR
    for what in ("repeat offender", "quarantined (observed)", "healthy"):
        ledger.put(N1, what)
    ledger.put(Node(name="n2"), "quarantined")

    assert (ledger.count_quarantines("n1", NOW - 1), ledger.count_quarantines("n1", NOW)) == (2, 1)


def run_of(when: float, **changes: object) -> Run:
    return a_run(id=f"{datetime.fromtimestamp(when, UTC):%Y%m%d-%H%M%S}-abcdef", **changes)


def judged(ledger: Ledger, table: str = "judged") -> int:
    """Count the rows of a table that grows with each run."""
    with sqlite3.connect(ledger.path) as db:
        (count,) = db.execute(f"select count(*) from {table}").fetchone()  # noqa: S608 - our own words
    db.close()
    return int(count)


@pytest.mark.parametrize("days", [-13.9, -1, 0, 0.9])
def test_a_run_of_these_days_is_timely(ledger: Ledger, days: float) -> None:
    assert ledger.explain_untimely(run_of(NOW + days * DAY_S)) == ""


@pytest.mark.parametrize("days", [-20_000, -14.1, 1.1, 50_000])
def test_a_run_of_another_time_is_not_unless_it_has_a_ticket_that_is_new(
    ledger: Ledger, days: float
) -> None:
    ticket = ledger.issue_ticket("n1", "sweep", "quick")
    run = run_of(NOW + days * DAY_S, token=ticket.token)

    assert "more than 14 days ago or ahead" in ledger.explain_untimely(run_of(NOW + days * DAY_S))
    assert ledger.explain_untimely(run) == ""
    ledger.record_judgments([LedgerChange(N1, run.id, {}, "", ticket=ticket.number)])
    assert "check the clock of the node" in ledger.explain_untimely(run)


def test_a_ticket_for_another_suite_makes_no_run_timely(ledger: Ledger) -> None:
    ticket = ledger.issue_ticket("n1", "sweep", "idle")  # it would not be used up
    assert ledger.explain_untimely(run_of(NOW + 2 * DAY_S, token=ticket.token))


def test_what_was_judged_is_forgotten_when_it_can_come_no_more(
    ledger: Ledger, clock: Clock
) -> None:
    run = run_of(NOW - 13 * DAY_S)
    ledger.record_judgments([LedgerChange(N1, run.id, {}, "")])
    for _ in range(40):
        assert ledger.is_judged(run.id) or ledger.explain_untimely(run)
        clock.now += DAY_S
        ledger.record_judgments([LedgerChange(N1, run_of(clock.now).id, {}, "")])

    assert not ledger.is_judged(run.id)
    assert judged(ledger) == MAX_RUN_AGE_S / DAY_S + SPARE_DAYS


def test_what_the_breaker_counted_is_forgotten_in_the_end(ledger: Ledger, clock: Clock) -> None:
    for day in range(100):
        changes = {f"c{day}": True}
        ledger.record_judgments([LedgerChange(N1, run_of(clock.now).id, changes, "", held=True)])
        clock.now += DAY_S

    kept = BREAKER_RETENTION_S / DAY_S + SPARE_DAYS
    assert (judged(ledger, "outcomes"), judged(ledger, "holds")) == (kept, kept)


@pytest.mark.parametrize("jump", [-400 * DAY_S, 400 * DAY_S])
def test_a_wrong_clock_has_nothing_forgotten(ledger: Ledger, clock: Clock, jump: float) -> None:
    for day in range(20):
        run = run_of(clock.now)
        ledger.record_judgments([LedgerChange(N1, run.id, {f"c{day}": True}, "", held=True)])
        clock.now += DAY_S
    ledger.record_pair_speeds("h200", [PairSpeed("all_reduce", 1, 9.0)], clock.now)
    before = list_kept(ledger)
    clock.now += jump
    for _ in range(40):  # an hour of it, say
        ledger.record_judgments([])
        clock.now += 90
    ledger.record_pair_speeds("h200", [], clock.now)
    clock.now -= jump
    for _ in range(16):
        ledger.record_judgments([])
        assert list_kept(ledger) == before
        assert ledger.is_judged(run.id) or ledger.explain_untimely(run)
        clock.now += DAY_S


def list_kept(ledger: Ledger) -> list[int]:
    return [judged(ledger, table) for table in ("outcomes", "holds", "pair_speeds")]


def test_a_run_dated_ahead_is_not_forgotten_before_its_date_is_past(
    ledger: Ledger, clock: Clock
) -> None:
    ticket = ledger.issue_ticket("n1", "sweep", "quick")
    run = run_of(NOW + 100 * DAY_S, token=ticket.token)
    ledger.record_judgments([LedgerChange(N1, run.id, {}, "", ticket=ticket.number)])
    for _ in range(130):
        assert ledger.is_judged(run.id) or ledger.explain_untimely(run)
        clock.now += DAY_S
        ledger.record_judgments([LedgerChange(N1, run_of(clock.now).id, {}, "")])

    assert not ledger.is_judged(run.id)


# -- tickets


def told(ledger: Ledger, ticket: Ticket) -> Ticket:
    (found,) = ledger.find_tickets([ticket.number])
    return found


def test_no_two_tickets_are_alike_and_their_numbers_rise(ledger: Ledger) -> None:
    issued = [ledger.issue_ticket("n1", "sweep", "idle") for _ in range(20)]
    assert len({ticket.token for ticket in issued}) == 20
    assert all(len(ticket.token) == 32 for ticket in issued)
    assert [ticket.number for ticket in issued] == list(range(1, 21))
    assert ledger.read_last_ticket_number() == 20


def test_a_token_is_good_for_the_node_that_it_was_given_for(ledger: Ledger) -> None:
    mine, other = (ledger.issue_ticket(node, "sweep", "idle") for node in ("n1", "n2"))
    assert ledger.find_ticket("n1", mine.token) == mine
    assert ledger.find_ticket("n1", other.token) is None
    assert ledger.find_ticket("n1", "") is None


def test_a_ticket_is_found_by_an_index_however_many_there_were(
    database: sqlite3.Connection,
) -> None:
    plan = database.execute(
        "explain query plan select * from tickets where node = 'n1' and token = 'a'"
    )
    assert ["tickets_by_node" in str(step) for step in plan] == [True]


def test_the_first_word_on_how_a_ticket_ended_stands(ledger: Ledger, clock: Clock) -> None:
    ticket = ledger.issue_ticket("n1", "sweep", "idle")
    ledger.record_job(ticket, 17)
    assert ledger.list_open_tickets() == [told(ledger, ticket)]
    ledger.close_ticket(ticket, "preempted")
    clock.now += HOUR
    ledger.close_ticket(ticket, "finished")

    ended = told(ledger, ticket)
    assert (ended.job, ended.ending, ended.ended) == (17, "preempted", NOW)
    assert (ledger.list_open_tickets(), ledger.find_last_ended()) == ([], {"n1": ended})
    assert [e.what for e in ledger.read_audit()] == ["verification ended"]


def test_a_verification_that_left_a_run_ends_without_an_event_of_its_own(ledger: Ledger) -> None:
    with_run, without = (ledger.issue_ticket(node, "sweep", "idle") for node in ("n1", "n2"))
    ledger.record_judgments([LedgerChange(N1, "r1", {}, "verified", ticket=with_run.number)])
    for ticket in (with_run, without):
        ledger.close_ticket(ticket, "finished")

    ended = [e.node for e in ledger.read_audit() if e.what == "verification ended"]
    assert ended == ["n2"]


def test_the_tokens_are_for_nobody_else_to_read(ledger: Ledger) -> None:
    assert ledger.path.stat().st_mode & 0o077 == 0


# -- intents


def test_an_intent_without_an_outcome_still_tells_which_reason_is_ours(
    again: Callable[[], Ledger],
) -> None:
    done = again().record_intent("n1", "drain", "hpcverify[aa11bb] slow", "")
    again().record_intent("n1", "drain", "hpcverify[cc22dd] slow", "theirs")
    again().record_outcome(done, "it is drained", "hpcverify[aa11bb] slow")

    reasons = ["hpcverify[aa11bb] slow", "hpcverify[cc22dd] slow"]
    told = [(each.reason, each.drain_after) for each in again().list_intents("n1")]
    assert told == [(reasons[0], reasons[0]), (reasons[1], None)]
    assert again().list_intents("n2") == []
    (entry,) = again().read_audit()
    assert (entry.what, entry.detail) == ("drain", f"it is drained: {reasons[0]}")


# -- the breaker


def test_the_window_of_the_breaker_survives_and_moves_on(
    again: Callable[[], Ledger], clock: Clock
) -> None:
    again().record_judgments([LedgerChange(N1, "r1", {"gemm": True}, "quarantined", held=True)])
    clock.now += HOUR
    again().record_judgments([LedgerChange(Node(name="n2"), "r2", {"gemm": False}, "healthy")])

    assert again().list_newly_held(NOW - 1) == {"n1"}
    assert again().read_outcomes(NOW - 1) == {"gemm": {"n1": True, "n2": False}}
    assert again().list_newly_held(NOW) == set()
    assert again().read_outcomes(NOW) == {"gemm": {"n2": False}}


def test_a_node_counts_with_the_last_that_a_check_said_of_it(ledger: Ledger) -> None:
    ledger.record_judgments([LedgerChange(N1, "r1", {"gemm": True, "sdc": False}, "quarantined")])
    ledger.record_judgments([LedgerChange(N1, "r2", {"gemm": False}, "healthy")])
    assert ledger.read_outcomes(0) == {"gemm": {"n1": False}, "sdc": {"n1": False}}


def test_a_tripped_breaker_stays_so_until_a_person_resets_it(
    again: Callable[[], Ledger], clock: Clock
) -> None:
    again().record_judgments([LedgerChange(N1, "r1", {"gemm": True}, "quarantined", held=True)])
    again().trip("3 of 4 nodes")
    assert again().read_trip_reason() == "3 of 4 nodes"

    clock.now += 1
    again().reset("ada", "image 41")

    assert again().read_trip_reason() == ""
    assert again().list_newly_held(0) == set()  # what was before counts no more
    assert again().read_outcomes(0) == {}
    reset, tripped, _ = again().read_audit()
    assert (reset.actor, reset.detail) == ("ada", "image 41")
    assert (tripped.what, tripped.detail) == ("breaker tripped", "3 of 4 nodes")


def test_what_is_made_once_stays(again: Callable[[], Ledger], clock: Clock) -> None:
    seed, began = again().read_seed(), again().read_fleet_start()
    clock.now += HOUR
    assert (again().read_seed(), again().read_fleet_start()) == (seed, began)
    assert began == NOW


# -- what stands in the way


def test_a_ledger_that_is_damaged_says_so_in_one_line(ledger: Ledger) -> None:
    ledger.path.write_bytes(b"no database" * 100)
    with pytest.raises(StoreError, match="restore it from a backup"):
        ledger.list_nodes()


@pytest.mark.parametrize("record", ["x", "{}", '{"name": 7}', "\x00"])
def test_a_record_that_cannot_be_decoded_is_damage_in_one_line(
    ledger: Ledger, database: sqlite3.Connection, record: str
) -> None:
    with database:
        database.execute("insert into nodes values ('n2', ?)", (record.encode(),))
        database.execute("insert into facts values ('doubted', ?)", (record,))
    for ask in (ledger.list_nodes, lambda: ledger.record_doubts({"gemm": "slow"})):
        if record == "{}" and ask != ledger.list_nodes:  # no doubts
            continue
        with pytest.raises(StoreError, match="restore it from a backup") as caught:
            ask()
        assert "\n" not in str(caught.value)


def test_a_state_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="set HPCVERIFY_STATE"):
        Ledger(tmp_path / "file" / "state")


def test_many_changes_are_one_and_each_has_its_line(ledger: Ledger) -> None:
    nodes = [Node(name=f"n{i}", foreign="works") for i in range(3)]
    ledger.put_all(NodeChange(node=node, what="held by others") for node in nodes)
    ledger.put_all([])
    assert list(ledger.list_nodes().values()) == nodes
    assert [entry.what for entry in ledger.read_audit()] == ["held by others"] * 3


def test_a_node_is_met_once(again: Callable[[], Ledger], clock: Clock) -> None:
    again().add_nodes(["n1"])
    clock.now += HOUR
    again().add_nodes(["n1", "n2"])
    met = {name: node.first_seen_at for name, node in again().list_nodes().items()}
    assert met == {"n1": NOW, "n2": NOW + HOUR}


def test_a_beginning_that_lies_in_the_future_is_now(
    again: Callable[[], Ledger], clock: Clock
) -> None:
    again().read_fleet_start()
    clock.now -= 100 * HOUR
    assert again().read_fleet_start() == clock.now
    clock.now += HOUR
    assert again().read_fleet_start() == clock.now - HOUR


# -- links


def test_when_a_link_was_tried_last_is_kept_as_long_as_its_node_is_there(ledger: Ledger) -> None:
    ledger.record_fabric({"n1": ("8 GPUs", "a"), "n2": ("8 GPUs", "b"), "n3": ("8 GPUs", "")})
    both = LinkPair(("n1", "n2"), ("a", "b")), LinkPair(("n3", "n4"))
    ledger.record_tried_links(both, NOW)
    ledger.record_fabric({"n2": ("8 GPUs", "c"), "n3": ("8 GPUs", "")})
    ledger.record_tried_links(both[1:], NOW + HOUR)
    ledger.record_tried_links(both, NOW - HOUR)  # by a sweep that was killed and went on

    known = ledger.read_links()

    assert (known.kinds, known.switches) == ({"n2": "8 GPUs", "n3": "8 GPUs"}, {"n2": "c"})
    assert known.history.nodes == {"n2": NOW, "n3": NOW + HOUR}
    assert known.history.switches == {("a", "b"): NOW}


def test_of_a_forgotten_node_no_link_is_known(ledger: Ledger) -> None:
    ledger.record_fabric({"n1": ("", ""), "n2": ("", "")})
    ledger.forget("n1", "ada", "gone")
    assert set(ledger.read_links().kinds) == {"n2"}


@pytest.mark.parametrize("version", [LEDGER_VERSION + 1])
def test_a_ledger_of_another_version_is_refused_and_stays(
    ledger: Ledger, again: Callable[[], Ledger], version: int
) -> None:
    ledger.put(N1, "quarantined")
    with closing(sqlite3.connect(ledger.path)) as db:
        db.execute(f"pragma user_version = {version}")
    with pytest.raises(StoreError, match=f"has version {version}.*upgrade hpcverify"):
        again()
    assert ledger.read_node("n1") == N1


class LateLedger(Ledger):
    """Sees that there are no tables just before another process makes them."""

    @contextmanager
    def _open_database(self, *, write: bool = False) -> Generator[sqlite3.Connection]:
        if write:
            Ledger(self.path.parent)
        with super()._open_database(write=write) as db:
            yield db


def test_two_processes_may_make_the_ledger_at_once(tmp_path: Path) -> None:
    assert LateLedger(tmp_path / "new").read_audit() == []


def test_what_pairs_usually_reach_is_the_median_of_the_last_weeks(
    ledger: Ledger, clock: Clock
) -> None:
    ledger.record_pair_speeds("8 GPUs", [PairSpeed("all_reduce", 64, 1.0)] * 8, NOW)
    assert ledger.read_usual_speeds("8 GPUs") == (PairSpeed("all_reduce", 64, 1.0),)
    for _ in range(32):
        clock.now += DAY_S
        ledger.record_judgments([])

    speeds = [PairSpeed("all_reduce", 64, float(busbw)) for busbw in range(9)]
    for _ in range(2):  # whoever was killed meanwhile does so again
        ledger.record_pair_speeds("8 GPUs", [*speeds, PairSpeed("broadcast", 64, 5.0)], clock.now)

    assert ledger.read_usual_speeds("8 GPUs") == (PairSpeed("all_reduce", 64, 4.0),)
    assert ledger.read_usual_speeds("0 GPUs") == ()


def test_an_outage_of_a_node_is_one_row_from_its_failure_to_its_return(
    ledger: Ledger, clock: Clock
) -> None:
    for state in (State.SUSPECT, State.QUARANTINED, State.VERIFYING, State.HEALTHY):
        node = replace(N1, state=state)
        ledger.record_judgments([LedgerChange(node, f"run {state}", {}, state.value, ticket=1)])
        clock.now += HOUR
    ledger.put(N1, "quarantined")

    first, second = ledger.list_outages()

    assert (first.began, first.ended) == (NOW, NOW + 3 * HOUR)
    assert first.cause is OutageCause.VERIFICATION
    assert (second.began, second.ended) == (NOW + 4 * HOUR, 0.0)
    assert [each.began for each in ledger.list_outages(NOW + 3 * HOUR)] == [second.began]


def test_outages_of_a_forgotten_node_are_forgotten(ledger: Ledger) -> None:
    ledger.put(N1, "quarantined")
    ledger.forget("n1", "ada", "gone")
    assert ledger.list_outages() == []
