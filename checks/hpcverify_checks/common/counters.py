"""
What the checks of links share: counters from run to run, and which part is wired how.

A counter of errors says little by what it shows; what counts is what was added since
the last run. So a check leaves a `CounterSnapshot` as a mark: what its counters showed,
when, and in which boot of the node. Counters start from zero with the driver or the
node. One that was never read before has shown nothing new: it may be old what it shows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path

import msgspec
from msgspec import Struct

from hpcverify.check import Context, Sample
from hpcverify.limits.specs import Spec, find_spec
from hpcverify.model import CarryOver, Part
from hpcverify.telemetry import sysfs

SNAPSHOT_NAME = "counters"
HOUR_SECONDS = 3600.0
"""Seconds for which what was counted is kept together, however many runs there are."""

LINKS_PER_BRIDGE = {
    "a100-pcie-40gb": 4,
    "a100-pcie-80gb": 4,
    "a40": 4,
    "h100-pcie-80gb": 4,
    "h100-nvl-94gb": 4,
    "h200-nvl": 6,
}
"""Parts (by `Spec.key`) that have NVLink only where a bridge is plugged, and how many
links one carries: they take three for all their links, and an A40 one."""
SUPERCHIP_KEY_PREFIXES = ("gh200", "gb200", "gb300")
"""How the keys of parts begin that hang on their CPU by NVLink-C2C: PCIe is not how
they come by their data, and their boards wire few lanes of it."""
SINGLE_GPU_KEY_PREFIX = "gh200"
"""How the keys of parts begin of which a node may have just one, with no NVLink."""
MIN_LINKS_ALL_PAIRS = 12
"""NVLinks from which every GPU of a node has some to every other: with fewer, some
pairs have none (V100)."""


def find_part(ctx: Context, where: str) -> Part | None:
    """Find the part *where* in the inventory."""
    return next((p for p in ctx.inventory.parts if p.id == where), None)


def look_up_spec(ctx: Context, where: str) -> Spec | None:
    """Find the data sheet of the part *where*, if it is a known one."""
    found = find_part(ctx, where)
    return find_spec(found) if found else None


def find_model(ctx: Context, where: str) -> str:
    """Say which parts of the node *where* may be compared with: those of its name."""
    found = find_part(ctx, where)
    return found.facts.get("name", "") if found else ""


def has_optional_links(sheet: Spec | None) -> bool:
    """Whether a healthy part may have no NVLink active, whatever it could have."""
    if sheet is None or not sheet.nvlink_links:
        return True
    return sheet.key in LINKS_PER_BRIDGE or sheet.key.startswith(SINGLE_GPU_KEY_PREFIX)


def is_fully_linked(sheet: Spec | None) -> bool:
    """Whether each GPU of a node of such parts has NVLink to each other one."""
    if sheet is None or has_optional_links(sheet):
        return False
    return sheet.nvlink_links >= MIN_LINKS_ALL_PAIRS


class CounterSnapshot(msgspec.Struct, frozen=True):
    """What counters showed at a moment, and what they counted in the hour before it."""

    boot: str
    uptime: float | None
    """Seconds from the start of the node."""
    counts: dict[str, int]
    """By name: whose it is and what it counts (``5 crc``); those at zero left out."""
    read: dict[str, str]
    """Of what is counted, whose counters were ever read: also those at zero."""
    window: float | None
    """The uptime at the start of the hour; runs that come soon go on with the same."""
    grown: dict[str, int]
    """What was added since the start of that hour."""

    def has_read(self, name: str) -> bool:
        """Whether the counter *name* was ever read, so that it can have grown."""
        place, kind = _split_name(name)
        return place in self.read.get(kind, "").split()

    def compute_increases(self, counts: Mapping[str, int]) -> dict[str, int]:
        """Say by how much each of *counts* grew; one that was never read did not."""
        new = {
            name: compute_increase(self.counts.get(name, 0), count)
            for name, count in counts.items()
            if self.has_read(name)
        }
        return {name: count for name, count in new.items() if count}


def _split_name(name: str) -> tuple[str, str]:
    place, kind, *_ = name.split(" ")
    return place, kind


def take_snapshot(
    ctx: Context, where: str, counts: Mapping[str, int], root: Path
) -> CounterSnapshot:
    """Note down *counts* as of now, and of what was not read now what it was."""
    uptime = (sysfs.read_text(root / "proc/uptime") or "").partition(" ")[0]
    boot = sysfs.read_text(root / "proc/sys/kernel/random/boot_id") or ""
    now = float(uptime) if uptime else None
    fresh = CounterSnapshot(boot, now, {}, {}, now, {})
    before = _load_snapshot(ctx, where, boot) or fresh
    window, grown = before.window, Counter(before.grown)
    if _compute_gap(before.uptime, window) >= HOUR_SECONDS:  # however many runs there are
        window, grown = before.uptime, Counter()
    whole = {**before.counts, **counts}
    return CounterSnapshot(
        boot=boot,
        uptime=now,
        counts={name: count for name, count in whole.items() if count},
        read=_merge_read(before.read, counts),
        window=window,
        grown=dict(grown + Counter(before.compute_increases(counts))),
    )


def _compute_gap(now: float | None, before: float | None) -> float:
    """Say how many seconds are between two moments; forever if one is not known."""
    return float("inf") if now is None or before is None else now - before


def _merge_read(before: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    places = {kind: dict.fromkeys(listed.split()) for kind, listed in before.items()}
    for name in names:
        place, kind = _split_name(name)
        places.setdefault(kind, {})[place] = None
    return {kind: " ".join(listed) for kind, listed in places.items()}


def make_carry_over(noted: CounterSnapshot, where: str) -> CarryOver:
    """Make the mark that `compute_growth` finds again."""
    return CarryOver(SNAPSHOT_NAME, msgspec.json.encode(noted).decode(), where)


class CounterDelta(Struct, frozen=True):
    """By how much counters grew in a time."""

    counts: Mapping[str, int]
    """Only those that grew."""
    seconds: float | None

    def compute_rate(self, count: float, per: float) -> float | None:
        """Say how much *count* is in a time of *per* seconds, or if it took less."""
        if self.seconds is None:
            return None
        return count * per / max(self.seconds, per)


class Growth(Struct, frozen=True):
    """By how much counters grew since the last run, and in the hour."""

    last: CounterDelta
    hour: CounterDelta
    from_last_run: bool
    """Since the last run; if not, since the driver or the node was started."""

    @property
    def since(self) -> str:
        """Say from when on."""
        return "the last run" if self.from_last_run else "the driver was started"

    def choose_delta(self, per: float) -> CounterDelta:
        """
        Choose by which span a rate per *per* seconds is judged.

        Since the last run, if that is long enough; of runs that come more often than
        that, none may begin to count anew, or no number of them would reach a limit.
        """
        soon = self.last.seconds is not None and self.last.seconds < per
        return self.hour if soon else self.last


def compute_growth(ctx: Context, now: CounterSnapshot, where: str) -> Growth:
    """Compare *now* with what the last run noted, if the node still runs since then."""
    before = _load_snapshot(ctx, where, now.boot)
    if before is None:
        whole = CounterDelta(now.counts, now.uptime)
        return Growth(whole, whole, from_last_run=False)

    def compute_since(moment: float | None) -> float | None:
        known = now.uptime is not None and moment is not None
        return _compute_gap(now.uptime, moment) if known else None

    last = CounterDelta(before.compute_increases(now.counts), compute_since(before.uptime))
    return Growth(last, CounterDelta(now.grown, compute_since(now.window)), from_last_run=True)


def _load_snapshot(ctx: Context, where: str, boot: str) -> CounterSnapshot | None:
    mark = ctx.recall(SNAPSHOT_NAME, where)
    if mark is None:
        return None
    try:
        before = msgspec.json.decode(mark, type=CounterSnapshot)
    except msgspec.MsgspecError:  # an older version wrote it another way
        return None
    return before if before.boot == boot else None


def compute_increase(before: float, after: float) -> int:
    """Say what a counter counted; one that fell was reset, and starts from zero."""
    return int(after - before if after >= before else after)


def find_peak_increase(samples: Sequence[Sample], seconds: float) -> int:
    """Find the most that a counter counted within any *seconds* of its *samples*."""
    steps = [(b.t, compute_increase(a.value, b.value)) for a, b in pairwise(_drop_dips(samples))]
    most = total = first = 0
    for t, step in steps:
        total += step
        while t - steps[first][0] >= seconds:
            total -= steps[first][1]
            first += 1
        most = max(most, total)
    return most


def _drop_dips(samples: Sequence[Sample]) -> list[Sample]:
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
