"""A clock that counts work in place of time: how busy the machine is changes nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from hpcverify_checks import sdc, thermal
from hpcverify_checks.exact import product_loop, soak
from hpcverify_checks.exact.products import PlannedOperands
from hpcverify_checks.sdc import copies, stress
from hpcverify_checks.thermal import load, plan

ROOM = 2**16
"""Bytes between which copies are made: what they take is counted, too."""


class WorkClock:
    """
    Tells how long the work that was done so far takes at some pace.

    Each thread counts its own work, so that one which the machine prefers does not use up the
    time of the others. The main thread reads the latest time of all.
    """

    def __init__(
        self, product_seconds: float, plan_seconds: float = 0.01, lap_seconds: float = 0.01
    ) -> None:
        """Take so long for each comparison, each pair of operands and each lap of copies."""
        self.now = 0.0
        self.own = threading.local()
        self.lock = threading.Lock()
        self.product_seconds, self.plan_seconds = product_seconds, plan_seconds
        self.lap_seconds = lap_seconds

    def monotonic(self) -> float:
        """Tell the time."""
        if threading.current_thread() is threading.main_thread():
            return self.now
        return getattr(self.own, "now", self.now)

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.own.now = self.monotonic() + seconds
        with self.lock:
            self.now = max(self.now, self.own.now)

    def put_into(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let all phases of the checks sdc and thermal go by this clock."""
        monkeypatch.setattr(sdc, "perf_counter", self.monotonic)
        for module in (soak, stress, copies, thermal, load, plan):
            monkeypatch.setattr(module, "time", self)
        monkeypatch.setattr(copies, "ROOM_BYTES", {"cpu": ROOM, "cuda": ROOM})
        bench, path = product_loop.ProductBench, copies.CopyPath
        for owner, name, cost in (
            (bench, "compute_and_compare", self.product_seconds),
            (PlannedOperands, "store", self.plan_seconds),
            (path, "copy_and_count", self.lap_seconds),
        ):
            monkeypatch.setattr(owner, name, self.charge(getattr(owner, name), cost))

    def charge(self, work: Callable[..., Any], seconds: float) -> Callable[..., Any]:
        """Do *work*, and let it take so long."""

        def do(*args: Any, **kwargs: Any) -> Any:
            self.sleep(seconds)
            return work(*args, **kwargs)

        return do
