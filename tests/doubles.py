"""Doubles for what a test machine does not have, and values to start from."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import msgspec

from hpcverify.check import Context
from hpcverify.model import (
    CheckItem,
    Coverage,
    Device,
    Finding,
    Inventory,
    Limit,
    Measurement,
    Part,
    Result,
    Run,
    Series,
    Verdict,
)
from hpcverify.plan.suite import Plan, Step
from hpcverify.run.executor import Answer
from hpcverify.run.wire import GpuHolder, Outcome, Probe, ProbeResult, Task, decode_response

CPU = Device(kind="cpu", part="cpu", label="CPU")

INVENTORY = Inventory(
    parts=(Part(kind="cpu", id="cpu", label="CPU", facts={"model": "test"}),), devices=(CPU,)
)


def context(tmp_path: Path, **changes: Any) -> Context:
    """Make the context of a check on a node with nothing but a CPU."""
    for name in ("scratch", "shared"):
        (tmp_path / name).mkdir(exist_ok=True)
    base = Context(
        node="n1",
        device=CPU,
        peers=(CPU,),
        inventory=INVENTORY,
        previous=None,
        scratch=tmp_path / "scratch",
        shared=tmp_path / "shared",
        seed=1,
    )
    return msgspec.structs.replace(base, **changes)


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


def a_run(**changes: Any) -> Run:
    """Make a run of one result."""
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
    return msgspec.structs.replace(base, **changes)


@dataclasses.dataclass
class FakeExecutor:
    """Answers every task as *answers* says, and remembers what it was asked."""

    inventory: Inventory = INVENTORY
    holders: tuple[GpuHolder, ...] = ()
    answers: dict[str, Answer] = dataclasses.field(default_factory=dict[str, Answer])
    """By the name of the worker; what is not here comes to its end with nothing."""
    phases: list[dict[str, Task]] = dataclasses.field(default_factory=list[dict[str, Task]])
    probes: list[Probe] = dataclasses.field(default_factory=list[Probe])
    told_to_stop: bool = False
    closed: bool = False

    def run(self, tasks: Mapping[str, Task], timeout: float) -> dict[str, Answer]:
        """Answer at once."""
        assert timeout >= 0
        if probes := [task for task in tasks.values() if isinstance(task, Probe)]:
            self.probes += probes
            probed = ProbeResult(self.inventory, self.holders)
            return dict.fromkeys(tasks, Answer(items=(probed,), outcome=Outcome()))
        self.phases.append(dict(tasks))
        return {name: self.answers.get(name, ENDED) for name in tasks}

    def should_stop(self) -> bool:
        """Whether the test said so."""
        return self.told_to_stop

    def close(self, *, hurry: bool = False) -> None:
        """Remember that it was closed."""
        del hurry
        self.closed = True


ENDED = Answer(outcome=Outcome())


def found(*items: CheckItem) -> Answer:
    """Make the answer of a worker that found *items*."""
    return Answer(items=items, outcome=Outcome())


def read_items(lines: Iterable[str]) -> list[CheckItem]:
    """Read what a check in a process of its own wrote with `encode_response`."""
    return [cast("CheckItem", decode_response(line.encode())[1]) for line in lines]


class SilentProgress:
    """Is told how a run goes on, and tells nobody."""

    def begin_step(self, step: Step, place: int, plan: Plan, where: str) -> None:
        """Say nothing."""

    def tick(self) -> None:
        """Say nothing."""

    def end_step(self, result: Result) -> None:
        """Say nothing."""
