"""
Run one check on a node: give its workers their tasks, and gather their answers.

Nothing here touches hardware. Workers do, so a driver that hangs takes down a worker
and never the run.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec import Struct, field

from hpcverify.check import ANSWER_CODE, SETUP_CODES, TELEMETRY_WORKER, Context, Placement, Unable
from hpcverify.errors import UnverifiedError
from hpcverify.model import (
    CarryOver,
    Cause,
    Coverage,
    Device,
    Finding,
    Inventory,
    Measurement,
    Remedy,
    Result,
    Verdict,
)
from hpcverify.plan.suite import Plan, Step
from hpcverify.run import attribution, wire
from hpcverify.run.conclude import conclude, judge_cut_short
from hpcverify.run.executor import Answer, Executor
from hpcverify.run.folders import ScratchProblem
from hpcverify.run.history import NodeHistory, list_missing_devices
from hpcverify.telemetry import problems

HOST_DEVICE = Device(kind="cpu", part="cpu", label="CPU")
"""What a check computes on if it is not about a device."""
NODE_WORKER = "node"
"""The name of the worker that belongs to no device: it loads the node, or uses them all."""
OBSERVED_KEY = "observed"
"""The key of the check's verdict on the telemetry, beside the workers' answers."""
SETTLED_KEY = "before"
"""The key of what was found while waiting for the devices, before the check."""
RECONCILED_KEY = "together"
"""The key of the check's verdict on the answers of all devices together."""
PROBE_SECONDS = 400.0
"""Seconds to list the hardware: longer than eight GPUs that each take their whole time to
initialise, 36 s for NVML, 60 s for the first and 30 s for the others."""
OBSERVE_SECONDS = 30.0
SAMPLED_SECONDS_PER_SECOND = 50.0
"""Seconds of telemetry that give `wire.Observe` one second more: a burn-in has millions of
samples."""
RECONCILE_SECONDS = 30.0
XID_LAG_SECONDS = 60.0
"""Before a worker's time began: it was ended some time ago, and its context taken apart."""
RELEASE_SECONDS = 30.0
"""How long the driver may take to free the memory of a worker that was ended."""
SETTLE_GRACE_SECONDS = 10.0
"""Seconds that the worker has beyond the time to settle."""


class RunState(Struct, kw_only=True):
    """What the checks of a run leave for those that come after, in this round and the next."""

    released: frozenset[str] = frozenset()
    """GPUs whose workers were ended since the last check that loads the node."""
    observed_until: dict[str, float] = {}
    """When each passive check last observed the telemetry."""
    common_errors: frozenset[str] = frozenset()
    """The codes of CUDA's errors that all GPUs raised alike in one check."""
    gpu_setup_error: wire.Outcome | None = None
    """Why no GPU can compute, where all of them said the same: later checks need not ask."""
    unused: tuple[Finding, ...] = ()
    """The GPUs that did not come back from a check, and are used no more."""
    proven_wrong: frozenset[str] = frozenset()
    """The parts of which there is conclusive evidence: they have no vote any more."""


class RunBase(Struct, kw_only=True):
    """What all checks of one run of *plan* share; *scratch_problem* leaves only passive checks."""

    plan: Plan
    node: str
    packages: tuple[str, ...]
    executor: Executor
    folder: Path
    scratch: Path
    scratch_problem: ScratchProblem | None = None
    clock: Callable[[], float] = time.monotonic
    """Seconds, on the clock of the samples."""
    began: float = field(default_factory=time.monotonic)
    state: RunState = field(default_factory=RunState)

    @property
    def is_sampled(self) -> bool:
        """Whether the telemetry worker samples."""
        return any(step.is_active for step in self.plan.steps)

    @property
    def is_spent(self) -> bool:
        """Whether the budget ran out."""
        return self.clock() > self.began + self.plan.budget

    def count_seconds_left(self) -> float:
        """Count the seconds until the budget runs out."""
        return max(0.0, self.began + self.plan.budget - self.clock())


class Round(Struct, frozen=True, kw_only=True):
    """One pass through a suite: the node's present state, and the run that it is part of."""

    number: int
    inventory: Inventory
    history: NodeHistory
    holders: tuple[wire.GpuHolder, ...]
    seed: int
    run: RunBase


class StepRun(Struct, kw_only=True):
    """One check in one round: from waiting for the devices to its result."""

    step: Step
    round: Round
    before_load: tuple[CarryOver, ...] = ()
    """What a passive check carried over when it ran before the load."""
    _contexts: tuple[Context, ...] = ()
    _phases: list[attribution.Phase] = []
    _cut_workers: frozenset[str] = frozenset()
    """Workers of a later round that were ended because the budget ran out."""

    def list_unused_gpus(self) -> tuple[Finding, ...]:
        """List the GPUs that did not come back, and that no later check may use."""
        late = attribution.list_late_workers(self._phases, self.round.inventory)
        return tuple(attribution.describe_unused_gpus(late, self.step.name))

    def run(self, settle: float) -> Result | None:
        """
        Run the check, after waiting up to *settle* seconds for the devices to cool down.

        Returns None if the budget ran out before it found anything that counts.

        Raises:
            Unable: there is no directory that it can write to.

        """
        step, now = self.step, self.round
        if step.is_active and (problem := now.run.scratch_problem):
            raise Unable(problem.reason, Cause.MISSING, problem.remedy)
        start = now.run.clock()
        here = {device.part for device in now.inventory.devices}
        released = tuple(sorted(now.run.state.released & here)) if step.is_active else ()
        settled = self._settle(settle, released) if settle or released else ()
        answers = self._explain_gpu_errors(self._measure())
        now.run.state.released |= frozenset(self._list_released(answers))
        if step.check.placement not in (Placement.PASSIVE, Placement.NODE):
            gone = answer_for_unreachable(now.inventory, now.history.previous)
            for name, lost in gone.items():
                found = answers.get(name)  # the worker of the node may have the same name
                if found is None:
                    answers[name] = lost
                elif found.outcome.verdict is not Verdict.ERROR:
                    answers[name] = msgspec.structs.replace(found, outcome=lost.outcome)
        # Without the telemetry worker there are no samples.
        cut = TELEMETRY_WORKER in self._cut_workers
        if self.step.check.observe is not None and self.round.run.is_sampled and not cut:
            answers[OBSERVED_KEY] = self._observe(start)
        answers = self._reconcile(answers)
        workers = answers.keys() - {OBSERVED_KEY, RECONCILED_KEY}
        if workers and all(answers[name].outcome.verdict is Verdict.SKIP for name in workers):
            answers = {name: answers[name] for name in answers if name in workers}
        if findings := tuple(item for item in settled if isinstance(item, Finding)):
            answers[SETTLED_KEY] = Answer(items=findings, outcome=wire.Outcome())
        past = now.history.past_values(step.name)
        result = conclude(step, answers, now.inventory, past, now.run.clock() - start)
        conclusive = {
            code for code, r in result.rulings.items() if r.conclusive and r.verdict is Verdict.FAIL
        }
        wrong = (finding.part_id for finding in result.findings if finding.code in conclusive)
        now.run.state.proven_wrong |= frozenset(wrong)
        waits = (item for item in settled if isinstance(item, Coverage))
        result = msgspec.structs.replace(result, coverage=(*result.coverage, *waits))
        if self._cut_workers:
            return judge_cut_short(result, self._cut_workers, now.inventory)
        return result

    def run_before_load(self) -> Result:
        """Run a passive check before anything has loaded the node, and been sampled."""
        start = self.round.run.clock()
        answers = self._reconcile(self._measure())
        past = self.round.history.past_values(self.step.name)
        seconds = self.round.run.clock() - start
        return conclude(self.step, answers, self.round.inventory, past, seconds)

    def _list_released(self, answers: Mapping[str, Answer]) -> Iterator[str]:
        """Name the GPUs whose workers ended or were ended, so that their memory is freed."""
        gpus = [d.part for d in self.round.inventory.devices if d.kind == "cuda"]
        for worker, answer in answers.items():
            outcome = answer.outcome
            ended = answer.overrun or outcome.cause is Cause.CRASHED or outcome.is_worker_spent
            if ended and worker in gpus:
                yield worker
            elif ended and worker == NODE_WORKER:
                yield from gpus

    def _settle(self, seconds: float, released: tuple[str, ...]) -> tuple[Coverage | Finding, ...]:
        now = self.round
        now.run.state.released = frozenset()
        left = now.run.count_seconds_left()
        task = wire.Settle(
            timeout=min(seconds, left),
            released=released,
            release_timeout=min(RELEASE_SECONDS, left) if released else 0.0,
            name=self.step.name,
            packages=now.run.packages,
            contexts=tuple(
                self._build_context(device, now.run.scratch, now.run.folder)
                for workers in assign_workers(self.step.check.placement, now.inventory.devices)
                for device in workers.values()
            ),
        )
        limit = seconds + task.release_timeout + SETTLE_GRACE_SECONDS
        answer = self._ask_telemetry_worker(task, limit)
        return tuple(item for item in answer.items if isinstance(item, Coverage | Finding))

    def _measure(self) -> dict[str, Answer]:
        step, now = self.step, self.round
        params = msgspec.to_builtins(step.params)
        if step.check.placement is Placement.DEVICES_TOGETHER:
            # In an exclusive compute mode, the worker of a GPU keeps all others out.
            modes = {g.id: g.facts.get("compute_mode", "") for g in now.inventory.of_kind("gpu")}
            now.run.executor.close([g for g, mode in modes.items() if mode.startswith("exclusive")])
        with self._open_scratch() as scratch:
            for workers in assign_workers(step.check.placement, now.inventory.devices):
                contexts = self._build_contexts(workers, scratch)
                hopeless = now.run.state.gpu_setup_error  # of all GPUs
                self._contexts += tuple(contexts.values())
                tasks = {
                    worker: wire.Measure(
                        name=step.name, packages=now.run.packages, params=params, context=context
                    )
                    for worker, context in contexts.items()
                    if hopeless is None or context.device.kind != "cuda"
                }
                allowance = attribution.choose_allowance(
                    left=self.round.run.count_seconds_left(),
                    timeout=self.step.timeout,
                    estimate=estimate_seconds(self.step, contexts.values())
                    if self.step.is_active
                    else None,
                )
                answers = now.run.executor.run(tasks, allowance.seconds) if tasks else {}
                if hopeless:
                    answers |= {w: Answer(outcome=hopeless) for w in contexts.keys() - tasks.keys()}
                shared = find_setup_error(answers, now.inventory)
                now.run.state.gpu_setup_error = shared or now.run.state.gpu_setup_error
                self._phases.append(
                    attribution.Phase(contexts=contexts, answers=answers, allowance=allowance)
                )
                if now.number > 1 and allowance.bound == attribution.BUDGET:
                    ended = ((n, a.overrun) for n, a in answers.items() if a.overrun)
                    self._cut_workers |= {name for name, overrun in ended if not overrun.stuck}
        late = attribution.list_late_workers(self._phases, now.inventory)
        return attribution.explain_overruns(
            self._phases, late, now.run.plan.budget, self._find_xids(late)
        )

    def _find_xids(self, late: Mapping[str, attribution.LateWorker]) -> attribution.GpuXids:
        parts = [worker.gpu for worker in late.values() if worker.gpu]
        if not parts:
            return attribution.GpuXids()
        now = self.round.run.clock()
        longest = max(worker.overrun.seconds for worker in late.values())
        return attribution.find_xids(
            self.round.run.executor, parts, now - longest - XID_LAG_SECONDS, now
        )

    def _explain_gpu_errors(self, answers: dict[str, Answer]) -> dict[str, Answer]:
        now = self.round
        if not self.step.is_active:
            return answers
        from hpcverify.run.gpu_errors import explain_gpu_errors  # noqa: PLC0415 - 10 ms of a prolog

        def ask(parts: Collection[str], start: float) -> attribution.GpuXids:
            return attribution.find_xids(
                now.run.executor, parts, start, now.run.clock(), with_error_states=True
            )

        common = now.run.state.common_errors
        explained, now.run.state.common_errors = explain_gpu_errors(
            answers, now.inventory, ask, now.holders, common
        )
        return explained

    @contextmanager
    def _open_scratch(self) -> Generator[Path]:
        if not self.step.is_active:  # it writes nothing, and a directory takes time
            yield self.round.run.folder
            return
        scratch = self.round.run.scratch / self.step.name
        _make_directory(scratch)
        try:
            yield scratch
        finally:
            import shutil  # noqa: PLC0415 - 3 ms, and a passive run removes nothing

            shutil.rmtree(scratch, ignore_errors=True)

    def _build_contexts(self, workers: Mapping[str, Device], scratch: Path) -> dict[str, Context]:
        shared = {
            kind: self.round.run.folder / f"shared-{os.urandom(4).hex()}"
            if self.step.is_active
            else self.round.run.folder
            for kind in _list_kinds(workers.values())
        }
        for folder in shared.values() if self.step.is_active else ():
            _make_directory(folder)
        return {
            name: self._build_context(device, scratch, shared[device.kind])
            for name, device in workers.items()
        }

    def _build_context(self, device: Device, scratch: Path, shared: Path) -> Context:
        now = self.round
        return Context(
            node=now.run.node,
            device=device,
            peers=tuple(d for d in now.inventory.devices if d.kind == device.kind),
            inventory=now.inventory,
            previous=now.history.previous,
            scratch=scratch,
            shared=shared,
            seed=now.seed,
            rotation=now.history.run_count,
            carry_overs=now.history.carry_overs.get(self.step.name, ()),
            before_load=self.before_load,
            accepts_parts=now.history.accepts_parts,
        )

    def _observe(self, start: float) -> Answer:
        step, now = self.step, self.round
        if step.check.placement is Placement.PASSIVE:
            start = now.run.state.observed_until.get(step.name, now.run.began)
        task = wire.Observe(
            name=step.name,
            packages=now.run.packages,
            params=msgspec.to_builtins(step.params),
            contexts=self._contexts,
            start=start,
            end=now.run.clock(),
        )
        seconds = OBSERVE_SECONDS + (task.end - task.start) / SAMPLED_SECONDS_PER_SECOND
        answer = self._ask_telemetry_worker(task, seconds)
        if answer.outcome.verdict is Verdict.PASS:
            now.run.state.observed_until[step.name] = task.end
        return answer

    def _reconcile(self, answers: dict[str, Answer]) -> dict[str, Answer]:
        """Have the check judge all *answers* together, if it can."""
        wrong = self.round.run.state.proven_wrong
        answers = {part: _void_votes(answer, wrong) for part, answer in answers.items()}
        items = [item for answer in answers.values() for item in answer.items]
        measurements = tuple(i for i in items if isinstance(i, Measurement))
        findings = tuple(i for i in items if isinstance(i, Finding))
        if self.step.check.reconcile is None or not (measurements or findings):
            return answers
        task = wire.Reconcile(
            name=self.step.name,
            packages=self.round.run.packages,
            inventory=self.round.inventory,
            measurements=measurements,
            findings=findings,
        )
        together = self._ask_telemetry_worker(task, RECONCILE_SECONDS)
        if together.outcome.verdict is not Verdict.PASS:
            # What each device found still counts; half a conclusion does not.
            return answers | {RECONCILED_KEY: Answer(outcome=together.outcome)}
        rest = {
            part: msgspec.structs.replace(
                answer,
                items=tuple(i for i in answer.items if not isinstance(i, Measurement | Finding)),
            )
            for part, answer in answers.items()
        }
        return rest | {RECONCILED_KEY: together}

    def _ask_telemetry_worker(
        self, task: wire.Settle | wire.Observe | wire.Reconcile, seconds: float
    ) -> Answer:
        return self.round.run.executor.run({TELEMETRY_WORKER: task}, seconds)[TELEMETRY_WORKER]


def _void_votes(answer: Answer, wrong: frozenset[str]) -> Answer:
    """Void the votes of parts that an earlier check proved *wrong*, and say so."""
    voted = [i for i in answer.items if isinstance(i, Finding) and i.code == ANSWER_CODE]
    void = [vote for vote in voted if vote.part_id in wrong]
    text = "does not vote: an earlier check of this run proved it faulty"
    notes = [Coverage(part_id, text) for part_id in dict.fromkeys(vote.part_id for vote in void)]
    # Their data stay: a check may need them to explain what it found of other parts.
    marked = (
        msgspec.structs.replace(item, data=item.data | {"void": True}) if item in void else item
        for item in answer.items
    )
    return msgspec.structs.replace(answer, items=(*marked, *notes))


def _make_directory(path: Path) -> None:
    """Make *path*, but not its parents, which would be on another disk after an unmount."""
    try:
        path.mkdir(exist_ok=True)
    except OSError as exc:
        full = exc.errno in (errno.ENOSPC, errno.EDQUOT)
        fix = "free some space" if full else "see df, findmnt and the kernel log"
        raise Unable(
            f"the directory {path} cannot be created ({exc.strerror}). Fix: {fix}",
            Cause.NO_SPACE if full else Cause.MISSING,
            Remedy.INSPECT,
        ) from exc


def estimate_seconds(step: Step, contexts: Iterable[Context]) -> float | None:
    """Estimate the seconds of a phase, if the check can: the slowest of *contexts* counts."""
    estimate = step.check.estimate
    if estimate is None:
        return None
    try:
        return max(estimate(ctx, step.params) for ctx in contexts)
    except (
        Exception,
        SystemExit,
    ) as exc:  # code of a site, which runs in the engine: it costs its own check
        raise Unable(
            f"the estimate of the check raised {type(exc).__name__}: {exc}",
            Cause.CRASHED,
            Remedy.FIX_CHECKER,
        ) from exc


def find_setup_error(answers: Mapping[str, Answer], inventory: Inventory) -> wire.Outcome | None:
    """Find the one cause for which no GPU can compute, if all of them gave it."""
    gpus = [device.part for device in inventory.devices if device.kind == "cuda"]
    outcomes = [answers[gpu].outcome for gpu in gpus if gpu in answers]
    shared = {outcome.code for outcome in outcomes}
    agreed = len(outcomes) == len(gpus) > 0 and len(shared) == 1 and shared <= SETUP_CODES
    return outcomes[0] if agreed else None


def drop_devices(inventory: Inventory, problems: Sequence[Finding]) -> Inventory:
    """Take the devices that *problems* name out of *inventory*, and say why."""
    named = {problem.part_id for problem in problems}
    return msgspec.structs.replace(
        inventory,
        devices=tuple(d for d in inventory.devices if d.part not in named),
        problems=(*inventory.problems, *problems),
    )


def assign_workers(placement: Placement, devices: Sequence[Device]) -> Iterator[dict[str, Device]]:
    """Yield each phase: the workers that run at once, and their devices."""
    match placement:
        case Placement.PASSIVE:
            yield {TELEMETRY_WORKER: HOST_DEVICE}
        case Placement.NODE | Placement.DEVICES_TOGETHER:
            yield {NODE_WORKER: HOST_DEVICE}
        case Placement.DEVICES:
            # At once: one at a time hides faults of power and cooling.
            for kind in _list_kinds(devices):
                yield {d.part: d for d in devices if d.kind == kind}
        case Placement.ALL_DEVICES:
            yield {d.part: d for d in devices}
        case Placement.DEVICES_ALONE:
            for device in devices:
                yield {device.part: device}


def _list_kinds(devices: Iterable[Device]) -> list[str]:
    return list(dict.fromkeys(d.kind for d in devices))


def describe_holders(holders: Iterable[wire.GpuHolder], inventory: Inventory) -> str:
    """Say who uses which GPUs, as in "GPU 3 (…4f21) in use by process 4242"."""
    used: dict[int, list[str]] = {}
    for holder in holders:
        used.setdefault(holder.pid, []).append(holder.part)
    return ", ".join(
        f"{inventory.format_names(parts)} in use by process {pid}" for pid, parts in used.items()
    )


def probe_node(
    executor: Executor,
    *,
    seconds: float = PROBE_SECONDS,
    sample: bool = False,
    folder: Path | None = None,
) -> tuple[Inventory, tuple[wire.GpuHolder, ...]]:
    """List the hardware, and the processes on GPUs, in a worker; *sample* starts the telemetry."""
    task = wire.Probe(sample=sample, folder=folder)
    answer = executor.run({TELEMETRY_WORKER: task}, seconds)[TELEMETRY_WORKER]
    for item in answer.items:
        if isinstance(item, wire.ProbeResult):
            return item.inventory, item.holders
    problem = Finding(
        code="probe_failed",
        part_id="node",
        text=f"listing the hardware failed: {answer.outcome.reason}",
    )
    return Inventory(devices=(HOST_DEVICE,), problems=(problem,)), ()


def refuse_used_gpus(holders: Sequence[wire.GpuHolder], inventory: Inventory) -> None:
    """Raise `UnverifiedError` if others use the GPUs."""
    if holders:
        raise UnverifiedError(f"{describe_holders(holders, inventory)}. Fix: wait until it ends")


def select_devices(inventory: Inventory, kind: str) -> Inventory:
    """Leave out the devices of *inventory* that are not of this *kind*, if one is given."""
    kept = tuple(d for d in inventory.devices if kind in ("", d.kind))
    return msgspec.structs.replace(inventory, devices=kept)


def answer_for_unreachable(inventory: Inventory, previous: Inventory | None) -> dict[str, Answer]:
    """Answer for devices of the probe or the *previous* inventory that cannot be used."""
    here = {device.part for device in inventory.devices}
    gone = {
        p.part_id: (p.text, problems.UNREACHABLE_CAUSES.get(p.code), p.code)
        for p in inventory.problems
        if p.part_id not in here
    }
    # A driver that does not work for any GPU explains why they are missing.
    is_explained = any(
        p.part_id == "node" and p.code in problems.DRIVER_CODES for p in inventory.problems
    )
    for device in list_missing_devices(inventory, previous) if previous else ():
        if not is_explained:
            gone.setdefault(device.part, (f"{device.label} was here before", None, "gpu_missing"))
    return {
        part: Answer(
            outcome=wire.Outcome(
                verdict=Verdict.ERROR,
                reason=text,
                cause=cause or Cause.MISSING,
                remedy=problems.UNREACHABLE_REMEDIES.get(code, Remedy.INSPECT),
                code=code,
            ),
        )
        for part, (text, cause, code) in gone.items()
    }
