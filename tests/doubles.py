"""Values that our tests start from, and a progress that nobody sees."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, cast

import msgspec

from hpcverify.check import add_faults
from hpcverify.model import (
    CheckItem,
    Coverage,
    Finding,
    Limit,
    Measurement,
    Part,
    Result,
    Run,
    Series,
    Verdict,
    effective_verdict,
)
from hpcverify.plan.suite import Plan, Step
from hpcverify.records.spool import read_id_time
from hpcverify.run.wire import decode_response
from hpcverify.telemetry.gpus import Setup
from hpcverify.testing import INVENTORY


def a_result(check: str = "gemm", **changes: Any) -> Result:
    """Make a result with one of everything in it."""
    speed = Measurement("fp32.sustained", 150.0, "GFLOP/s", "cpu")
    base = Result(
        check=check,
        verdict=Verdict.PASS,
        seconds=2.0,
        coverage=(Coverage("cpu", "fp32 at 2048"),),
        measurements=(speed,),
        findings=(Finding("note", "cpu", "a fact", {"word": "0x1"}),),
        series=(Series("rate", "GFLOP/s", "cpu", (0.0, 1.0), (149.0, 151.0)),),
        limits=(Limit(name="fp32.sustained", low=100.0, source="a test"),),
        params={"seconds": 2},
    )
    return msgspec.structs.replace(base, **changes)


class CountedParts(tuple[Part, ...]):  # noqa: SLOT001 - it counts
    """Parts that count how often somebody goes through them."""

    passes = 0

    def __iter__(self) -> Iterator[Part]:
        self.passes += 1
        return super().__iter__()


NO_TIME = datetime.min.replace(tzinfo=UTC)


def a_run(**changes: Any) -> Run:
    """Make a run of one result; it began when its id says so."""
    base = Run(
        id="20260101-000000-abcdef",
        node="n1",
        suite="quick",
        started=datetime(2026, 1, 1, tzinfo=UTC),
        seconds=3.0,
        verdict=Verdict.PASS,
        complete=True,
        inventory=INVENTORY,
        results=(a_result(),),
        versions={"hpcverify": "0.1.0"},
    )
    run = add_missing_faults(msgspec.structs.replace(base, **changes))
    if "started" in changes or (at := read_id_time(run.id)) == NO_TIME:
        return run
    return msgspec.structs.replace(run, started=at)


def add_missing_faults(run: Run) -> Run:
    """Add to the results of *run* that have a verdict and no faults those that judging makes."""
    results = (
        r if r.faults or effective_verdict(r) <= Verdict.SKIP else add_faults(r, run.inventory)
        for r in run.results
    )
    return msgspec.structs.replace(run, results=tuple(results))


def read_items(lines: Iterable[str]) -> list[CheckItem]:
    """Read what a check in a process of its own wrote with `encode_response`."""
    return [cast("CheckItem", decode_response(line.encode())[1]) for line in lines]


UNTOLD = Setup(
    persistence=None,
    mig=None,
    mig_pending=None,
    compute_mode=None,
    ecc=None,
    ecc_pending=None,
    power_limit_w=None,
    power_enforced_w=None,
    power_default_w=None,
    clock_max_mhz=None,
    clock_applications_mhz=None,
    slowed_by=(),
    memory_used=None,
    processes=None,
    firmware={},
)
"""What a GPU says of its setup that answers nothing."""


class Clock:
    """Stands still until it is set, or somebody sleeps."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class SilentProgress:
    """Is told how a run goes on, and tells nobody."""

    def begin_step(self, step: Step, place: int, plan: Plan, target: str) -> None:
        """Say nothing."""

    def tick(self) -> None:
        """Say nothing."""

    def end_step(self, result: Result) -> None:
        """Say nothing."""
