"""
Look for silent data corruption: products that must be right to the last bit.

The operands are integers whose product is known exactly (see `exact`): a single wrong
bit in any output is found in the product in which it happens, and a healthy part cannot
fail. The host proves the reference; a stuck unit would always agree with its own
first answer. Several plans take turns in the same outputs, so that a tile that is not
written shows, and the operands move through the lanes from one product to the next. The
part compares without waiting for the host; canaries prove that the comparison works
(see `product_loop`). After a mismatch, `investigation` separates memory from arithmetic, and
three reruns separate persistent from intermittent.

Integers toggle fewer wires than random numbers and draw less power. So some of the time
goes to random numbers under square-wave load, compared with the part's own first product
and with other parts (`stress`, `vote`), and some to copies (`copies`). A CPU is tested
core by core, alone and all at once.

No test of this kind covers all of a part, so the report says what was covered.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

import hpcverify.check as hv
from hpcverify.stats import compute_excluded_rate
from hpcverify.telemetry import cpu
from hpcverify_checks.exact.families import CPU_DEPTH, MAX_DEPTH, Family
from hpcverify_checks.exact.kernels import load_comparison, report_comparison
from hpcverify_checks.exact.product_loop import BlindComparison, ProductJob, ProductSeams
from hpcverify_checks.exact.products import PAD_DEPTH, SHIFT_STEP, Shape, find_constant_bits
from hpcverify_checks.exact.soak import SOAK_METRICS
from hpcverify_checks.exact.vote import BLIND_PART_CODE, PRODUCT_FINDING_RULES, reconcile
from hpcverify_checks.node.cores import MAX_CORES, format_ranges, pick_cores, run_on_each
from hpcverify_checks.node.device import (
    find_torch_device,
    list_native_dtypes,
    report_left_out,
    report_overrides,
    require_memory,
    use_float32_precision,
    use_threads,
)
from hpcverify_checks.node.dtypes import (
    DTYPE_REFUSED_CODE,
    DTYPE_REFUSED_RULE,
    report_refused_dtype,
)
from hpcverify_checks.node.stalls import STALL, StallMeter
from hpcverify_checks.sdc.copies import check_copies
from hpcverify_checks.sdc.offsets import OffsetTrial, try_offsets
from hpcverify_checks.sdc.prepare import (
    DeviceTask,
    PartResult,
    References,
    list_families,
    prepare_each,
)
from hpcverify_checks.sdc.stress import run_stress
from hpcverify_checks.sdc.trials import selftest

if TYPE_CHECKING:
    import torch

CPU_SIZE, GPU_SIZE = 512, 4096
ODD_SHAPES = {"cpu": Shape(500, 2047), "cuda": Shape(2000, 2032)}
"""Shapes that end amid vectors and tiles, where libraries mask or take other kernels. Those of
a GPU are multiples of `SIZE_STEP`."""
GPU_MEMORY_BYTES = 10 * 2**30
"""Bytes for the fp32 plans, the largest, with their references and temporaries."""
LARGE_GPU_BYTES = 12 * 2**30
"""A GPU with less memory than this gets smaller products."""
MAX_SIZE = 2**14
EXACT_SHARE, STRESS_SHARE, COPY_SHARE = 0.6, 0.3, 0.1
LEAST_SECONDS = 1.0
"""However little time there is to be, nothing is left out until then for lack of it."""
MAX_LATE_SHARE = 0.25
"""A type may be late by this share of its time."""
MIN_PLANS = 2
"""They take turns, so that a tile that is not written shows."""
MIN_HUNT_SHARE = 0.25
"""The least share of a type's time for the hunt, however long the preparation took."""
PREPARE_SECONDS = 15.0
"""Operands, proofs and digests take this long: `sdc` of 20 s took 29 and 35 s on two busy
cores."""
SIZE_STEP = 16
"""One-byte operands need sizes and depths that are multiples of this."""
WAVE_SECONDS, LONE_CORE_SECONDS = 1.0, 0.1
"""The least for many cores, and for one: those that do not fit wait for the next run."""


class SdcParams(hv.Params, frozen=True):
    """How long the check takes (seconds), and what it multiplies."""

    seconds: Annotated[float, Meta(gt=0)] = 20.0
    size: Annotated[int, Meta(ge=0, le=MAX_SIZE, multiple_of=SIZE_STEP)] = 0
    """Rows and columns of the product; 0 is the default for the part."""
    depth: Annotated[int, Meta(ge=0, le=MAX_DEPTH, multiple_of=SIZE_STEP)] = 0
    """The inner dimension, likewise; at most what is exact with a type."""
    fresh: bool = False
    """Draw new operands; otherwise use those whose products ship with hpcverify."""


def estimate(_ctx: hv.Context, params: SdcParams) -> float:
    """Add the making of operands and their proofs to the time that all phases share."""
    return params.seconds + PREPARE_SECONDS


def measure(
    ctx: hv.Context, params: SdcParams, seams: ProductSeams | None = None
) -> Iterator[hv.CheckItem]:
    """Test the device with copies, with exact products, and with random ones."""
    import torch

    device = find_torch_device(ctx)
    yield from report_overrides(ctx)
    with hv.operation("the first kernels", ctx.device):
        yield from report_comparison(ctx, device)
    seams = seams or ProductSeams(compare=load_comparison(device)[0])
    # A GPU's worker makes operands and proofs with its share of the threads, the CPU's with
    # one: on a busy node several would spin while they wait for each other.
    with use_threads(1 if ctx.device.kind == "cpu" else torch.get_num_threads()):
        trials = try_families(ctx, device, params, seams)
        end = perf_counter() + max(params.seconds, LEAST_SECONDS)
        tasks: list[DeviceTask] = []
        for trial in trials:
            if trial.task.shifts:
                tasks.append(trial.task)
            if trial.left_out:
                yield from report_refusal(trial)
        yield from report_left_out(ctx, device)
        planned = {family.name for family in list_families(device)}
        for dtype in sorted(list_native_dtypes(device) - planned):
            text = f"{dtype}: not verified: libraries for CPUs may compute it in another type"
            yield hv.Coverage(ctx.device.part, text)
        # They come first: on a busy host the other phases may use up all of the time.
        blind = yield from check_copies(ctx, device, COPY_SHARE * params.seconds)
        first = ctx.rotation % max(1, len(tasks))
        tasks = [*tasks[first:], *tasks[:first]]
        families = [task.family for task in tasks]
        try:
            yield from check_exact_products(ctx, tasks, params.seconds, end)
            left = end - perf_counter()
            if left > 0:
                seconds = min(STRESS_SHARE * params.seconds, left)
                yield from run_stress(ctx, device, seconds, families, seams)
            else:
                yield hv.Coverage(ctx.device.part, "random products: left out: no time was left")
        except BlindComparison as exc:
            yield hv.Finding("blind" if exc.is_common else BLIND_PART_CODE, exc.part_id, str(exc))
            raise
        if blind:
            raise blind


def try_families(
    ctx: hv.Context, device: torch.device, params: SdcParams, seams: ProductSeams
) -> list[OffsetTrial]:
    """
    Try the products of all types that *device* has units for.

    They take turns: in every other type the shape is odd, and in two of four B is stored by
    columns. Once each type has come first, in as many runs, it is the next one's turn.
    """
    families = list_families(device)
    references, draw = References(), ctx.seed if params.fresh else 0
    tasks: list[DeviceTask] = []
    for turn, plain in enumerate(families, ctx.rotation // len(families)):
        family = dataclasses.replace(plain, by_columns=plain.by_columns or turn // 2 % 2 == 1)
        shape = choose_shape(family, device, params)
        if turn % 2 and not (params.size or params.depth):
            shape = limit_shape(ODD_SHAPES[device.type], shape)
        tasks.append(DeviceTask(ctx, family, shape, device, seams, draw, references=references))
    with hv.operation("products at all offsets", ctx.device):
        return try_offsets(tasks)


def report_refusal(trial: OffsetTrial) -> Iterator[hv.CheckItem]:
    """Report the offsets that are left out, or that the whole type is: the part is not at fault."""
    part_id, family = trial.task.ctx.device.part, trial.task.family.name
    if trial.task.shifts:
        yield hv.Coverage(part_id, trial.describe())
        return
    yield report_refused_dtype(part_id, family, trial.status, "not verified")


def check_exact_products(
    ctx: hv.Context, tasks: Sequence[DeviceTask], seconds: float, end: float
) -> Iterator[hv.CheckItem]:
    """
    Hunt with each type of operands in turn, on the GPU or on the CPU's cores.

    The check has *seconds* until *end*. On a busy host even the least that is done with a
    type may take longer than that: those that are left then wait for a run that begins with
    them. None begins that would end late by `MAX_LATE_SHARE`, if it took as long as one before it.
    """
    done: list[FamilyResult] = []
    began, longest = perf_counter(), 0.0
    latest = end + MAX_LATE_SHARE * (end - began)
    for task in tasks:
        if done and (began >= end or began + longest > latest):
            yield hv.Coverage(ctx.device.part, f"{task.family.name}: left out: no time was left")
            continue
        done.append(FamilyResult(task))
        # At once: a faulty part may crash before it can report this later.
        for outcome in examine_family(done[-1], seconds / len(tasks)):
            done[-1].outcomes.append(outcome)
            if outcome.corruption:
                yield outcome.corruption
        yield hv.Coverage(ctx.device.part, done[-1].summarize())
        now = perf_counter()
        began, longest = now, max(longest, now - began)
    stood = [d.task.stalls.longest for d in done if not math.isnan(d.task.stalls.longest)]
    yield from StallMeter(max(stood, default=math.nan)).report(ctx.device.part)
    every = [(d.task.shape, outcome) for d in done for outcome in d.outcomes]
    for part_id in dict.fromkeys(outcome.part_id for _, outcome in every):
        mine = [(shape, outcome) for shape, outcome in every if outcome.part_id == part_id]
        wrong = sum(o.mismatched_words for _, o in mine)
        operations = sum(o.products * shape.operations for shape, o in mine)
        yield hv.Measurement("mismatched_words", wrong, "", part_id)
        yield hv.Measurement("products", sum(o.products for _, o in mine), "", part_id)
        yield hv.Measurement("checked_operations", operations, "", part_id)


def choose_shape(family: Family, device: torch.device, params: SdcParams) -> Shape:
    """Choose the shape of the products, never too deep to be exact."""
    if device.type == "cpu":
        usual = Shape(CPU_SIZE, CPU_DEPTH)
    else:
        usual = Shape(choose_size(device), family.depth)
    depth = params.depth or usual.depth
    if depth < PAD_DEPTH:
        raise hv.Unable(
            f"sdc: depth {depth} is too small: give {PAD_DEPTH} or more", hv.Cause.MISCONFIGURED
        )
    return Shape(params.size or usual.size, min(family.depth, depth))


def limit_shape(odd: Shape, usual: Shape) -> Shape:
    """Make the *odd* shape no larger than the *usual* one of a type."""
    return Shape(min(odd.size, usual.size), min(odd.depth, usual.depth))


def choose_size(device: torch.device) -> int:
    """Choose the size of products on a GPU: smaller where there is little memory."""
    import torch

    _, total = torch.cuda.mem_get_info(device)
    size = GPU_SIZE if total >= LARGE_GPU_BYTES else GPU_SIZE // 2
    require_memory(device, GPU_MEMORY_BYTES * size // GPU_SIZE)
    return size


@dataclass(frozen=True, slots=True)
class FamilyResult:
    """What was done with one type of operands, and the results."""

    task: DeviceTask
    outcomes: list[PartResult] = field(default_factory=list[PartResult])
    notes: list[str] = field(default_factory=list[str])
    """The plans, and the bits in which a stuck-at fault cannot show."""

    def summarize(self) -> str:
        """Describe what was exercised, and what error rate its success excludes."""
        products = sum(outcome.products for outcome in self.outcomes)
        data = frozenset[tuple[str, int]]().union(*(outcome.data for outcome in self.outcomes))
        size, depth = self.task.shape.size, self.task.shape.depth
        on_cpu = self.task.device.type == "cpu"
        unit, cores = "core-seconds of CPU time" if on_cpu else "GPU-seconds", ""
        if on_cpu:
            wheres = {o.part_id.removeprefix("cpu") for o in self.outcomes} - {""}
            done = format_ranges(sorted(map(int, wheres)))
            cores = f" on cores {done} of {format_ranges(cpu.read_cores().online)}"
        kind = f"new in this run ({self.task.draw})" if self.task.draw else "the same in every run"
        stored = ", B by columns" * self.task.family.by_columns
        offsets = f"at {len(self.task.shifts)} offsets of {SHIFT_STEP} lanes{stored}"
        unmade = ", ".join(self.task.family.list_unmade({plan for plan, _ in data}))
        text = (
            f"{self.task.family.name}{cores}: {products} "
            f"products of {size} x {depth} x {size} "
            f"({products * self.task.shape.operations:.3g} operations) compared bit "
            f"by bit in {sum(self.list_seconds()):.1f} {unit}, {len(data)} of them distinct; "
            f"{'; '.join((f'data {kind}, {offsets}', *self.notes))}; not made: {unmade}"
        )
        times = self.list_seconds()
        if any(outcome.mismatched_words for outcome in self.outcomes) or not times:
            return text
        rates = [f"{compute_excluded_rate(sum(times)):,.0f} wrong products an hour"]
        if on_cpu:
            rates[0] += " of all cores together"
            rates.append(f"{compute_excluded_rate(min(times)):,.0f} of each")
        return (
            f"{text}; of faults that come at random times, more than {' and '.join(rates)} are "
            "excluded at 95 %"
        )

    def list_seconds(self) -> list[float]:
        """List how long each part or core multiplied and compared."""
        times: dict[str, float] = {}
        for outcome in self.outcomes:
            times[outcome.part_id] = times.get(outcome.part_id, 0.0) + outcome.seconds
        return [seconds for seconds in times.values() if seconds]


def examine_family(done: FamilyResult, seconds: float) -> Iterator[PartResult]:
    """
    Prepare one type and hunt with it; free its operands at the end.

    Both may take its *seconds* of the check. Of those, `EXACT_SHARE` are for exact products,
    less what the preparation took: plans that it has no time for come in another run.
    """
    task, jobs, plans = done.task, list[ProductJob](), list[str]()
    began, exact_seconds = perf_counter(), EXACT_SHARE * seconds
    untried = [made.name for made in task.family.list_operands(task.shape, task.draw)]
    with use_float32_precision(task.family.precision):
        for plan in prepare_each(task):
            untried.remove(plan.name)
            if plan.failure:
                yield plan.failure
            if plan.job:
                jobs.append(plan.job)
                plans.append(plan.text)
            spent = perf_counter() - began
            if spent >= seconds and len(jobs) >= MIN_PLANS:
                break
        if not jobs:
            return
        done.notes.append(f"plans {', '.join(plans)}")
        if untried:
            done.notes.append(f"plans left out, since no time was left: {', '.join(untried)}")
        data = {
            "output": (job.reference for job in jobs),
            "A": (job.a for job in jobs),
            "B": (job.b for job in jobs),
        }
        bits = (f"{n} {format_ranges(find_constant_bits(x)) or 'none'}" for n, x in data.items())
        done.notes.append(f"bits that no product changes: {', '.join(bits)}")
        left = compute_hunt_seconds(exact_seconds, perf_counter() - began)
        yield from hunt_on_parts(task, tuple(jobs), exact_seconds, left)


def compute_hunt_seconds(seconds: float, spent: float) -> float:
    """Compute how much of a type's *seconds* is left for the hunt once some are *spent*."""
    return max(seconds - spent, MIN_HUNT_SHARE * seconds)


def hunt_on_parts(
    task: DeviceTask, jobs: tuple[ProductJob, ...], seconds: float, left: float
) -> Iterator[PartResult]:
    """
    Hunt on the GPU; on the CPU, on each core alone and on all at once.

    Picks as many cores as fit into *seconds*; they share what is *left* of them. On a busy
    host they take longer: those that are not alone within *seconds* wait for another run.
    """
    if task.device.type != "cpu":
        with hv.operation(f"exact {task.family.name} products", task.ctx.device):
            outcome = task.hunt(task.ctx.device.part, jobs, _make_deadline(left))
        yield outcome
        return
    cores, half = cpu.read_cores().allowed, seconds / 2
    turn = task.ctx.rotation
    lone, wave = (max(1, int(half / least)) for least in (LONE_CORE_SECONDS, WAVE_SECONDS))
    alone = [(core,) for core in pick_cores(cores, lone, turn)]
    chosen = pick_cores(cores, MAX_CORES * wave, turn)
    waves = [chosen[i : i + MAX_CORES] for i in range(0, len(chosen), MAX_CORES)]
    until = perf_counter() + seconds
    for load, groups in (("alone", alone), ("all at once", waves)):
        turn += 1
        for group in groups:
            if group is not groups[0] and perf_counter() >= until:
                break
            work = partial(_hunt_on_core, task, jobs, left / 2 / len(groups), load, turn)
            yield from run_on_each(group, work)


def _hunt_on_core(  # noqa: PLR0917 - for `partial`
    task: DeviceTask, jobs: tuple[ProductJob, ...], seconds: float, load: str, turn: int, core: int
) -> PartResult:
    # At other offsets than the core before, and than itself the time before.
    outcome = task.start_at(turn + core).hunt(f"cpu{core}", jobs, _make_deadline(seconds))
    corruption = outcome.corruption
    if corruption is None:
        return outcome
    finding = msgspec.structs.replace(
        corruption,
        text=f"{corruption.text}, cores {load}",
        evidence={**corruption.evidence, "load": f"cores {load}"},
    )
    return dataclasses.replace(outcome, corruption=finding)


def _make_deadline(seconds: float) -> Callable[[int], bool]:
    end = perf_counter() + seconds
    return lambda _: perf_counter() >= end


def observe(watch: hv.Watch, ctx: hv.Context, _params: SdcParams) -> Iterator[hv.CheckItem]:
    """Report how warm the device was: many faults show only when it is hot."""
    for part_id, samples in watch.group_by_part("temperature"):
        if part_id == ctx.device.part and samples:
            low, high = (f(s.value for s in samples) for f in (min, max))
            yield hv.Coverage(part_id, f"at {low:.0f} to {high:.0f} °C")


CHECK = hv.Check(
    summary="silent data corruption: products that must be right to the last bit",
    measure=measure,
    estimate=estimate,
    params=SdcParams,
    metrics={
        "mismatched_words": hv.Metric("", "high", "64-bit words that were wrong").fail(
            high=0,
            remedy=hv.Remedy.REPLACE,
            conclusive=True,
            source="an exact product has one right answer",
        ),
        "products": hv.Metric("", "low", "products compared with a proven reference").error(
            low=1, source="without a comparison the part is not tested"
        ),
        "checked_operations": hv.Metric("", "low", "operations in those products"),
        "disputed_words": hv.Metric(
            "", "high", "words in which all parts contradict the reference alike"
        ),
        "stall": STALL,
        "copies.stall": STALL,
        **SOAK_METRICS,
        "copied_bytes": hv.Metric("B", "low", "copied and compared"),
        "copied_wrong_words": hv.Metric("", "high", "64-bit words copied wrongly").fail(
            high=0,
            remedy=hv.Remedy.REPLACE,
            conclusive=True,
            source="a copy has the same bits",
            optional=False,
        ),
    },
    finding_rules={
        **PRODUCT_FINDING_RULES,
        **hv.fail_on("miscopied", remedy=hv.Remedy.REPLACE, conclusive=True),
        # The library's doing, and the same on all GPUs of the kind.
        DTYPE_REFUSED_CODE: DTYPE_REFUSED_RULE,
        **hv.error_on("blind", remedy=hv.Remedy.FIX_CHECKER, cause=hv.Cause.CHECKER),
        **hv.error_on(BLIND_PART_CODE, cause=hv.Cause.CHECKER),
    },
    placement=hv.Placement.DEVICES,
    timeout=600.0,
    observe=observe,
    reconcile=reconcile,
    selftest=selftest,
)
