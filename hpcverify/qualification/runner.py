"""
Take the steps of a qualification one after the other, and keep what each came to.

A step that fails, crashes or overruns is reported, and the others have their turn. The document
is written again after each step, so that nothing is lost if the node is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from msgspec import Struct

from hpcverify.errors import HpcverifyError, UnverifiedError
from hpcverify.model import Inventory, Run, Verdict, effective_verdict
from hpcverify.plan.config import Site
from hpcverify.qualification import figures
from hpcverify.qualification.estimates import estimate_plan
from hpcverify.qualification.reached import find_held_back, grade_reached, list_reached
from hpcverify.qualification.steps import (
    GPU_KIND,
    QUICK,
    QualificationStep,
    list_packages,
)
from hpcverify.records import documents, qualification
from hpcverify.records.qualification import (
    GpuFacts,
    MeasuredFigure,
    Qualification,
    ReachedLine,
    StepReport,
)
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
)
from hpcverify.summary.progress import Progress
from hpcverify.summary.verdict import shorten
from hpcverify.units import format_count

POLL_SECONDS = 0.1
REASON_CHARACTERS = 600
"""Characters of what one check says; its page has the rest."""
NODE_LABEL = "node"
"""What the documents call the node: its name is nobody's business."""
RUNS_FOLDER = "runs"
SETUP_CHECKS = ("gpu_setup", "nvlink")
"""The checks whose coverage says how the GPUs are set up; it has no addresses."""
SHARED_FACTS = ("driver", "vbios", "board", "memory", "compute_capability")
"""Facts of a GPU that many others have, too."""
SYSTEM_FACTS = ("vendor", "product", "bios", "kernel", "os")
"""The same, of the machine."""


class NodeQualifier(Struct, kw_only=True):
    """Takes *steps* on this node, whose lock the caller holds, and keeps all in *out*."""

    site: Site
    state: Path
    out: Path
    steps: tuple[QualificationStep, ...]
    should_stop: Callable[[], bool]
    say: Callable[[str], None]
    announce: Callable[[float], None]
    """Called with how many seconds all steps should take, before the first one begins."""
    begin: Callable[[QualificationStep], None]
    """Called with each step before it begins."""
    end: Callable[[StepReport], None]
    """Called with what each step came to."""
    show_progress: Callable[[], AbstractContextManager[Progress]]
    _started: datetime = msgspec.field(default_factory=lambda: datetime.now(UTC))
    _began: float = msgspec.field(default_factory=time.monotonic)
    _reports: list[StepReport] = []
    _reached: list[ReachedLine | str] = []
    _held_back: frozenset[str] = frozenset()
    _versions: dict[str, str] = {}
    _topology: str = ""
    _inventory: Inventory = Inventory()

    def run(self) -> Qualification:
        """
        Take all steps; a request to stop leaves out those that are left.

        Raises:
            UnverifiedError: there is no GPU that can be used, or others use them.
            StoreError: nothing can be written to *out*.

        """
        self._versions = collect_versions()
        self._inventory = self._find_gpus()
        self.announce(sum(estimate_seconds(step, self._inventory) for step in self.steps))
        for step in self.steps:
            if self.should_stop():
                report = build_report(step, Verdict.ERROR, "interrupted before it began")
            else:
                self.begin(step)
                self._rest(step.rest if self._reports else 0.0)
                report = self._take_step(step)
            self._reports.append(report)
            self.end(report)
            qualification.write(self._build_document(), self.out)
        return self._build_document()

    def _find_gpus(self) -> Inventory:
        executor = LocalExecutor(should_stop=self.should_stop)
        try:
            inventory, holders = probe_node(executor)
        finally:
            executor.close()
        if not any(device.kind == GPU_KIND for device in inventory.devices):
            why = "; ".join(problem.text for problem in inventory.problems)
            none = "neither the driver nor the PCI bus lists one"
            raise UnverifiedError(
                f"there is no GPU to qualify here: {why or none}; see hpcverify doctor"
            )
        refuse_used_gpus(holders, inventory)
        return inventory

    def _rest(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self.should_stop():
            time.sleep(POLL_SECONDS)

    def _take_step(self, step: QualificationStep) -> StepReport:
        began = time.monotonic()
        try:
            with make_run_folders(self.state, self.site.scratch, NODE_LABEL, self.say) as folders:
                if step.plan is None:
                    report = self._try_checks(step, folders)
                else:
                    report = self._run_plan(step, folders)
        except HpcverifyError as exc:  # one line that names the fix; the next step has its turn
            report = build_report(step, Verdict.ERROR, str(exc))
        return msgspec.structs.replace(report, seconds=round(time.monotonic() - began, 3))

    def _try_checks(self, step: QualificationStep, folders: RunFolders) -> StepReport:
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
            results = list(runner.run_checks(step.provable))
        return read_selftests(step, results, self._inventory)

    def _run_plan(self, step: QualificationStep, folders: RunFolders) -> StepReport:
        assert step.plan is not None  # noqa: S101 - narrows the type
        with ExitStack() as stack:
            progress = stack.enter_context(self.show_progress())
            executor = LocalExecutor(should_stop=self.should_stop, tick=progress.tick)
            stack.callback(lambda: executor.close(hurry=self.should_stop()))
            run = Verification(
                plan=step.plan,
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
        path = Path(RUNS_FOLDER, f"{step.name}.json")
        documents.write_bytes(
            self.out / path, msgspec.json.format(msgspec.json.encode(run), indent=1), make=True
        )
        self._learn(run)
        report = read_run(step, run, str(path))
        version = self._versions.get("hpcverify", "")
        self._reached += list_reached(run, report.figures, self._held_back, version)
        return report

    def _learn(self, run: Run) -> None:
        for result in run.results:
            for finding in result.findings:
                if finding.code == "versions":
                    self._versions |= finding.evidence
                elif finding.code == "topology":
                    self._topology = finding.evidence["topology"]
        self._held_back |= find_held_back(run)

    def _build_document(self) -> Qualification:
        reports = tuple(self._reports)
        system = self._inventory.find_part("node")
        failed = [report.name for report in reports if report.verdict is Verdict.FAIL]
        reached = grade_reached(self._reached, failed)
        return Qualification(
            hpcverify=self._versions.get("hpcverify", ""),
            started=self._started,
            seconds=round(time.monotonic() - self._began, 3),
            complete=len(reports) == len(self.steps) and not self.should_stop(),
            verdict=max((r.verdict for r in reports), default=Verdict.ERROR),
            machine={
                name: system.facts[name] for name in SYSTEM_FACTS if system and name in system.facts
            },
            gpus=tuple(
                GpuFacts(
                    label=gpu.label,
                    name=gpu.facts.get("name", ""),
                    facts={name: gpu.facts[name] for name in SHARED_FACTS if name in gpu.facts},
                )
                for gpu in self._inventory.of_kind("gpu")
            ),
            versions=self._versions,
            topology=self._topology,
            steps=reports,
            reached=tuple(line for line in reached if isinstance(line, ReachedLine)),
            not_reached=tuple(dict.fromkeys(line for line in reached if isinstance(line, str))),
        )


def estimate_seconds(step: QualificationStep, inventory: Inventory) -> float:
    """Estimate how long *step* takes; a selftest says no more than its bound."""
    if step.plan is None:
        return step.budget
    seconds = estimate_plan(step.plan, inventory, step.device_kind)
    return step.rest + step.plan.rounds * seconds


def build_report(step: QualificationStep, verdict: Verdict, reason: str = "") -> StepReport:
    """Make the report of a step that came to nothing, or the frame of another."""
    return StepReport(
        name=step.name, question=step.question, budget=step.budget, verdict=verdict, reason=reason
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
    return msgspec.structs.replace(
        build_report(step, verdict, "; ".join(reasons)),
        counts=tuple(figures.count_trials(results)),
        notes=tuple(f"{r.check}: {format_count(len(r.trials), 'trial')}" for r in results),
    )


def read_run(step: QualificationStep, run: Run, path: str) -> StepReport:
    """Say what the run of a step came to; its document is *path*."""
    shown: list[MeasuredFigure] = list(figures.collect_figures(run))
    if step.name == QUICK and step.plan:
        shown = list(figures.collect_times(run, step.plan))
    return msgspec.structs.replace(
        build_report(step, run.verdict, "; ".join(_list_reasons(run))),
        run=path,
        figures=tuple(shown),
        counts=tuple(figures.count_alarms(run)),
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
