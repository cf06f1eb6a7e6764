"""
What the checks of links share: counters from run to run, and which part is wired how.

A counter of errors says little by what it shows; what counts is what was added since
the last run. So a check leaves a `Ledger` as a mark: what its counters showed, when,
and in which boot of the node. Counters start from zero with the driver or the node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path

import msgspec
from msgspec import Struct

from hpcverify.check import Context, Sample
from hpcverify.limits.specs import Spec, find
from hpcverify.model import Mark, Part
from hpcverify.telemetry import sysfs

LEDGER = "counters"

BRIDGES = {
    "a100-pcie-40gb": 4,
    "a100-pcie-80gb": 4,
    "a40": 4,
    "h100-pcie-80gb": 4,
    "h100-nvl-94gb": 4,
    "h200-nvl": 6,
}
"""Parts (by `Spec.key`) that have NVLink only where a bridge is plugged, and how many
links one carries: they take three for all their links, and an A40 one."""
SUPERCHIPS = ("gh200", "gb200", "gb300")
"""How the keys of parts begin that hang on their CPU by NVLink-C2C: PCIe is not how
they come by their data, and their boards wire few lanes of it."""
ALONE = "gh200"
"""How the keys of parts begin of which a node may have just one, with no NVLink."""
ENOUGH_FOR_ALL = 12
"""NVLinks from which every GPU of a node has some to every other: with fewer, some
pairs have none (V100)."""


def part(ctx: Context, where: str) -> Part | None:
    """Find the part *where* in the inventory."""
    return next((p for p in ctx.inventory.parts if p.id == where), None)


def spec(ctx: Context, where: str) -> Spec | None:
    """Find the data sheet of the part *where*, if it is a known one."""
    found = part(ctx, where)
    return find(found) if found else None


def kind(ctx: Context, where: str) -> str:
    """Say which parts of the node *where* may be compared with: those of its name."""
    found = part(ctx, where)
    return found.facts.get("name", "") if found else ""


def optional_links(sheet: Spec | None) -> bool:
    """Whether a healthy part may have no NVLink active, whatever it could have."""
    if sheet is None or not sheet.nvlink_links:
        return True
    return sheet.key in BRIDGES or sheet.key.startswith(ALONE)


def all_linked(sheet: Spec | None) -> bool:
    """Whether each GPU of a node of such parts has NVLink to each other one."""
    if sheet is None or optional_links(sheet):
        return False
    return sheet.nvlink_links >= ENOUGH_FOR_ALL


class Ledger(msgspec.Struct, frozen=True):
    """What counters showed at a moment; those at zero are left out."""

    boot: str
    uptime: float | None
    """Seconds from the start of the node."""
    counts: dict[str, int]


def ledger(ctx: Context, where: str, counts: Mapping[str, int], root: Path) -> Ledger:
    """Note down *counts* as of now, and of what was not read now what it was."""
    uptime = (sysfs.text(root / "proc/uptime") or "").partition(" ")[0]
    boot = sysfs.text(root / "proc/sys/kernel/random/boot_id") or ""
    before = _noted(ctx, where, boot)
    whole = {**(before.counts if before else {}), **counts}
    return Ledger(
        boot=boot,
        uptime=float(uptime) if uptime else None,
        counts={name: count for name, count in whole.items() if count},
    )


def marked(noted: Ledger, where: str) -> Mark:
    """Make the mark that `growth` finds again."""
    return Mark(LEDGER, msgspec.json.encode(noted).decode(), where)


class Growth(Struct, frozen=True):
    """By how much counters grew, and over what time."""

    counts: Mapping[str, int]
    """Only those that grew."""
    seconds: float | None
    watched: bool
    """Since the last run; if not, since the driver or the node was started."""

    @property
    def since(self) -> str:
        """Say from when on."""
        return "the last run" if self.watched else "the driver was started"

    def rate(self, count: float, per: float) -> float | None:
        """Say how much *count* is in a time of *per* seconds, or if it took less."""
        if self.seconds is None:
            return None
        return count * per / max(self.seconds, per)


def growth(ctx: Context, now: Ledger, where: str) -> Growth:
    """Compare *now* with what the last run noted, if the node still runs since then."""
    before = _noted(ctx, where, now.boot)
    if before is None:
        return Growth(now.counts, now.uptime, watched=False)
    new = {
        name: added(before.counts.get(name, 0), count)
        for name, count in now.counts.items()
    }
    seconds = None
    if now.uptime is not None and before.uptime is not None:
        seconds = now.uptime - before.uptime
    return Growth({n: c for n, c in new.items() if c}, seconds, watched=True)


def _noted(ctx: Context, where: str, boot: str) -> Ledger | None:
    mark = ctx.mark(LEDGER, where)
    if mark is None:
        return None
    try:
        before = msgspec.json.decode(mark, type=Ledger)
    except msgspec.MsgspecError:  # an older version wrote it another way
        return None
    return before if before.boot == boot else None


def added(before: float, after: float) -> int:
    """Say what a counter counted; one that fell was reset, and starts from zero."""
    return int(after - before if after >= before else after)


def busiest(samples: Sequence[Sample], seconds: float) -> int:
    """Find the most that a counter counted within any *seconds* of its *samples*."""
    steps = [(b.t, added(a.value, b.value)) for a, b in pairwise(_whole(samples))]
    most = total = first = 0
    for t, step in steps:
        total += step
        while t - steps[first][0] >= seconds:
            total -= steps[first][1]
            first += 1
        most = max(most, total)
    return most


def _whole(samples: Sequence[Sample]) -> list[Sample]:
    """
    Leave out where a counter fell and came back: a part of its sum was not read.

    One that was reset stays low, and its new count is all new.
    """
    highest_later = list(accumulate((s.value for s in reversed(samples)), max))[::-1]
    kept: list[Sample] = []
    for sample, later in zip(samples, highest_later, strict=True):
        if not kept or not sample.value < kept[-1].value <= later:
            kept.append(sample)
    return kept
