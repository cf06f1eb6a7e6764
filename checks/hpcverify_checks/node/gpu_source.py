"""How the passive checks query a node's GPUs, and report what went wrong."""

from __future__ import annotations

from collections.abc import Iterator

import hpcverify.check as hv
from hpcverify.telemetry import problems, vendors
from hpcverify.telemetry.gpus import GpuAnswers, GpuSource, NotStartedError
from hpcverify.telemetry.vendors import SourceFinder


def open_gpu_source(ctx: hv.Context, find: SourceFinder = vendors.find_source) -> GpuSource:
    """Open the source that answers for the node's GPUs, which *find* knows by vendor."""
    require_gpus(ctx)
    vendor = name_vendor(ctx)
    source = find(vendor)
    if source is None:
        text = f"this node's GPUs are {vendor}: hpcverify reads no telemetry of them"
        raise hv.Skip(text, hv.Cause.NOT_OBSERVABLE)
    try:
        gpus = source.list_gpus()
    except NotStartedError as exc:
        ruling = problems.PROBLEM_RULES[exc.code]
        raise hv.Unable(str(exc), ruling.cause, ruling.remedy, code=exc.code) from exc
    if not gpus:
        raise hv.Unable("the driver lists no GPU", hv.Cause.MISSING, hv.Remedy.REBOOT)
    return source


def name_vendor(ctx: hv.Context) -> str:
    """Name the vendor of the node's GPUs, or of those that it had."""
    return vendors.name_vendor(ctx.inventory, ctx.previous)


def require_gpus(ctx: hv.Context) -> None:
    """Raise `Skip` where there is no GPU, and `Unable` where no driver runs them."""
    gpus = ctx.inventory.of_kind("gpu")
    if any("driver" in gpu.facts for gpu in gpus):
        return
    blocked = next(iter(problems.list_view_problems(ctx.inventory)), None)
    if blocked:
        ruling = problems.PROBLEM_RULES[blocked.code]
        raise hv.Unable(blocked.text, ruling.cause, ruling.remedy, code=blocked.code)
    if not gpus and not (ctx.previous and ctx.previous.of_kind("gpu")):
        raise hv.Skip("no GPU on this node")


def report_troubles(answers: GpuAnswers[object]) -> Iterator[hv.CheckItem]:
    """Yield which GPUs are in trouble, and which questions had no answer."""
    yield from answers.findings
    yield from answers.unanswered
