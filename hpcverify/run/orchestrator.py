"""
Verify one node: list its hardware, run each check of a suite in turn, and judge.

A suite may have several rounds. Each round is like a new run: it lists the hardware
again, gets what the round before carried over, continues the rotation, and has its own
seed.
"""

from __future__ import annotations

import os
import site
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime

import msgspec
from msgspec import field

from hpcverify.check import Placement, Unable
from hpcverify.model import Cause, Finding, Inventory, Result, Run, Verdict, verdict_of
from hpcverify.plan.suite import Step
from hpcverify.records import documents
from hpcverify.run import gather
from hpcverify.run.conclude import build_not_run_result
from hpcverify.run.gather import (
    Round,
    RunBase,
    StepRun,
)
from hpcverify.run.history import NodeHistory, extend_history
from hpcverify.run.passive import keep_first, merge_results
from hpcverify.run.wire import GpuHolder
from hpcverify.summary.progress import Progress

WORKER_END_CAUSES = frozenset({Cause.CRASHED, Cause.TIMEOUT, Cause.HUNG})
PROBE_BUDGET_SHARE = 0.85
"""The share of the budget that the probe may use: the rest is for the checks, which report
what the probe met."""
VERSIONED_PACKAGES = frozenset({"hpcverify", "torch", "nvidia_ml_py"})
"""Packages whose version a run records, as their directories spell them."""
SEED_COUNT = 2**31
SEED_STRIDE = 0x9E3779B1
"""Odd, so that rounds do not share a seed; large, so that the neighbours of a seed,
which checks may use too, do not belong to another round."""
ROUND_TIME_MARGIN = 1.1
"""What a round may take, as a multiple of the longest so far."""


class Verification(RunBase, kw_only=True):
    """One run; the caller creates its folders empty, and removes them."""

    history: NodeHistory
    progress: Progress
    force: bool = False
    device_kind: str = ""
    """If given, only devices of this kind are verified."""
    max_bytes: int = documents.MAX_DOCUMENT_BYTES
    seed: int = field(default_factory=lambda: int.from_bytes(os.urandom(4)) >> 1)
    _skipped: dict[str, str] = field(default_factory=dict[str, str])
    """Why checks were skipped, as far as it was reported: later rounds do not repeat it."""

    def run(self) -> Run:
        """Verify the node; a request to stop ends it early with the results so far."""
        started = datetime.now(UTC)
        first = self._begin_round(1, self.history)
        results, left_out = self._run_rounds(first)
        self.executor.close(hurry=self.executor.should_stop())
        interrupted = was_interrupted(results)
        active = {step.name for step in self.plan.steps if step.is_active}
        loaded = {r.check for r in results if r.verdict is not Verdict.SKIP}
        return Run(
            id=make_run_id(started),
            node=self.node,
            suite=self.plan.suite,
            chosen=self.plan.chosen,
            started=started,
            seconds=round(self.clock() - self.began, 3),
            # Inconclusive, no matter what it found.
            verdict=Verdict.ERROR if interrupted else verdict_of(results),
            complete=not interrupted,
            rounds=self.plan.rounds,
            left_out=left_out,
            passive=active.isdisjoint(loaded),
            inventory=first.inventory,
            results=results,
            versions=collect_versions(),
        )

    def _begin_round(self, number: int, history: NodeHistory) -> Round:
        inventory, holders = self._probe(sample=self.is_sampled and number == 1)
        inventory = gather.drop_devices(inventory, self.state.unused)
        return Round(
            number=number,
            inventory=gather.select_devices(inventory, self.device_kind),
            history=history,
            # Later our own workers hold the GPUs.
            holders=holders if number == 1 else (),
            seed=derive_seed(self.seed, number),
            run=self,
        )

    def _probe(self, *, sample: bool) -> tuple[Inventory, tuple[GpuHolder, ...]]:
        return gather.probe_node(
            self.executor,
            seconds=min(gather.PROBE_SECONDS, self.plan.budget * PROBE_BUDGET_SHARE),
            sample=sample,
            folder=self.scratch.parent,
        )

    def _run_rounds(self, now: Round) -> tuple[tuple[Result, ...], str]:
        """Return the results of all rounds, and why some were left out, if so."""
        done: list[Result] = []
        costs: list[tuple[float, int]] = []  # of each round: seconds, bytes of the document
        began = self.began
        while True:
            results = tuple(self._run_steps(now))
            done += results
            if was_interrupted(results) or now.number == self.plan.rounds:
                return tuple(done), self._explain_cut_short(now, results)
            costs.append((self.clock() - began, documents.count_bytes(results)))
            if why := self._explain_no_more_rounds(now, results, costs):
                return tuple(done), why
            began = self.clock()
            history = extend_history(now.history, results, now.inventory)
            now = self._begin_round(now.number + 1, history)

    def _explain_no_more_rounds(
        self, now: Round, results: tuple[Result, ...], costs: Sequence[tuple[float, int]]
    ) -> str:
        if why := self._explain_cut_short(now, results):
            return why
        if now.number == 1 and all(map(could_not_run, results)):
            return "no check could run in the first"
        if verdict_of(results) is Verdict.FAIL:
            return f"round {now.number} failed"
        longest, left = max(seconds for seconds, _ in costs), self.count_seconds_left()
        # The first check of the first round had no load before it to settle from.
        if left < ROUND_TIME_MARGIN * longest + self.plan.settle:
            return (
                f"of the suite's {self.plan.budget:g} s {left:.0f} s were left, and "
                f"a round took up to {longest:.0f} s"
            )
        sizes = [size for _, size in costs]
        if sum(sizes) + 2 * max(sizes) > self.max_bytes:  # the next may be larger
            return "its document would exceed the size limit"
        return ""

    def _explain_cut_short(self, now: Round, results: tuple[Result, ...]) -> str:
        finished = {result.check for result in results}
        missing = [step.name for step in self.plan.steps if step.name not in finished]
        if not missing:
            return ""
        return (
            f"round {now.number} was cut short when the suite's {self.plan.budget:g} s "
            f"ran out, with no result of {', '.join(missing)}"
        )

    def _run_steps(self, now: Round) -> Iterator[Result]:
        """Run each step of the plan; a GPU that hung in one is left out of the next."""
        before: Mapping[int, Result] = {}
        first_load = next((i for i, s in enumerate(self.plan.steps) if s.is_active), None)
        for index in range(len(self.plan.steps)):
            if index == first_load and now.number == 1:
                before = self._run_before_load(now, index)
            result, unused = self._run_step(index, now, before.get(index))
            if result is not None:
                yield result
            if unused:
                self.state.unused += unused
                kept = gather.drop_devices(now.inventory, unused)
                now = msgspec.structs.replace(now, inventory=kept)

    def _run_before_load(self, now: Round, first_load: int) -> dict[int, Result]:
        """Run the passive checks after *first_load*; return the results by step."""
        results: dict[int, Result] = {}
        for index, step in enumerate(self.plan.steps[first_load:], first_load):
            if step.is_active or self._find_obstacle(step, now, spent=self.is_spent):
                continue
            results[index] = StepRun(step=step, round=now).run_before_load()
        causes = {short.cause for result in results.values() for short in result.shortfalls}
        if not causes.isdisjoint(WORKER_END_CAUSES):
            # The worker that samples may have been ended, and another one begins here.
            self._probe(sample=True)
        return results

    def _run_step(
        self, index: int, now: Round, first: Result | None
    ) -> tuple[Result | None, tuple[Finding, ...]]:
        """Run one step, merge its *first* result, and list the GPUs that did not return from it."""
        step = self.plan.steps[index]
        unused: tuple[Finding, ...] = ()
        spent = self.is_spent
        if spent and now.number > 1 and not self.executor.should_stop():
            return None, ()
        result = self._find_obstacle(step, now, spent=spent)
        if spent and first and not self.executor.should_stop():
            result = keep_first(first, f"the suite's {self.plan.budget:g} s ran out")
        if result is None:
            place = (now.number - 1) * len(self.plan.steps) + index + 1
            if step.name not in self._skipped:
                on_node = step.check.placement in (Placement.PASSIVE, Placement.NODE)
                devices = [device.part for device in now.inventory.devices]
                target = "the node" if on_node else now.inventory.format_names(devices)
                self.progress.begin_step(step, place, self.plan, target)
            run = StepRun(step=step, round=now, before_load=first.marks if first else ())
            try:
                before = self.plan.steps if now.number > 1 else self.plan.steps[:index]
                is_disturbed = step.is_active and any(other.is_active for other in before)
                result = run.run(self.plan.settle if is_disturbed else 0.0)
                unused = run.list_unused_gpus()
            except Unable as exc:
                result = build_not_run_result(step, str(exc), exc.cause, exc.remedy, exc.fix)
            if first and result:
                past = now.history.past_values(step.name)
                result = merge_results(step, first, result, now.inventory, past)
        if result is not None:
            result = msgspec.structs.replace(result, round=now.number)
            is_skipped = result.verdict is Verdict.SKIP
            if not is_skipped or self._skipped.get(result.check) != result.reason:
                self.progress.end_step(result)
            if is_skipped:
                self._skipped[result.check] = result.reason
        return result, unused

    def _find_obstacle(self, step: Step, now: Round, *, spent: bool) -> Result | None:
        if self.executor.should_stop():
            return build_not_run_result(step, "interrupted before it began", Cause.INTERRUPTED)
        if spent:
            reason = f"the suite's {self.plan.budget:g} s ran out before it began"
            return build_not_run_result(step, reason, Cause.TIMEOUT)
        if step.is_active and now.holders and not self.force:
            users = gather.describe_holders(now.holders, now.inventory)
            reason = f"{users}. Fix: wait until it ends, or use --force"
            return build_not_run_result(step, reason, Cause.BUSY)
        return None


def was_interrupted(results: Iterable[Result]) -> bool:
    """Whether the run was stopped before it had all of *results*."""
    return any(short.cause is Cause.INTERRUPTED for r in results for short in r.shortfalls)


def could_not_run(result: Result) -> bool:
    """Whether a check did nothing, as the node has not what it needs."""
    is_short = all(s.cause is Cause.MISSING and s.part_id == "node" for s in result.shortfalls)
    return result.verdict is Verdict.SKIP or (result.cause is Cause.MISSING and is_short)


def make_run_id(started: datetime) -> str:
    """Make the id of a run: its start and 48 random bits, as 10,000 nodes may start at once."""
    return f"{started:%Y%m%d-%H%M%S}-{os.urandom(6).hex()}"


def derive_seed(seed: int, number: int) -> int:
    """Make the seed of round *number* from the run's *seed*: never the same twice."""
    return (seed + (number - 1) * SEED_STRIDE) % SEED_COUNT


def collect_versions() -> dict[str, str]:
    """Collect software versions from directory names: `importlib.metadata` is slow to import."""
    versions = {"python": sys.version.split()[0], "kernel": os.uname().release}
    for folder in {*site.getsitepackages(), *sys.path}:
        names: list[str] = []
        with suppress(OSError):
            names = os.listdir(folder)  # noqa: PTH208 - a thousand names, of which one counts
        for name in names:
            package, _, version = name.removesuffix(".dist-info").partition("-")
            if package in VERSIONED_PACKAGES and name.endswith(".dist-info"):
                versions[package.replace("_", "-")] = version
    return versions
