"""A test that hangs ends, and the others have their turn."""

from __future__ import annotations

import signal
import threading

import pytest

from tests.conftest import LIMIT_SECONDS, bounded


def test_what_waits_for_ever_is_ended() -> None:
    ended = pytest.raises(pytest.fail.Exception, match=r"not over within 0\.01 s")
    with ended, bounded(0.01):
        threading.Event().wait()


def test_every_test_is_bounded_and_what_is_bounded_within_it_changes_nothing() -> None:
    with bounded(1):
        pass

    left, _ = signal.getitimer(signal.ITIMER_REAL)
    assert 1 < left <= LIMIT_SECONDS
