"""
Qualify hpcverify on hardware that is new to it: take the steps, and say what each came to.

All steps but two are suites of their own: TOML files beside the measurements that only a
qualification takes. A site's own files come first, as for suites. A step that fails, crashes or
overruns is reported, and the others have their turn.
"""

from __future__ import annotations

import csv
import io
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from hpcverify.check import ANSWER_CODE, FOUND_NOTHING, Check, matches
from hpcverify.errors import HpcverifyError, UnknownNameError, UnverifiedError
from hpcverify.limits.specs import MEASURED_UNITS, find_spec
from hpcverify.model import (
    Inventory,
    Measurement,
    Part,
    Result,
    Run,
    Verdict,
    effective_verdict,
)
from hpcverify.plan.catalog import BUILTIN_PACKAGE
from hpcverify.plan.config import Site, read_toml, suites_dir
from hpcverify.plan.suite import Plan, Suite, load_suite, make_plan, refuse_endless
from hpcverify.run.folders import RunFolders, make_run_folders
from hpcverify.run.gather import probe_node, refuse_used_gpus
from hpcverify.run.history import NodeHistory
from hpcverify.run.local import LocalExecutor
from hpcverify.run.orchestrator import Verification, collect_versions
from hpcverify.run.selftest import (
    SOUND_STATUS,
    UNSOUND_STATUS,
    SelftestResult,
    SelftestRunner,
    load_provable_checks,
)
from hpcverify.stats import bound_rate, median
from hpcverify.summary.progress import Progress
from hpcverify.summary.verdict import shorten
from hpcverify.trust import refuse_if_others_can_change
from hpcverify.units import convert_unit, format_count

QUALIFICATION_PACKAGE = f"{BUILTIN_PACKAGE}.qualification"
SELFTEST, QUICK = "selftest", "quick"
STEP_NAMES = (
    "facts",
    SELFTEST,
    "arithmetic",
    "links",
    "products",
    "soak",
    "training",
    QUICK,
    "corruption",
)
"""In the order in which they run."""
SELFTEST_QUESTION = "does each selftest find the faults that it injects?"
QUICK_QUESTION = "how long does the suite quick take on this node, check by check?"
GPU_KIND = "cuda"
"""The kind of devices that is qualified; `QUICK` has them all."""
POLL_SECONDS = 0.1
REASON_CHARACTERS = 600
"""Characters of what one check says; its page has the rest."""
NODE_LABEL = "node"
"""What the documents call the node: its name is nobody's business."""
SETUP_CHECKS = ("gpu_setup", "nvlink")
"""The checks whose coverage says how the GPUs are set up; it has no addresses."""
SYSTEM_FACTS = ("vendor", "product", "bios", "kernel", "os")
"""Facts of the machine that many others have, too."""
SHOWN: Mapping[str, tuple[str, ...]] = {
    "gpu_setup": ("power.limit",),
    "gemm": ("*.burst", "*.sustained"),
    "gpu_memory": ("memory.*", "covered"),
    "pcie_bandwidth": ("h2d", "d2h"),
    "p2p": ("*.write", "*.read", "*.ring"),
    "allreduce": ("busbw.*", "*.busbw"),
    "training": ("replays", "step_p50", "tokens", "mfu"),
    "sdc": ("products", "checked_operations"),
    "thermal": ("power.mean", "rate.mean", "clock.mean", "temperature.*", "wave.edges"),
    "exactness": ("*",),
    "comparison_cost": ("*",),
}
"""The measurements that are figures of a step, by check; the run document has them all."""
REFERENCES = {"gemm": ("bare_gemm", "bare loop"), "allreduce": ("nccl_tests", "nccl-tests")}
"""The check whose measurements of the same names these are held against, and what to call it."""
POWER_NAMES = ("power.limit", "power.mean")
"""Held against the power that the part is built for."""
WANTED_REPLAYS = 1000.0
"""The seconds of a training step are chosen to reach them."""
LINK_SUFFIX = ".link"
"""The measurement so named has the speed of the link that a copy took."""
SHEET, TDP, LINK = "data sheet", "TDP", "link"
"""What a figure is compared with, as pages name it."""
REACHED = {
    "gemm": ("*.burst", "*.sustained"),
    "gpu_memory": ("memory.*",),
    "p2p": ("p2p.write", "p2p.read", "tray.write"),
    "allreduce": ("*.busbw",),
}
"""The measurements that the table has lines for, by check."""
TABLE_UNITS = {"GFLOP/s": "TFLOP/s", "GOP/s": "TOP/s"}
MEASURED_HERE, DISPUTED = "A", "C"
"""The confidence of what was measured on the part itself: on a good node, and on one that
failed. The latter fails no part."""
HELD_BACK_CODES = frozenset(
    {"power_capped", "power_limited", "power_held", "power_raised", "slowed_down"}
)
"""The codes of findings of `gpu_setup` on a GPU that does not run as it was built."""


class QualificationStep(Struct, frozen=True, kw_only=True):
    """One step: a plan of checks, or the selftests of *provable* ones."""

    name: str
    question: str
    budget: float
    """Seconds after which it is ended."""
    plan: Plan | None = None
    provable: dict[str, Check[Any]] = {}
    device_kind: str = GPU_KIND

    @property
    def rest(self) -> float:
        """Seconds to wait before it: a run knows only of its own loads."""
        return self.plan.settle if self.plan else 0.0


class MeasuredFigure(Struct, frozen=True, kw_only=True):
    """One quantity that a step measured, over all parts of one model."""

    check: str
    quantity: str
    """The name of the measurement, as ``bf16.sustained``."""
    unit: str
    model: str = ""
    """The model of the parts; empty if it is about the node."""
    parts: int = 1
    median: float
    lowest: float
    highest: float
    lowest_part: str = ""
    compared: tuple[tuple[str, float], ...] = ()
    """What it is held against, each with its value in the same unit."""


class Count(Struct, frozen=True):
    """How often something happened that should not have."""

    what: str
    events: int
    tries: int

    @property
    def bound(self) -> float:
        """The largest rate per try that is not excluded at 95 %, for a Poisson process."""
        return bound_rate(self.events, self.tries)


class StepReport(Struct, frozen=True, kw_only=True):
    """What one step came to."""

    step: QualificationStep
    verdict: Verdict
    """PASS: it ran to its end, and nothing was wrong; FAIL: hardware is bad, or a check
    missed a fault; ERROR: it could not tell."""
    reason: str = ""
    seconds: float = 0.0
    run: Run | None = None
    figures: tuple[MeasuredFigure, ...] = ()
    counts: tuple[Count, ...] = ()
    notes: tuple[str, ...] = ()


class Qualification(Struct, frozen=True, kw_only=True):
    """What all steps came to; it names no node, serial number or address."""

    started: datetime
    seconds: float
    complete: bool
    """Whether every step was taken, whatever it came to."""
    machine: dict[str, str]
    gpus: tuple[str, ...]
    """The model of each."""
    versions: dict[str, str]
    steps: tuple[StepReport, ...]
    reached: tuple[str, ...]
    """Lines for ``hpcverify/limits/gpu_reached.csv``."""
    not_reached: tuple[str, ...]
    """Why there are no lines for some quantities."""

    @property
    def verdict(self) -> Verdict:
        """The worst of the steps."""
        return max(report.verdict for report in self.steps)


def load_steps(site: Site, only: Iterable[str] = ()) -> tuple[QualificationStep, ...]:
    """Load all steps, or *only* those with these names."""
    chosen = frozenset(only)
    for name in chosen.difference(STEP_NAMES):
        raise UnknownNameError("step", name, STEP_NAMES)
    return tuple(_load_step(name, site) for name in STEP_NAMES if not chosen or name in chosen)


def list_packages(site: Site) -> tuple[str, ...]:
    """List the packages with the checks and measurements of the steps."""
    return (*site.packages, QUALIFICATION_PACKAGE)


def _load_step(name: str, site: Site) -> QualificationStep:
    if name == SELFTEST:
        provable = load_provable_checks(None, site.packages)
        budget = sum(check.timeout for check in provable.values())
        return QualificationStep(
            name=name, question=SELFTEST_QUESTION, budget=budget, provable=provable
        )
    if name == QUICK:
        plan = make_plan(load_suite(QUICK), site)
        return QualificationStep(
            name=name, question=QUICK_QUESTION, budget=plan.budget, plan=plan, device_kind=""
        )
    path = suites_dir() / "qualification" / f"{name}.toml"
    if path.is_file():
        refuse_if_others_can_change(path)
    else:
        path = Path(import_module(QUALIFICATION_PACKAGE).__path__[0]) / f"{name}.toml"
    suite = msgspec.structs.replace(read_toml(path, Suite), name=name)
    plan = make_plan(suite, site, packages=list_packages(site))
    refuse_endless(plan)
    return QualificationStep(name=name, question=suite.summary, budget=plan.budget, plan=plan)


class NodeQualifier(Struct, kw_only=True):
    """Takes *steps* on this node, whose lock the caller holds."""

    site: Site
    state: Path
    steps: tuple[QualificationStep, ...]
    should_stop: Callable[[], bool]
    say: Callable[[str], None]
    begin: Callable[[QualificationStep], None]
    """Called with each step before it begins."""
    show_progress: Callable[[], AbstractContextManager[Progress]]

    def run(self) -> Iterator[Qualification]:
        """Take the steps, and yield the results so far after each."""
        started, began = datetime.now(UTC), time.monotonic()
        inventory, reports = self._find_gpus(), list[StepReport]()
        for step in self.steps:
            if self.should_stop():
                why = "interrupted before it began"
                reports.append(StepReport(step=step, verdict=Verdict.ERROR, reason=why))
            else:
                self.begin(step)
                until = time.monotonic() + (step.rest if reports else 0.0)
                while time.monotonic() < until and not self.should_stop():
                    time.sleep(POLL_SECONDS)
                reports.append(self._take_step(step, inventory))
            whole = len(reports) == len(self.steps) and not self.should_stop()
            seconds = time.monotonic() - began
            yield build_qualification(inventory, reports, started, seconds, complete=whole)

    def _find_gpus(self) -> Inventory:
        executor = LocalExecutor(should_stop=self.should_stop)
        try:
            inventory, holders = probe_node(executor)
        finally:
            executor.close()
        if not any(device.kind == GPU_KIND for device in inventory.devices):
            why = "; ".join(problem.text for problem in inventory.problems)
            none = "neither the driver nor the PCI bus lists a GPU"
            raise UnverifiedError(f"no GPU to qualify: {why or none}; see hpcverify doctor")
        refuse_used_gpus(holders, inventory)
        return inventory

    def _take_step(self, step: QualificationStep, inventory: Inventory) -> StepReport:
        began = time.monotonic()
        try:
            with make_run_folders(self.state, self.site.scratch, NODE_LABEL, self.say) as folders:
                if step.plan is None:
                    report = read_selftests(step, self._try_checks(step, folders), inventory)
                else:
                    report = read_run(step, self._run_plan(step, step.plan, folders))
        except HpcverifyError as exc:  # one line that names the fix; the next step has its turn
            report = StepReport(step=step, verdict=Verdict.ERROR, reason=str(exc))
        return msgspec.structs.replace(report, seconds=time.monotonic() - began)

    def _try_checks(self, step: QualificationStep, folders: RunFolders) -> list[SelftestResult]:
        with ExitStack() as stack:
            executor = LocalExecutor(should_stop=self.should_stop)
            stack.callback(lambda: executor.close(hurry=self.should_stop()))
            runner = SelftestRunner(
                node=NODE_LABEL,
                packages=self.site.packages,
                executor=executor,
                folder=folders.shared,
                device_kind=step.device_kind,
            )
            return list(runner.run_checks(step.provable))

    def _run_plan(self, step: QualificationStep, plan: Plan, folders: RunFolders) -> Run:
        with ExitStack() as stack:
            progress = stack.enter_context(self.show_progress())
            executor = LocalExecutor(should_stop=self.should_stop, tick=progress.tick)
            stack.callback(lambda: executor.close(hurry=self.should_stop()))
            return Verification(
                plan=plan,
                node=NODE_LABEL,
                packages=list_packages(self.site),
                executor=executor,
                folder=folders.shared,
                scratch=folders.scratch,
                scratch_problem=folders.scratch_problem,
                history=NodeHistory(),
                progress=progress,
                force=True,  # the driver may still be ending the workers of the last step
                device_kind=step.device_kind,
            ).run()


def build_qualification(
    inventory: Inventory,
    reports: Sequence[StepReport],
    started: datetime,
    seconds: float,
    *,
    complete: bool,
) -> Qualification:
    """Put together what the steps came to; a node that failed one gives no more than hints."""
    runs = [report.run for report in reports if report.run]
    findings = [f for run in runs for result in run.results for f in result.findings]
    versions = collect_versions()
    for finding in findings:
        if finding.code == "versions":
            versions |= finding.evidence
    held_back = find_held_back(*runs)
    failed = [report.step.name for report in reports if report.verdict is Verdict.FAIL]
    confidence = DISPUTED if failed else MEASURED_HERE
    version = versions.get("hpcverify", "")
    lines, reasons = list[str](), list[str]()
    for report in reports:
        if report.run:
            more = list_reached(report.run, report.figures, held_back, version, confidence)
            lines += more[0]
            reasons += more[1]
    if failed and lines:
        reasons.append(f"confidence {DISPUTED}, since the node failed: {', '.join(failed)}")
    system = inventory.find_part("node")
    facts = system.facts if system else {}
    return Qualification(
        started=started,
        seconds=seconds,
        complete=complete,
        machine={name: facts[name] for name in SYSTEM_FACTS if name in facts},
        gpus=tuple(gpu.facts.get("name", "GPU") for gpu in inventory.of_kind("gpu")),
        versions=versions,
        steps=tuple(reports),
        reached=tuple(lines),
        not_reached=tuple(dict.fromkeys(reasons)),
    )


def read_selftests(
    step: QualificationStep, results: list[SelftestResult], inventory: Inventory
) -> StepReport:
    """Say what the selftests came to."""
    wrong = [(r.check, trial) for r in results for trial in r.wrong_trials]
    statuses = {result.status for result in results}
    verdict = Verdict.ERROR
    if UNSOUND_STATUS in statuses:
        verdict = Verdict.FAIL
    elif statuses == {SOUND_STATUS}:
        verdict = Verdict.PASS
    untried = [(r.check, s.part_id, s.reason) for r in results for s in r.shortfalls]
    reasons = [
        *(
            f"{check} on {inventory.find_label(trial.part_id)}: "
            f"{trial.fault}: {trial.outcome}, not {trial.expected}"
            for check, trial in wrong
        ),
        *(
            f"{check} on {inventory.find_label(part_id)}: {' '.join(why.split())}"
            for check, part_id, why in untried
        ),
    ]
    return StepReport(
        step=step,
        verdict=verdict,
        reason="; ".join(reasons),
        counts=tuple(count_trials(results)),
        notes=tuple(f"{r.check}: {format_count(len(r.trials), 'trial')}" for r in results),
    )


def read_run(step: QualificationStep, run: Run) -> StepReport:
    """Say what the run of a step came to."""
    figures = collect_times(run, step.budget) if step.name == QUICK else collect_figures(run)
    return StepReport(
        step=step,
        verdict=run.verdict,
        reason="; ".join(_list_reasons(run)),
        run=run,
        figures=tuple(figures),
        counts=tuple(count_alarms(run)),
        notes=tuple(_list_notes(run)),
    )


def _list_reasons(run: Run) -> Iterator[str]:
    if not run.complete:
        yield "interrupted"
    for result in run.results:
        if run.verdict is not Verdict.PASS and effective_verdict(result) is run.verdict:
            yield shorten(f"{result.check}: {' '.join(result.reason.split())}", REASON_CHARACTERS)


def _list_notes(run: Run) -> Iterator[str]:
    for result in run.results:
        if result.check in SETUP_CHECKS:
            wheres: dict[str, list[str]] = {}
            for covered in result.coverage:
                wheres.setdefault(covered.text, []).append(covered.part_id)
            for text, labels in wheres.items():
                yield f"{run.inventory.format_names(labels)}: {text}"
        if result.verdict is Verdict.SKIP:
            yield f"{result.check}: left out: {result.reason}"
        for finding in result.findings:
            if finding.code in ("offset_refused", "product_differs"):
                yield f"{result.check}, {run.inventory.find_label(finding.part_id)}: {finding.text}"


def collect_figures(run: Run) -> Iterator[MeasuredFigure]:
    """Yield the figures of *run*, in the order in which they were measured."""
    for result in run.results:
        groups: dict[tuple[str, str], list[Measurement]] = {}
        for item in result.measurements:
            patterns = SHOWN.get(result.check, ())
            if item.value is not None and any(matches(item.name, p) for p in patterns):
                part = run.inventory.find_part(item.part_id)
                model = part.facts.get("name", "") if part and part.kind == "gpu" else ""
                groups.setdefault((item.name, model), []).append(item)
        for (_, model), group in groups.items():
            yield _build_figure(result, group, model, run)


def find_gpus(inventory: Inventory, model: str) -> list[Part]:
    """Find the GPUs of *model*; all of the node if it is empty and they are all alike."""
    gpus = inventory.of_kind("gpu")
    if not model and len({gpu.facts.get("name") for gpu in gpus}) == 1:
        return list(gpus)
    return [gpu for gpu in gpus if gpu.facts.get("name") == model]


def _build_figure(
    result: Result, group: Sequence[Measurement], model: str, run: Run
) -> MeasuredFigure:
    values = [m.value for m in group if m.value is not None]
    worst = min(group, key=lambda m: m.value or 0.0)
    first = group[0]
    return MeasuredFigure(
        check=result.check,
        quantity=first.name,
        unit=first.unit,
        model=model,
        parts=len(group),
        median=median(values),
        lowest=min(values),
        highest=max(values),
        lowest_part=run.inventory.find_label(worst.part_id) if len(group) > 1 else "",
        compared=tuple(_list_comparisons(result, first, {m.part_id for m in group}, model, run)),
    )


def _list_comparisons(
    result: Result, item: Measurement, wheres: set[str], model: str, run: Run
) -> Iterator[tuple[str, float]]:
    if result.check in REFERENCES:
        reference, what = REFERENCES[result.check]
        yield from _compare_with(run, reference, item.name, wheres, what)
    if item.name + LINK_SUFFIX in {m.name for m in result.measurements}:
        yield from _compare_with(run, result.check, item.name + LINK_SUFFIX, wheres, LINK)
    if item.name == "replays":
        yield "requested", WANTED_REPLAYS
    gpus = find_gpus(run.inventory, model)
    spec = find_spec(gpus[0]) if gpus else None
    if spec is None:
        return
    promise = spec.find_promise(item.name.partition(".")[0])
    if promise and promise.unit == item.unit:
        yield SHEET, promise.value
    if item.name in POWER_NAMES:
        yield TDP, spec.tdp_w


def _compare_with(
    run: Run, check: str, name: str, wheres: set[str], what: str
) -> Iterator[tuple[str, float]]:
    values = [
        m.value
        for result in run.results
        for m in result.measurements
        if result.check == check and m.name == name and m.part_id in wheres and m.value is not None
    ]
    if values:
        yield what, median(values)


def collect_times(run: Run, budget: float) -> Iterator[MeasuredFigure]:
    """Yield how long each check of *run* took, and all of it beside the *budget*."""
    times = [(result.check, result.seconds, ()) for result in run.results]
    for name, seconds, compared in (*times, ("the whole run", run.seconds, (("budget", budget),))):
        yield MeasuredFigure(
            check=name,
            quantity="wall time",
            unit="s",
            median=seconds,
            lowest=seconds,
            highest=seconds,
            compared=compared,
        )


def count_alarms(run: Run) -> Iterator[Count]:
    """Count products and replays that were called wrong, and answers that differ."""
    for result in run.results:
        rules = (result.rulings.get(finding.code) for finding in result.findings)
        alarms = sum(rule is not None and rule.verdict > Verdict.SKIP for rule in rules)
        for name, what in (("products", "called wrong"), ("replays", "called different")):
            tries = sum(int(m.value or 0) for m in result.measurements if m.name == name)
            if tries:
                yield Count(f"{name} {what}", alarms, tries)
        yield from _count_answers(result)


def _count_answers(result: Result) -> Iterator[Count]:
    """Count the answers that differ from the most common one of the same work."""
    works: dict[tuple[str, str], list[str]] = {}
    for finding in result.findings:
        data = finding.data
        if finding.code == ANSWER_CODE and {"group", "name", "digest"} <= data.keys():
            works.setdefault((data["group"], data["name"]), []).append(data["digest"])
    together = [digests for digests in works.values() if len(digests) > 1]
    if together:
        odd = sum(len(d) - Counter(d).most_common(1)[0][1] for d in together)
        answers = sum(map(len, together))
        yield Count(f"answers of identical GPUs that differ ({result.check})", odd, answers)


def count_trials(results: Sequence[SelftestResult]) -> Iterator[Count]:
    """Count the injected faults that were missed, and the alarms without a fault."""
    trials = [trial for result in results for trial in result.trials]
    quiet = [t for t in trials if t.fault.rpartition(": ")[2] == "none"]
    harmed = [t for t in trials if t not in quiet and t.expected != FOUND_NOTHING]
    if harmed:
        missed = sum(not t.is_as_expected for t in harmed)
        yield Count("injected faults missed", missed, len(harmed))
    if quiet:
        alarms = sum(not t.is_as_expected for t in quiet)
        yield Count("alarms without a fault", alarms, len(quiet))


def find_held_back(*runs: Run) -> frozenset[str]:
    """Find the GPUs that do not run as they were built, by the run of the step `facts`."""
    return frozenset(
        finding.part_id
        for run in runs
        for result in run.results
        for finding in result.findings
        if finding.code in HELD_BACK_CODES
    )


def list_reached(
    run: Run,
    figures: Iterable[MeasuredFigure],
    held_back: frozenset[str],
    version: str,
    confidence: str = MEASURED_HERE,
) -> tuple[list[str], list[str]]:
    """List CSV lines of *figures* of passing GPUs at default power, and why others are left out."""
    lines, reasons = list[str](), list[str]()
    results = {result.check: result for result in run.results if result.check in REACHED}
    sound = {check for check, r in results.items() if r.verdict in (Verdict.PASS, Verdict.WARN)}
    for check in results:
        if check not in sound:
            reasons.append(f"{check} did not pass, so its figures are not from a good part")
    for figure in figures:
        named = REACHED.get(figure.check, ())
        if figure.check not in sound or not any(matches(figure.quantity, p) for p in named):
            continue
        gpus = find_gpus(run.inventory, figure.model)
        spec = find_spec(gpus[0]) if gpus else None
        quantity, _, mode = figure.quantity.partition(".")
        if spec is None or quantity not in MEASURED_UNITS:
            of = figure.model or "the node"
            reasons.append(f"{figure.quantity}: {of} is not in the table of parts")
        elif held := [gpu.label for gpu in gpus if gpu.id in held_back]:
            reasons.append(
                f"{figure.quantity}: {', '.join(held)} did not run at the default power limit. "
                f"Fix: nvidia-smi -pl {spec.tdp_w:g}, and qualify again"
            )
        else:
            unit = TABLE_UNITS.get(figure.unit, figure.unit)
            reached = f"{convert_unit(figure.median, figure.unit, unit):.4g}"
            source = (
                f"measured by hpcverify {version} on {run.started:%Y-%m-%d},"
                f" driver {gpus[0].facts.get('driver', 'unknown')}:"
                f" {'median of ' if figure.model else ''}{format_count(len(gpus), 'GPU')}"
            )
            text = io.StringIO()
            row = (spec.key, quantity, mode, reached, unit, confidence, source)
            csv.writer(text, lineterminator="").writerow(row)
            lines.append(text.getvalue())
    return lines, reasons
