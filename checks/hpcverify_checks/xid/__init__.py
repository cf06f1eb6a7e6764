"""
Errors that NVIDIA's drivers logged in the kernel log: Xids, and SXids of NVSwitches.

Only lines since this node's last run count, so that an old error does not fail a node
forever. The position in the log is kept between runs, across reboots too, and gaps are
reported. A first run counts the last day as new and lists what is older. A log that
cannot be read is an error, never a clean log; the next run then starts where this one
should have. The log is read even where the driver is not loaded: it says why.

Lost lines warn (``log_gap``) only if a log is kept that should have them. Where the log
never survives a reboot, every planned reboot would warn: the last lines before it are
then listed as not seen.

The table `xids.csv` says what each Xid means. A crash of a user's program causes Xids too (13,
31 and others): a single one is only listed; it warns when it comes again, more than
`QUIET_SECONDS` later, from another process on the same GPU. While a run loads the GPUs, NVML
reports Xids as they happen, and program Xids are then from our own program.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import hpcverify.check as hv
from hpcverify.telemetry import fault_table, kernel_log, pci, vendors
from hpcverify_checks.node import gpu_source
from hpcverify_checks.node.kernel_log import (
    CURSOR,
    LOG_RULES,
    read_new_part,
    report_reading,
    report_unresolved,
)
from hpcverify_checks.node.log_events import group_events, make_finding, report_older
from hpcverify_checks.xid.lines import (
    LINE_MARKERS,
    REPEATED_SUFFIX,
    ROWS,
    UNDER_LOAD_SUFFIX,
    XidEvent,
    count_occasions,
    find_row,
    read_events,
    recurs,
)


def measure(ctx: hv.Context, params: hv.Params) -> Iterator[hv.CheckItem]:
    """Report what the drivers logged since this node's last run."""
    yield from read_log(ctx, Path("/"))


def read_log(ctx: hv.Context, root: Path) -> Iterator[hv.CheckItem]:
    """Read the log of the machine with file system *root*."""
    with suppress(hv.Unable):  # the driver does not answer: the log may say why
        gpu_source.require_gpus(ctx)
    vendor = gpu_source.name_vendor(ctx)
    if vendor != vendors.NVIDIA:
        text = f"this node's GPUs are {vendor}: hpcverify does not read what their driver logs"
        raise hv.Skip(text, hv.Cause.NOT_OBSERVABLE)
    log = yield from read_new_part(ctx, LINE_MARKERS, root)
    gpus = _map_addresses(ctx)

    def find_part(event: XidEvent) -> str:
        return gpus.get(event.address, event.address)

    groups = group_events(read_events(log.messages), find_part)
    counts = dict.fromkeys(gpus.values(), 0)
    for (part_id, _), group in groups.items():
        counts[part_id] = counts.get(part_id, 0) + len(group)
        suffix = REPEATED_SUFFIX if group[0].row.kind == "app" and recurs(group) else ""
        count = f" ({len(group)} times)" if len(group) > 1 else ""
        yield make_finding(part_id, group, suffix, count)
    yield from report_unresolved(ctx, log, groups, lambda _: "xid_standing")
    for part_id, number in counts.items():
        yield hv.Measurement("xids", float(number), "", part_id)
    yield from report_older(read_events(log.older), find_part)
    yield from report_reading(log)


def _map_addresses(ctx: hv.Context) -> dict[str, str]:
    past = ctx.previous.of_kind("gpu") if ctx.previous else ()
    return pci.map_addresses((*past, *ctx.inventory.of_kind("gpu")))


def observe(watch: hv.Watch, ctx: hv.Context, params: hv.Params) -> Iterator[hv.CheckItem]:
    """Report what NVML saw while the node was under load."""
    yield from report_live_xids(watch, ctx, Path("/"))


def report_live_xids(watch: hv.Watch, ctx: hv.Context, root: Path) -> Iterator[hv.CheckItem]:
    """
    Report what the log does not show: Xids that it lacks, and those of our own load.

    A run with load starts only when nobody else holds a GPU (unless forced), so a
    program's Xid was caused by ours.
    """
    gpus = _map_addresses(ctx)
    logged = set[tuple[str, int | None]]()
    with suppress(hv.Unable):
        log = kernel_log.read(ctx.recall(CURSOR), LINE_MARKERS, root)
        logged = {(gpus.get(e.address, e.address), e.xid) for e in read_events(log.messages)}
    for place, samples in watch.group_by_part("xid"):
        part_id = gpus.get(place, place)
        for xid in sorted({int(sample.value) for sample in samples}):
            times = [sample.t for sample in samples if int(sample.value) == xid]
            row = find_row(xid)
            if row.kind == "app":
                count = count_occasions(times)
                code = row.code + UNDER_LOAD_SUFFIX + (REPEATED_SUFFIX if count > 1 else "")
                what = "during hpcverify's own load (known-good kernels)"
                text = f"{row.meaning}: Xid {xid} {what} ({count} times)"
                yield hv.Finding(code, part_id, text, row.evidence)
            elif (part_id, xid) not in logged:
                text = f"{row.meaning}: NVML reported Xid {xid}, {len(times)} times"
                yield hv.Finding(row.code, part_id, text, row.evidence)


CHECK = hv.Check(
    summary="Xids and SXids in the kernel log since the last run, and under load",
    measure=measure,
    observe=observe,
    metrics={"xids": hv.Metric("", "high", "new error lines about this GPU")},
    finding_rules={
        **fault_table.build_finding_rules(ROWS.values()),
        **hv.warn_on("xid_standing", remedy=hv.Remedy.REBOOT, conclusive=True),
        **LOG_RULES,
    },
    placement=hv.Placement.PASSIVE,
    timeout=60,
)
