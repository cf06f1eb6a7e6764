"""GPUs, checks that measure nothing, and runs of them with the workers of a test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from hpcverify.check import Check, Metric, Params
from hpcverify.model import Cause, CheckItem, Device, Finding, Run, Verdict
from hpcverify.plan.suite import Plan, Step
from hpcverify.run.attribution import GpuXids
from hpcverify.run.executor import Answer
from hpcverify.run.history import NodeHistory
from hpcverify.run.orchestrator import Verification
from hpcverify.run.wire import Outcome
from hpcverify.testing import FakeExecutor, make_answer
from tests.doubles import SilentProgress


def make_gpus(count: int) -> tuple[Device, ...]:
    return tuple(Device("cuda", f"gpu-{i}", f"GPU {i}") for i in range(count))


def make_xids(part_id: str, number: int, text: str) -> GpuXids:
    """Make one Xid, with its line in the kernel log."""
    line = {"line": f"NVRM: Xid {number}"}
    return GpuXids((Finding("xid", part_id, text, line, {"xid": number}),))


CHECK = Check(
    summary="c",
    measure=lambda *_: iter(()),
    params=Params,
    metrics={"speed": Metric("", "low", "m")},
)


def make_step(name: str = "c", *, timeout: float = 9, **changes: Any) -> Step:
    """Make the step of a check like `CHECK` but for *changes*."""
    return Step(name=name, check=replace(CHECK, **changes), params=Params(), timeout=timeout)


def break_worker(cause: Cause, *items: CheckItem, verdict: Verdict = Verdict.ERROR) -> Answer:
    """Answer as a worker that found *items* before it broke."""
    outcome = Outcome(verdict=verdict, reason="it broke", cause=cause)
    return Answer(items=make_answer(*items).items, outcome=outcome)


def verify(
    place: Path,
    executor: FakeExecutor,
    /,
    *steps: Step,
    budget: float = 100,
    rounds: int = 1,
    settle: float = 0,
    **changes: Any,
) -> Run:
    """Run *steps* with the workers of *executor*; *changes* are fields of `Verification`."""
    plan = Plan(suite="s", budget=budget, rounds=rounds, settle=settle, steps=steps)
    usual: dict[str, Any] = {
        "packages": (),
        "folder": place,
        "scratch": place,
        "history": NodeHistory(),
        "progress": SilentProgress(),
    }
    return Verification(plan=plan, node="n1", executor=executor, **{**usual, **changes}).run()
