"""
What low speeds have in common: how slow a part is, in how many speeds, and what is not the cause.

A speed is a rate with a lower limit. What its siblings have in the same run says how slow a part
is; where they are slow too, its distance from the limits does.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from hpcverify.model import Complaint, ComplaintKind, Inventory, Run
from hpcverify.stats import median
from hpcverify.summary.actions import AffectedPart, pair_with_limits

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

Speed = tuple[str, str]
"""A check and its metric."""


def is_low_speed(complaint: Complaint) -> bool:
    """Whether *complaint* is about a rate below its limit."""
    value, limit = complaint.value, complaint.limit
    is_rate = complaint.kind is ComplaintKind.OUTSIDE and complaint.unit.endswith("/s")
    low = limit.low if limit else None
    return is_rate and value is not None and low is not None and 0 <= value < low


def list_low_speeds(part: AffectedPart) -> dict[Speed, Complaint]:
    """List the low speeds of *part*, if one of them decides and they are several."""
    low = {(c.checks[0], c.name): c for c in reversed(part.complaints) if is_low_speed(c)}
    decides = any(map(is_low_speed, part.deciding))
    return low if decides and len(low) > 1 else {}


def describe_low_speeds(parts: Sequence[AffectedPart], run: Run) -> str:
    """Say how slow the *parts* are, in how many of their speeds, and what is not the cause."""
    by_part = {part.part_id: list_low_speeds(part) for part in parts}
    losses = {part_id: _compare_with_siblings(part_id, run) for part_id in by_part}
    low = [
        (part_id, speed, complaint.distance or 0.0)
        for part_id, complaints in by_part.items()
        for speed, complaint in complaints.items()
    ]
    names = {speed for _, speed, _ in low}
    its = "its" if len(parts) == 1 else "their"
    shares, reference = [distance for _, _, distance in low], f"below {its} limits"
    # As far from its siblings as from its limit, or farther: they keep that limit.
    if all((losses[part_id].get(speed) or -1.0) >= distance for part_id, speed, distance in low):
        least = LEAST_SHARE * min(losses[part_id][speed] or 0.0 for part_id, speed, _ in low)
        lost = [(s, loss) for of in losses.values() for s, loss in of.items() if loss]
        names |= {speed for speed, loss in lost if loss >= least}
        shares = [loss for speed, loss in lost if speed in names and loss >= least]
        reference = f"slower than {its} siblings"
    judged = {speed for of in losses.values() for speed in of}
    count = f"all {len(judged)}" if names >= judged else f"{len(names)} of {len(judged)}"
    few = sorted({metric for _, metric in names}) if len(names) <= MAX_METRICS else []
    metrics = f" ({', '.join(few)})" if few else ""
    normal = _list_normal_signs(by_part, run)
    signs = f"; {_join(normal)} within limits" if normal else ""
    return f"{_format_range(shares)} {reference} in {count} speeds measured{metrics}{signs}"


def _compare_with_siblings(part_id: str, run: Run) -> dict[Speed, float | None]:
    """
    Find by which share each speed of *part_id* that has a limit is below that of its siblings.

    None without enough siblings. Of several rounds the worst counts.
    """
    siblings = _list_siblings(part_id, run.inventory)
    losses: dict[Speed, float | None] = {}
    for result in run.results:
        values: dict[str, list[float]] = {}
        for item in result.measurements:
            if item.part_id in siblings and item.value is not None and item.unit.endswith("/s"):
                values.setdefault(item.name, []).append(item.value)
        for item, limit in pair_with_limits(result):
            if item.part_id != part_id or limit.low is None or not item.unit.endswith("/s"):
                continue
            some = values.get(item.name, ())
            usual = median(some) if len(some) >= MIN_SIBLINGS else 0.0
            loss = 1 - (item.value or 0.0) / usual if usual else None
            speed = (result.check, item.name)
            known = [share for share in (loss, losses.get(speed)) if share is not None]
            losses[speed] = max(known, default=None)
    return losses


def _list_siblings(part_id: str, inventory: Inventory) -> frozenset[str]:
    """List the parts of the kind and model of *part_id*, itself included."""
    part = inventory.find_part(part_id)
    if part is None:
        return frozenset()
    like = inventory.of_kind(part.kind)
    return frozenset(p.id for p in like if p.facts.get("name") == part.facts.get("name"))


def _list_normal_signs(ids: Collection[str], run: Run) -> list[str]:
    """List the `VITAL_SIGNS` that were judged on all parts *ids* and have no complaint on any."""
    judged = {
        (item.part_id, item.name)
        for result in run.results
        for item, _ in pair_with_limits(result)
        if item.part_id in ids and item.value is not None
    }
    complaints = {c.name for r in run.results for c in r.complaints if c.part_id in ids}
    if any(name.startswith(SLOWDOWNS) for name in complaints):
        return []
    return [
        sign
        for sign, metrics in VITAL_SIGNS.items()
        if all(any((part_id, name) in judged for name in metrics) for part_id in ids)
        and not any(name.startswith(sign) for name in complaints)
    ]


def _format_range(shares: Sequence[float]) -> str:
    low, high = (f"{share * 100:.0f}" for share in (min(shares), max(shares)))
    return f"{high} %" if low == high else f"{low} to {high} %"


def _join(words: Sequence[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last
