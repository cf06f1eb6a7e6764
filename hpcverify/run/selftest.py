"""Run the selftests of checks on this node: faults injected, and what became of each."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from hpcverify.check import Check, Context, Placement, Trial
from hpcverify.errors import ConfigError
from hpcverify.model import Coverage, Device, Inventory, Shortfall, Verdict
from hpcverify.plan import catalog
from hpcverify.run.executor import Answer, Executor
from hpcverify.run.gather import (
    answer_for_unreachable,
    assign_workers,
    probe_node,
    refuse_used_gpus,
    select_devices,
)
from hpcverify.run.wire import RunSelftest

SOUND_STATUS, UNSOUND_STATUS, UNTRIED_STATUS = 0, 1, 3


class SelftestResult(Struct, frozen=True, kw_only=True):
    """How the faults injected into one check came out, on all devices."""

    check: str
    trials: tuple[Trial, ...]
    shortfalls: tuple[Shortfall, ...]
    skips: tuple[Coverage, ...] = ()

    @property
    def wrong_trials(self) -> tuple[Trial, ...]:
        """The trials that did not come out as expected."""
        return tuple(trial for trial in self.trials if not trial.is_as_expected)

    @property
    def status(self) -> int:
        """The exit status; a check without trials is not sound."""
        if self.wrong_trials:
            return UNSOUND_STATUS
        return UNTRIED_STATUS if self.shortfalls or not self.trials else SOUND_STATUS


def load_provable_checks(name: str | None, packages: tuple[str, ...]) -> dict[str, Check[Any]]:
    """Load the check *name*, or all that have a selftest."""
    names = {name} if name is not None else set(catalog.list_check_names(packages))
    checks = {n: catalog.load_check(n, packages) for n in sorted(names)}
    if chosen := {n: check for n, check in checks.items() if check.selftest}:
        return chosen
    raise ConfigError(
        f"check {name} has no selftest. Run all selftests: hpcverify qualify selftest"
        if name is not None
        else "no check has a selftest"
    )


def list_unprovable_checks(packages: tuple[str, ...]) -> list[str]:
    """List the checks that load a node and have no selftest: nobody can try them there."""
    checks = {n: catalog.load_check(n, packages) for n in catalog.list_check_names(packages)}
    active = (n for n, c in checks.items() if c.placement is not Placement.PASSIVE)
    return sorted(name for name in active if checks[name].selftest is None)


class SelftestRunner(Struct, frozen=True, kw_only=True):
    """Tries checks on this node; *folder* is empty, and the caller removes it."""

    node: str
    packages: tuple[str, ...]
    executor: Executor
    folder: Path
    device_kind: str = ""
    """If given, only devices of this kind try their checks."""
    seed: int = field(default_factory=lambda: int.from_bytes(os.urandom(4)) >> 1)

    def run_checks(self, checks: Mapping[str, Check[Any]]) -> Iterator[SelftestResult]:
        """Try *checks* one after the other."""
        inventory, holders = probe_node(self.executor)
        refuse_used_gpus(holders, inventory)
        chosen = select_devices(inventory, self.device_kind)
        for name, check in checks.items():
            yield self._run_check(name, check, chosen)

    def _run_check(self, name: str, check: Check[Any], inventory: Inventory) -> SelftestResult:
        answers: dict[str, Answer] = {}
        for workers in assign_workers(check.placement, inventory.devices):
            contexts = {w: self._build_context(d, inventory) for w, d in workers.items()}
            tasks = {
                worker: RunSelftest(name=name, packages=self.packages, context=context)
                for worker, context in contexts.items()
            }
            answers |= self.executor.run(tasks, check.timeout)
        if check.placement not in (Placement.PASSIVE, Placement.NODE):
            answers |= answer_for_unreachable(inventory, previous=None)
        ends = {part: answer.outcome for part, answer in answers.items()}
        return SelftestResult(
            check=name,
            trials=tuple(
                i for answer in answers.values() for i in answer.items if isinstance(i, Trial)
            ),
            shortfalls=tuple(
                Shortfall(part, end.reason, end.cause, end.remedy)
                for part, end in ends.items()
                if end.verdict is Verdict.ERROR
            ),
            skips=tuple(
                Coverage(part, f"skipped: {end.reason}")
                for part, end in ends.items()
                if end.verdict is Verdict.SKIP
            ),
        )

    def _build_context(self, device: Device, inventory: Inventory) -> Context:
        scratch, shared = self.folder / "scratch", self.folder / "shared"
        for folder in (scratch, shared):
            folder.mkdir(exist_ok=True)
        return Context(
            node=self.node,
            device=device,
            peers=tuple(d for d in inventory.devices if d.kind == device.kind),
            inventory=inventory,
            previous=None,
            scratch=scratch,
            shared=shared,
            seed=self.seed,
        )
