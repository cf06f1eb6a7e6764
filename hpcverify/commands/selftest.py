"""``hpcverify qualify selftest``: whether the checks detect injected faults on this node."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import IO, Any

import click
import msgspec

from hpcverify.check import Trial
from hpcverify.commands._options import CHECK, has_flag, json_option
from hpcverify.console import echo, print_json, say
from hpcverify.model import Inventory
from hpcverify.plan.config import load_site, node_name, state_dir
from hpcverify.run.folders import temporary_folder
from hpcverify.run.local import LocalExecutor
from hpcverify.run.lock import node_lock
from hpcverify.run.selftest import (
    SOUND_STATUS,
    UNSOUND_STATUS,
    SelftestResult,
    SelftestRunner,
    list_unprovable_checks,
    load_provable_checks,
)
from hpcverify.run.stop import stop_on_signals
from hpcverify.run.wire import Item, ProbeResult

COLUMNS_FORMAT = "{:5} {:8} {:48} {}"
COLUMN_HEADS = ("", "part", "fault", "expected")
DETAIL_INDENT = " " * 15


@click.command("selftest")
@click.argument("check", type=CHECK, metavar="[CHECK]", required=False)
@json_option
def command(check: str | None, *, as_json: bool) -> None:
    """
    Inject faults into CHECK (default: all checks with a selftest); verify their detection.

    The faults are in the arithmetic of hpcverify, on the real parts: they do not harm the
    node. Exit status 1 if a fault was missed (do not trust the check on this node), 3 if a
    fault could not be injected. `hpcverify -v qualify selftest` prints the details.

    \b
    Examples:
      hpcverify qualify selftest
      hpcverify qualify selftest sdc --json
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    packages = load_site().packages
    chosen = load_provable_checks(check, packages)
    printer = TrialPrinter(sys.stderr if as_json else sys.stdout, verbose=has_flag("verbose"))
    with ExitStack() as stack:
        stack.enter_context(node_lock())
        stop = stack.enter_context(stop_on_signals())
        node = node_name()
        folder = stack.enter_context(temporary_folder(state_dir() / "work", node, say=say))
        executor = LocalExecutor(should_stop=stop, on_item=printer.print_item)
        stack.callback(lambda: executor.close(hurry=stop()))
        runner = SelftestRunner(node=node, packages=packages, executor=executor, folder=folder)
        results: list[SelftestResult] = []
        for result in runner.run_checks(chosen):
            printer.print_result(result)
            results.append(result)
    if check is None and (without := list_unprovable_checks(packages)):
        printer.print_line(f"no selftest, and so not tried: {', '.join(without)}")
    if as_json:
        print_json(build_json_rows(results))
    statuses = {result.status for result in results}
    sys.exit(UNSOUND_STATUS if UNSOUND_STATUS in statuses else max(statuses))


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
            self.print_line(COLUMNS_FORMAT.format(*COLUMN_HEADS))
        elif isinstance(item, Trial):
            self._print_trial(item)

    def _print_trial(self, trial: Trial) -> None:
        mark = "ok" if trial.is_as_expected else "WRONG"
        part = self._inventory.find_label(trial.part_id)
        self.print_line(COLUMNS_FORMAT.format(mark, part, trial.fault, trial.expected))
        if not trial.is_as_expected:
            outcome = ": ".join(filter(None, (trial.outcome, trial.detail)))
            self.print_line(f"{DETAIL_INDENT}outcome: {outcome}")
        elif self._verbose and trial.detail:
            self.print_line(f"{DETAIL_INDENT}detail: {trial.detail}")

    def print_result(self, result: SelftestResult) -> None:
        """Say whether a check can be trusted here."""
        if result.wrong_trials:
            faults = ", ".join(dict.fromkeys(trial.fault for trial in result.wrong_trials))
            self.print_line(f"{result.check}: do not trust it on this node: {faults}")
        untried = [(s.part_id, s.reason) for s in result.shortfalls]
        untried += [(s.part_id, s.text) for s in result.skips]
        for part_id, why in untried:
            label = self._inventory.find_label(part_id)
            self.print_line(f"{result.check}: not fully tried on {label}: {why}")
        if result.status == SOUND_STATUS:
            count = len(result.trials)
            self.print_line(f"{result.check}: all {count} trials came out as expected")

    def print_line(self, line: str) -> None:
        """Print a line as it is."""
        echo(line.rstrip(), self._stream)


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
