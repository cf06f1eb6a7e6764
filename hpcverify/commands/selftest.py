"""``hpcverify selftest``: whether the checks detect injected faults on this node."""

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

from hpcverify.check import Check, Context, Placement, Trial
from hpcverify.cli import say
from hpcverify.errors import ConfigError, UnverifiedError
from hpcverify.model import Coverage, Device, Inventory, Shortfall, Verdict
from hpcverify.plan import catalog
from hpcverify.plan.config import load_site, node_name, state_dir
from hpcverify.run.executor import Answer, Executor
from hpcverify.run.folders import temporary_folder
from hpcverify.run.gather import answer_for_unreachable, assign_workers, probe_node
from hpcverify.run.local import LocalExecutor
from hpcverify.run.lock import node_lock
from hpcverify.run.stop import stop_on_signals
from hpcverify.run.wire import Item, ProbeResult, RunSelftest

SOUND_STATUS, UNSOUND_STATUS, UNTRIED_STATUS = 0, 1, 3
COLUMNS_FORMAT = "{:5} {:8} {:48} {}"
COLUMN_HEADS = ("", "part", "fault", "expected")
DETAIL_INDENT = " " * 15


@click.command("selftest")
@click.argument("check", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--verbose", is_flag=True, help="Print the details of each trial.")
def command(check: str | None, *, as_json: bool, verbose: bool) -> None:
    """
    Inject faults into CHECK, or all that can, and verify that they are detected.

    The faults are made in our own arithmetic, on the real parts: nothing on the node
    is harmed. Exit status 0 if all came out as expected, 1 if one did not (do not
    trust the check on this node), 3 if one could not be tried.

    \b
    Examples:
      hpcverify selftest
      hpcverify selftest sdc --json
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    packages = load_site().packages
    chosen = load_provable_checks(check, packages)
    printer = TrialPrinter(sys.stderr if as_json else sys.stdout, verbose=verbose)
    with ExitStack() as stack:
        stack.enter_context(node_lock())
        stop = stack.enter_context(stop_on_signals())
        node = node_name()
        folder = stack.enter_context(temporary_folder(state_dir() / "work", node, say=say))
        executor = LocalExecutor(should_stop=stop, on_item=printer.print_item)
        stack.callback(lambda: executor.close(hurry=stop()))
        runner = SelftestRunner(node=node, packages=packages, executor=executor, folder=folder)
        results = list(runner.run_checks(chosen, printer))
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(build_json_rows(results)), indent=1))
    statuses = {result.status for result in results}
    sys.exit(UNSOUND_STATUS if UNSOUND_STATUS in statuses else max(statuses))


class SelftestResult(Struct, frozen=True, kw_only=True):
    """How the faults injected into one check came out, on all devices."""

    check: str
    trials: tuple[Trial, ...]
    shortfalls: tuple[Shortfall, ...]
    """Why a device could not try them."""
    skips: tuple[Coverage, ...] = ()
    """Devices that the check is not for."""

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


class TrialPrinter:
    """Prints a line for each trial as it ends."""

    def __init__(self, stream: IO[str], *, verbose: bool) -> None:
        """Print on *stream*; the names of parts come with the probe's result."""
        self._stream = stream
        self._verbose = verbose
        self._inventory = Inventory()

    def print_item(self, item: Item) -> None:
        """Print what a worker yielded, if it is a trial."""
        if isinstance(item, ProbeResult):
            self._inventory = item.inventory
            self._print_line(COLUMNS_FORMAT.format(*COLUMN_HEADS))
        elif isinstance(item, Trial):
            self._print_trial(item)

    def _print_trial(self, trial: Trial) -> None:
        mark = "ok" if trial.is_as_expected else "WRONG"
        part = self._inventory.find_label(trial.where)
        self._print_line(COLUMNS_FORMAT.format(mark, part, trial.fault, trial.expected))
        if not trial.is_as_expected:
            outcome = ": ".join(filter(None, (trial.outcome, trial.detail)))
            self._print_line(f"{DETAIL_INDENT}outcome: {outcome}")
        elif self._verbose and trial.detail:
            self._print_line(f"{DETAIL_INDENT}detail: {trial.detail}")

    def print_result(self, result: SelftestResult) -> None:
        """Say whether a check can be trusted here."""
        if result.wrong_trials:
            faults = ", ".join(dict.fromkeys(trial.fault for trial in result.wrong_trials))
            self._print_line(f"{result.check}: do not trust it on this node: {faults}")
        untried = [(s.where, s.reason) for s in result.shortfalls]
        untried += [(s.where, s.text) for s in result.skips]
        for where, why in untried:
            label = self._inventory.find_label(where)
            self._print_line(f"{result.check}: not fully tried on {label}: {why}")
        if result.status == SOUND_STATUS:
            count = len(result.trials)
            self._print_line(f"{result.check}: all {count} trials came out as expected")

    def _print_line(self, line: str) -> None:
        click.echo(line.rstrip(), file=self._stream)


def load_provable_checks(name: str | None, packages: tuple[str, ...]) -> dict[str, Check[Any]]:
    """
    Load the check *name*, or all that have a selftest.

    Raises:
        ConfigError: there is no such check, or it has no selftest.

    """
    names = {name} if name is not None else set(catalog.list_check_names(packages))
    checks = {n: catalog.load_check(n, packages) for n in sorted(names)}
    if chosen := {n: check for n, check in checks.items() if check.selftest}:
        return chosen
    raise ConfigError(
        f"check {name} has no selftest: hpcverify selftest, without a name, runs all that exist"
        if name is not None
        else "no check has a selftest"
    )


class SelftestRunner(Struct, frozen=True, kw_only=True):
    """Tries checks on this node; *folder* is empty, and the caller removes it."""

    node: str
    packages: tuple[str, ...]
    executor: Executor
    folder: Path
    seed: int = field(default_factory=lambda: int.from_bytes(os.urandom(4)) >> 1)

    def run_checks(
        self, checks: Mapping[str, Check[Any]], printer: TrialPrinter
    ) -> Iterator[SelftestResult]:
        """
        Try *checks* one after the other.

        Raises:
            UnverifiedError: the GPUs are in use.

        """
        inventory, holders = probe_node(self.executor)
        if holders:
            pids = ", ".join(dict.fromkeys(str(h.pid) for h in holders))
            raise UnverifiedError(
                f"the GPUs are in use by process {pids}: wait until they are free"
            )
        for name, check in checks.items():
            result = self._run_check(name, check, inventory)
            printer.print_result(result)
            yield result

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


def build_json_rows(results: Sequence[SelftestResult]) -> list[dict[str, Any]]:
    """Build the JSON rows for *results*."""
    return [
        {
            "check": result.check,
            "sound": result.status == SOUND_STATUS,
            "trials": [
                msgspec.to_builtins(trial) | {"holds": trial.is_as_expected}
                for trial in result.trials
            ],
            "shortfalls": msgspec.to_builtins(result.shortfalls),
            "skips": msgspec.to_builtins(result.skips),
        }
        for result in results
    ]
