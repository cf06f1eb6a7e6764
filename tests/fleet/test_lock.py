"""One controller acts at a time, and whoever waits is told so."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from hpcverify.errors import StoreError, UnverifiedError
from hpcverify.fleet.claim import NOTICE_AFTER_S, hold_controller_lock

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
    assert held.wait(60)
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
        assert told == ["another hpcverify acts on the fleet: waiting for it"]
        assert time.monotonic() - before >= NOTICE_AFTER_S
    other.join()


def test_a_lock_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "lock"

    with pytest.raises(StoreError, match="cannot be written: No such file"):
        hold_controller_lock(path, print).__enter__()
