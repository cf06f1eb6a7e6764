"""
Verify one node: look what is there, run each check where it belongs, judge.

A suite may do so in several rounds. A round is to the next one what a run is to the
next: it looks at the hardware anew, knows what the one before had marked, takes the
turn after it, and has a seed of its own.

Nothing here touches hardware: what does is done by workers, so that a driver that
hangs takes a worker with it and never the run.
"""

from __future__ import annotations

import errno
import os
import site
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from msgspec import Struct, field

from hpcverify.check import Context, JudgedItem, Placement, Unable, applies, judge
from hpcverify.limits.resolve import PastValues
from hpcverify.model import (
    CarryOver,
    Cause,
    Coverage,
    Device,
    Finding,
    Inventory,
    Limit,
    Measurement,
    Remedy,
    Result,
    Run,
    Verdict,
    verdict_of,
)
from hpcverify.plan.suite import Plan, Step
from hpcverify.records import documents
from hpcverify.run.conclude import build_not_run_result, conclude
from hpcverify.run.executor import Answer, Executor
from hpcverify.run.wire import (
    GpuHolder,
    Measure,
    Observe,
    Outcome,
    Probe,
    ProbeResult,
    Reconcile,
    Settle,
)
from hpcverify.summary.progress import Progress
from hpcverify.telemetry import problems

HOST_DEVICE = Device(kind="cpu", part="cpu", label="CPU")
"""What checks compute on that are not about a device."""
TELEMETRY_WORKER, NODE_WORKER = "telemetry", "node"
"""The names of the workers that belong to no device."""
OBSERVED_KEY = "observed"
"""Whose answer is what was made of the telemetry, beside those of the workers."""
RECONCILED_KEY = "together"
"""Whose answer is what the check made of those of all devices."""
RECONCILE_SECONDS = 30.0
PROBE_SECONDS = 30.0
PROBE_BUDGET_SHARE = 0.8
"""Of the budget: the rest is for the checks that say what it met."""
OBSERVE_SECONDS = 30.0
VERSIONED_PACKAGES = frozenset({"hpcverify", "torch", "nvidia_ml_py"})
"""Packages whose version belongs to a run, as their directories spell them."""
SEED_COUNT = 2**31
SEED_STRIDE = 0x9E3779B1
"""Odd, so that rounds do not share a seed; large, so that neighbours of a seed, which
checks may take too, are not those of another round."""
SETTLE_GRACE_SECONDS = 10.0
"""Seconds that the worker has, over and above the time it was told to settle for."""
ROUND_TIME_MARGIN = 1.1
"""What a round may take, as a multiple of the longest so far."""


class NodeHistory(Struct, frozen=True, kw_only=True):
    """What is known of the node from its earlier runs."""

    previous: Inventory | None = None
    past_values: Callable[[str], PastValues] = lambda _check: lambda _name, _where: ()
    carry_overs: Mapping[str, tuple[CarryOver, ...]] = {}
    """What each check asked to be told again."""
    run_count: int = 0
    """And rounds of runs."""


class RoundCost(Struct, frozen=True, kw_only=True):
    """What a round took."""

    seconds: float
    bytes: int
    """Of the document."""


class Verification(Struct, kw_only=True):
    """
    One run of *plan* on *node*.

    *folder* is for what workers share and *scratch* for what the checks write:
    both exist, are empty, and are removed by whoever made them. If nothing can be
    written to *scratch*, *unusable* says why: the checks that may write are an ERROR
    then, and the passive ones run.
    """

    plan: Plan
    node: str
    packages: tuple[str, ...]
    executor: Executor
    folder: Path
    scratch: Path
    history: NodeHistory
    progress: Progress
    force: bool = False
    scratch_problem: str = ""
    max_bytes: int = documents.MAX_DOCUMENT_BYTES
    """Bytes that the document may have."""
    clock: Callable[[], float] = time.monotonic
    """Seconds, on the clock of the samples."""
    seed: int = field(default_factory=lambda: int.from_bytes(os.urandom(4)) >> 1)
    _began: float = field(default_factory=time.monotonic)
    _disturbed: bool = False
    """Whether a check has loaded the node."""
    _round: int = 1
    _observed_until: dict[str, float] = {}
    """Until when a passive check has heard what was sampled."""
    _cut_workers: frozenset[str] = frozenset()
    """Workers that the end of the budget ended, of the check in hand."""

    def run(self) -> Run:
        """Verify the node; being told to stop ends it early, with what there is."""
        started = datetime.now(UTC)
        inventory, holders = self._probe(sample=self._is_active())
        results, left_out = self._run_rounds(inventory, holders)
        self.executor.close(hurry=self.executor.should_stop())
        interrupted = was_interrupted(results)
        return Run(
            id=f"{started:%Y%m%d-%H%M%S}-{os.urandom(3).hex()}",
            node=self.node,
            suite=self.plan.suite,
            started=started,
            seconds=round(self._count_elapsed(), 3),
            # Inconclusive, whatever had been found by then.
            verdict=Verdict.ERROR if interrupted else verdict_of(results),
            complete=not interrupted,
            rounds=self.plan.rounds,
            left_out=left_out,
            passive=self._was_passive(results),
            inventory=inventory,
            results=results,
            versions=collect_versions(),
        )

    def _count_elapsed(self) -> float:
        return self.clock() - self._began

    def _count_seconds_left(self) -> float:
        return max(0.0, self.plan.budget - self._count_elapsed())

    def _is_active(self) -> bool:
        return any(step.is_active for step in self.plan.steps)

    def _was_passive(self, results: Iterable[Result]) -> bool:
        """Whether nothing loaded the node, or was to and could not."""
        active = {step.name for step in self.plan.steps if step.is_active}
        loaded = {r.check for r in results if r.verdict is not Verdict.SKIP}
        return active.isdisjoint(loaded)

    def _probe(self, *, sample: bool) -> tuple[Inventory, tuple[GpuHolder, ...]]:
        seconds = min(PROBE_SECONDS, self.plan.budget * PROBE_BUDGET_SHARE)
        return probe_node(self.executor, seconds=seconds, sample=sample, folder=self.scratch.parent)

    def _run_rounds(
        self, inventory: Inventory, holders: tuple[GpuHolder, ...]
    ) -> tuple[tuple[Result, ...], str]:
        """Go through the suite as often as it asks, or else say why not."""
        done: list[Result] = []
        costs: list[RoundCost] = []
        began = self._began
        while True:
            results = tuple(self._run_round(inventory, holders))
            done += results
            if was_interrupted(results) or self._round == self.plan.rounds:
                return tuple(done), self._explain_cut_short(results)
            seconds = self.clock() - began
            costs.append(RoundCost(seconds=seconds, bytes=documents.count_bytes(results)))
            if why := self._explain_no_more_rounds(results, costs):
                return tuple(done), why
            self.history = extend_history(self.history, results, inventory)
            self._round += 1
            began = self.clock()
            # By now it is our own workers that hold the GPUs.
            inventory, _ = self._probe(sample=False)

    def _explain_no_more_rounds(
        self, results: tuple[Result, ...], costs: Sequence[RoundCost]
    ) -> str:
        """Say why the round after one with *results* is not begun, if it is not."""
        if why := self._explain_cut_short(results):
            return why
        if verdict_of(results) is Verdict.FAIL:
            return f"round {self._round} failed"
        longest, left = max(cost.seconds for cost in costs), self._count_seconds_left()
        # The first check of the first round had no load before it to settle from.
        if left < ROUND_TIME_MARGIN * longest + self.plan.settle:
            return (
                f"of the suite's {self.plan.budget:g} s {left:.0f} s were left, and "
                f"a round took up to {longest:.0f} s"
            )
        taken = [cost.bytes for cost in costs]
        if sum(taken) + 2 * max(taken) > self.max_bytes:  # the next may have more to tell
            return "its document would be too large to be read again"
        return ""

    def _explain_cut_short(self, results: tuple[Result, ...]) -> str:
        """Say which checks the end of the budget left without one of *results*."""
        told = {result.check for result in results}
        silent = [step.name for step in self.plan.steps if step.name not in told]
        if not silent:
            return ""
        return (
            f"round {self._round} was cut short when the suite's "
            f"{self.plan.budget:g} s were used up, with no result of "
            f"{', '.join(silent)}"
        )

    def _run_round(self, inventory: Inventory, holders: tuple[GpuHolder, ...]) -> Iterator[Result]:
        before = (self._round - 1) * len(self.plan.steps)
        for place, step in enumerate(self.plan.steps, start=before + 1):
            if self._has_spent_budget():
                continue
            result = self._find_obstacle(step, holders)
            if result is None:
                try:
                    result = self._run_step(step, place, inventory)
                except Unable as exc:
                    result = build_not_run_result(step, str(exc), exc.cause, exc.remedy)
            if result is not None:
                result = msgspec.structs.replace(result, round=self._round)
                self.progress.end_step(result)
                yield result

    def _has_spent_budget(self) -> bool:
        """Whether a later round has used up the budget: the rest of it has no turn."""
        over = self._count_elapsed() > self.plan.budget
        return self._round > 1 and over and not self.executor.should_stop()

    def _find_obstacle(self, step: Step, holders: tuple[GpuHolder, ...]) -> Result | None:
        """Say why *step* must not begin, if it must not."""
        if self.executor.should_stop():
            return build_not_run_result(step, "interrupted before it began", Cause.INTERRUPTED)
        if self._count_elapsed() > self.plan.budget:
            used = f"the suite's {self.plan.budget:g} s were used up before it began"
            return build_not_run_result(step, used, Cause.TIMEOUT)
        if step.is_active and holders and not self.force:
            pids = ", ".join(str(h.pid) for h in holders)
            return build_not_run_result(
                step, f"the GPUs are in use by process {pids}: wait, or use --force", Cause.BUSY
            )
        return None

    def _run_step(self, step: Step, place: int, inventory: Inventory) -> Result | None:
        """Run *step*; None if the budget cut it short and there is nothing to tell."""
        start = self.clock()
        self.progress.begin_step(step, place, self.plan, self._describe_place(step, inventory))
        self._cut_workers = frozenset()
        settled = self._settle(step, inventory)
        answers = self._gather_answers(step, inventory, start)
        seconds = self.clock() - start
        past = self.history.past_values(step.name)
        result = conclude(step, _drop_skipped_telemetry(answers), inventory, past, seconds)
        coverage = (*result.coverage, *settled)
        result = msgspec.structs.replace(result, coverage=coverage)
        if self._round > 1 and self._cut_workers:
            return judge_cut_short(result, self._cut_workers, inventory)
        return result

    def _gather_answers(self, step: Step, inventory: Inventory, start: float) -> dict[str, Answer]:
        """Gather what all workers have to say of *step*, and the telemetry of them."""
        answers: dict[str, Answer] = {}
        contexts: list[Context] = []
        # A passive check writes nothing: to make and remove its own takes time.
        scratch = self.scratch / step.name if step.is_active else self.folder
        if step.is_active:
            if self.scratch_problem:
                raise Unable(self.scratch_problem, Cause.MISSING, Remedy.INSPECT)
            _make_directory(scratch)
        try:
            for phase in self._plan_phases(step, inventory, scratch):
                answers |= self._measure(step, phase)
                contexts += phase.values()
        finally:
            if step.is_active:
                import shutil  # noqa: PLC0415 - 3 ms, and a passive run removes nothing

                shutil.rmtree(scratch, ignore_errors=True)
        if step.check.placement not in (Placement.PASSIVE, Placement.NODE):
            answers |= answer_for_unreachable(inventory, self.history.previous)
        if self._is_observed(step):
            answers[OBSERVED_KEY] = self._observe(step, tuple(contexts), start)
        return self._reconcile(step, answers, inventory)

    def _is_observed(self, step: Step) -> bool:
        # What ends the telemetry worker ends the sampling: there is nobody to ask.
        cut = self._round > 1 and TELEMETRY_WORKER in self._cut_workers
        return step.check.observe is not None and self._is_active() and not cut

    def _settle(self, step: Step, inventory: Inventory) -> tuple[Coverage, ...]:
        """Wait until the load of an earlier check is over; say what came of it."""
        disturbed, self._disturbed = self._disturbed, self._disturbed or step.is_active
        if not (disturbed and step.is_active and self.plan.settle):
            return ()
        task = Settle(
            timeout=min(self.plan.settle, self._count_seconds_left()),
            name=step.name,
            packages=self.packages,
            contexts=tuple(
                self._build_context(step, device, inventory, self.scratch, self.folder)
                for workers in assign_workers(step.check.placement, inventory.devices)
                for device in workers.values()
            ),
        )
        answer = self.executor.run(
            {TELEMETRY_WORKER: task}, self.plan.settle + SETTLE_GRACE_SECONDS
        )
        return tuple(f for f in answer[TELEMETRY_WORKER].items if isinstance(f, Coverage))

    def _describe_place(self, step: Step, inventory: Inventory) -> str:
        if step.check.placement in (Placement.PASSIVE, Placement.NODE):
            return "the node"
        return ", ".join(d.label for d in inventory.devices)

    def _plan_phases(
        self, step: Step, inventory: Inventory, scratch: Path
    ) -> Iterator[dict[str, Context]]:
        """Yield, one after the other, what runs at the same time, by worker."""
        for workers in assign_workers(step.check.placement, inventory.devices):
            shared = {
                kind: self._make_rendezvous() if step.is_active else self.folder
                for kind in _list_kinds(workers.values())
            }
            yield {
                name: self._build_context(step, device, inventory, scratch, shared[device.kind])
                for name, device in workers.items()
            }

    def _build_context(
        self, step: Step, device: Device, inventory: Inventory, scratch: Path, shared: Path
    ) -> Context:
        return Context(
            node=self.node,
            device=device,
            peers=tuple(d for d in inventory.devices if d.kind == device.kind),
            inventory=inventory,
            previous=self.history.previous,
            scratch=scratch,
            shared=shared,
            seed=derive_seed(self.seed, self._round),
            rotation=self.history.run_count,
            carry_overs=self.history.carry_overs.get(step.name, ()),
        )

    def _make_rendezvous(self) -> Path:
        path = self.folder / f"shared-{os.urandom(4).hex()}"
        _make_directory(path)
        return path

    def _measure(self, step: Step, phase: Mapping[str, Context]) -> dict[str, Answer]:
        params = msgspec.to_builtins(step.params)
        tasks = {
            worker: Measure(name=step.name, packages=self.packages, params=params, context=context)
            for worker, context in phase.items()
        }
        left = self._count_seconds_left()
        answers = self.executor.run(tasks, min(step.timeout, left))
        if left < step.timeout:
            self._cut_workers |= find_overrun_workers(answers, left)
        return answers

    def _observe(self, step: Step, contexts: tuple[Context, ...], start: float) -> Answer:
        if step.check.placement is Placement.PASSIVE:
            start = self._observed_until.get(step.name, self._began)
        task = Observe(
            name=step.name,
            packages=self.packages,
            params=msgspec.to_builtins(step.params),
            contexts=contexts,
            start=start,
            end=self.clock(),
        )
        # A burn-in has millions of samples to look through.
        seconds = OBSERVE_SECONDS + (task.end - task.start) / 50
        answer = self.executor.run({TELEMETRY_WORKER: task}, seconds)[TELEMETRY_WORKER]
        if answer.outcome.verdict is Verdict.PASS:
            self._observed_until[step.name] = task.end
        return answer

    def _reconcile(
        self, step: Step, answers: dict[str, Answer], inventory: Inventory
    ) -> dict[str, Answer]:
        """Have the check say what all *answers* mean together, if it can."""
        found = [item for answer in answers.values() for item in answer.items]
        numbers = tuple(f for f in found if isinstance(f, Measurement))
        facts = tuple(f for f in found if isinstance(f, Finding))
        if step.check.reconcile is None or not (numbers or facts):
            return answers
        task = Reconcile(
            name=step.name,
            packages=self.packages,
            inventory=inventory,
            measurements=numbers,
            findings=facts,
        )
        together = self.executor.run({TELEMETRY_WORKER: task}, RECONCILE_SECONDS)[TELEMETRY_WORKER]
        if together.outcome.verdict is not Verdict.PASS:
            # What each found still counts, and half of what it means does not.
            half = Answer(outcome=together.outcome)
            return answers | {RECONCILED_KEY: half}
        kept = {part: _drop_judged_items(answer) for part, answer in answers.items()}
        return kept | {RECONCILED_KEY: together}


def _make_directory(path: Path) -> None:
    """
    Make the directory *path* in one that is there.

    Not with its parents: where the scratch was unmounted meanwhile, they would be made
    on the disk below, and that one verified in its place.

    Raises:
        Unable: it cannot be made.

    """
    try:
        path.mkdir(exist_ok=True)
    except OSError as exc:
        full = exc.errno in (errno.ENOSPC, errno.EDQUOT)
        fix = "free some space" if full else "see df, findmnt and the kernel log"
        raise Unable(
            f"the directory {path} cannot be made ({exc.strerror}): {fix}",
            Cause.NO_SPACE if full else Cause.MISSING,
            Remedy.INSPECT,
        ) from exc


def was_interrupted(results: Iterable[Result]) -> bool:
    """Whether the run was told to stop before it had all of *results*."""
    return any(short.cause is Cause.INTERRUPTED for r in results for short in r.shortfalls)


def derive_seed(seed: int, number: int) -> int:
    """Make the seed of round *number* of the run's own *seed*: never the same twice."""
    return (seed + (number - 1) * SEED_STRIDE) % SEED_COUNT


def find_overrun_workers(answers: Mapping[str, Answer], seconds: float) -> frozenset[str]:
    """Name the workers that had no end after *seconds*, and not those that say so."""
    return frozenset(
        name
        for name, answer in answers.items()
        if answer.outcome.cause is Cause.TIMEOUT
        and answer.outcome.end - answer.outcome.start >= seconds
    )


def judge_cut_short(result: Result, cut: frozenset[str], inventory: Inventory) -> Result | None:
    """
    Say what counts of a check whose workers *cut* had their end with the budget.

    That is no ERROR where an earlier round had been to the end. What was found until
    then counts if it is bad; half a check passes nothing, and is no result.
    """
    others = any(short.where not in cut for short in result.shortfalls)
    if others or result.verdict is Verdict.FAIL:
        return result
    limits = [limit for limit in result.limits if _applies_to_part_result(limit, result)]
    found: list[JudgedItem] = [*result.measurements, *result.findings]
    told = judge(found, limits, result.rulings, inventory.format_names)
    if told.verdict is Verdict.PASS:
        return None
    short = Coverage("node", "cut short: the suite's time was used up")
    return msgspec.structs.replace(
        result,
        verdict=told.verdict,
        reason=told.reason,
        cause=told.cause,
        remedy=told.remedy,
        coverage=(*result.coverage, short),
        limits=tuple(limits),
        shortfalls=(),
    )


def _applies_to_part_result(limit: Limit, result: Result) -> bool:
    """Whether *limit* holds for half a check: not if it says how much is enough."""
    decides = limit.otherwise is not Verdict.ERROR and not limit.noisy
    return decides and any(applies(limit, item) for item in result.measurements)


def extend_history(
    history: NodeHistory, results: Sequence[Result], inventory: Inventory
) -> NodeHistory:
    """
    Add to *memory* what a round found.

    The inventory is the next one's reference if the check of that name accepted it,
    and not if it refused it. Where nobody was asked, both hold: what was here in this
    run, or has to be by an earlier one, is missed.
    """
    marks = dict(history.carry_overs)
    for r in results:
        known = (*marks.get(r.check, ()), *r.marks)
        marks[r.check] = tuple({(m.name, m.where): m for m in known}.values())
    asked = [r.verdict for r in results if r.check == "inventory"]
    previous = history.previous
    if any(verdict in (Verdict.PASS, Verdict.WARN) for verdict in asked):
        previous = inventory
    elif not asked:
        previous = _merge_inventories(inventory, history.previous)
    return NodeHistory(
        previous=previous,
        past_values=history.past_values,
        carry_overs=marks,
        run_count=history.run_count + 1,
    )


def _merge_inventories(inventory: Inventory, previous: Inventory | None) -> Inventory:
    """Add to *inventory* the devices that are missed by *previous*, and their parts."""
    if previous is None:
        return inventory
    missed = _list_missing_devices(inventory, previous)
    gone = {device.part for device in missed} - {part.id for part in inventory.parts}
    return msgspec.structs.replace(
        inventory,
        parts=(*inventory.parts, *(p for p in previous.parts if p.id in gone)),
        devices=(*inventory.devices, *missed),
    )


def _list_missing_devices(inventory: Inventory, previous: Inventory) -> tuple[Device, ...]:
    """List the devices of *previous* that are gone and have not been replaced."""
    here = {device.part for device in inventory.devices}
    taken = {_find_pci_address(inventory, part) for part in here} - {""}
    return tuple(
        device
        for device in previous.devices
        if device.part not in here and _find_pci_address(previous, device.part) not in taken
    )


def _drop_judged_items(answer: Answer) -> Answer:
    """Leave out what is judged, and keep how it ended and what else was said."""
    others = tuple(i for i in answer.items if not isinstance(i, Measurement | Finding))
    return msgspec.structs.replace(answer, items=others)


def assign_workers(placement: Placement, devices: Sequence[Device]) -> Iterator[dict[str, Device]]:
    """Yield, one after the other, who works at the same time, and on what."""
    match placement:
        case Placement.PASSIVE:
            yield {TELEMETRY_WORKER: HOST_DEVICE}
        case Placement.NODE:
            yield {NODE_WORKER: HOST_DEVICE}
        case Placement.DEVICES:
            # Together: one at a time hides faults of power and cooling.
            for kind in _list_kinds(devices):
                yield {d.part: d for d in devices if d.kind == kind}
        case Placement.ALL_DEVICES:
            yield {d.part: d for d in devices}
        case Placement.DEVICES_ALONE:
            for device in devices:
                yield {device.part: device}


def _list_kinds(devices: Iterable[Device]) -> list[str]:
    return list(dict.fromkeys(d.kind for d in devices))


def probe_node(
    executor: Executor,
    *,
    seconds: float = PROBE_SECONDS,
    sample: bool = False,
    folder: Path | None = None,
) -> tuple[Inventory, tuple[GpuHolder, ...]]:
    """
    List what the node is made of and who holds its GPUs, in a worker.

    It has *seconds* for it, goes on to *sample* the telemetry if that is wanted, and
    says what is mounted below *folder*.
    """
    task = Probe(sample=sample, folder=folder)
    answer = executor.run({TELEMETRY_WORKER: task}, seconds)[TELEMETRY_WORKER]
    for item in answer.items:
        if isinstance(item, ProbeResult):
            return item.inventory, item.holders
    problem = Finding(
        code="probe_failed",
        where="node",
        text=f"the hardware could not be listed: {answer.outcome.reason}",
    )
    return Inventory(devices=(HOST_DEVICE,), problems=(problem,)), ()


def _drop_skipped_telemetry(answers: Mapping[str, Answer]) -> dict[str, Answer]:
    """Leave out what the telemetry had to say of a check that was skipped anyway."""
    others = {n: a for n, a in answers.items() if n not in (OBSERVED_KEY, RECONCILED_KEY)}
    skipped = [a.outcome.verdict is Verdict.SKIP for a in others.values()]
    return others if skipped and all(skipped) else dict(answers)


def answer_for_unreachable(inventory: Inventory, previous: Inventory | None) -> dict[str, Answer]:
    """
    Answer for the devices that should be there and cannot be worked on.

    They are known from the problems that the probe met and from what was here
    before: a node must not pass because its driver is broken.
    """
    here = {device.part for device in inventory.devices}
    gone = {
        p.where: (p.text, problems.UNREACHABLE_CAUSES.get(p.code), p.code)
        for p in inventory.problems
        if p.where not in here
    }
    for device in _list_missing_devices(inventory, previous) if previous else ():
        gone.setdefault(device.part, (f"{device.label} was here before", None, "gpu_missing"))
    return {
        part: Answer(
            outcome=Outcome(
                verdict=Verdict.ERROR,
                reason=text,
                cause=cause or Cause.MISSING,
                remedy=Remedy.INSPECT,
                code=code,
            ),
        )
        for part, (text, cause, code) in gone.items()
    }


def _find_pci_address(inventory: Inventory, part: str) -> str:
    """Say where *part* sits on the PCI bus, if it does."""
    facts = next((p.facts for p in inventory.parts if p.id == part), {})
    return facts.get("pci_address", "")


def collect_versions() -> dict[str, str]:
    """
    Name the software that took part, as far as it can be known for nothing.

    The names of the directories say it: `importlib.metadata` takes longer to import
    than the passive checks of eight GPUs to run.
    """
    found = {"python": sys.version.split()[0], "kernel": os.uname().release}
    for folder in {*site.getsitepackages(), *sys.path}:
        for name in _list_folder(folder):
            package, _, version = name.removesuffix(".dist-info").partition("-")
            if package in VERSIONED_PACKAGES and name.endswith(".dist-info"):
                found[package.replace("_", "-")] = version
    return found


def _list_folder(folder: str) -> list[str]:
    """List what is in *folder*, if it may be read."""
    try:
        return os.listdir(folder)  # noqa: PTH208 - a thousand names, of which one counts
    except OSError:
        return []
