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

The table in `policy` says what each Xid means. A crash of a user's program causes Xids
too (13, 31 and the like): a single one accuses nobody and is listed; it warns when it
comes again, more than `QUIET_SECONDS` later, from another process on the same GPU.
While a run loads the GPUs, NVML reports Xids as they happen, and program Xids are then
from our own program.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from hpcverify.check import (
    LISTED,
    CarryOver,
    Cause,
    Check,
    CheckItem,
    Context,
    Finding,
    FindingRule,
    Measurement,
    Metric,
    Params,
    Part,
    Placement,
    Remedy,
    Skip,
    Unable,
    Verdict,
    Watch,
)
from hpcverify.telemetry import pci, vendors
from hpcverify.telemetry.kernel_log import KernelLog, KernelMessage, format_moment
from hpcverify_checks.common import gpu_source
from hpcverify_checks.common.kernel_log import (
    CURSOR,
    GAP_CODE,
    GAP_RULE,
    MAX_LINE_CHARACTERS,
    keep_mark,
    read_new_part,
    report_reading,
    report_unresolved,
)
from hpcverify_checks.xid.lines import LINE_MARKERS, Event, count_occasions, read_events, recurs
from hpcverify_checks.xid.policy import (
    REPEATED_SUFFIX,
    UNDER_LOAD_SUFFIX,
    XidRow,
    build_finding_rules,
    find_row,
)


def measure(ctx: Context, params: Params) -> Iterator[CheckItem]:
    """Report what the drivers logged since this node's last run."""
    yield from read_log(ctx, Path("/"))


def read_log(ctx: Context, root: Path) -> Iterator[CheckItem]:
    """
    Read the log of the machine with file system *root*.

    Raises:
        Skip: this node shows no GPU, or one whose driver logs no Xids.
        Unable: the log cannot be read.

    """
    with suppress(Unable):  # the driver does not answer: the log may say why
        gpu_source.require_gpus(ctx)
    vendor = gpu_source.name_vendor(ctx)
    if vendor != vendors.NVIDIA:
        text = f"this node's GPUs are {vendor}: hpcverify does not read what their driver logs"
        raise Skip(text, Cause.NOT_OBSERVABLE)
    try:
        log = read_new_part(ctx, LINE_MARKERS, root)
    except Unable:
        yield from keep_mark(ctx)
        raise
    yield from _report_log(log, ctx)
    yield CarryOver(CURSOR, log.cursor)


def _list_gpus_by_address(ctx: Context) -> dict[str, Part]:
    parts = ctx.previous.of_kind("gpu") if ctx.previous else ()
    return {
        pci.normalize_address(part.facts["pci_address"]): part
        for part in (*parts, *ctx.inventory.of_kind("gpu"))
        if "pci_address" in part.facts
    }


def _report_log(log: KernelLog, ctx: Context) -> Iterator[CheckItem]:
    known = _list_gpus_by_address(ctx)
    counts = dict.fromkeys((part.id for part in known.values()), 0)
    places = group_by_part(log.messages, known)
    for part_id, found in places.items():
        counts[part_id] = len(found)
        for code in dict.fromkeys(event.row.code for event in found):
            yield make_finding(part_id, [event for event in found if event.row.code == code])
    failures = {part_id: _find_last_failure(found) for part_id, found in places.items()}
    yield from report_unresolved(ctx, log, failures, lambda _: "xid_standing")
    for part_id, count in counts.items():
        yield Measurement("xids", float(count), "", part_id)
    for part_id, found in group_by_part(log.older, known).items():
        yield _report_older_lines(part_id, found)
    yield from report_reading(log)


def _find_last_failure(found: Sequence[Event]) -> tuple[float, str] | None:
    worst = [(e.time, e.row.code) for e in found if e.row.verdict is Verdict.FAIL and e.time]
    return worst[-1] if worst else None


def group_by_part(
    messages: Sequence[KernelMessage], known: Mapping[str, Part]
) -> dict[str, list[Event]]:
    """Sort the events in *messages* by part, or by address if the part is unknown."""
    places: dict[str, list[Event]] = {}
    for event in read_events(messages):
        part_id = known[event.part_id].id if event.part_id in known else event.part_id
        places.setdefault(part_id, []).append(event)
    return places


def _report_older_lines(part_id: str, found: Sequence[Event]) -> Finding:
    # Logged long before the first run: it may be fixed by now.
    worst = max(found, key=lambda event: event.row.verdict)
    text = (
        f"{len(found)} lines from {format_moment(found[0].time)} to "
        f"{format_moment(found[-1].time)}, logged before the first run; "
        f"the worst: {worst.row.meaning}: {worst.text[:MAX_LINE_CHARACTERS]}"
    )
    return Finding("before_first_run", part_id, text, {"line": worst.text})


def make_finding(part_id: str, group: Sequence[Event]) -> Finding:
    """Report equal events as one finding."""
    first, last = group[0], group[-1]
    row = first.row
    again = row.kind == "app" and recurs(group)
    evidence = {
        "line": first.text,
        "count": str(len(group)),
        "first": format_moment(first.time),
        "last": format_moment(last.time),
        **_describe_row(row),
        **first.details,
    }
    times = f" ({len(group)} times)" if len(group) > 1 else ""
    text = f"{row.meaning}{times}: {first.text[:MAX_LINE_CHARACTERS]}"
    return Finding(row.code + (REPEATED_SUFFIX if again else ""), part_id, text, evidence)


def _describe_row(row: XidRow) -> dict[str, str]:
    names = ("mnemonic", "nvidia", "others", "disagreement")
    return {name: getattr(row, name) for name in names if getattr(row, name)}


def observe(watch: Watch, ctx: Context, params: Params) -> Iterator[CheckItem]:
    """Report what NVML saw while the node was under load."""
    yield from report_live_xids(watch, ctx, Path("/"))


def report_live_xids(watch: Watch, ctx: Context, root: Path) -> Iterator[CheckItem]:
    """
    Report what the log does not show: Xids that it lacks, and those of our own load.

    A run with load starts only when nobody else holds a GPU (unless forced), so a
    program's Xid was caused by ours.
    """
    logged, known = _list_logged_xids(ctx, root), _list_gpus_by_address(ctx)
    for place, samples in watch.group_by_part("xid"):
        part_id = known[place].id if place in known else place
        for xid in sorted({int(sample.value) for sample in samples}):
            times = [sample.t for sample in samples if int(sample.value) == xid]
            row = find_row(xid)
            if row.kind == "app":
                count = count_occasions(times)
                code = row.code + UNDER_LOAD_SUFFIX + (REPEATED_SUFFIX if count > 1 else "")
                what = "during hpcverify's own load (known-good kernels)"
                text = f"{row.meaning}: Xid {xid} {what} ({count} times)"
                yield Finding(code, part_id, text, _describe_row(row))
            elif (part_id, xid) not in logged:
                text = f"{row.meaning}: NVML reported Xid {xid}, {len(times)} times"
                yield Finding(row.code, part_id, text, _describe_row(row))


def _list_logged_xids(ctx: Context, root: Path) -> set[tuple[str, int]]:
    with suppress(Unable):
        log = read_new_part(ctx, LINE_MARKERS, root)
        return {
            (part_id, event.xid)
            for part_id, found in group_by_part(log.messages, _list_gpus_by_address(ctx)).items()
            for event in found
            if event.xid is not None
        }
    return set()


CHECK = Check(
    summary="Xids and SXids in the kernel log since the last run, and under load",
    measure=measure,
    observe=observe,
    metrics={"xids": Metric(unit="", worse="high", meaning="new error lines about this GPU")},
    finding_rules={
        **build_finding_rules(),
        "before_first_run": LISTED,
        "xid_standing": FindingRule(Verdict.WARN, Remedy.REBOOT, conclusive=True),
        GAP_CODE: GAP_RULE,
    },
    placement=Placement.PASSIVE,
    timeout=60,
)
