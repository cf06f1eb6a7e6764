"""A node is held as wanted, whatever comes in between, and never against others."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from hpcverify.errors import ActionError, SlurmError
from hpcverify.fleet.holds import (
    HoldReading,
    Intent,
    apply_hold,
    format_reason,
    parse_hold_id,
    plan_next_write,
    read_hold_history,
    take_over_hook_drain,
)
from hpcverify.fleet.states import Hold, Node, State

MARK = "hpcverify[aa11bb]"
OLD = "hpcverify[cc22dd]"
OURS = f"{MARK} gemm is slow"
THEIRS = 'PSU "2" swap | ticket=17'


class KilledError(Exception):
    """The controller's end by -9."""


@dataclasses.dataclass
class Shelf:
    """A scheduler with one node, n1, and a controller's book; both outlive it."""

    reason: str = ""
    by: str = "root"
    drained: bool = False
    reserved: bool = False
    hook_failed: bool = False
    unavailable: str = ""
    busy: bool = False
    """A job of ours is in the reservation."""
    deaf: bool = False
    """Nothing that it is told has an effect."""
    silent: bool = False
    """It does not answer."""
    lives: int = -1
    """Steps until the controller is killed; -1: never."""
    admin: dict[int, Callable[[], None]] = dataclasses.field(
        default_factory=dict[int, Callable[[], None]]
    )
    """What somebody else does, just before our read of that number."""
    reads: int = 0
    writes: list[str] = dataclasses.field(default_factory=list[str])
    held: list[bool] = dataclasses.field(default_factory=list[bool])
    """After each write, whether anything kept users' jobs off."""
    log: list[str] = dataclasses.field(default_factory=list[str])
    book: list[Intent] = dataclasses.field(default_factory=list[Intent])
    outcomes: dict[int, str] = dataclasses.field(default_factory=dict[int, str])

    def read_holds(self) -> Mapping[str, HoldReading]:
        return {"n1": self.read_hold("n1")}

    def read_hold(self, node: str) -> HoldReading:
        """Answer, after what others do just now."""
        self.reads += 1
        self.admin.get(self.reads, lambda: None)()
        if self.silent:
            raise SlurmError("no answer")
        return HoldReading(
            node=node,
            hold_id=parse_hold_id(self.reason),
            reason=self.reason,
            by=self.by if self.reason else "",
            drained=self.drained,
            hook_failed=self.hook_failed,
            unavailable=self.unavailable,
            reserved=self.reserved,
        )

    def read_start_time(self) -> float:
        """Forget nothing."""
        return 0.0

    def drain(self, node: str, reason: str) -> None:
        """Replace the reason, as Slurm does."""
        self._write(f"drain {node}", drained=True, reason=reason)

    def resume(self, node: str) -> None:
        """Take the drain back, whoever it is of."""
        self._write(f"resume {node}", drained=False, reason="")

    def restore(self, node: str, reason: str) -> None:
        self._write(f"restore {node}", reason=reason)

    def reserve(self, node: str) -> None:
        self._write(f"reserve {node}", reserved=True)

    def unreserve(self, node: str) -> None:
        """Let it go, unless a job is in it."""
        self._write(f"unreserve {node}", reserved=self.busy)

    def record_intent(self, node: str, act: str, reason: str, before: str) -> int:
        assert node == "n1"
        number = len(self.book) + 1
        self.book.append(
            Intent(number=number, act=act, reason=reason, reason_before=before, drain_after=None)
        )
        self.log.append(f"{act} ({before})")
        self._step()
        return number

    def record_outcome(self, intent: int, text: str, drain_after: str | None = None) -> None:
        self.outcomes[intent] = text
        self.book[intent - 1] = replace(self.book[intent - 1], drain_after=drain_after)
        self._step()

    def record_found_drain(self, node: str, drain_reason: str) -> None:
        """Write down what stands."""
        assert node == "n1"
        number = len(self.book) + 1
        self.book.append(
            Intent(
                number=number, act="found", reason="", reason_before="", drain_after=drain_reason
            )
        )
        self._step()

    def list_intents(self, node: str) -> list[Intent]:
        """List what was ever to be written."""
        assert node == "n1"
        return self.book

    def they_drain(self) -> None:
        """Drain it as an administrator does."""
        self.drained, self.reason = True, THEIRS

    def they_resume(self) -> None:
        """Resume it as an administrator does."""
        self.drained, self.reason = False, ""

    def _write(self, act: str, **now: object) -> None:
        self.writes.append(act.removesuffix(" n1"))
        for name, value in now.items():
            setattr(self, name, getattr(self, name) if self.deaf else value)
        self.held.append(self.drained or self.reserved or bool(self.unavailable))
        self._step()

    def _step(self) -> None:
        self.lives -= 1
        if self.lives == 0:
            raise KilledError


WANTED = {
    Hold.NONE: Node(name="n1", state=State.HEALTHY, reason="gemm is slow"),
    Hold.RESERVATION: Node(name="n1", state=State.SUSPECT, reason="gemm is slow", enforced=True),
    Hold.DRAIN: Node(name="n1", state=State.QUARANTINED, reason="gemm is slow", enforced=True),
}


def wants(hold: Hold, mark: str = "", foreign: str = "") -> Node:
    node = WANTED[hold]
    return Node(
        name="n1",
        state=node.state,
        reason=node.reason,
        enforced=node.enforced,
        hold_id=mark,
        foreign=foreign,
    )


def was_drained(reason: str = OURS, *, seen: bool = True) -> Intent:
    """Make the line of a drain of ours, and whether it was *seen* to stand."""
    stood = reason if seen else None
    return Intent(number=1, act="drain", reason=reason, reason_before="", drain_after=stood)


def was_reserved(reason: str = OURS) -> Intent:
    """Make the line of a reservation of ours."""
    return Intent(number=1, act="reserve", reason=reason, reason_before="", drain_after="")


def drained(*, reserved: bool = False, silent: bool = False) -> Shelf:
    return Shelf(drained=True, reason=OURS, book=[was_drained()], reserved=reserved, silent=silent)


def reserved(*, busy: bool = False, reason: str = "") -> Shelf:
    drain = bool(reason)
    book = [was_reserved()]
    return Shelf(reserved=True, drained=drain, reason=reason, busy=busy, book=book)


def applied(node: Node, shelf: Shelf) -> Node:
    return apply_hold(node, shelf, shelf)


# -- from what stands to what is wanted


@pytest.mark.parametrize(
    ("hold", "shelf", "acts"),
    [
        (Hold.NONE, Shelf(), []),
        (Hold.NONE, drained(), ["resume"]),
        (Hold.NONE, reserved(), ["unreserve"]),
        (Hold.NONE, drained(reserved=True), ["resume", "unreserve"]),
        (Hold.RESERVATION, Shelf(), ["reserve"]),
        (Hold.RESERVATION, drained(), ["reserve", "resume"]),
        (Hold.RESERVATION, reserved(), []),
        (Hold.RESERVATION, drained(reserved=True), ["resume"]),
        (Hold.DRAIN, Shelf(), ["drain"]),
        (Hold.DRAIN, drained(), []),
        (Hold.DRAIN, reserved(), ["drain", "unreserve"]),
        (Hold.DRAIN, drained(reserved=True), ["unreserve"]),
    ],
)
def test_the_new_hold_stands_before_the_old_one_goes(
    hold: Hold, shelf: Shelf, acts: list[str]
) -> None:
    there = shelf.drained or shelf.reserved

    after = applied(wants(hold, MARK if there else ""), shelf)

    assert shelf.writes == acts
    assert shelf.drained is (hold is Hold.DRAIN)
    assert shelf.reserved is (hold is Hold.RESERVATION)
    assert bool(after.hold_id) is (hold is not Hold.NONE)
    assert (len(shelf.outcomes), applied(after, shelf)) == (len(acts), after)


def test_a_drain_says_why_after_the_mark_of_its_hold() -> None:
    shelf = Shelf()
    after = applied(wants(Hold.DRAIN), shelf)
    assert shelf.reason == f"{after.hold_id} gemm is slow"
    assert parse_hold_id(shelf.reason) == after.hold_id


def test_a_hold_keeps_its_mark_from_reservation_to_drain() -> None:
    shelf = reserved()
    assert (applied(wants(Hold.DRAIN, MARK), shelf).hold_id, shelf.reason) == (MARK, OURS)


def test_a_drain_that_the_ledger_did_not_see_done_is_ours_all_the_same() -> None:
    shelf = drained()
    assert (applied(wants(Hold.DRAIN), shelf).hold_id, shelf.writes) == (MARK, [])


def test_a_late_drain_of_a_hold_that_is_over_is_taken_back() -> None:
    shelf = Shelf(
        drained=True, reason=f"{OLD} x", book=[was_drained(f"{OLD} x", seen=False), was_reserved()]
    )
    applied(wants(Hold.NONE), shelf)
    assert not shelf.drained


def test_the_book_has_what_stood_there_before_each_write() -> None:
    shelf = drained()
    applied(wants(Hold.RESERVATION, MARK), shelf)
    assert shelf.log == [f"reserve ({OURS})", f"resume ({OURS})"]
    assert shelf.outcomes == {2: f"it is reserved and drained ({OURS})", 3: "it is reserved"}


def test_a_reservation_stays_while_our_job_is_in_it() -> None:
    shelf = reserved(busy=True)
    assert applied(wants(Hold.DRAIN, MARK), shelf).hold_id == MARK
    assert shelf.drained
    assert shelf.reserved


@pytest.mark.parametrize("hold", [Hold.RESERVATION, Hold.DRAIN])
def test_a_write_that_does_not_take_is_an_error(hold: Hold) -> None:
    with pytest.raises(ActionError, match="had no effect: it is free"):
        applied(wants(hold), Shelf(deaf=True))


def test_a_read_that_fails_has_nothing_done() -> None:
    shelf = drained(silent=True)
    with pytest.raises(SlurmError):
        applied(wants(Hold.NONE, MARK), shelf)
    assert shelf.writes == []


def test_a_read_that_fails_after_the_intent_has_nothing_done() -> None:
    shelf = Shelf()
    shelf.admin[2] = lambda: setattr(shelf, "silent", True)
    with pytest.raises(SlurmError):
        applied(wants(Hold.DRAIN), shelf)
    assert (shelf.writes, shelf.outcomes) == ([], {})


# -- what others hold


@pytest.mark.parametrize("hold", Hold)
@pytest.mark.parametrize(
    "reason", [THEIRS, f"x {OURS}", f"{OLD} of another ledger", "hpcverify: gemm"]
)
def test_a_drain_of_others_is_left_alone(hold: Hold, reason: str) -> None:
    shelf = Shelf(drained=True, reason=reason, book=[was_drained()])
    after = applied(wants(hold), shelf)
    assert (shelf.writes, shelf.reason) == ([], reason)
    assert (after.foreign, after.hold_id) == (reason, "")
    assert after.state is WANTED[hold].state


@pytest.mark.parametrize("hold", Hold)
@pytest.mark.parametrize("shelf", [Shelf(), drained(), reserved(), Shelf(reason="bad")])
def test_a_node_in_a_state_of_others_is_left_alone(hold: Hold, shelf: Shelf) -> None:
    shelf = dataclasses.replace(shelf, unavailable="DOWN", writes=[], book=[was_drained()])
    mark = MARK if shelf.drained or shelf.reserved else ""

    after = applied(wants(hold, mark), shelf)

    assert shelf.writes == []
    assert after.hold_id == mark
    assert shelf.drained or (shelf.reason or "DOWN") in after.foreign


def test_a_reservation_in_our_name_that_no_book_knows_is_left_alone() -> None:
    shelf = Shelf(reserved=True)
    after = applied(wants(Hold.NONE), shelf)
    assert shelf.writes == []
    assert "reserved in our name" in after.foreign


def test_who_drains_a_node_that_we_reserve_leaves_it_reserved() -> None:
    shelf = reserved(reason=THEIRS)
    after = applied(wants(Hold.RESERVATION, MARK), shelf)
    assert (shelf.reserved, after.foreign, after.hold_id) == (True, THEIRS, MARK)
    assert after.state is State.SUSPECT


def test_only_the_reservation_goes_of_a_node_that_others_drain() -> None:
    shelf = reserved(reason=THEIRS)
    after = applied(wants(Hold.NONE, MARK), shelf)
    assert (shelf.writes, shelf.reason) == (["unreserve"], THEIRS)
    assert (after.foreign, after.hold_id) == (THEIRS, "")


def test_who_edits_our_reason_takes_the_node_over() -> None:
    shelf = drained()
    shelf.reason = THEIRS

    after = applied(wants(Hold.DRAIN, MARK), shelf)
    shelf.they_resume()
    later = applied(after, shelf)

    assert (after.state, after.foreign, after.hold_id) == (State.UNVERIFIED, THEIRS, "")
    assert "took it over" in after.reason
    assert (later.foreign, shelf.writes) == ("", [])


@pytest.mark.parametrize("hold", [Hold.DRAIN, Hold.RESERVATION])
def test_who_lifts_our_hold_is_not_worked_against(hold: Hold) -> None:
    shelf = Shelf(book=[was_drained()])

    after = applied(wants(hold, MARK), shelf)

    assert shelf.writes == []
    assert (after.state, after.enforced, after.hold_id) == (State.UNVERIFIED, False, "")
    assert after.reason.startswith("somebody else released it; it was")
    assert applied(after, shelf) == after


def test_what_failed_while_others_held_it_is_drained_in_the_cycle_after() -> None:
    shelf = Shelf()
    after = applied(wants(Hold.DRAIN, foreign=THEIRS), shelf)
    assert (after.foreign, shelf.writes) == ("", [])
    applied(after, shelf)
    assert shelf.writes == ["drain"]


# -- what others do meanwhile: reads are 1, the first; 2, before the write; 3, after


@pytest.mark.parametrize("read", [1, 2, 3])
def test_a_drain_of_others_keeps_its_reason_whenever_it_comes(read: int) -> None:
    shelf = Shelf()
    shelf.admin[read] = shelf.they_drain
    after = applied(wants(Hold.DRAIN), shelf)
    assert (shelf.reason, after.foreign, after.hold_id) == (THEIRS, THEIRS, "")
    assert shelf.writes == (["drain"] if read == 3 else [])


@pytest.mark.parametrize("read", [1, 2, 3])
def test_who_takes_over_while_we_resume_stays_drained(read: int) -> None:
    shelf = drained()
    shelf.admin[read] = shelf.they_drain
    after = applied(wants(Hold.NONE, MARK), shelf)
    assert (shelf.drained, shelf.reason, after.foreign) == (True, THEIRS, THEIRS)


def test_a_late_write_of_ours_gives_their_reason_back() -> None:
    shelf = drained()
    after = applied(wants(Hold.DRAIN, foreign=THEIRS), shelf)
    assert (shelf.reason, shelf.writes) == (THEIRS, ["restore"])
    assert (after.foreign, after.hold_id) == (THEIRS, "")


def test_a_reason_that_was_given_back_is_never_taken_for_ours() -> None:
    theirs = f"{OLD} of another cluster's controller"
    shelf = drained()
    after = applied(wants(Hold.NONE, foreign=theirs), shelf)
    assert (shelf.reason, applied(after, shelf).foreign) == (theirs, theirs)


def test_a_reason_of_ours_that_a_resume_left_behind_is_wiped_out() -> None:
    shelf = Shelf(reason=OURS)
    after = applied(wants(Hold.DRAIN, MARK), shelf)
    assert (shelf.writes, shelf.reason, shelf.drained) == (["restore"], " ", False)
    assert (after.state, after.hold_id) == (State.UNVERIFIED, "")


# -- adopting what Slurm drained


def test_the_drain_of_a_hook_can_be_made_ours() -> None:
    told = "Prolog error"
    shelf = Shelf(drained=True, reason=told, hook_failed=True)

    after = take_over_hook_drain(
        wants(Hold.DRAIN, foreign=told), shelf.read_hold("n1"), shelf, shelf
    )

    assert shelf.reason == f"{after.hold_id} gemm is slow"
    assert (after.foreign, parse_hold_id(after.hold_id)) == ("", after.hold_id)


@pytest.mark.parametrize(
    "shelf",
    [
        Shelf(drained=True, reason="Prolog error"),
        Shelf(drained=True, reason="Prolog error", hook_failed=True, unavailable="DOWN"),
        Shelf(),
    ],
)
def test_nothing_else_is_adopted(shelf: Shelf) -> None:
    reason = shelf.reason
    after = take_over_hook_drain(wants(Hold.DRAIN), shelf.read_hold("n1"), shelf, shelf)
    assert (shelf.writes, shelf.reason, after.hold_id) == ([], reason, "")


def test_the_drain_of_a_hook_on_a_node_that_we_reserved_is_made_ours_too() -> None:
    shelf = Shelf(drained=True, reason="Prolog error", hook_failed=True, reserved=True)
    found = take_over_hook_drain(wants(Hold.DRAIN, MARK), shelf.read_hold("n1"), shelf, shelf)
    after = applied(found, shelf)
    assert shelf.writes == ["drain", "unreserve"]
    assert (after.hold_id, after.foreign, shelf.reserved) == (MARK, "", False)


def test_what_changed_since_it_was_seen_is_not_adopted() -> None:
    shelf = Shelf(drained=True, reason="Prolog error", hook_failed=True)
    seen = shelf.read_hold("n1")
    shelf.they_drain()
    after = take_over_hook_drain(wants(Hold.DRAIN), seen, shelf, shelf)
    assert (shelf.writes, after.foreign) == ([], THEIRS)


# -- reasons


def test_a_reason_is_one_line_without_what_steers_a_terminal() -> None:
    assert format_reason(MARK, "a\n b\x1b[2J\tc") == f"{MARK} a b?[2J c"


def test_a_long_reason_ends_with_a_whole_word() -> None:
    reason = format_reason(MARK, "word " * 1000)
    assert len(reason) <= 900
    assert reason.endswith("word…")


def test_a_reason_is_of_bounded_length() -> None:
    assert len(format_reason(MARK, "x" * 5000)) == 900


# -- killed at any point

SHELVES = st.builds(
    Shelf,
    reserved=st.booleans(),
    drained=st.booleans(),
    book=st.builds(list[Intent], st.just([was_drained(seen=False)])),
)


def runs_again(node: Node, shelf: Shelf, kills: list[int]) -> Node:
    """Settle until it is through, killed after so many steps each time."""
    for lives in kills:
        shelf.lives = lives
        try:
            node = applied(node, shelf)
        except KilledError:
            continue
    shelf.lives = -1
    return applied(applied(node, shelf), shelf)


KILLS = st.lists(st.integers(1, 7), max_size=6)


@settings(deadline=None, max_examples=300)
@given(SHELVES, st.sampled_from(list(Hold)), st.sampled_from(["", MARK]), KILLS)
def test_killed_anywhere_it_comes_to_what_is_wanted_and_is_never_unheld(
    shelf: Shelf, hold: Hold, mark: str, kills: list[int]
) -> None:
    shelf.reason = OURS if shelf.drained else ""
    there = shelf.drained or shelf.reserved

    after = runs_again(wants(hold, mark if there else ""), shelf, kills)

    assert after.desired_hold is hold
    assert shelf.drained is (hold is Hold.DRAIN)
    assert shelf.reserved is (hold is Hold.RESERVATION)
    assert hold is Hold.NONE or all(shelf.held)
    assert bool(after.hold_id) is (hold is not Hold.NONE)


@settings(deadline=None, max_examples=300)
@given(SHELVES, st.sampled_from(list(Hold)), st.integers(1, 12), KILLS)
def test_killed_anywhere_it_never_touches_a_drain_of_others(
    shelf: Shelf, hold: Hold, read: int, kills: list[int]
) -> None:
    shelf.reason = OURS if shelf.drained else ""
    there = shelf.drained or shelf.reserved
    shelf.admin[read] = shelf.they_drain

    node = runs_again(wants(hold, MARK if there else ""), shelf, kills)

    if shelf.reads >= read:
        assert (shelf.drained, shelf.reason) == (True, THEIRS)
        assert node.foreign == THEIRS


# -- whose drain it is


def test_only_the_reason_that_stood_last_makes_a_drain_ours() -> None:
    shelf = Shelf()
    held = applied(wants(Hold.DRAIN), shelf)
    first = shelf.reason
    free = applied(wants(Hold.NONE, held.hold_id), shelf)
    applied(replace(wants(Hold.DRAIN), hold_id=free.hold_id), shelf)

    assert read_hold_history(free, shelf).owns_drain(shelf.read_hold("n1"))
    shelf.reason = first
    assert not read_hold_history(free, shelf).owns_drain(shelf.read_hold("n1"))


@pytest.mark.parametrize(
    ("reason", "ours"),
    [
        (OURS, True),
        (f"{OURS} : reboot issued", True),
        (f"{OURS} : reboot requested : reboot complete", True),
        (f"{OURS} : Not responding : reboot complete", True),
        (f"{OURS.replace(' is ', '  is')} \u00b5", True),  # as some Slurm may print it
        (f"{OURS} : reboot it, bob", False),
        (f"{OURS} : Not responding, so RMA 99", False),
        (f"{OURS}.", False),
        (OURS[:-1], False),
        (MARK, False),
    ],
)
def test_a_reason_that_a_person_has_changed_is_theirs(reason: str, *, ours: bool) -> None:
    shelf = drained()
    shelf.reason = reason
    assert bool(applied(wants(Hold.DRAIN, MARK), shelf).hold_id) is ours
    assert (shelf.reason, shelf.writes) == (reason, [])


def test_a_drain_whose_command_was_killed_is_ours_until_somebody_lifts_it() -> None:
    shelf = Shelf(drained=True, reason=OURS, book=[was_drained(seen=False)])
    held = applied(wants(Hold.DRAIN), shelf)
    assert held.hold_id == MARK
    shelf.they_resume()
    left = applied(held, shelf)
    shelf.drained, shelf.reason = True, OURS

    assert (applied(left, shelf).foreign, shelf.writes) == (OURS, [])


def test_a_drain_that_is_late_though_its_command_went_well_is_ours() -> None:
    shelf = Shelf(deaf=True)
    with pytest.raises(ActionError, match="had no effect"):
        applied(wants(Hold.DRAIN), shelf)
    shelf.deaf, shelf.drained = False, True
    shelf.reason = shelf.book[0].reason

    assert applied(wants(Hold.DRAIN), shelf).hold_id == parse_hold_id(shelf.reason)


def test_a_reason_that_slurm_has_added_to_is_resumed_as_ours() -> None:
    shelf = drained()
    shelf.reason = f"{OURS} : reboot complete"
    applied(wants(Hold.RESERVATION, MARK), shelf)
    assert (shelf.drained, shelf.writes) == (False, ["reserve", "resume"])


@pytest.mark.parametrize("hold", Hold)
@pytest.mark.parametrize(
    "shelf", [Shelf(), drained(), reserved(), Shelf(drained=True, reason=THEIRS)]
)
def test_what_is_foreseen_is_what_settling_does(hold: Hold, shelf: Shelf) -> None:
    shelf = dataclasses.replace(shelf, writes=[], book=[*shelf.book])
    node = wants(hold, MARK if shelf.reserved or shelf.book else "")
    found, act = plan_next_write(node, shelf.read_hold("n1"), read_hold_history(node, shelf))

    after = applied(node, shelf)

    assert bool(shelf.writes) is bool(act)
    assert act or found == after


# -- who lets it go


def test_who_puts_a_node_back_that_failed_is_told_what_it_failed() -> None:
    shelf = Shelf(book=[was_drained()])
    bad = replace(wants(Hold.DRAIN, MARK), checks=("gemm", "sdc"))

    after = applied(bad, shelf)

    assert (after.state, after.owed_checks) == (State.UNVERIFIED, ("gemm", "sdc"))
    assert after.reason == (
        "returned to service by somebody else, not verified since: failed gemm, sdc; "
        "it was quarantined: gemm is slow"
    )
