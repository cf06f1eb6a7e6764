"""
What low speeds have in common: how slow a part is, in how many speeds, and what is not the cause.

A speed is a rate with a lower limit. What its siblings have in the same run says how slow a part
is; where they are slow too, its distance from the limits does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from msgspec import Struct

from hpcverify.check import is_pattern, matches
from hpcverify.model import Fault, FaultKind, Measurement, Result, Run
from hpcverify.stats import median
from hpcverify.summary.actions import AffectedPart

SLOW = "slow"
"""The fault of a part of which several speeds are low."""
MIN_SIBLINGS = 3
"""Parts of a model from which the median says what is usual."""
LEAST_SHARE = 0.5
"""The share of the smallest loss past a limit from which another speed counts as low too."""
VITAL_SIGNS: Mapping[str, Collection[str]] = {
    "clock": ("clock.mean",),
    "temperature": ("temperature.headroom.min", "temperature.memory.max"),
    "power": ("power.mean",),
}
"""What the check `thermal` judges under load of the causes of a low speed. Other metrics and codes
about one of them begin with its key."""
SLOWDOWNS = ("throttled", "held_back")
"""How the metrics begin that say that one of them is the cause."""
MAX_METRICS = 3
"""Metrics that a line names."""
MAX_PATTERNS = 100
"""Limits with a pattern that are compared with the names of speeds: a check has a few."""

Speed = tuple[str, str]
"""A check and its metric."""


def is_low_speed(fault: Fault) -> bool:
    """Whether *fault* is about a rate below its limit."""
    value, limit = fault.value, fault.limit
    is_rate = fault.kind is FaultKind.OUTSIDE and fault.unit.endswith("/s")
    low = limit.low if limit else None
    return is_rate and value is not None and low is not None and 0 <= value < low


def list_low_speeds(part: AffectedPart) -> dict[Speed, Fault]:
    """List the low speeds of *part*, if one of them decides and they are several."""
    low = {(c.checks[0], c.name): c for c in reversed(part.faults) if is_low_speed(c)}
    decides = any(map(is_low_speed, part.deciding))
    return low if decides and len(low) > 1 else {}


class SpeedTable(Struct, frozen=True, kw_only=True):
    """What the speeds of a run say of its parts, gathered once for all of them."""

    losses: dict[str, dict[Speed, float | None]]
    """By which share each speed of a part that has a lower limit is below the median over the
    parts of its model, the worst round; None if these are too few."""
    judged_signs: frozenset[tuple[str, str]]
    """Parts and metrics of `VITAL_SIGNS` that were measured and have a limit."""
    faults: dict[str, frozenset[str]]
    """The metrics and codes of all faults about a part."""


def read_speeds(run: Run) -> SpeedTable:
    """Gather the speeds of *run*. A document with many limits takes no longer for it."""
    models = {p.id: (p.kind, p.facts.get("name", "")) for p in run.inventory.parts}
    losses: dict[str, dict[Speed, float | None]] = {}
    signs: set[tuple[str, str]] = set()
    faults: dict[str, set[str]] = {}
    for result in run.results:
        for fault in result.faults:
            faults.setdefault(fault.part_id, set()).add(fault.name)
        signs |= _list_judged_signs(result)
        for item, loss in _compare_with_siblings(result, models):
            speeds = losses.setdefault(item.part_id, {})
            speed = (result.check, item.name)
            known = [share for share in (loss, speeds.get(speed)) if share is not None]
            speeds[speed] = max(known, default=None)
    return SpeedTable(
        losses=losses,
        judged_signs=frozenset(signs),
        faults={part_id: frozenset(names) for part_id, names in faults.items()},
    )


def _compare_with_siblings(
    result: Result, models: Mapping[str, tuple[str, str]]
) -> Iterator[tuple[Measurement, float | None]]:
    """Yield each speed with its loss against the median over the parts of that model."""
    limited = {limit.name for limit in result.limits if limit.low is not None and not limit.noisy}
    patterns = [name for name in limited if is_pattern(name)][:MAX_PATTERNS]
    rates = [m for m in result.measurements if m.unit.endswith("/s") and m.part_id in models]
    names = {item.name for item in rates}
    speeds = {n for n in names if n in limited or any(matches(n, p) for p in patterns)}
    values: dict[tuple[str, tuple[str, str]], list[float]] = {}
    for item in rates:
        if item.value is not None:
            values.setdefault((item.name, models[item.part_id]), []).append(item.value)
    usual = {key: median(some) for key, some in values.items() if len(some) >= MIN_SIBLINGS}
    for item in rates:
        if item.name in speeds and item.value is not None:
            middle = usual.get((item.name, models[item.part_id]))
            yield item, 1 - item.value / middle if middle else None


def _list_judged_signs(result: Result) -> set[tuple[str, str]]:
    metrics = {name for names in VITAL_SIGNS.values() for name in names}
    limits = {(x.part_id, x.name) for x in result.limits if x.name in metrics and not x.noisy}
    return {
        (item.part_id, item.name)
        for item in result.measurements
        if item.value is not None
        and not limits.isdisjoint({(item.part_id, item.name), ("", item.name)})
    }


def describe_low_speeds(parts: Sequence[AffectedPart], table: SpeedTable) -> str:
    """Say how slow the *parts* are, in how many of their speeds, and what is not the cause."""
    by_part = {part.part_id: list_low_speeds(part) for part in parts}
    losses = {part_id: table.losses.get(part_id, {}) for part_id in by_part}
    low = [
        (part_id, speed, fault.distance or 0.0)
        for part_id, faults in by_part.items()
        for speed, fault in faults.items()
    ]
    slow = {part_id: {*faults} for part_id, faults in by_part.items()}
    its = "its" if len(parts) == 1 else "their"
    shares, reference = [distance for _, _, distance in low], f"below {its} limits"
    # As far from its siblings as from its limit, or farther: they keep that limit.
    if all((losses[part_id].get(speed) or -1.0) >= distance for part_id, speed, distance in low):
        least = LEAST_SHARE * min(losses[part_id][speed] or 0.0 for part_id, speed, _ in low)
        lost = [(i, s, loss) for i, of in losses.items() for s, loss in of.items() if loss]
        shares = [loss for _, _, loss in lost if loss >= least]
        for part_id, speed, loss in lost:
            if loss >= least:
                slow[part_id].add(speed)
        reference = f"slower than {its} siblings"
    names = set[Speed]().union(*slow.values())
    judged = names.union(*losses.values())
    is_all = all(speeds >= losses[part_id].keys() for part_id, speeds in slow.items())
    least_count, most = (f(map(len, slow.values())) for f in (min, max))
    share = f"{least_count} to {most}" if least_count < most else f"{most}"
    count = f"all {len(judged)}" if is_all else f"{share} of {len(judged)}"
    few = sorted({metric for _, metric in names}) if len(names) <= MAX_METRICS else []
    metrics = f" ({', '.join(few)})" if few else ""
    normal = _list_normal_signs(by_part, table)
    signs = f"; {_join(normal)} within limits" if normal else ""
    return f"{_format_range(shares)} {reference} in {count} speeds measured{metrics}{signs}"


def _list_normal_signs(ids: Collection[str], table: SpeedTable) -> list[str]:
    """List the `VITAL_SIGNS` that were judged on all parts *ids* and have no fault on any."""
    faults = frozenset[str]().union(*(table.faults.get(i, ()) for i in ids))
    if any(name.startswith(SLOWDOWNS) for name in faults):
        return []
    return [
        sign
        for sign, metrics in VITAL_SIGNS.items()
        if all(any((i, name) in table.judged_signs for name in metrics) for i in ids)
        and not any(name.startswith(sign) for name in faults)
    ]


def _format_range(shares: Sequence[float]) -> str:
    low, high = (f"{share * 100:.0f}" for share in (min(shares), max(shares)))
    return f"{high} %" if low == high else f"{low} to {high} %"


def _join(words: Sequence[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last
