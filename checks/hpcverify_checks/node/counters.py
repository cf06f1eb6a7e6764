"""
What is new in a counter: since the last run, and within a run.

The value of an error counter means little; what counts is its increase since the last
run. So a check saves the values, the time and the boot of the node for the next run to
compare. A counter that fell was reset, so its whole value is new. A counter that was
never read before shows nothing new: its value may be old.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate, pairwise
from pathlib import Path

import msgspec
from msgspec import Struct

import hpcverify.check as hv
from hpcverify.telemetry import sysfs
from hpcverify.telemetry.aer import Link
from hpcverify.units import HOUR_SECONDS

SNAPSHOT_NAME = "counters"
"""The name of the `CarryOver`s that take a part's counters from run to run."""


HARMLESS_ERRORS = frozenset({"UnsupReq", "NonFatalErr"})
"""The kernel's names for an unanswered request, as an error and as an advisory: software
that looks for devices causes them."""
USUAL_LINK = Link(3, 16)
"""Whose errors are allowed where the link of PCIe is not known."""


def list_aer_counts(address: str, errors: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """List the *errors* of the kernel's AER for the device *address*, each kind even at zero."""
    return {f"{address} {kind}": 0 for kind in errors} | {
        f"{address} {kind} {name}": count
        for kind, counts in errors.items()
        for name, count in counts.items()
        if name not in HARMLESS_ERRORS
    }


class Moment(Struct, frozen=True):
    """When counters were read, and the boot of the node in which they began."""

    boot: str
    """Empty for counters that the part keeps for life."""
    seconds: float | None
    """Since that boot, or since 1970; None if it is not known."""

    def since(self, earlier: float | None) -> float | None:
        """Compute the seconds from *earlier* until now."""
        return None if self.seconds is None or earlier is None else self.seconds - earlier


def read_moment(root: Path) -> Moment:
    """Read the current moment, for counters that begin with the boot of the node."""
    uptime = (sysfs.read_text(root / "proc/uptime") or "").partition(" ")[0]
    return Moment(sysfs.read_boot_id(root), float(uptime) if uptime else None)


class CounterSnapshot(Struct, frozen=True):
    """The values of counters at a moment, and their increase in the hour before it."""

    boot: str
    uptime: float | None
    """`Moment.seconds`."""
    counts: dict[str, int]
    """Each value by its owner and what it counts (``5 crc``), without those at zero."""
    read: dict[str, str]
    """The owners whose counters were ever read, at zero or not, by what is counted."""
    window: float | None
    """When the hour began; runs within the hour keep it."""
    grown: dict[str, int]


class CounterDelta(Struct, frozen=True):
    """By how much counters grew in some time."""

    counts: Mapping[str, int]
    seconds: float | None

    @property
    def grown(self) -> dict[str, int]:
        """The counters that grew."""
        return {name: count for name, count in self.counts.items() if count}

    def compute_rate(self, count: float, per: float) -> float | None:
        """Convert *count* to *per* seconds; a shorter time counts as that long."""
        return None if self.seconds is None else count * per / max(self.seconds, per)


class Growth(Struct, frozen=True, kw_only=True):
    """By how much the counters of a part grew since the last run, and in the last hour."""

    last: CounterDelta
    hour: CounterDelta
    from_last_run: bool
    """If not, `last` counts from the start of the driver or the node."""
    restarted: bool
    """Whether the driver or the node was started after the last run."""
    shown: Mapping[str, int]
    """The values of the counters; the last known one if it was not read now."""
    carry_over: hv.CarryOver

    @property
    def start(self) -> str:
        """When the growth began, in words."""
        return "the last run" if self.from_last_run else "the driver was started"

    def choose_delta(self, per: float) -> CounterDelta:
        """
        Choose the span by which a rate per *per* seconds is judged.

        That is the time since the last run if it is long enough. Runs that come more
        often must not restart the count, or no number of them would reach a limit.
        """
        soon = self.last.seconds is not None and self.last.seconds < per
        return self.hour if soon else self.last

    def compute_rate(self, count: Callable[[Mapping[str, int]], float], per: float) -> float | None:
        """Compute how much *count* finds new per *per* seconds, in the span of `choose_delta`."""
        span = self.choose_delta(per)
        return span.compute_rate(count(span.counts), per)

    def list_new(self) -> dict[str, str]:
        """List the counters that grew since the last run, the fastest first, as evidence."""
        return {name: str(count) for name, count in Counter(self.last.grown).most_common()}


def compare_with_last_run(
    ctx: hv.Context, part_id: str, counts: Mapping[str, int], now: Moment
) -> Growth:
    """Compare the *counts* of the part *part_id* with those of the last run."""
    known = None
    with suppress(msgspec.MsgspecError):  # there is none
        recalled = ctx.recall(SNAPSHOT_NAME, part_id) or ""
        known = msgspec.json.decode(recalled, type=CounterSnapshot)
    fresh = CounterSnapshot(now.boot, now.seconds, {}, {}, now.seconds, {})
    before = known if known and known.boot == now.boot else fresh
    whole = {**before.counts, **counts}
    read = {kind: dict.fromkeys(listed.split()) for kind, listed in before.read.items()}
    new: dict[str, int] = {}
    for name, count in counts.items():
        place, kind, *_ = (*name.split(" "), "")
        if place in before.read.get(kind, "").split():
            new[name] = int(compute_increase(before.counts.get(name, 0), count))
        read.setdefault(kind, {})[place] = None
    window, grown = before.window, Counter(before.grown)
    age = Moment("", before.uptime).since(window)
    if age is None or age >= HOUR_SECONDS:
        window, grown = before.uptime, Counter()
    snapshot = CounterSnapshot(
        boot=now.boot,
        uptime=now.seconds,
        counts={name: count for name, count in whole.items() if count},
        read={kind: " ".join(places) for kind, places in read.items()},
        window=window,
        grown={name: count for name, count in (grown + Counter(new)).items() if count},
    )
    last, hour = (
        (CounterDelta(whole, now.seconds),) * 2
        if before is fresh
        else (
            CounterDelta(new, now.since(before.uptime)),
            CounterDelta(snapshot.grown, now.since(window)),
        )
    )
    return Growth(
        last=last,
        hour=hour,
        from_last_run=before is not fresh,
        restarted=known is not None and before is fresh,
        shown=snapshot.counts,
        carry_over=hv.CarryOver(SNAPSHOT_NAME, msgspec.json.encode(snapshot).decode(), part_id),
    )


def compute_increase(before: float, after: float) -> float:
    """Compute what a counter counted; one that fell was reset to zero."""
    return after - before if after >= before else after


def sum_increases(samples: Sequence[hv.Sample]) -> list[tuple[float, float]]:
    """List when a counter was sampled, and its count since the first sample."""
    kept = _drop_dips(samples)
    steps = (compute_increase(a.value, b.value) for a, b in pairwise(kept))
    return list(zip((s.t for s in kept), accumulate(steps, initial=0.0), strict=True))


def find_peak_increase(samples: Sequence[hv.Sample], seconds: float) -> int:
    """Find the most that a counter counted within any *seconds* of its *samples*."""
    totals = sum_increases(samples)
    most, first = 0.0, 0
    for t, total in totals[1:]:
        while t - totals[first + 1][0] >= seconds:
            first += 1
        most = max(most, total - totals[first][1])
    return int(most)


def find_peak_rate(samples: Sequence[hv.Sample], seconds: float, shortest: float) -> float:
    """
    Find the highest rate (1/s) over any *seconds*, or over all samples if they are fewer.

    A time below *shortest* seconds counts as that long.
    """
    totals = sum_increases(samples)
    highest, first = 0.0, 0
    for last in range(1, len(totals)):
        t, total = totals[last]
        while t - totals[first][0] > seconds and first < last - 1:
            first += 1
        then, before = totals[first]
        highest = max(highest, (total - before) / max(t - then, shortest))
    return highest


def _drop_dips(samples: Sequence[hv.Sample]) -> list[hv.Sample]:
    """
    Leave out samples where a counter fell and came back: part of its sum was not read.

    A counter that was reset stays low.
    """
    highest_later = list(accumulate((s.value for s in reversed(samples)), max))[::-1]
    kept: list[hv.Sample] = []
    for sample, later in zip(samples, highest_later, strict=True):
        if not kept or not sample.value < kept[-1].value <= later:
            kept.append(sample)
    return kept
