"""What the run of a step says: its figures beside what they are held against, and counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from hpcverify.check import ANSWER_CODE, FOUND_NOTHING, matches
from hpcverify.limits.specs import find_spec
from hpcverify.model import Finding, Inventory, Measurement, Part, Result, Run, Verdict
from hpcverify.plan.suite import Plan
from hpcverify.qualification.estimates import estimate_plan, estimate_step
from hpcverify.records.qualification import Comparison, Count, MeasuredFigure
from hpcverify.run.selftest import SelftestResult
from hpcverify.stats import bound_rate, median

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
    "nccl_start": ("*",),
    "memory_release": ("*",),
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
SHEET, TDP, LINK, ESTIMATE = "data sheet", "TDP", "link", "its estimate"
"""What a figure is compared with, as pages name it."""


def collect_figures(run: Run) -> Iterator[MeasuredFigure]:
    """Yield the figures of *run*, in the order in which they were measured."""
    for result in run.results:
        groups: dict[tuple[str, str], list[Measurement]] = {}
        for item in result.measurements:
            if is_shown(result.check, item):
                groups.setdefault(_identify_group(item, run.inventory), []).append(item)
        for (_, model), group in groups.items():
            yield _build_figure(result, group, model, run)


def is_shown(check: str, item: Measurement) -> bool:
    """Whether *item* of *check* is a figure."""
    return item.value is not None and any(matches(item.name, p) for p in SHOWN.get(check, ()))


def _identify_group(item: Measurement, inventory: Inventory) -> tuple[str, str]:
    part = inventory.find_part(item.part_id)
    is_gpu = part is not None and part.kind == "gpu"
    return item.name, part.facts.get("name", "") if part and is_gpu else ""


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
) -> Iterator[Comparison]:
    if result.check in REFERENCES:
        reference, what = REFERENCES[result.check]
        yield from _compare_with(run, reference, item.name, wheres, what)
    if item.name + LINK_SUFFIX in {m.name for m in result.measurements}:
        yield from _compare_with(run, result.check, item.name + LINK_SUFFIX, wheres, LINK)
    if item.name == "replays":
        yield Comparison("what was wanted", WANTED_REPLAYS)
    gpus = find_gpus(run.inventory, model)
    spec = find_spec(gpus[0]) if gpus else None
    if spec is None:
        return
    promise = spec.find_promise(item.name.partition(".")[0])
    if promise and promise.unit == item.unit:
        yield Comparison(SHEET, promise.value)
    if item.name in POWER_NAMES:
        yield Comparison(TDP, spec.tdp_w)


def _compare_with(
    run: Run, check: str, name: str, wheres: set[str], what: str
) -> Iterator[Comparison]:
    values = [
        m.value
        for result in run.results
        for m in result.measurements
        if result.check == check and m.name == name and m.part_id in wheres and m.value is not None
    ]
    if values:
        yield Comparison(what, median(values))


def collect_times(run: Run, plan: Plan) -> Iterator[MeasuredFigure]:
    """Yield how long each check of *run* took beside its estimate, and all beside the budget."""
    steps = {step.name: step for step in plan.steps}
    for result in run.results:
        seconds = estimate_step(steps[result.check], run.inventory)
        estimate = [Comparison(ESTIMATE, seconds)] if seconds else []
        yield _build_time(result.check, result.seconds, *estimate)
    whole = estimate_plan(plan, run.inventory, "")
    beside = [Comparison(ESTIMATE, whole)] if whole else []
    yield _build_time("the whole run", run.seconds, *beside, Comparison("budget", plan.budget))


def _build_time(name: str, seconds: float, *compared: Comparison) -> MeasuredFigure:
    return MeasuredFigure(
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
        alarms = sum(_is_alarm(finding, result) for finding in result.findings)
        for name, what in (("products", "called wrong"), ("replays", "called different")):
            tries = sum(int(m.value or 0) for m in result.measurements if m.name == name)
            if tries:
                yield build_count(f"{name} {what}", alarms, tries)
        yield from _count_answers(result)


def _is_alarm(finding: Finding, result: Result) -> bool:
    rule = result.rulings.get(finding.code)
    return rule is not None and rule.verdict > Verdict.SKIP


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
        yield build_count(f"answers of like GPUs that differ ({result.check})", odd, answers)


def count_trials(results: Sequence[SelftestResult]) -> Iterator[Count]:
    """Count the injected faults that were missed, and the alarms without a fault."""
    trials = [trial for result in results for trial in result.trials]
    quiet = [t for t in trials if t.fault.rpartition(": ")[2] == "none"]
    harmed = [t for t in trials if t not in quiet and t.expected != FOUND_NOTHING]
    if harmed:
        missed = sum(not t.is_as_expected for t in harmed)
        yield build_count("injected faults missed", missed, len(harmed))
    if quiet:
        alarms = sum(not t.is_as_expected for t in quiet)
        yield build_count("alarms without a fault", alarms, len(quiet))


def build_count(what: str, events: int, tries: int) -> Count:
    """Make a count with its bound."""
    return Count(what=what, events=events, tries=tries, bound=bound_rate(events, tries))
