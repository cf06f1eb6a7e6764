"""
What the kernel said of faults since this node's last run, beyond NVIDIA's Xids.

Machine checks and memory, PCIe, NICs, disks and file systems, stalls and panics, servers that
do not answer: the table `lines.csv` has the lines, by the format strings of the kernel, and
what each means. What a user's program provokes (a crash, a job that ran out of memory) is only
listed. Many lines of one kind about one part are one finding, with their count, the first and
the last time; trouble that a later line ends is only listed.

Only lines since the last run count, as in `xid`, which the same reading of the log feeds:
each check keeps its own mark, so that no line is counted twice or lost. A first run takes
one day, and lists what is older. The last words of a kernel that panicked come from pstore.
What it says of a disk of another machine is a warning: the fault may be its server's.

Where nobody may read the log, as in most containers, the check is skipped; where an earlier
run could read it, that is an error.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import hpcverify.check as hv
from hpcverify.telemetry import blockdev, fault_table, kernel_log, pci, sysfs
from hpcverify.units import DAY_SECONDS, format_count
from hpcverify_checks.kernel_log.lines import LINE_MARKERS, ROWS, LineEvent, read_events
from hpcverify_checks.kernel_log.pstore import read_dumps
from hpcverify_checks.node.kernel_log import (
    CURSOR,
    LOG_RULES,
    read_new_part,
    report_reading,
    report_unresolved,
)
from hpcverify_checks.node.log_events import (
    MAX_LINE_CHARACTERS,
    count_errors,
    format_span,
    group_events,
    make_finding,
    report_older,
)

DUMPS = "pstore"
"""The name of the mark that says which dumps were read."""
OUTSIDE = "disk_outside"
"""The code of what the kernel said of a disk that is not a part of this node."""
CRASH_KINDS = ("cpu", "memory", "kernel")
"""The kinds of lines that are read in a dump: the others stood in the log, and were seen there."""

LOCATOR_START_PATTERN = r"(?i)^.*dimm[\s_#-]*(?=[a-z])"
"""What firmware leaves out of a locator such as DIMM_B1 and CPU1_DIMM_B1; not of "DIMM 1"."""

Groups = Mapping[tuple[str, str], Sequence[LineEvent]]
"""Events by part and code."""


def measure(ctx: hv.Context, params: hv.Params) -> Iterator[hv.CheckItem]:
    """Report what the kernel said since this node's last run."""
    yield from read_log(ctx, Path("/"))


def read_log(ctx: hv.Context, root: Path) -> Iterator[hv.CheckItem]:
    """Read the log of the machine with file system *root*."""
    try:
        log = yield from read_new_part(ctx, LINE_MARKERS, root)
    except hv.Unable as unable:
        if unable.cause is hv.Cause.DENIED and ctx.recall(CURSOR) is None:
            raise hv.Skip(str(unable), hv.Cause.NOT_OBSERVABLE) from None
        raise
    last_look = kernel_log.parse_last_look(ctx.recall(CURSOR))
    dumped, dumps = read_dumps(root, ctx.recall(DUMPS), time.time() - DAY_SECONDS, last_look)
    logged = {message.text for message in log.messages}  # a journal has most of a dump, too
    unseen = [message for message in dumped if message.text not in logged]
    crashed = [e for e in read_events(unseen) if e.row.kind in CRASH_KINDS]
    events = [*crashed, *read_events(log.messages)]
    grave = {
        code
        for code in {e.row.code for e in events}
        if any(rule.verdict is hv.Verdict.FAIL for rule in ROWS[code].rules.values())
    }
    named = dict.fromkeys(event.part for event in events if event.row.code in grave)
    ways = {part: way for part in named if (way := _find_way(part[0], part[1], ctx, root))}
    own: list[LineEvent] = []
    outside: dict[tuple[str, ...], list[LineEvent]] = {part: [] for part in ways}
    for event in events:
        is_outside = event.row.code in grave and event.part in ways
        (outside[event.part] if is_outside else own).append(event)
    groups = group_events(own, lambda event: find_part(event.part, ctx.inventory))
    for (part_id, _), group in groups.items():
        row, total, count = group[0].row, count_errors(group), format_count(len(group), "line")
        if total > len(group):
            count = f"{format_count(total, 'error')} in {count}"
        if not row.ends:
            suffix = row.choose_suffix(total, ended=_has_ended(group, groups))
            yield make_finding(part_id, group, suffix, f" ({count}, {format_span(group)})")
    for part, told in outside.items():
        yield _report_outside(find_part(part, ctx.inventory), told, ways[part])
    yield from report_unresolved(ctx, log, groups, _choose_unresolved_code)
    yield from report_older(read_events(log.older), lambda _: "node")
    faults = [event for event in events if event.row.verdict > hv.Verdict.PASS]
    yield hv.Measurement("lines", float(len(faults)), "")
    yield from report_reading(log)
    yield hv.CarryOver(DUMPS, dumps)


def find_part(part: tuple[str, ...], inventory: hv.Inventory) -> str:
    """
    Find the id of the *part*, a kind and the names that the kernel gives it; failing that, a name.

    A server, or a DIMM that is not in the inventory, is not a part of its own: a person finds it
    in the line.
    """
    kind, name, *_ = part
    match kind:
        case "pci":
            domain = "" if name.count(":") > 1 else "0000:"
            address = pci.normalize_address(domain + name)
            known = (p for p in inventory.parts if p.facts.get("pci_address"))
            ids = (p.id for p in known if pci.normalize_address(p.facts["pci_address"]) == address)
            return next(ids, address)
        case "disk":
            disks = inventory.of_kind("disk")
            return next((p.id for p in disks if _is_on_disk(name, p.label)), name)
        case "nic":
            return next((p.id for p in inventory.of_kind("nic") if p.label == name), name)
        case "dimm":
            return _find_dimm(part[1:], inventory)
        case _:
            return "node"


def _find_dimm(names: Sequence[str], inventory: hv.Inventory) -> str:
    """
    Find a DIMM by EDAC's label, or by its locator or handle in the firmware's table (SMBIOS).

    The kernel writes bank and locator, and the firmware may leave out what a locator begins with.
    """
    names = [name.strip().lower() for name in names]
    if found := next((p for p in inventory.of_kind("edac") if p.label.lower() in names), None):
        return found.id
    dimms = inventory.of_kind("dimm")
    for ways in (
        [f"{p.facts.get('bank', '')} {p.label}" for p in dimms],
        [p.label for p in dimms],
        [re.sub(LOCATOR_START_PATTERN, "", p.label) for p in dimms],
        [p.facts.get("handle", "") for p in dimms],
    ):
        ids = {
            p.id
            for p, way in zip(dimms, map(str.lower, ways), strict=True)
            if way and any(name == way or name.endswith(f" {way}") for name in names)
        }
        if len(ids) == 1:
            return ids.pop()
    return "node"


def _is_on_disk(name: str, disk: str) -> bool:
    """Say whether *name* is the *disk*, a partition, a path or the controller of it."""
    name = re.sub(r"^(nvme\d+)c\d+(?=n)", r"\1", name)  # as nvme0c1n1, a path to nvme0n1
    rest = name.removeprefix(disk)
    if rest != name:
        return re.fullmatch(r"p?\d*", rest) is not None
    return disk.startswith(f"{name}n") and name.startswith("nvme")


def _find_way(kind: str, name: str, ctx: hv.Context, root: Path) -> str:
    """
    Say by which way the disk *name* is reached, if it is not a part of this node; else nothing.

    One that is gone is known by the last run.
    """
    if kind != "disk":
        return ""
    inventories = filter(None, (ctx.inventory, ctx.previous))
    disks = (disk for inventory in inventories for disk in inventory.of_kind("disk"))
    if known := next((disk for disk in disks if _is_on_disk(name, disk.label)), None):
        return known.facts.get("network", "")
    if way := blockdev.find_network_of_controller(root / "sys/class/nvme" / name):
        return way  # one of several to a disk, whose name has the number of another
    number = sysfs.read_text(root / "sys/class/block" / name / "dev")
    below = blockdev.list_whole_disks(number, root) if number else ()
    folders = [root / "sys/block" / disk for disk in sorted(below)]
    if not folders or any(map(_may_be_ours, folders)):
        return ""
    return next(filter(None, map(blockdev.find_network, folders)), "USB, or an image")


def _may_be_ours(disk: Path) -> bool:
    """Whether *disk* is of this node, or nothing is known of it, as of an array of lost disks."""
    is_known = any((disk / name).exists() for name in ("device", "loop/backing_file"))
    return blockdev.is_local(disk) or not (is_known or blockdev.find_network(disk))


def _report_outside(part_id: str, events: Sequence[LineEvent], way: str) -> hv.Finding:
    """Report *events* of a disk that is reached by *way*: its server may be at fault."""
    worst = max(events, key=lambda event: event.row.verdict)
    count = f"{format_count(len(events), 'line')}, {format_span(events)}"
    line = worst.text[:MAX_LINE_CHARACTERS]
    text = (
        f"{worst.row.meaning}, but it is reached by {way} and is not a part of this node: check "
        f"its server or cable ({count}): {line}"
    )
    return hv.Finding(OUTSIDE, part_id, text, {"line": worst.text, **worst.details})


def _has_ended(group: Sequence[LineEvent], groups: Groups) -> bool:
    """Say whether every server that *group* names has answered since."""
    ends: dict[str, float] = {}
    for others in groups.values():
        if others[0].row.ends == group[0].row.code:
            ends.update((e.part[1], e.time or 0.0) for e in others)
    last = {e.part[1]: e.time or 0.0 for e in group}
    return all(name in ends and ends[name] >= when for name, when in last.items())


def _choose_unresolved_code(code: str) -> str:
    row = ROWS.get(code)  # none if another version wrote it
    return "kernel_standing" if row and row.conclusive else "kernel_event_standing"


CHECK = hv.Check(
    summary="faults that the kernel reported since the last run, beyond Xids",
    measure=measure,
    metrics={"lines": hv.Metric("", "high", "new lines about faults")},
    finding_rules={
        **fault_table.build_finding_rules(ROWS.values()),
        **hv.warn_on(OUTSIDE),
        **hv.warn_on("kernel_standing", remedy=hv.Remedy.REBOOT, conclusive=True),
        **hv.warn_on("kernel_event_standing", remedy=hv.Remedy.REBOOT),
        **LOG_RULES,
    },
    placement=hv.Placement.PASSIVE,
    timeout=60,
)
