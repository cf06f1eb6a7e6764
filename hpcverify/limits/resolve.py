"""
Turn rules into limits: from data sheets, suites and the site, siblings, and the past.

`resolve` turns the rules of a check into limits with numbers, each with its source in
words, after the measurements: what a part should reach depends on its model, on its
siblings in the node, and on what it reached before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from hpcverify.check import (
    ANY_PART,
    Rule,
    RuleKey,
    find_rule,
    find_rules,
    format_quantity,
    list_rule_keys,
    matches,
)
from hpcverify.limits.floors import SPEED_SETTINGS, Floor, find_floor
from hpcverify.model import Inventory, Limit, Measurement, Part, Remedy
from hpcverify.stats import MAD_SCALE, find_mad, median
from hpcverify.units import convert_unit, scale_unit

PastValues = Callable[[str, str], Sequence[float]]
"""What earlier runs of the node measured under a name on a part, newest first."""

MIN_SIBLINGS = 3
"""If only two differ, nobody can say which one is wrong."""
MIN_BASELINE_RUNS = 5
MIN_DEVIATIONS = 3.0
"""Deviations that must fit between the median and a usable limit."""


def resolve(
    rules: Mapping[str, Rule],
    measurements: Sequence[Measurement],
    inventory: Inventory,
    past: PastValues,
    overrides: Sequence[Rule] = (),
) -> tuple[Limit, ...]:
    """Make the limits of *measurements* from *rules* and *overrides*, strongest first."""
    judged: dict[RuleKey, list[tuple[Measurement, Rule]]] = {}
    for item in measurements:
        names = inventory.list_aliases(item.part_id) if overrides else ()
        for key, rule in find_rules(rules, overrides, item.name, names):
            judged.setdefault(key, []).append((item, rule))
    limits: list[Limit] = []
    for key in list_rule_keys(rules, overrides):
        pairs = judged.get(key, [])
        if not pairs:
            # Without a measurement nothing meets the limit: a typo must not pass.
            hit = find_rule(rules, overrides, key[0], (key[1],))
            if hit and not (hit[1].optional or _is_measured(key, measurements, inventory)):
                unmet = _make_absolute_limit(key[0], hit[1])
                limits.append(replace(unmet, part_id="" if key[1] == ANY_PART else key[1]))
            continue
        limits += _make_absolute_limits(key, pairs, measurements)
        for item, rule in pairs:
            if (rule.of_spec, rule.of_siblings, rule.of_baseline) != (None, None, None):
                limits += _make_item_limits(rule, item, measurements, inventory, past)
    return tuple(dict.fromkeys(limits))


def _is_measured(key: RuleKey, measurements: Sequence[Measurement], inventory: Inventory) -> bool:
    """Whether anything that *key* names was measured, whichever rule judges it."""
    metric, part = key
    return any(
        matches(item.name, metric)
        and (
            part == ANY_PART
            or any(matches(name, part) for name in inventory.list_aliases(item.part_id))
        )
        for item in measurements
    )


def _make_absolute_limits(
    key: RuleKey, pairs: Sequence[tuple[Measurement, Rule]], measurements: Sequence[Measurement]
) -> Iterator[Limit]:
    """Make one limit for all that *key* covers; where rules differ, one for each measurement."""
    metric, part = key
    rule = pairs[0][1]
    covered = sum(matches(item.name, metric) for item in measurements)
    if part == ANY_PART and len(pairs) == covered and all(other == rule for _, other in pairs):
        if _is_absolute(rule):
            yield _make_absolute_limit(metric, rule)
        return
    for item, own in pairs:
        if _is_absolute(own):
            yield replace(_make_absolute_limit(item.name, own), part_id=item.part_id)


def _is_absolute(rule: Rule) -> bool:
    return rule.low is not None or rule.high is not None


def _make_item_limits(
    rule: Rule,
    item: Measurement,
    measurements: Sequence[Measurement],
    inventory: Inventory,
    past: PastValues,
) -> list[Limit]:
    part = _find_gpu(item.part_id, inventory) if rule.of_spec is not None else None
    floor = find_floor(part, item.name, rule.verdict) if part else None
    without = f"; {floor}" if isinstance(floor, str) else ""
    made = [
        *_make_floor_limit(rule, item, floor),
        *_make_sibling_limit(rule, item, measurements, inventory),
        *_make_baseline_limit(rule, item, past),
    ]
    if made:
        return [replace(limit, source=limit.source + without) for limit in made]
    return list(_make_unresolved_limit(rule, item, without))


def _make_absolute_limit(name: str, rule: Rule) -> Limit:
    return Limit(
        name=name,
        low=rule.low,
        high=rule.high,
        otherwise=rule.verdict,
        remedy=rule.remedy or Remedy.INSPECT,
        cause=rule.cause,
        conclusive=rule.conclusive,
        source=rule.source,
    )


def _make_relative_limit(  # a limit is a fraction of a reference, for one part
    rule: Rule, item: Measurement, fraction: float, reference: float, source: str
) -> Limit:
    bound = fraction * reference
    low, high = (bound, None) if fraction <= 1 else (None, bound)
    limit = _make_absolute_limit(item.name, replace(rule, low=low, high=high, source=source))
    return replace(limit, part_id=item.part_id)


def _make_unresolved_limit(rule: Rule, item: Measurement, without: str) -> Iterator[Limit]:
    if rule.optional or (rule.of_spec is None and rule.of_siblings is None):
        return
    yield Limit(
        name=item.name,
        part_id=item.part_id,
        otherwise=rule.verdict,
        source=rule.source,
        noisy=f"not judged: neither a data sheet nor {MIN_SIBLINGS} siblings to "
        f"make the limit from ({rule.source}){without}",
    )


def _find_gpu(part_id: str, inventory: Inventory) -> Part | None:
    """Find the GPU *part_id*; any of them for what they do together, if all are alike."""
    gpus = inventory.of_kind("gpu")
    if part_id != "node":
        return next((gpu for gpu in gpus if gpu.id == part_id), None)
    return gpus[0] if len({gpu.facts.get("name") for gpu in gpus}) == 1 else None


def _make_floor_limit(rule: Rule, item: Measurement, floor: Floor | str | None) -> Iterator[Limit]:
    if rule.of_spec is None or not isinstance(floor, Floor):
        return
    promised = convert_unit(floor.promise.value, floor.promise.unit, item.unit)
    limit = _make_relative_limit(
        rule,
        item,
        rule.of_spec,
        convert_unit(floor.compute(1.0), floor.promise.unit, item.unit),
        floor.describe(rule.of_spec, format_quantity(*scale_unit(promised, item.unit))),
    )
    otherwise = floor.cap_verdict(rule.verdict)
    yield replace(
        limit, otherwise=otherwise, conclusive=rule.conclusive and otherwise is rule.verdict
    )


def _make_sibling_limit(
    rule: Rule, item: Measurement, measurements: Sequence[Measurement], inventory: Inventory
) -> Iterator[Limit]:
    if rule.of_siblings is None:
        return
    same = [m for m in measurements if m.name == item.name]
    kinds = {part_id: _identify_kind(part_id, inventory) for part_id in {m.part_id for m in same}}
    values = [
        m.value for m in same if m.value is not None and kinds[m.part_id] == kinds[item.part_id]
    ]
    if len(values) < MIN_SIBLINGS:
        return
    middle = median(values)
    yield _make_relative_limit(
        rule,
        item,
        rule.of_siblings,
        middle,
        f"{rule.of_siblings:g} x {format_quantity(*scale_unit(middle, item.unit))}, the median of "
        f"{len(values)} siblings in this node",
    )


def _identify_kind(part_id: str, inventory: Inventory) -> tuple[str, ...]:
    """Return the kind, model and settings of *part_id*, which siblings share."""
    part = inventory.find_part(part_id)
    if part is None:
        return (part_id.rstrip("0123456789"),)
    return part.kind, *(part.facts.get(fact, "") for fact in ("name", *SPEED_SETTINGS))


def _make_baseline_limit(rule: Rule, item: Measurement, past: PastValues) -> Iterator[Limit]:
    values = past(item.name, item.part_id) if rule.of_baseline else ()
    if rule.of_baseline is None or len(values) < MIN_BASELINE_RUNS:
        return
    middle = median(values)
    if not middle:  # nothing is a fraction of zero
        return
    deviation = MAD_SCALE * find_mad(values, middle)
    limit = _make_relative_limit(
        rule,
        item,
        rule.of_baseline,
        middle,
        f"{rule.of_baseline:g} x {format_quantity(*scale_unit(middle, item.unit))}, the median of "
        f"this node's last {len(values)} runs",
    )
    share, room = deviation / abs(middle), abs(1 - rule.of_baseline)
    if MIN_DEVIATIONS * share <= room:
        yield limit
        return
    yield Limit(
        name=limit.name,
        part_id=limit.part_id,
        otherwise=limit.otherwise,
        source=limit.source,
        noisy=f"too noisy to judge (past runs spread by {share:.0%}, the limit leaves {room:.0%})",
    )
