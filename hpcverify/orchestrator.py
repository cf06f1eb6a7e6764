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
from typing import Protocol

import msgspec
from msgspec import Struct, field

from hpcverify import documents
from hpcverify.check import Context, Judged, Placement, Unable, applies, judge
from hpcverify.conclusion import conclude, not_run
from hpcverify.executors import Answer, Executor
from hpcverify.limits import Past
from hpcverify.model import (
    Cause,
    Covered,
    Device,
    Finding,
    Inventory,
    Limit,
    Mark,
    Measurement,
    Remedy,
    Result,
    Run,
    Verdict,
    verdict_of,
)
from hpcverify.suite import Plan, Step
from hpcverify.telemetry import problems
from hpcverify.wire import Holder, Measure, Observe, Outcome, Probe, Reconcile, Settle

HOST = Device(kind="cpu", part="cpu", label="CPU")
"""What checks compute on that are not about a device."""
TELEMETRY, NODE = "telemetry", "node"
"""The names of the workers that belong to no device."""
OBSERVED = "observed"
"""Whose answer is what was made of the telemetry, beside those of the workers."""
TOGETHER = "together"
"""Whose answer is what the check made of those of all devices."""
RECONCILE_SECONDS = 30.0
PROBE_SECONDS = 30.0
PROBE_SHARE = 0.8
"""Of the budget: the rest is for the checks that say what it met."""
OBSERVE_SECONDS = 30.0
NAMED = frozenset({"hpcverify", "torch", "nvidia_ml_py"})
"""Packages whose version belongs to a run, as their directories spell them."""
SEEDS = 2**31
SEEDS_APART = 0x9E3779B1
"""Odd, so that rounds do not share a seed; large, so that neighbours of a seed, which
checks may take too, are not those of another round."""
GRACE = 10.0
"""Seconds that the worker has, over and above the time it was told to settle for."""
MARGIN = 1.1
"""What a round may take, as a multiple of the longest so far."""


class Progress(Protocol):
    """Someone who is told how a run goes on."""

    def begins(self, step: Step, place: int, plan: Plan, where: str) -> None:
        """Say that *step* begins, as number *place* of *plan*, through all rounds."""
        ...

    def tick(self) -> None:
        """Say that time has passed."""
        ...

    def ended(self, result: Result) -> None:
        """Say that a check has its result."""
        ...


class Memory(Struct, frozen=True, kw_only=True):
    """What is known of the node from its earlier runs."""

    previous: Inventory | None = None
    past: Callable[[str], Past] = lambda _check: lambda _name, _where: ()
    marks: Mapping[str, tuple[Mark, ...]] = {}
    """What each check asked to be told again."""
    runs: int = 0
    """And rounds of runs."""


class Cost(Struct, frozen=True, kw_only=True):
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
    memory: Memory
    progress: Progress
    force: bool = False
    unusable: str = ""
    room: int = documents.LARGEST
    """Bytes that the document may have."""
    clock: Callable[[], float] = time.monotonic
    """Seconds, on the clock of the samples."""
    seed: int = field(default_factory=lambda: int.from_bytes(os.urandom(4)) >> 1)
    _began: float = field(default_factory=time.monotonic)
    _disturbed: bool = False
    """Whether a check has loaded the node."""
    _round: int = 1
    _watched: dict[str, float] = {}
    """Until when a passive check has heard what was sampled."""
    _cut: frozenset[str] = frozenset()
    """Workers that the end of the budget ended, of the check in hand."""

    def run(self) -> Run:
        """Verify the node; being told to stop ends it early, with what there is."""
        started = datetime.now(UTC)
        inventory, holders = self._look(sample=self._is_active())
        results, left_out = self._rounds(inventory, holders)
        self.executor.close(hurry=self.executor.stopped())
        interrupted = was_interrupted(results)
        return Run(
            id=f"{started:%Y%m%d-%H%M%S}-{os.urandom(3).hex()}",
            node=self.node,
            suite=self.plan.suite,
            started=started,
            seconds=round(self._elapsed(), 3),
            # Inconclusive, whatever had been found by then.
            verdict=Verdict.ERROR if interrupted else verdict_of(results),
            complete=not interrupted,
            rounds=self.plan.rounds,
            left_out=left_out,
            passive=self._was_passive(results),
            inventory=inventory,
            results=results,
            versions=versions(),
        )

    def _elapsed(self) -> float:
        return self.clock() - self._began

    def _left(self) -> float:
        return max(0.0, self.plan.budget - self._elapsed())

    def _is_active(self) -> bool:
        return any(step.is_active for step in self.plan.steps)

    def _was_passive(self, results: Iterable[Result]) -> bool:
        """Whether nothing loaded the node, or was to and could not."""
        active = {step.name for step in self.plan.steps if step.is_active}
        loaded = {r.check for r in results if r.verdict is not Verdict.SKIP}
        return active.isdisjoint(loaded)

    def _look(self, *, sample: bool) -> tuple[Inventory, tuple[Holder, ...]]:
        seconds = min(PROBE_SECONDS, self.plan.budget * PROBE_SHARE)
        return probe_node(
            self.executor, seconds=seconds, sample=sample, folder=self.scratch.parent
        )

    def _rounds(
        self, inventory: Inventory, holders: tuple[Holder, ...]
    ) -> tuple[tuple[Result, ...], str]:
        """Go through the suite as often as it asks, or else say why not."""
        done: list[Result] = []
        costs: list[Cost] = []
        began = self._began
        while True:
            results = tuple(self._results(inventory, holders))
            done += results
            if was_interrupted(results) or self._round == self.plan.rounds:
                return tuple(done), self._cut_short(results)
            seconds = self.clock() - began
            costs.append(Cost(seconds=seconds, bytes=documents.length(results)))
            if why := self._why_no_more(results, costs):
                return tuple(done), why
            self.memory = remembering(self.memory, results, inventory)
            self._round += 1
            began = self.clock()
            # By now it is our own workers that hold the GPUs.
            inventory, _ = self._look(sample=False)

    def _why_no_more(self, results: tuple[Result, ...], costs: Sequence[Cost]) -> str:
        """Say why the round after one with *results* is not begun, if it is not."""
        if why := self._cut_short(results):
            return why
        if verdict_of(results) is Verdict.FAIL:
            return f"round {self._round} failed"
        longest, left = max(cost.seconds for cost in costs), self._left()
        # The first check of the first round had no load before it to settle from.
        if left < MARGIN * longest + self.plan.settle:
            return (
                f"of the suite's {self.plan.budget:g} s {left:.0f} s were left, and "
                f"a round took up to {longest:.0f} s"
            )
        taken = [cost.bytes for cost in costs]
        if sum(taken) + 2 * max(taken) > self.room:  # the next may have more to tell
            return "its document would be too large to be read again"
        return ""

    def _cut_short(self, results: tuple[Result, ...]) -> str:
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

    def _results(
        self, inventory: Inventory, holders: tuple[Holder, ...]
    ) -> Iterator[Result]:
        before = (self._round - 1) * len(self.plan.steps)
        for place, step in enumerate(self.plan.steps, start=before + 1):
            if self._has_run_out():
                continue
            result = self._obstacle(step, holders)
            if result is None:
                try:
                    result = self._step(step, place, inventory)
                except Unable as exc:
                    result = not_run(step, str(exc), exc.cause, exc.remedy)
            if result is not None:
                result = msgspec.structs.replace(result, round=self._round)
                self.progress.ended(result)
                yield result

    def _has_run_out(self) -> bool:
        """Whether a later round has used up the budget: the rest of it has no turn."""
        over = self._elapsed() > self.plan.budget
        return self._round > 1 and over and not self.executor.stopped()

    def _obstacle(self, step: Step, holders: tuple[Holder, ...]) -> Result | None:
        """Say why *step* must not begin, if it must not."""
        if self.executor.stopped():
            return not_run(step, "interrupted before it began", Cause.INTERRUPTED)
        if self._elapsed() > self.plan.budget:
            used = f"the suite's {self.plan.budget:g} s were used up before it began"
            return not_run(step, used, Cause.TIMEOUT)
        if step.is_active and holders and not self.force:
            pids = ", ".join(str(h.pid) for h in holders)
            return not_run(
                step,
                f"the GPUs are in use by process {pids}: wait, or use --force",
                Cause.BUSY,
            )
        return None

    def _step(self, step: Step, place: int, inventory: Inventory) -> Result | None:
        """Run *step*; None if the budget cut it short and there is nothing to tell."""
        start = self.clock()
        self.progress.begins(step, place, self.plan, self._where(step, inventory))
        self._cut = frozenset()
        settled = self._settle(step, inventory)
        answers = self._answers(step, inventory, start)
        seconds = self.clock() - start
        past = self.memory.past(step.name)
        result = conclude(step, _by_part(answers), inventory, past, seconds)
        coverage = (*result.coverage, *settled)
        result = msgspec.structs.replace(result, coverage=coverage)
        if self._round > 1 and self._cut:
            return spared(result, self._cut, inventory)
        return result

    def _answers(
        self, step: Step, inventory: Inventory, start: float
    ) -> dict[str, Answer]:
        """Gather what all workers have to say of *step*, and the telemetry of them."""
        answers: dict[str, Answer] = {}
        contexts: list[Context] = []
        # A passive check writes nothing: to make and remove its own takes time.
        scratch = self.scratch / step.name if step.is_active else self.folder
        if step.is_active:
            if self.unusable:
                raise Unable(self.unusable, Cause.MISSING, Remedy.INSPECT)
            _make(scratch)
        try:
            for phase in self._phases(step, inventory, scratch):
                answers |= self._measure(step, phase)
                contexts += phase.values()
        finally:
            if step.is_active:
                import shutil  # noqa: PLC0415 - 3 ms, and a passive run removes nothing

                shutil.rmtree(scratch, ignore_errors=True)
        if step.check.placement not in (Placement.PASSIVE, Placement.NODE):
            answers |= unreachable(inventory, self.memory.previous)
        if self._is_observed(step):
            answers[OBSERVED] = self._observe(step, tuple(contexts), start)
        return self._reconcile(step, answers, inventory)

    def _is_observed(self, step: Step) -> bool:
        # What ends the telemetry worker ends the sampling: there is nobody to ask.
        cut = self._round > 1 and TELEMETRY in self._cut
        return step.check.observe is not None and self._is_active() and not cut

    def _settle(self, step: Step, inventory: Inventory) -> tuple[Covered, ...]:
        """Wait until the load of an earlier check is over; say what came of it."""
        disturbed, self._disturbed = self._disturbed, self._disturbed or step.is_active
        if not (disturbed and step.is_active and self.plan.settle):
            return ()
        task = Settle(
            patience=min(self.plan.settle, self._left()),
            name=step.name,
            packages=self.packages,
            contexts=tuple(
                self._context(step, device, inventory, self.scratch, self.folder)
                for workers in workers_of(step.check.placement, inventory.devices)
                for device in workers.values()
            ),
        )
        answer = self.executor.run({TELEMETRY: task}, self.plan.settle + GRACE)
        return tuple(f for f in answer[TELEMETRY].found if isinstance(f, Covered))

    def _where(self, step: Step, inventory: Inventory) -> str:
        if step.check.placement in (Placement.PASSIVE, Placement.NODE):
            return "the node"
        return ", ".join(d.label for d in inventory.devices)

    def _phases(
        self, step: Step, inventory: Inventory, scratch: Path
    ) -> Iterator[dict[str, Context]]:
        """Yield, one after the other, what runs at the same time, by worker."""
        for workers in workers_of(step.check.placement, inventory.devices):
            shared = {
                kind: self._rendezvous() if step.is_active else self.folder
                for kind in _kinds(workers.values())
            }
            yield {
                name: self._context(
                    step, device, inventory, scratch, shared[device.kind]
                )
                for name, device in workers.items()
            }

    def _context(
        self,
        step: Step,
        device: Device,
        inventory: Inventory,
        scratch: Path,
        shared: Path,
    ) -> Context:
        return Context(
            node=self.node,
            device=device,
            peers=tuple(d for d in inventory.devices if d.kind == device.kind),
            inventory=inventory,
            previous=self.memory.previous,
            scratch=scratch,
            shared=shared,
            seed=seed_of(self.seed, self._round),
            rotation=self.memory.runs,
            marks=self.memory.marks.get(step.name, ()),
        )

    def _rendezvous(self) -> Path:
        path = self.folder / f"shared-{os.urandom(4).hex()}"
        _make(path)
        return path

    def _measure(self, step: Step, phase: Mapping[str, Context]) -> dict[str, Answer]:
        params = msgspec.to_builtins(step.params)
        tasks = {
            worker: Measure(
                name=step.name, packages=self.packages, params=params, context=context
            )
            for worker, context in phase.items()
        }
        left = self._left()
        answers = self.executor.run(tasks, min(step.timeout, left))
        if left < step.timeout:
            self._cut |= overrun(answers, left)
        return answers

    def _observe(
        self, step: Step, contexts: tuple[Context, ...], start: float
    ) -> Answer:
        if step.check.placement is Placement.PASSIVE:
            start = self._watched.get(step.name, self._began)
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
        answer = self.executor.run({TELEMETRY: task}, seconds)[TELEMETRY]
        if answer.outcome.verdict is Verdict.PASS:
            self._watched[step.name] = task.end
        return answer

    def _reconcile(
        self, step: Step, answers: dict[str, Answer], inventory: Inventory
    ) -> dict[str, Answer]:
        """Have the check say what all *answers* mean together, if it can."""
        found = [item for answer in answers.values() for item in answer.found]
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
        together = self.executor.run({TELEMETRY: task}, RECONCILE_SECONDS)[TELEMETRY]
        if together.outcome.verdict is not Verdict.PASS:
            # What each found still counts, and half of what it means does not.
            half = Answer(replies=(), outcome=together.outcome)
            return answers | {TOGETHER: half}
        kept = {part: _without_judged(answer) for part, answer in answers.items()}
        return kept | {TOGETHER: together}


def _make(path: Path) -> None:
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
    return any(
        short.cause is Cause.INTERRUPTED for r in results for short in r.shortfalls
    )


def seed_of(seed: int, number: int) -> int:
    """Make the seed of round *number* of the run's own *seed*: never the same twice."""
    return (seed + (number - 1) * SEEDS_APART) % SEEDS


def overrun(answers: Mapping[str, Answer], seconds: float) -> frozenset[str]:
    """Name the workers that had no end after *seconds*, and not those that say so."""
    return frozenset(
        name
        for name, answer in answers.items()
        if answer.outcome.cause is Cause.TIMEOUT
        and answer.outcome.end - answer.outcome.start >= seconds
    )


def spared(result: Result, cut: frozenset[str], inventory: Inventory) -> Result | None:
    """
    Say what counts of a check whose workers *cut* had their end with the budget.

    That is no ERROR where an earlier round had been to the end. What was found until
    then counts if it is bad; half a check passes nothing, and is no result.
    """
    others = any(short.where not in cut for short in result.shortfalls)
    if others or result.verdict is Verdict.FAIL:
        return result
    limits = [limit for limit in result.limits if _holds(limit, result)]
    found: list[Judged] = [*result.measurements, *result.findings]
    told = judge(found, limits, result.rulings, inventory.names)
    if told.verdict is Verdict.PASS:
        return None
    short = Covered("node", "cut short: the suite's time was used up")
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


def _holds(limit: Limit, result: Result) -> bool:
    """Whether *limit* holds for half a check: not if it says how much is enough."""
    decides = limit.otherwise is not Verdict.ERROR and not limit.noisy
    return decides and any(applies(limit, item) for item in result.measurements)


def remembering(
    memory: Memory, results: Sequence[Result], inventory: Inventory
) -> Memory:
    """
    Add to *memory* what a round found.

    The inventory is the next one's reference if the check of that name accepted it,
    and not if it refused it. Where nobody was asked, both hold: what was here in this
    run, or has to be by an earlier one, is missed.
    """
    marks = dict(memory.marks)
    for r in results:
        known = (*marks.get(r.check, ()), *r.marks)
        marks[r.check] = tuple({(m.name, m.where): m for m in known}.values())
    asked = [r.verdict for r in results if r.check == "inventory"]
    previous = memory.previous
    if any(verdict in (Verdict.PASS, Verdict.WARN) for verdict in asked):
        previous = inventory
    elif not asked:
        previous = _both(inventory, memory.previous)
    return Memory(
        previous=previous, past=memory.past, marks=marks, runs=memory.runs + 1
    )


def _both(inventory: Inventory, previous: Inventory | None) -> Inventory:
    """Add to *inventory* the devices that are missed by *previous*, and their parts."""
    if previous is None:
        return inventory
    missed = _missed(inventory, previous)
    gone = {device.part for device in missed} - {part.id for part in inventory.parts}
    return msgspec.structs.replace(
        inventory,
        parts=(*inventory.parts, *(p for p in previous.parts if p.id in gone)),
        devices=(*inventory.devices, *missed),
    )


def _missed(inventory: Inventory, previous: Inventory) -> tuple[Device, ...]:
    """List the devices of *previous* that are gone and have not been replaced."""
    here = {device.part for device in inventory.devices}
    taken = {_address(inventory, part) for part in here} - {""}
    return tuple(
        device
        for device in previous.devices
        if device.part not in here and _address(previous, device.part) not in taken
    )


def _without_judged(answer: Answer) -> Answer:
    """Leave out what is judged, and keep how it ended and what else was said."""
    replies = tuple(
        r for r in answer.replies if r.measurement is None and r.finding is None
    )
    return msgspec.structs.replace(answer, replies=replies)


def workers_of(
    placement: Placement, devices: Sequence[Device]
) -> Iterator[dict[str, Device]]:
    """Yield, one after the other, who works at the same time, and on what."""
    match placement:
        case Placement.PASSIVE:
            yield {TELEMETRY: HOST}
        case Placement.NODE:
            yield {NODE: HOST}
        case Placement.DEVICES:
            # Together: one at a time hides faults of power and cooling.
            for kind in _kinds(devices):
                yield {d.part: d for d in devices if d.kind == kind}
        case Placement.ALL_DEVICES:
            yield {d.part: d for d in devices}
        case Placement.DEVICES_ALONE:
            for device in devices:
                yield {device.part: device}


def _kinds(devices: Iterable[Device]) -> list[str]:
    return list(dict.fromkeys(d.kind for d in devices))


def probe_node(
    executor: Executor,
    *,
    seconds: float = PROBE_SECONDS,
    sample: bool = False,
    folder: Path | None = None,
) -> tuple[Inventory, tuple[Holder, ...]]:
    """
    List what the node is made of and who holds its GPUs, in a worker.

    It has *seconds* for it, goes on to *sample* the telemetry if that is wanted, and
    says what is mounted below *folder*.
    """
    task = Probe(sample=sample, folder=folder)
    answer = executor.run({TELEMETRY: task}, seconds)[TELEMETRY]
    for reply in answer.replies:
        if reply.inventory is not None:
            return reply.inventory, reply.holders
    problem = Finding(
        code="probe_failed",
        where="node",
        text=f"the hardware could not be listed: {answer.outcome.reason}",
    )
    return Inventory(devices=(HOST,), problems=(problem,)), ()


def _by_part(answers: Mapping[str, Answer]) -> dict[str, Answer]:
    """Leave out what the telemetry had to say of a check that was skipped anyway."""
    others = {n: a for n, a in answers.items() if n not in (OBSERVED, TOGETHER)}
    skipped = [a.outcome.verdict is Verdict.SKIP for a in others.values()]
    return others if skipped and all(skipped) else dict(answers)


def unreachable(inventory: Inventory, previous: Inventory | None) -> dict[str, Answer]:
    """
    Answer for the devices that should be there and cannot be worked on.

    They are known from the problems that the probe met and from what was here
    before: a node must not pass because its driver is broken.
    """
    here = {device.part for device in inventory.devices}
    gone = {
        p.where: (p.text, problems.UNREACHABLE.get(p.code))
        for p in inventory.problems
        if p.where not in here
    }
    for device in _missed(inventory, previous) if previous else ():
        gone.setdefault(device.part, (f"{device.label} was here before", None))
    return {
        part: Answer(
            replies=(),
            outcome=Outcome(
                verdict=Verdict.ERROR,
                reason=text,
                cause=cause or Cause.MISSING,
                remedy=Remedy.INSPECT,
            ),
        )
        for part, (text, cause) in gone.items()
    }


def _address(inventory: Inventory, part: str) -> str:
    """Say where *part* sits on the PCI bus, if it does."""
    facts = next((p.facts for p in inventory.parts if p.id == part), {})
    return facts.get("pci_address", "")


def versions() -> dict[str, str]:
    """
    Name the software that took part, as far as it can be known for nothing.

    The names of the directories say it: `importlib.metadata` takes longer to import
    than the passive checks of eight GPUs to run.
    """
    found = {"python": sys.version.split()[0], "kernel": os.uname().release}
    for folder in {*site.getsitepackages(), *sys.path}:
        for name in _entries(folder):
            package, _, version = name.removesuffix(".dist-info").partition("-")
            if package in NAMED and name.endswith(".dist-info"):
                found[package.replace("_", "-")] = version
    return found


def _entries(folder: str) -> list[str]:
    """List what is in *folder*, if it may be read."""
    try:
        return os.listdir(folder)  # noqa: PTH208 - a thousand names, of which one counts
    except OSError:
        return []
