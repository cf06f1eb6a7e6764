"""
What the kernel said of faults since this node's last run, beyond NVIDIA's Xids.

Machine checks and memory, PCIe, NICs, disks and file systems, stalls and panics, servers that
do not answer: the table `lines.csv` has the lines, by the format strings of the kernel, and
what each means. What a user's program provokes (a crash, a job that ran out of memory) is
told and accuses nobody. Many like lines about one part are one finding, with their count,
the first and the last time; trouble that a later line ends is only listed.

Only lines since the last run count, as in `xid`, which the same reading of the log feeds:
each check keeps its own mark, so that no line is counted twice or lost. A first run takes
one day, and lists what is older. The last words of a kernel that panicked come from pstore.

Where nobody may read the log, as in most containers, the check is skipped; where an earlier
run could read it, that is an error.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Sequence
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
    Inventory,
    Measurement,
    Metric,
    Params,
    Placement,
    Remedy,
    Skip,
    Unable,
    Verdict,
)
from hpcverify.telemetry import pci
from hpcverify.telemetry.kernel_log import format_moment
from hpcverify.units import DAY_SECONDS, format_count
from hpcverify_checks.common.kernel_log import (
    CURSOR,
    GAP_CODE,
    GAP_RULE,
    MAX_LINE_CHARACTERS,
    find_last_look,
    keep_mark,
    read_new_part,
    report_reading,
    report_unresolved,
)
from hpcverify_checks.kernel_log.lines import (
    OFTEN_SUFFIX,
    OVER_SUFFIX,
    KernelEvent,
    build_finding_rules,
    list_markers,
    load_rows,
    read_events,
)
from hpcverify_checks.kernel_log.pstore import read_dumps

DUMPS = "pstore"
"""The mark that says which dumps were read."""
CRASH_KINDS = ("cpu", "memory", "kernel")
"""What is read of a dump: the rest of it stood in the log, and was seen there."""

Groups = dict[tuple[str, str], list[KernelEvent]]
"""Events by part and code."""


def measure(ctx: Context, params: Params) -> Iterator[CheckItem]:
    """Report what the kernel said since this node's last run."""
    yield from read_log(ctx, Path("/"))


def read_log(ctx: Context, root: Path) -> Iterator[CheckItem]:
    """
    Read the log of the machine with file system *root*.

    Raises:
        Skip: nobody may read the log here, and no earlier run could.
        Unable: the log cannot be read.

    """
    try:
        log = read_new_part(ctx, list_markers(), root)
    except Unable as unable:
        yield from keep_mark(ctx)
        if unable.cause is Cause.DENIED and ctx.recall(CURSOR) is None:
            raise Skip(str(unable), Cause.NOT_OBSERVABLE) from None
        raise
    dumped, dumps = read_dumps(
        root, ctx.recall(DUMPS), time.time() - DAY_SECONDS, find_last_look(ctx)
    )
    logged = {message.text for message in log.messages}  # a journal has most of a dump, too
    told = [message for message in dumped if message.text not in logged]
    crashed = [e for e in read_events(told) if e.row.kind in CRASH_KINDS]
    groups = group_events([*crashed, *read_events(log.messages)], ctx.inventory)
    yield from _report_groups(groups)
    yield from report_unresolved(ctx, log, _find_failures(groups), _choose_standing_code)
    if older := [*read_events(log.older)]:
        yield _report_older_lines(older)
    faults = (e for found in groups.values() for e in found if e.row.verdict > Verdict.PASS)
    yield Measurement("lines", float(sum(1 for _ in faults)), "")
    yield from report_reading(log)
    yield CarryOver(CURSOR, log.cursor)
    yield CarryOver(DUMPS, dumps)


def group_events(events: Iterable[KernelEvent], inventory: Inventory) -> Groups:
    """Group *events* by the part that they name, or by its name if it is unknown."""
    groups: Groups = {}
    for event in events:
        part_id = find_part(*event.part, inventory)
        groups.setdefault((part_id, event.row.code), []).append(event)
    return groups


def find_part(kind: str, name: str, inventory: Inventory) -> str:
    """
    Find the id of the part that the kernel calls *name*; failing that, its name.

    A server or a DIMM that is not in the inventory is no part of its own: a person finds it
    in the line.
    """
    match kind:
        case "pci":
            address = _complete_address(name)
            known = (p for p in inventory.parts if p.facts.get("pci_address"))
            ids = (p.id for p in known if pci.normalize_address(p.facts["pci_address"]) == address)
            return next(ids, address)
        case "disk":
            disks = inventory.of_kind("disk")
            return next((p.id for p in disks if _is_on_disk(name, p.label)), name)
        case "nic":
            return next((p.id for p in inventory.of_kind("nic") if p.label == name), name)
        case "dimm":
            return next((p.id for p in inventory.of_kind("edac") if p.label == name), "node")
        case _:
            return "node"


def _complete_address(name: str) -> str:
    """Write an address as sysfs does; a domain that is not told is the first."""
    domain = "" if name.count(":") > 1 else "0000:"
    return pci.normalize_address(domain + name)


def _is_on_disk(name: str, disk: str) -> bool:
    """Say whether *name* is the *disk*, a partition of it, or the controller of it."""
    rest = name.removeprefix(disk)
    if rest != name:
        return re.fullmatch(r"p?\d*", rest) is not None
    return disk.startswith(f"{name}n") and name.startswith("nvme")


def _report_groups(groups: Groups) -> Iterator[Finding]:
    for (part_id, code), found in groups.items():
        row = found[0].row
        if row.ends:
            continue
        suffix = OVER_SUFFIX if _has_ended(found, groups.values()) else ""
        if row.often and len(found) >= row.often:
            suffix = OFTEN_SUFFIX
        yield make_finding(code + suffix, part_id, found)


def _has_ended(found: Sequence[KernelEvent], groups: Iterable[Sequence[KernelEvent]]) -> bool:
    """Say whether every server of *found* has answered since."""
    ends: dict[str, float] = {}
    for group in groups:
        if group[0].row.ends == found[0].row.code:
            ends.update((e.part[1], e.time or 0.0) for e in group)
    last = {e.part[1]: e.time or 0.0 for e in found}
    return all(name in ends and ends[name] >= when for name, when in last.items())


def make_finding(code: str, part_id: str, group: Sequence[KernelEvent]) -> Finding:
    """Report like lines about one part as one finding."""
    first, last = group[0], group[-1]
    row = first.row
    begin, end = format_moment(first.time), format_moment(last.time)
    span = f"{format_count(len(group), 'line')}, {begin}"
    span += f" to {end}" if end != begin else ""
    text = f"{row.meaning} ({span}): {first.text[:MAX_LINE_CHARACTERS]}"
    if row.fix:  # many lines of the kernel end in a full stop
        text = f"{text.rstrip('.')}: {row.fix}"
    evidence = {
        "line": first.text,
        "count": str(len(group)),
        "first": begin,
        "last": end,
        "source": row.source,
        **first.details,
    }
    if last.text != first.text:
        evidence["last line"] = last.text
    return Finding(code, part_id, text, evidence)


def _find_failures(groups: Groups) -> dict[str, tuple[float, str] | None]:
    """Give the last failure of each part that has failed."""
    return {
        part_id: (found[-1].time, code)
        for (part_id, code), found in groups.items()
        if found[-1].row.verdict is Verdict.FAIL and found[-1].time
    }


def _choose_standing_code(failed: str) -> str:
    row = load_rows().get(failed)  # none if an older version wrote it
    return "kernel_standing" if row and row.conclusive else "kernel_event_standing"


def _report_older_lines(found: Sequence[KernelEvent]) -> Finding:
    # Logged long before the first run: it may be mended by now.
    worst = max(found, key=lambda event: event.row.verdict)
    text = (
        f"{format_count(len(found), 'line')} from {format_moment(found[0].time)} to "
        f"{format_moment(found[-1].time)}, logged before the first run; "
        f"the worst: {worst.row.meaning}: {worst.text[:MAX_LINE_CHARACTERS]}"
    )
    return Finding("before_first_run", "node", text, {"line": worst.text})


CHECK = Check(
    summary="faults that the kernel reported since the last run, beyond Xids",
    measure=measure,
    metrics={"lines": Metric(unit="", worse="high", meaning="new lines about faults")},
    finding_rules={
        **build_finding_rules(),
        "before_first_run": LISTED,
        "kernel_standing": FindingRule(Verdict.WARN, Remedy.REBOOT, conclusive=True),
        "kernel_event_standing": FindingRule(Verdict.WARN, Remedy.REBOOT),
        GAP_CODE: GAP_RULE,
    },
    placement=Placement.PASSIVE,
    timeout=60,
)
