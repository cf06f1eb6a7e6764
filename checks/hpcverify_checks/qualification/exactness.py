"""
Multiply every plan of `sdc` at every offset once, and count what is refused or inexact.

Plans are exact by what is known of each architecture's units, and a library may refuse
operands that start at some offset. Both are shown here for the GPU at hand: a product that
differs from its proof on all GPUs alike speaks against the plan, and not against a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator

import hpcverify.check as hv
from hpcverify_checks.exact.bits import view_words
from hpcverify_checks.exact.product_loop import poison
from hpcverify_checks.exact.products import SHIFT_STEP, view_shifted
from hpcverify_checks.node.device import find_torch_device, use_float32_precision
from hpcverify_checks.qualification import require_gpu
from hpcverify_checks.sdc import PREPARE_SECONDS, SdcParams, choose_shape
from hpcverify_checks.sdc.offsets import try_offsets
from hpcverify_checks.sdc.prepare import DeviceTask, References, list_families, prepare

PRODUCTS_SECONDS = 30.0
"""The time for nine products of each plan, each a tenth of a second at most, in fp64 on a
small GPU."""


def estimate(_ctx: hv.Context, _params: SdcParams) -> float:
    """Add the products to the making of operands and proofs."""
    return PREPARE_SECONDS + PRODUCTS_SECONDS


def measure(ctx: hv.Context, params: SdcParams) -> Iterator[hv.CheckItem]:
    """Yield for each type how many offsets are refused, and how many products are wrong."""
    require_gpu(ctx)
    device, references = find_torch_device(ctx), References()
    for family in list_families(device):
        shape = choose_shape(family, device, params)
        task = DeviceTask(ctx, family, shape, device, references=references)
        with (
            use_float32_precision(family.precision),
            hv.operation(f"{family.name} products", ctx.device),
        ):
            yield from try_plans(task)


def try_plans(task: DeviceTask) -> Iterator[hv.CheckItem]:
    """Try all plans of one type at all offsets that the library takes."""
    part_id, name = task.ctx.device.part, task.family.name
    (trial,) = try_offsets([task])
    yield hv.Measurement(f"{name}.refused_offsets", len(trial.left_out), "", part_id)
    if trial.left_out:
        yield hv.Finding("offset_refused", part_id, trial.describe())
    if not trial.task.shifts:
        return
    prepared, wrong = prepare(trial.task), list[str]()
    wrong += [f.corruption.text for f in prepared.failures if f.corruption]
    for job in prepared.jobs:
        for shift in trial.task.shifts:
            out = trial.task.make_output()
            poison(out)
            trial.task.seams.multiply(*view_shifted(job.a, job.b, shift), out)
            if words := int((view_words(out) != view_words(job.reference)).sum()):
                place = f"plan {job.name} at offset {shift * SHIFT_STEP}"
                wrong.append(f"{place}: {words} words differ from the proof")
    yield hv.Measurement(f"{name}.wrong_products", len(wrong), "", part_id)
    for text in wrong:
        yield hv.Finding("product_differs", part_id, f"{name}: {text}")
    yield hv.Coverage(
        part_id,
        f"{name}: {len(prepared.jobs)} plans at {len(trial.task.shifts)} offsets, each product "
        "compared with its proof",
    )


CHECK = hv.Check(
    summary="are all plans exact on this architecture, at all offsets of the operands?",
    measure=measure,
    params=SdcParams,
    metrics={
        "*.refused_offsets": hv.Metric("", "neither", "offsets that the library refuses, of nine"),
        "*.wrong_products": hv.Metric("", "high", "products that differ from their proof"),
    },
    finding_rules={
        **hv.listed("offset_refused"),
        # Whose fault it is, the plan's or a GPU's, is for `sdc` to say.
        **hv.warn_on("product_differs", remedy=hv.Remedy.RERUN),
    },
    applies=require_gpu,
    estimate=estimate,
    placement=hv.Placement.DEVICES,
    timeout=600.0,
)
