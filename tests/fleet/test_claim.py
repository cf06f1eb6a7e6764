"""One controller acts at a time: a second one waits, or is told whose the spool is."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import time
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from hpcverify.errors import ActionError, StoreError, UnverifiedError
from hpcverify.fleet.claim import (
    NOTICE_AFTER_S,
    REFRESH_S,
    Claim,
    build_claim_path,
    check_claim,
    hold_controller_lock,
    take_claim,
    write_claim,
)
from hpcverify.fleet.ledger import Ledger
from tests.waiting import PATIENCE_S

NOW = 1_800_000_000.0


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    made = tmp_path / "spool"
    made.mkdir()
    return made


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "one")


@pytest.fixture
def other(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "other")


def test_a_second_controller_is_told_whose_the_spool_is_and_leaves_it(
    spool: Path, ledger: Ledger, other: Ledger
) -> None:
    take_claim(spool, ledger, "ctl1", NOW)
    before = build_claim_path(spool).read_bytes()

    with pytest.raises(ActionError) as refused:
        take_claim(spool, other, "ctl2", NOW + 600)

    assert str(refused.value) == (
        f"another controller has the spool {spool}: it belongs to the one on ctl1 "
        "since 2027-01-15 08:00 UTC, last cycle 2027-01-15 08:00 UTC; nothing was done: "
        f"use that one, or, if it is gone for good, rm {build_claim_path(spool)}"
    )
    assert build_claim_path(spool).read_bytes() == before
    with pytest.raises(ActionError):
        check_claim(spool, other, "ctl2")


def test_a_second_state_directory_on_the_same_host_is_another_controller(
    spool: Path, ledger: Ledger, other: Ledger
) -> None:
    take_claim(spool, ledger, "ctl1", NOW)
    with pytest.raises(ActionError):
        take_claim(spool, other, "ctl1", NOW)


def test_a_claim_that_was_removed_is_free_for_another(
    spool: Path, ledger: Ledger, other: Ledger
) -> None:
    take_claim(spool, ledger, "ctl1", NOW)
    build_claim_path(spool).unlink()
    take_claim(spool, other, "ctl2", NOW)
    with pytest.raises(ActionError, match="the one on ctl2"):
        take_claim(spool, ledger, "ctl1", NOW)


def test_the_same_controller_goes_on_and_notes_its_turns_once_a_minute(
    spool: Path, ledger: Ledger
) -> None:
    for later in (0, 1, REFRESH_S - 1):
        take_claim(spool, ledger, "ctl1", NOW + later)
    assert json.loads(build_claim_path(spool).read_text())["cycle"] == NOW

    take_claim(spool, ledger, "ctl1", NOW + REFRESH_S)

    found = json.loads(build_claim_path(spool).read_text())
    assert (found["since"], found["cycle"]) == (NOW, NOW + REFRESH_S)
    take_claim(spool, ledger, "ctl1", NOW - 1e6)  # a clock that was ahead
    assert json.loads(build_claim_path(spool).read_text())["cycle"] == NOW - 1e6


def test_a_controller_that_moved_goes_on_and_the_copy_it_left_does_not(
    spool: Path, ledger: Ledger, tmp_path: Path
) -> None:
    take_claim(spool, ledger, "ctl1", NOW)
    shutil.copytree(ledger.path.parent, tmp_path / "moved")
    moved = Ledger(tmp_path / "moved")

    take_claim(spool, moved, "ctl2", NOW + 1)

    with pytest.raises(ActionError, match="this state directory moved to ctl2"):
        take_claim(spool, ledger, "ctl1", NOW + 2)
    take_claim(spool, moved, "ctl2", NOW + 3)


def test_a_move_that_was_killed_between_its_two_notes_goes_on(
    spool: Path, ledger: Ledger, tmp_path: Path
) -> None:
    take_claim(spool, ledger, "ctl1", NOW)
    shutil.copytree(ledger.path.parent, tmp_path / "moved")
    moved = Ledger(tmp_path / "moved")
    take_claim(spool, moved, "ctl2", NOW + 1)
    moved.record_host("ctl1")  # as it was before the second note

    take_claim(spool, moved, "ctl2", NOW + 2)


def test_of_two_that_claim_at_once_one_has_it(spool: Path) -> None:
    one, other = (Claim(ledger=name, host=name, since=NOW, cycle=NOW) for name in ("a", "b"))

    # Both have seen that there is no claim.
    assert write_claim(build_claim_path(spool), one, first=True)
    assert not write_claim(build_claim_path(spool), other, first=True)

    assert json.loads(build_claim_path(spool).read_text())["ledger"] == "a"
    assert [p.name for p in build_claim_path(spool).parent.iterdir()] == [".claim"]


LATE = b'{"ledger": "x", "host": "ctl2", "since": 1e300, "cycle": 1e300}'


@pytest.mark.parametrize("kind", ["text", "link", "fifo", "half", "bytes", "late"])
def test_what_is_no_claim_is_named_and_nothing_is_done(
    spool: Path, ledger: Ledger, kind: str
) -> None:
    path = build_claim_path(spool)
    path.parent.mkdir()
    match kind:
        case "link":
            path.symlink_to("/etc/passwd")
        case "fifo":
            os.mkfifo(path)
        case _:
            texts = {"half": b'{"ledger": "x"', "bytes": b'{"ledger": "\xff"}'}
            path.write_bytes({**texts, "text": b"mine", "late": LATE}[kind])

    with pytest.raises(ActionError, match=rf"is not a valid claim .* rm {path}"):
        take_claim(spool, ledger, "ctl1", NOW)


def test_a_spool_that_is_away_is_no_other_controllers(tmp_path: Path, ledger: Ledger) -> None:
    with pytest.raises(StoreError, match="cannot be written: No such file"):
        take_claim(tmp_path / "away", ledger, "ctl1", NOW)
    assert not (tmp_path / "away").exists()


# -- the lock beside the ledger

FORK = multiprocessing.get_context("fork")


def hold(path: Path, held: Event) -> None:
    """Be another controller, for as long as it lives."""
    with hold_controller_lock(path, print):
        held.set()
        signal.pause()


def test_a_second_one_waits_until_the_first_is_gone_by_whatever_end(tmp_path: Path) -> None:
    path, told = tmp_path / "lock", list[str]()
    held = FORK.Event()
    other = FORK.Process(target=hold, args=(path, held))
    other.start()
    assert held.wait(PATIENCE_S)
    with (
        pytest.raises(UnverifiedError, match=f"fuser {path}"),
        hold_controller_lock(path, print, 0),
    ):
        pass

    def kill(text: str) -> None:
        told.append(text)
        assert other.pid is not None
        os.kill(other.pid, signal.SIGKILL)

    before = time.monotonic()
    with hold_controller_lock(path, kill):
        assert told == ["another hpcverify is acting on the fleet: waiting for it"]
        assert time.monotonic() - before >= NOTICE_AFTER_S
    other.join()


def test_a_lock_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "lock"
    with pytest.raises(StoreError, match="cannot be written: No such file"):
        hold_controller_lock(path, print).__enter__()
