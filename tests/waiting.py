"""The one way to wait in tests: for a condition, and longer than any machine needs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE_S = 300.0
"""Seconds to wait for what takes far less: a limit for what never comes, and no measurement."""

LONGEST_PAUSE_S = 0.2


def wait_until(
    look: Callable[[], T | None],
    explain: Callable[[], object] = str,
    seconds: float = PATIENCE_S,
) -> T:
    """
    Look again and again until something is there, and give it.

    :raises AssertionError: with what *explain* says, if nothing came within *seconds*.
    """
    end, pause = time.monotonic() + seconds, 0.01
    while not (seen := look()):
        assert time.monotonic() < end, f"not within {seconds:g} s: {explain()}"
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_S)
    return seen
