"""How the passive checks come to ask a node's GPUs, and pass on what was amiss."""

from __future__ import annotations

from collections.abc import Iterator

from hpcverify.check import Context, Skip, Unable
from hpcverify.model import Found
from hpcverify.telemetry import problems
from hpcverify.telemetry.gpus import GpuSource, Heard


def source(ctx: Context) -> GpuSource:
    """
    Give what answers for the node's GPUs.

    Raises:
        Skip: neither NVML nor the PCI bus nor the last run knows of a GPU.
        Unable: there are GPUs, and the driver does not answer for any.

    """
    require_gpus(ctx)
    from hpcverify.telemetry import nvml

    return nvml.source()


def require_gpus(ctx: Context) -> None:
    """Raise as `source` does."""
    gpus = ctx.inventory.of_kind("gpu")
    if any("driver" in gpu.facts for gpu in gpus):
        return
    blocked = next(iter(problems.of_view(ctx.inventory)), None)
    if blocked:
        raise Unable(blocked.text, problems.VIEW[blocked.code])
    if not gpus and not (ctx.previous and ctx.previous.of_kind("gpu")):
        raise Skip("no GPU on this node")


def troubles(heard: Heard[object]) -> Iterator[Found]:
    """Yield which GPUs are in trouble, and what could not be answered."""
    yield from heard.findings
    yield from heard.unanswered
