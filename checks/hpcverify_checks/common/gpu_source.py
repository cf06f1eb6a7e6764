"""How the passive checks query a node's GPUs, and report what went wrong."""

from __future__ import annotations

from collections.abc import Iterator

from hpcverify.check import Cause, CheckItem, Context, Remedy, Skip, Unable
from hpcverify.telemetry import problems
from hpcverify.telemetry.gpus import GpuAnswers, GpuSource, NotStartedError


def open_gpu_source(ctx: Context) -> GpuSource:
    """
    Open the source that answers for the node's GPUs.

    Raises:
        Skip: neither NVML nor the PCI bus nor the last run knows of a GPU.
        Unable: there are GPUs, or there were, but nothing answers for them.

    """
    require_gpus(ctx)
    from hpcverify.telemetry import nvml

    source = nvml.get_source()
    try:
        gpus = source.list_devices().gpus
    except NotStartedError as exc:
        ruling = problems.PROBLEM_RULES[exc.code]
        raise Unable(str(exc), ruling.cause, ruling.remedy, code=exc.code) from exc
    if not gpus:
        raise Unable("NVML lists no GPU", Cause.MISSING, Remedy.REBOOT)
    return source


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


def report_troubles(answers: GpuAnswers[object]) -> Iterator[CheckItem]:
    """Yield which GPUs are in trouble, and which questions had no answer."""
    yield from answers.findings
    yield from answers.unanswered
