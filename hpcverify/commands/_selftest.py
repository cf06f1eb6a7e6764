"""What ``hpcverify selftest`` does, apart from its options."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import click
import msgspec
from msgspec import Struct, field

from hpcverify import catalog
from hpcverify.check import Check, Context, Placement, Trial
from hpcverify.cli import say
from hpcverify.config import load_site, node_name, state_dir
from hpcverify.errors import ConfigError, UnverifiedError
from hpcverify.executors import Answer, Executor
from hpcverify.executors.local import LocalExecutor
from hpcverify.folders import own_folder
from hpcverify.lock import node_lock
from hpcverify.model import Covered, Device, Inventory, Shortfall, Verdict
from hpcverify.orchestrator import probe_node, unreachable, workers_of
from hpcverify.stop import stop_on_signals
from hpcverify.wire import Prove, Reply

SOUND, UNSOUND, UNTRIED = 0, 1, 3
"""The exit statuses."""
COLUMNS = "{:5} {:8} {:48} {}"
HEAD = ("", "part", "fault", "must become")
DETAIL = " " * 15
"""What stands before what belongs to the line above."""


class Proof(Struct, frozen=True, kw_only=True):
    """What came of the faults that were injected into one check, on all devices."""

    check: str
    trials: tuple[Trial, ...]
    shortfalls: tuple[Shortfall, ...]
    """What kept a device from trying them."""
    skips: tuple[Covered, ...] = ()
    """Devices that the check is not for."""

    @property
    def wrong(self) -> tuple[Trial, ...]:
        """The trials that did not come out as they must."""
        return tuple(trial for trial in self.trials if not trial.holds)

    @property
    def status(self) -> int:
        """The exit status; a check of which nothing was tried is not sound."""
        if self.wrong:
            return UNSOUND
        return UNTRIED if self.shortfalls or not self.trials else SOUND


class Sheet:
    """Prints a line for each trial as it ends."""

    def __init__(self, stream: IO[str], *, verbose: bool) -> None:
        """Print on *stream*; what parts are called is told by the probe."""
        self._stream = stream
        self._verbose = verbose
        self._inventory = Inventory()

    def heard(self, reply: Reply) -> None:
        """Take in what a worker said."""
        if reply.inventory is not None:
            self._inventory = reply.inventory
            self._say(COLUMNS.format(*HEAD))
        if (trial := reply.trial) is not None:
            self._tried(trial)

    def _tried(self, trial: Trial) -> None:
        """Print what was tried; what came of it only if it is wrong or asked for."""
        mark = "ok" if trial.holds else "WRONG"
        part = self._inventory.label(trial.where)
        self._say(COLUMNS.format(mark, part, trial.fault, trial.expected))
        told = f": {trial.detail}" if trial.detail else ""
        if not trial.holds:
            self._say(f"{DETAIL}became: {trial.outcome}{told}")
        elif self._verbose and told:
            self._say(f"{DETAIL}it said{told}")

    def ended(self, proof: Proof) -> None:
        """Say whether a check can be trusted here."""
        if proof.wrong:
            faults = ", ".join(dict.fromkeys(trial.fault for trial in proof.wrong))
            self._say(f"{proof.check}: do not trust it on this node: {faults}")
        untried = [(s.where, s.reason) for s in proof.shortfalls]
        untried += [(s.where, s.text) for s in proof.skips]
        for where, why in untried:
            label = self._inventory.label(where)
            self._say(f"{proof.check}: not tried to the end on {label}: {why}")
        if proof.status == SOUND:
            count = len(proof.trials)
            self._say(f"{proof.check}: all {count} trials came out as they must")

    def _say(self, line: str) -> None:
        click.echo(line.rstrip(), file=self._stream)


def carry_out(name: str | None, *, as_json: bool, verbose: bool) -> int:
    """Try the check *name*, or all that can be; return the exit status."""
    packages = load_site().packages
    chosen = provable(name, packages)
    sheet = Sheet(sys.stderr if as_json else sys.stdout, verbose=verbose)
    with ExitStack() as stack:
        stack.enter_context(node_lock())
        stop = stack.enter_context(stop_on_signals())
        node = node_name()
        folder = stack.enter_context(own_folder(state_dir() / "work", node, say=say))
        executor = LocalExecutor(stopped=stop, heard=sheet.heard)
        stack.callback(lambda: executor.close(hurry=stop()))
        proving = Proving(
            node=node, packages=packages, executor=executor, folder=folder
        )
        proofs = list(proving.proofs(chosen, sheet))
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(rows(proofs)), indent=1))
    statuses = {proof.status for proof in proofs}
    return UNSOUND if UNSOUND in statuses else max(statuses)


def provable(name: str | None, packages: tuple[str, ...]) -> dict[str, Check[Any]]:
    """
    Load the check *name*, or all that have a selftest.

    Raises:
        ConfigError: there is none of that name, or it has no selftest.

    """
    names = {name} if name is not None else set(catalog.names(packages))
    checks = {n: catalog.load(n, packages) for n in sorted(names)}
    if chosen := {n: check for n, check in checks.items() if check.selftest}:
        return chosen
    raise ConfigError(
        f"check {name} has no selftest: hpcverify selftest runs all that there are"
        if name is not None
        else "no check has a selftest"
    )


class Proving(Struct, frozen=True, kw_only=True):
    """Tries checks on this node; *folder* exists, is empty and is removed by others."""

    node: str
    packages: tuple[str, ...]
    executor: Executor
    folder: Path
    seed: int = field(default_factory=lambda: int.from_bytes(os.urandom(4)) >> 1)

    def proofs(self, checks: Mapping[str, Check[Any]], sheet: Sheet) -> Iterator[Proof]:
        """
        Try *checks*, one after the other.

        Raises:
            UnverifiedError: someone else uses the GPUs.

        """
        inventory, holders = probe_node(self.executor)
        if holders:
            pids = ", ".join(dict.fromkeys(str(h.pid) for h in holders))
            raise UnverifiedError(
                f"the GPUs are in use by process {pids}: wait until they are free"
            )
        for name, check in checks.items():
            proof = self._proof(name, check, inventory)
            sheet.ended(proof)
            yield proof

    def _proof(self, name: str, check: Check[Any], inventory: Inventory) -> Proof:
        answers: dict[str, Answer] = {}
        for workers in workers_of(check.placement, inventory.devices):
            contexts = {w: self._context(d, inventory) for w, d in workers.items()}
            tasks = {
                worker: Prove(name=name, packages=self.packages, context=context)
                for worker, context in contexts.items()
            }
            answers |= self.executor.run(tasks, check.timeout)
        if check.placement not in (Placement.PASSIVE, Placement.NODE):
            answers |= unreachable(inventory, previous=None)
        ends = {part: answer.outcome for part, answer in answers.items()}
        return Proof(
            check=name,
            trials=tuple(t for answer in answers.values() for t in answer.trials),
            shortfalls=tuple(
                Shortfall(part, end.reason, end.cause, end.remedy)
                for part, end in ends.items()
                if end.verdict is Verdict.ERROR
            ),
            skips=tuple(
                Covered(part, f"skipped: {end.reason}")
                for part, end in ends.items()
                if end.verdict is Verdict.SKIP
            ),
        )

    def _context(self, device: Device, inventory: Inventory) -> Context:
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


def rows(proofs: Sequence[Proof]) -> list[dict[str, Any]]:
    """Make of *proofs* what is printed as JSON."""
    return [
        {
            "check": proof.check,
            "sound": proof.status == SOUND,
            "trials": [
                msgspec.to_builtins(trial) | {"holds": trial.holds}
                for trial in proof.trials
            ],
            "shortfalls": msgspec.to_builtins(proof.shortfalls),
            "skips": msgspec.to_builtins(proof.skips),
        }
        for proof in proofs
    ]
