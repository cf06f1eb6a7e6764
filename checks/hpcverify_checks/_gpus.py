"""How the passive checks come to ask a node's GPUs, and pass on what was amiss."""

from __future__ import annotations

from collections.abc import Iterator

from hpcverify.check import Context, Skip, Unable
from hpcverify.model import Cause, Found, Remedy
from hpcverify.telemetry import problems
from hpcverify.telemetry.gpus import GpuSource, Heard, NotStartedError


def source(ctx: Context) -> GpuSource:
    """
    Give what answers for the node's GPUs.

    Raises:
        Skip: neither NVML nor the PCI bus nor the last run knows of a GPU.
        Unable: there are GPUs, or were, and nobody answers for any.

    """
    require_gpus(ctx)
    from hpcverify.telemetry import nvml

    asked = nvml.source()
    try:
        there = asked.listing().gpus
    except NotStartedError as exc:
        ruling = problems.RULINGS[exc.code]
        raise Unable(str(exc), ruling.cause, ruling.remedy) from exc
    if not there:
        raise Unable("NVML lists no GPU", Cause.MISSING, Remedy.REBOOT)
    return asked


def require_gpus(ctx: Context) -> None:
    """Raise as `source` does."""
    gpus = ctx.inventory.of_kind("gpu")
    if any("driver" in gpu.facts for gpu in gpus):
        return
    blocked = next(iter(problems.of_view(ctx.inventory)), None)
    if blocked:
        ruling = problems.RULINGS[blocked.code]
        raise Unable(blocked.text, ruling.cause, ruling.remedy)
    if not gpus and not (ctx.previous and ctx.previous.of_kind("gpu")):
        raise Skip("no GPU on this node")


def troubles(heard: Heard[object]) -> Iterator[Found]:
    """Yield which GPUs are in trouble, and what could not be answered."""
    yield from heard.findings
    yield from heard.unanswered
