"""
Multiply every plan of `sdc` at every offset once, and count what is refused or inexact.

Plans are exact by what is known of each architecture's units, and a library may refuse
operands that start at some offset. Both are shown here for the GPU at hand: a product that
differs from its proof on all GPUs alike speaks against the plan, and not against a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator

from hpcverify.check import (
    LISTED,
    Check,
    CheckItem,
    Context,
    Coverage,
    Finding,
    FindingRule,
    Measurement,
    Metric,
    Placement,
    Remedy,
    Skip,
    Verdict,
)
from hpcverify_checks.common.bits import view_words
from hpcverify_checks.common.device import find_torch_device, use_float32_precision
from hpcverify_checks.common.dtypes import Family
from hpcverify_checks.common.exact import SHIFT_COUNT, SHIFT_STEP, view_shifted
from hpcverify_checks.common.product_loop import ProductJob, ProductSeams, poison
from hpcverify_checks.sdc import SdcParams, choose_shape
from hpcverify_checks.sdc.prepare import DeviceTask, References, list_families, prepare


def measure(
    ctx: Context, params: SdcParams, seams: ProductSeams | None = None
) -> Iterator[CheckItem]:
    """Yield for each type how many offsets are refused, and how many products are wrong."""
    if ctx.device.kind == "cpu":
        raise Skip("this is about GPUs")
    device, references = find_torch_device(ctx), References()
    for family in list_families(device):
        shape = choose_shape(family, device, params)
        task = DeviceTask(ctx, family, shape, device, seams or ProductSeams(), 0, references)
        with use_float32_precision(family.precision):
            yield from try_plans(task)


def try_plans(task: DeviceTask) -> Iterator[CheckItem]:
    """Try all plans of one type at all offsets."""
    where, name = task.ctx.device.part, task.family.name
    prepared = prepare(task)
    refused: dict[int, str] = {}
    wrong: dict[str, int] = {}
    for job in prepared.jobs:
        for shift in range(SHIFT_COUNT):
            try:
                words = count_wrong_words(task, job, shift)
            except RuntimeError as exc:
                if is_lasting(exc):
                    raise
                refused[shift] = str(exc).strip().partition("\n")[0]
            else:
                wrong |= {f"{job.name} at {shift * SHIFT_STEP}": words} if words else {}
    yield Measurement(f"{name}.refused_offsets", len(refused), "", where)
    yield Measurement(f"{name}.wrong_products", len(wrong) + len(prepared.failures), "", where)
    for shift, why in refused.items():
        text = f"{name}: the library refuses operands {shift * SHIFT_STEP} elements on: {why}"
        yield Finding("offset_refused", where, text)
    for failure in prepared.failures:
        text = failure.corruption.text if failure.corruption else "a first product was wrong"
        yield Finding("product_differs", where, f"{name}: {text}")
    for product, words in wrong.items():
        text = f"{name}: plan {product} elements on has {words} words that differ from the proof"
        yield Finding("product_differs", where, text)
    yield Coverage(where, describe(task.family, len(prepared.jobs)))


def count_wrong_words(task: DeviceTask, job: ProductJob, shift: int) -> int:
    """Multiply once, and count the 64-bit words that differ from the proof."""
    out = task.make_output()
    poison(out)
    task.seams.multiply(*view_shifted(job.a, job.b, shift), out)
    return int((view_words(out) != view_words(job.reference)).sum())


def is_lasting(exc: RuntimeError) -> bool:
    """Whether *exc* is an error of the GPU, after which nothing can be computed on it."""
    import torch

    return isinstance(exc, torch.AcceleratorError | torch.OutOfMemoryError)


def describe(family: Family, plans: int) -> str:
    """Describe what was tried."""
    return f"{family.name}: {plans} plans at {SHIFT_COUNT} offsets, each compared with its proof"


CHECK = Check(
    summary="are all plans exact on this architecture, at all offsets of the operands?",
    measure=measure,
    params=SdcParams,
    metrics={
        "*.refused_offsets": Metric(unit="", meaning="offsets that the library refuses, of nine"),
        "*.wrong_products": Metric(unit="", meaning="products that differ from their proof"),
    },
    finding_rules={
        "offset_refused": LISTED,
        # Whose fault it is, the plan's or a GPU's, is for `sdc` to say.
        "product_differs": FindingRule(Verdict.WARN, Remedy.RERUN),
    },
    placement=Placement.DEVICES,
    timeout=600.0,
)
