"""The health of every disk: NVMe by its own log, others by smartctl."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

import msgspec

import hpcverify.check as hv
from hpcverify.processes import ToolRunner
from hpcverify.telemetry import smart
from hpcverify_checks.host.apart import Question, ask_apart
from hpcverify_checks.node.disk_health import measure_health

COUNTS = "smart"
"""The name of the `CarryOver` with the error counts of a disk."""
NVME = re.compile(r"nvme\d+n\d+")
SMARTCTL_SECONDS = 10.0
"""The time for one disk, which is not woken for this."""


def measure_disks(
    ctx: hv.Context, dev: Path, tool: ToolRunner, *, seconds: float, smartctl: bool
) -> Iterator[hv.CheckItem]:
    """Report what each disk says of itself, and which error counts grew since the last run."""
    disks: dict[str, hv.Part] = {}
    for part in ctx.inventory.of_kind("disk"):
        if network := part.facts.get("network"):
            yield hv.Coverage(part.id, f"SMART not read: {network} leads to it, and it is not ours")
        else:
            disks[part.label] = part
    # Asked by the name of the disk: with several paths to it, the kernel's numbers of disks
    # and of controllers are not the same.
    questions: dict[str, Question] = {
        name: partial(_read_nvme, dev / name) for name in disks if NVME.fullmatch(name)
    }
    replies = ask_apart(questions, seconds)
    for name in replies.hung:
        text = f"NVMe {name} does not answer a read of its health log in {seconds:g} s: see the "
        yield hv.Finding("disk_hung", disks[name].id, f"{text}kernel log, and reboot the node")
    for name, log in replies.answers.items():
        yield from _report(ctx, disks[name], smart.parse_nvme_log(bytes.fromhex(log)))
    for name, error in replies.errors.items():
        reason = f"the NVMe log of {name} cannot be read: {error.strerror}"
        yield hv.Coverage(disks[name].id, f"SMART not read: {reason}")
    others = [part for name, part in disks.items() if name not in questions]
    yield from _report_others(ctx, others, tool) if smartctl else ()


def _read_nvme(device: Path) -> str:
    return smart.read_nvme_log(device).hex()


def _report_others(
    ctx: hv.Context, disks: Iterable[hv.Part], tool: ToolRunner
) -> Iterator[hv.CheckItem]:
    hung = ""
    for part in disks:
        if hung:  # as those behind the same adapter would: one wait is enough
            yield hv.Coverage(part.id, f"SMART not read: smartctl did not end with {hung}")
            continue
        try:
            health = smart.read(part.label, tool, timeout=SMARTCTL_SECONDS, wake=False)
        except hv.Unable as exc:
            hung = part.label
            text = f"{part.label} does not answer smartctl: {exc}: see the kernel log"
            yield hv.Finding("disk_hung", part.id, text)
        else:
            yield from _report(ctx, part, health)


def _report(ctx: hv.Context, disk: hv.Part, health: smart.Health) -> Iterator[hv.CheckItem]:
    if health.unread_reason:
        yield hv.Coverage(disk.id, f"SMART not read: {health.unread_reason}")
        return
    recalled = ctx.recall(COUNTS, disk.id)
    before = smart.Health(msgspec.json.decode(recalled) if recalled else {})
    yield from measure_health(before, health, disk.id)
    counts = {n: health.values[n] for n in smart.ERROR_COUNTERS if n in health.values}
    yield hv.CarryOver(COUNTS, msgspec.json.encode(counts).decode(), disk.id)
    yield hv.Coverage(disk.id, f"SMART read: {len(health.values)} values")
