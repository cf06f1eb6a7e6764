"""
What the tests of a check need: a context, the verdict, and an executor without workers.

A test of a check gives it a fault through a seam of its own, judges what it found, and
asserts the verdict; a second test leaves the fault out. docs/how-to/write-a-check.md shows both.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from hpcverify.check import Check, Context, Rule, judge
from hpcverify.limits.resolve import PastValues
from hpcverify.model import (
    CheckItem,
    Device,
    Finding,
    FindingRule,
    Inventory,
    Limit,
    Measurement,
    Part,
    Result,
    Verdict,
)
from hpcverify.run.conclude import judge_result
from hpcverify.run.executor import Answer
from hpcverify.run.wire import GpuHolder, Outcome, Probe, ProbeResult, Task

CPU = Device(kind="cpu", part="cpu", label="CPU")
INVENTORY = Inventory(
    parts=(Part(kind="cpu", id="cpu", label="CPU", facts={"model": "test"}),), devices=(CPU,)
)
NO_PARTS = Inventory()
"""A node of which no part is known: parts are named by their ids."""


def has_no_past(_name: str, _where: str) -> Sequence[float]:
    """Give no values: what a node's first run knows of earlier ones."""
    return ()


def make_context(folder: Path, **changes: Any) -> Context:
    """Make the context of a check on `INVENTORY` below *folder*, with *changes* of its fields."""
    for name in ("scratch", "shared"):
        (folder / name).mkdir(exist_ok=True)
    base = Context(
        node="n1",
        device=CPU,
        peers=(CPU,),
        inventory=INVENTORY,
        previous=None,
        scratch=folder / "scratch",
        shared=folder / "shared",
        seed=1,
    )
    return msgspec.structs.replace(base, **changes)


def judge_items(
    check: Check[Any],
    items: Iterable[CheckItem],
    inventory: Inventory = INVENTORY,
    past: PastValues = has_no_past,
    overrides: Sequence[Rule] = (),
) -> Result:
    """
    Judge *items* as a run does, by the default limits and rulings of *check*, and by *overrides*.

    They are those of all devices, and reconciled first if the check does that. *past*
    gives what earlier runs measured, newest first, by name and part.
    """
    yielded = [item for item in items if isinstance(item, Measurement | Finding)]
    if check.reconcile is not None:
        yielded = list(check.reconcile(yielded, inventory))
    measurements = list_measurements(yielded)
    for item in measurements:
        metric = check.find_metric(item.name)
        assert metric is not None, f"{item.name} is not among the check's metrics"  # noqa: S101 - a test's helper
        assert metric.unit == item.unit, f"{item.name} is in {item.unit!r}, not {metric.unit!r}"  # noqa: S101
    return judge_result(
        *(_build_result(yielded), check.rules, check.finding_rules, inventory, past),
        overrides=overrides,
    )


def judge_by(
    items: Iterable[CheckItem],
    limits: Sequence[Limit] = (),
    rulings: Mapping[str, FindingRule] = MappingProxyType({}),
    inventory: Inventory = NO_PARTS,
    check: str = "check",
) -> Result:
    """Judge *items* of the check of that name by *limits* and *rulings* instead of its own."""
    result = _build_result(items, check, limits=tuple(limits), rulings=dict(rulings))
    return judge(result, inventory)


def _build_result(items: Iterable[CheckItem], check: str = "check", **changes: Any) -> Result:
    yielded = list(items)
    return Result(
        check=check,
        verdict=Verdict.PASS,
        measurements=tuple(list_measurements(yielded)),
        findings=tuple(list_findings(yielded)),
        **changes,
    )


def list_measurements(items: Iterable[CheckItem]) -> list[Measurement]:
    """List the measurements among *items*, in their order."""
    return [item for item in items if isinstance(item, Measurement)]


def list_findings(items: Iterable[CheckItem]) -> list[Finding]:
    """List the findings among *items*, in their order."""
    return [item for item in items if isinstance(item, Finding)]


def list_codes(items: Iterable[CheckItem]) -> list[str]:
    """List the codes of the findings among *items*, in their order."""
    return [finding.code for finding in list_findings(items)]


def find_value(items: Iterable[CheckItem], name: str, part_id: str = "") -> float | None:
    """Find the value of the one measurement called *name*, on the part *part_id* if given."""
    match [m for m in list_measurements(items) if m.name == name and part_id in ("", m.part_id)]:
        case [measurement]:
            return measurement.value
        case several:
            raise LookupError(f"{len(several)} measurements of {name} {part_id}".rstrip())


ENDED = Answer(outcome=Outcome())
"""The answer of a worker that came to its end and found nothing."""


def make_answer(*items: CheckItem) -> Answer:
    """Make the answer of a worker that found *items*."""
    return Answer(items=items, outcome=Outcome())


@dataclasses.dataclass
class FakeExecutor:
    """Answers every task at once as *answers* says, and keeps what it was asked."""

    inventory: Inventory = INVENTORY
    holders: tuple[GpuHolder, ...] = ()
    answers: dict[str, Answer] = dataclasses.field(default_factory=dict[str, Answer])
    """By the name of the worker; one that is not here answers `ENDED`."""
    phases: list[dict[str, Task]] = dataclasses.field(default_factory=list[dict[str, Task]])
    probes: list[Probe] = dataclasses.field(default_factory=list[Probe])
    told_to_stop: bool = False
    closed: bool = False

    def run(self, tasks: Mapping[str, Task], timeout: float) -> dict[str, Answer]:
        """Answer at once."""
        assert timeout >= 0  # noqa: S101 - a test's helper
        if probes := [task for task in tasks.values() if isinstance(task, Probe)]:
            self.probes += probes
            probed = ProbeResult(self.inventory, self.holders)
            return dict.fromkeys(tasks, Answer(items=(probed,), outcome=Outcome()))
        self.phases.append(dict(tasks))
        return {name: self.answers.get(name, ENDED) for name in tasks}

    def should_stop(self) -> bool:
        """Whether the test said so."""
        return self.told_to_stop

    def close(self, names: Collection[str] | None = None, *, hurry: bool = False) -> None:
        """Remember that it was closed, and not only some of its workers."""
        del hurry
        self.closed = self.closed or names is None
