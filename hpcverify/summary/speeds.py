"""
What low speeds have in common: how slow a part is, in how many speeds, and what is not the cause.

A speed is a rate with a lower limit. The speeds of its siblings in the same run show how slow a
part is; if they are slow too, its distance from the limits does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import Struct

from hpcverify.model import Fault, Inventory, Result
from hpcverify.stats import median
from hpcverify.summary.faults import PartFaults, choose_deciding, pair_with_limits

SLOW = "slow"
"""The fault of a part of which several speeds are low."""
MIN_SIBLINGS = 3
"""Parts of a model from which the median is the usual value."""
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
Speed = tuple[str, str]
"""A check and its metric."""


def is_low_speed(fault: Fault) -> bool:
    """Whether *fault* is about a rate below its limit."""
    return fault.side == "low" and fault.unit.endswith("/s") and fault.value is not None


def list_low_speeds(part: PartFaults) -> dict[Speed, Fault]:
    """List the low speeds of *part*, if one of them decides and they are several."""
    low = {(f.check, f.code): f for f in reversed(part) if is_low_speed(f)}
    decides = any(map(is_low_speed, choose_deciding(part)))
    return low if decides and len(low) > 1 else {}


class SpeedTable(Struct, frozen=True, kw_only=True):
    """What the speeds of a run say of its parts, gathered once for all of them."""

    losses: dict[str, dict[Speed, float | None]]
    """By which share each speed of a part that has a lower limit is below the median over the
    parts of its model, the worst round; None if these are too few."""
    normal: dict[str, frozenset[str]]
    """Which `VITAL_SIGNS` of a part were judged and have no fault."""


def read_speeds(results: Iterable[Result], inventory: Inventory) -> SpeedTable:
    """Gather the speeds of *results*."""
    models = {p.id: (p.kind, p.facts.get("name", "")) for p in inventory.parts}
    signs = {name: sign for sign, names in VITAL_SIGNS.items() for name in names}
    losses: dict[str, dict[Speed, float | None]] = {}
    faults: dict[str, set[str]] = {}
    judged: dict[str, set[str]] = {}
    for result in results:
        for fault in result.faults:
            faults.setdefault(fault.part_id, set()).add(fault.code)
        values: dict[tuple[str, tuple[str, str]], list[float]] = {}
        for item in result.measurements:
            if item.value is not None and item.part_id in models:
                values.setdefault((item.name, models[item.part_id]), []).append(item.value)
        usual = {key: median(some) for key, some in values.items() if len(some) >= MIN_SIBLINGS}
        for item, limit in pair_with_limits(result):
            if item.value is None:
                continue
            if item.name in signs:
                judged.setdefault(item.part_id, set()).add(signs[item.name])
            if limit.low is not None and item.unit.endswith("/s") and item.part_id in models:
                middle = usual.get((item.name, models[item.part_id]))
                speeds = losses.setdefault(item.part_id, {})
                before = speeds.setdefault((result.check, item.name), None)
                if middle:
                    loss = 1 - item.value / middle
                    speeds[result.check, item.name] = max(loss, loss if before is None else before)
    return SpeedTable(
        losses=losses,
        normal={i: _choose_normal(some, faults.get(i, ())) for i, some in judged.items()},
    )


def _choose_normal(signs: Iterable[str], faults: Collection[str]) -> frozenset[str]:
    if any(name.startswith(SLOWDOWNS) for name in faults):
        return frozenset()
    return frozenset(s for s in signs if not any(name.startswith(s) for name in faults))


def describe_low_speeds(parts: Sequence[PartFaults], table: SpeedTable) -> str:
    """Describe how slow the *parts* are, in how many speeds, and which causes are excluded."""
    by_part = {part[0].part_id: list_low_speeds(part) for part in parts}
    losses = {part_id: table.losses.get(part_id, {}) for part_id in by_part}
    low = [
        (losses[part_id].get(speed), fault.distance or 0.0)
        for part_id, faults in by_part.items()
        for speed, fault in faults.items()
    ]
    slow = {part_id: {*faults} for part_id, faults in by_part.items()}
    its = "its" if len(parts) == 1 else "their"
    shares, reference = [distance for _, distance in low], f"below {its} limits"
    # As far from its siblings as from its limit, or farther: they keep that limit.
    if all((loss or -1.0) >= distance for loss, distance in low):
        least = LEAST_SHARE * min(loss or 0.0 for loss, _ in low)
        lost = [
            (part_id, speed, loss)
            for part_id, of in losses.items()
            for speed, loss in of.items()
            if loss and loss >= least
        ]
        shares, reference = [loss for *_, loss in lost], f"slower than {its} siblings"
        for part_id, speed, _ in lost:
            slow[part_id].add(speed)
    names = set[Speed]().union(*slow.values())
    judged = names.union(*losses.values())
    is_all = all(speeds >= losses[part_id].keys() for part_id, speeds in slow.items())
    least_count, most = (f(map(len, slow.values())) for f in (min, max))
    share = f"{least_count} to {most}" if least_count < most else f"{most}"
    count = f"all {len(judged)}" if is_all else f"{share} of {len(judged)}"
    few = sorted({metric for _, metric in names}) if len(names) <= MAX_METRICS else []
    metrics = f" ({', '.join(few)})" if few else ""
    normal = [sign for sign in VITAL_SIGNS if all(sign in table.normal.get(i, ()) for i in by_part)]
    signs = f"; {' and '.join(filter(None, (', '.join(normal[:-1]), *normal[-1:])))} within limits"
    low_share, high_share = (f"{share * 100:.0f}" for share in (min(shares), max(shares)))
    span = low_share if low_share == high_share else f"{low_share} to {high_share}"
    return f"{span} % {reference} in {count} speeds measured{metrics}{signs if normal else ''}"
