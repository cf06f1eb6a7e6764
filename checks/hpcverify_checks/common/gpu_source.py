"""How the passive checks come to ask a node's GPUs, and pass on what was amiss."""

from __future__ import annotations

from collections.abc import Iterator

from hpcverify.check import Cause, CheckItem, Context, Remedy, Skip, Unable
from hpcverify.telemetry import problems
from hpcverify.telemetry.gpus import GpuAnswers, GpuSource, NotStartedError


def open_gpu_source(ctx: Context) -> GpuSource:
    """
    Give what answers for the node's GPUs.

    Raises:
        Skip: neither NVML nor the PCI bus nor the last run knows of a GPU.
        Unable: there are GPUs, or were, and nobody answers for any.

    """
    require_gpus(ctx)
    from hpcverify.telemetry import nvml

    asked = nvml.get_source()
    try:
        there = asked.list_devices().gpus
    except NotStartedError as exc:
        ruling = problems.PROBLEM_RULES[exc.code]
        raise Unable(str(exc), ruling.cause, ruling.remedy, code=exc.code) from exc
    if not there:
        raise Unable("NVML lists no GPU", Cause.MISSING, Remedy.REBOOT)
    return asked


def require_gpus(ctx: Context) -> None:
    """Raise as `open_gpu_source` does."""
    gpus = ctx.inventory.of_kind("gpu")
    if any("driver" in gpu.facts for gpu in gpus):
        return
    blocked = next(iter(problems.list_view_problems(ctx.inventory)), None)
    if blocked:
        ruling = problems.PROBLEM_RULES[blocked.code]
        raise Unable(blocked.text, ruling.cause, ruling.remedy, code=blocked.code)
    if not gpus and not (ctx.previous and ctx.previous.of_kind("gpu")):
        raise Skip("no GPU on this node")


def report_troubles(heard: GpuAnswers[object]) -> Iterator[CheckItem]:
    """Yield which GPUs are in trouble, and what could not be answered."""
    yield from heard.findings
    yield from heard.unanswered
