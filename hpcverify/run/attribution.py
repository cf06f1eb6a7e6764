"""
Attribute a worker that did not end in time: to a part that hangs, or to a plan that is short.

Only its siblings show that a GPU hangs: one that does not come back from an operation of
its own, long after at least as many like GPUs have ended the same check. All else is an
ERROR that says what was going on, since the host, the driver or the plan may be at fault.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from hpcverify.check import HUNG_CODE, RANK_LOST_CODE, TELEMETRY_WORKER, Context
from hpcverify.model import Cause, Coverage, Device, Finding, Inventory, Remedy, Verdict
from hpcverify.run.executor import Answer, Executor, Overrun
from hpcverify.run.wire import FindXids, Outcome
from hpcverify.telemetry.problems import ERROR_STATE_CODE, NOT_USED

START_UP_SECONDS = 120.0
"""How long a worker may take to start and to load torch, CUDA and NCCL from a slow disk."""
ESTIMATE_FACTOR = 3.0
"""Times as long as a check estimates it may take: the node may be busy."""
MIN_SILENCE_SECONDS, MIN_SILENCE_SHARE = 20.0, 0.25
"""How much longer than its siblings a GPU takes that hangs: seconds, and the share of
their time. Siblings that do the same work differ by far less."""
BUDGET, TIMEOUT, ESTIMATE = "budget", "timeout", "estimate"
XIDS_SECONDS = 15.0
"""The time to read the kernel log, which may be tens of MB, and one more round of samples."""
LOG_WORDS = {"NVIDIA": "xid", "AMD": "amdgpu"}
"""What the lines of a GPU's driver in the kernel log have in them, by vendor."""


class GpuXids(Struct, frozen=True):
    """The Xids of some GPUs in a window of time."""

    found: tuple[Finding, ...] = ()
    """Each with its number and its line in the kernel log; *text* is as it is printed."""
    error_states: tuple[Finding, ...] = ()
    """What the driver holds against some of them, if that was asked."""
    problem: str = ""
    """Why the kernel log could not be read, if so: there may be more than we know."""

    def describe(self, part: str) -> str:
        """Say which Xids *part* had, in the order of the log; empty if we know of none."""
        return ", ".join(xid.text for xid in self.found if xid.part_id == part)

    def list_marked(self, parts: Collection[str], xids: frozenset[int]) -> list[str]:
        """List *parts* with one of *xids* (any, if empty), or else with an error state."""
        had = {xid.part_id for xid in self.found if not xids or xid.data["xid"] in xids}
        held = had.intersection(parts) or {state.part_id for state in self.error_states}
        return [part for part in parts if part in held]

    def make_evidence(self, part: str) -> dict[str, str]:
        """Make what stands beside a finding about *part*: also that nobody could look."""
        evidence = {"xid": self.describe(part) or self.problem or "none in the kernel log"}
        lines = [x.evidence["line"] for x in self.found if x.part_id == part and x.evidence]
        return evidence | ({"kernel_log": "\n".join(lines)} if lines else {})


def find_xids(
    executor: Executor,
    parts: Collection[str],
    start: float,
    end: float,
    *,
    with_error_states: bool = False,
) -> GpuXids:
    """Read the Xids and error states of the GPUs *parts*, on the clock of `Outcome.start`."""
    task = FindXids(parts=tuple(parts), start=start, end=end, with_error_states=with_error_states)
    answer = executor.run({TELEMETRY_WORKER: task}, XIDS_SECONDS)[TELEMETRY_WORKER]
    findings = [item for item in answer.items if isinstance(item, Finding)]
    problem = "; ".join(item.text for item in answer.items if isinstance(item, Coverage))
    if answer.outcome.verdict is not Verdict.PASS:
        problem = f"the telemetry worker did not respond: {answer.outcome.reason}"
    return GpuXids(
        found=tuple(f for f in findings if f.code != ERROR_STATE_CODE),
        error_states=tuple(f for f in findings if f.code == ERROR_STATE_CODE),
        problem=problem,
    )


class Allowance(Struct, frozen=True, kw_only=True):
    """How long a phase may take, and why no longer."""

    seconds: float
    bound: str
    """`BUDGET`, `TIMEOUT` or `ESTIMATE`."""
    estimate: float | None
    """The seconds that it should take on a healthy node, if the check says so."""

    @property
    def is_ample(self) -> bool:
        """Whether a healthy node would have ended in this time."""
        return self.estimate is not None and self.seconds >= START_UP_SECONDS + self.estimate


def choose_allowance(*, left: float, timeout: float, estimate: float | None) -> Allowance:
    """Choose the least of what it needs by its *estimate*, its *timeout* and what is *left*."""
    bounds = {TIMEOUT: timeout, BUDGET: left}
    if estimate is not None:
        bounds[ESTIMATE] = START_UP_SECONDS + ESTIMATE_FACTOR * estimate
    bound = min(bounds, key=bounds.__getitem__)
    return Allowance(seconds=bounds[bound], bound=bound, estimate=estimate)


class Phase(Struct, frozen=True, kw_only=True):
    """The workers that measured at once, and how they ended."""

    contexts: Mapping[str, Context]
    answers: Mapping[str, Answer]
    allowance: Allowance


class LateWorker(Struct, frozen=True, kw_only=True):
    """A worker that overran, beside those that did the same on like devices."""

    context: Context
    overrun: Overrun
    allowance: Allowance
    like: tuple[Answer, ...]

    @property
    def ended(self) -> tuple[float, ...]:
        """The seconds of those that came to the end of the check, and gave up on no peer."""
        return tuple(
            answer.outcome.end - answer.outcome.start
            for answer in self.like
            if answer.outcome.verdict is Verdict.PASS
            and not any(isinstance(i, Finding) and i.code == RANK_LOST_CODE for i in answer.items)
        )

    @property
    def late(self) -> list[Overrun]:
        """Those that overran too."""
        return [answer.overrun for answer in self.like if answer.overrun is not None]

    @property
    def is_gpu(self) -> bool:
        """Whether it was to work on a GPU."""
        return self.context.device.kind == "cuda"

    @property
    def gpu(self) -> str:
        """The GPU that it was to work on, or did from the host; empty if none is known."""
        own = self.context.device.part
        return own if self.is_gpu else self.overrun.part.removeprefix(own)

    @property
    def activity(self) -> str:
        """What it was doing, without the device."""
        return self.overrun.doing.removesuffix(f" on {self.context.device.label}")

    @property
    def is_within_gpu(self) -> bool:
        """Whether it waits for its own GPU, and is free to go on if that answers."""
        own = self.overrun.part == self.context.device.part
        return self.is_gpu and own and not self.overrun.hindrance

    @property
    def is_hung_alone(self) -> bool:
        """Whether its GPU hangs, by the word of its siblings."""
        if not self.is_within_gpu or len(self.ended) <= len(self.late):
            return False
        slowest = max(self.ended)
        silence = min(self.overrun.seconds - slowest, self.overrun.doing_seconds)
        return silence >= max(MIN_SILENCE_SECONDS, MIN_SILENCE_SHARE * slowest)

    @property
    def is_lost_to_run(self) -> bool:
        """Whether its GPU would hold up the next check too: it is not merely slow."""
        if self.overrun.stuck:
            return self.is_gpu
        longer = self.overrun.doing_seconds > (self.allowance.estimate or 0.0)
        return self.is_hung_alone or (self.is_within_gpu and longer)

    @property
    def is_short_of_budget(self) -> bool:
        """Whether it is the suite that gave it, and all others, too little time."""
        if self.allowance.bound != BUDGET or self.ended or self.allowance.is_ample:
            return False
        estimate = self.allowance.estimate
        if estimate is None:
            return not self.overrun.doing
        return self.overrun.doing_seconds <= estimate


def explain_overruns(
    phases: Sequence[Phase], late: Mapping[str, LateWorker], budget: float, xids: GpuXids
) -> dict[str, Answer]:
    """Gather the answers of all *phases*, and explain those of *late* workers."""
    answers = {name: answer for phase in phases for name, answer in phase.answers.items()}
    return answers | {
        name: _explain(answers[name], worker, budget, xids) for name, worker in late.items()
    }


def list_late_workers(phases: Sequence[Phase], inventory: Inventory) -> dict[str, LateWorker]:
    """List the workers that overran, by name."""

    def identify(device: Device) -> tuple[str, str]:
        part = inventory.find_part(device.part)
        return device.kind, part.facts.get("name", "") if part else ""

    everybody = [
        (context.device, phase.answers[name])
        for phase in phases
        for name, context in phase.contexts.items()
    ]
    late: dict[str, LateWorker] = {}
    for phase in phases:
        for name, answer in phase.answers.items():
            if answer.overrun is not None:
                context, kind = phase.contexts[name], identify(phase.contexts[name].device)
                like = (a for d, a in everybody if d != context.device and identify(d) == kind)
                late[name] = LateWorker(
                    context=context,
                    overrun=answer.overrun,
                    allowance=phase.allowance,
                    like=tuple(like),
                )
    return late


def _explain(answer: Answer, late: LateWorker, budget: float, xids: GpuXids) -> Answer:
    outcome = answer.outcome
    seen = xids.describe(late.gpu)
    noted = f" (the kernel log has {seen})" if seen else ""
    if late.overrun.stuck or late.overrun.hindrance:
        return replace(answer, outcome=replace(outcome, reason=f"{outcome.reason}{noted}"))
    if late.is_hung_alone:
        finding = _build_finding(late, noted, xids)
        return replace(answer, items=(*answer.items, finding))
    if late.is_short_of_budget:
        reason = (
            f"{outcome.reason}, when the suite's budget of {budget:g} s ran out. Fix: raise the "
            "budget, or shorten its checks"
        )
        remedy = Remedy.FIX_CONFIGURATION
    elif late.gpu:
        from hpcverify.telemetry.vendors import name_vendor  # noqa: PLC0415 - hardly ever, 10 ms

        word = LOG_WORDS.get(name_vendor(late.context.inventory))
        look = f"dmesg{f' | grep -i {word}' if word else ''}, and run again"
        reason = f"{outcome.reason}{_compare(late)}{noted}. Fix: {look}"
        remedy = Remedy.INSPECT
    else:
        reason, remedy = outcome.reason, outcome.remedy
    return replace(answer, outcome=replace(outcome, reason=reason, remedy=remedy))


def _build_finding(late: LateWorker, noted: str, xids: GpuXids) -> Finding:
    overrun, slowest, part = late.overrun, max(late.ended), late.context.device.part
    text = (
        f"hung in {late.activity} for {overrun.doing_seconds:.0f} s until its worker was ended; "
        f"{len(late.ended)} other GPUs finished the check in {slowest:.0f} s{noted}. Fix: reset "
        "the GPU, and run again"
    )
    evidence = {
        "operation": late.activity,
        "seconds": f"{overrun.doing_seconds:.0f}",
        "siblings": f"{len(late.ended)} ended within {slowest:.0f} s",
        **xids.make_evidence(part),
    }
    return Finding(HUNG_CODE, part, text, evidence)


def _compare(late: LateWorker) -> str:
    if not late.is_gpu:
        return ""
    if late.ended:
        return f", while {len(late.ended)} other GPUs took at most {max(late.ended):.0f} s"
    waiting = sum(bool(other.doing) and not other.part for other in late.late)
    if waiting and late.is_within_gpu:
        return f", while {waiting} other GPUs waited for it"
    if late.late:
        return f", as on {len(late.late)} identical GPUs"
    return "" if late.like else "; the node has no identical GPU to compare with"


def describe_overrun(overrun: Overrun) -> Outcome:
    """Say that a worker overran, as far as that can be said of it alone."""
    place = f" in {overrun.doing}" if overrun.doing else ""
    if overrun.stuck:
        reason = f"hung{place}: {overrun.stuck}, cannot be ended. Fix: reboot the node"
        cause, remedy = Cause.HUNG, Remedy.REBOOT
    else:
        reason = f"no end after {overrun.seconds:.0f} s"
        if place:
            reason += f"{place}, for {overrun.doing_seconds:.0f} s"
        reason += f": {overrun.hindrance}" if overrun.hindrance else ""
        cause, remedy = Cause.TIMEOUT, Remedy.RERUN
    return Outcome(verdict=Verdict.ERROR, reason=reason, cause=cause, remedy=remedy)


def describe_unused_gpus(late: Mapping[str, LateWorker], check: str) -> Iterator[Finding]:
    """Name the GPUs that did not come back: nothing else in this run waits for them."""
    for worker in late.values():
        if worker.is_lost_to_run:
            part_id = worker.context.device.part
            text = (
                f"did not return from {worker.activity or 'its work'} in {check}, so later checks "
                f"do not use this GPU: see {check}"
            )
            yield Finding(NOT_USED, part_id, text)
