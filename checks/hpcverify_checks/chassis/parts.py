"""
What is wrong in a chassis now: fans, power supplies, temperatures, batteries, drives.

A BMC knows best what its sensors mean, so its own verdict counts and no limit of ours. It is
not believed where that cannot be: thresholds of zero or in the wrong order, a value that lies
well on the good side, all power supplies dead in a node that runs. A fan that never turned
here and a group that never was redundant may be built so: they warn until they are accepted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from msgspec import Struct

import hpcverify.check as hv
from hpcverify.telemetry.chassis import (
    Chassis,
    ChassisSensor,
    Defect,
    Redundancy,
    RedundancyState,
    SensorHealth,
    SensorKind,
    Thresholds,
)

ACCEPT = "if it is built so, run once with --accept-parts"
HYSTERESIS_SHARE = 0.2
"""How far inside its threshold, as a share of it, a value may be that a BMC still complains of:
it waits until the value is well inside."""
FAULTS = (SensorHealth.WARNING, SensorHealth.CRITICAL)

SUPPLY_FAULTS: tuple[tuple[Defect, str, str], ...] = (
    (Defect.INPUT_LOST, "supply_input_lost", "has no input power"),
    (Defect.FAILED, "supply_failed", "failed"),
    (Defect.PREDICTED, "supply_predicted", "expects to fail"),
    (Defect.INPUT_WRONG, "supply_input_wrong", "has an input out of range"),
    (Defect.MISMATCHED, "supply_mismatched", "does not fit the others"),
)
"""The defects of a power supply, the worst first: the code of each, and the words for it."""
SUPPLY_FIXES = {
    "supply_input_lost": "check its cable and its feed (outlet, breaker); the supply itself only "
    "if those are good",
    "supply_failed": "check its cable and its feed; if both are good, replace it",
    "supply_predicted": "replace it when the node is free",
    "supply_input_wrong": "check its feed",
    "supply_mismatched": "put in one of the same model",
    "supply_warning": "see the BMC's own page for why",
}
BMC_FIX = "(bmc-device --cold-reset) and update its firmware"
NEEDED_KINDS = (SensorKind.DRIVE, SensorKind.MEMORY, SensorKind.PROCESSOR)
"""Parts that cannot all have failed in a node that runs; some BMCs call all drives failed
(powershell-redfish-lenovo issue 47, check_redfish issue 72)."""
DEAD_SUPPLY_CODES = ("supply_input_lost", "supply_failed")
PART_FAULTS: Mapping[SensorKind, tuple[str, str, str]] = {
    SensorKind.DRIVE: (
        *("drive_failed", "drive_predicted"),
        "see host for the drive, and the controller for its array; replace it if it failed",
    ),
    SensorKind.MEMORY: (
        *("memory_failed", "memory_warning"),
        "see the BMC's event log for why, then reseat or replace it",
    ),
    SensorKind.PROCESSOR: (
        *("processor_failed", "processor_warning"),
        "see the BMC's event log and kernel_log for why",
    ),
    SensorKind.GPU: (*("gpu_failed", "gpu_warning"), "see xid and the BMC's event log for why"),
    SensorKind.LEAK: (
        *("leak_detected", "leak_warning"),
        "look for coolant below it, and close its loop before the node is used again",
    ),
    SensorKind.CONTROLLER: (
        *("controller_warning", "controller_warning"),
        "see the controller's own tool for its battery, its cables and its drives",
    ),
}
"""The parts whose own health counts: the codes if it is critical and if it is a warning, and
the fix."""


class SeenParts(Struct, frozen=True):
    """The parts of a chassis in earlier runs, by name, and those that are accepted as they are."""

    supplies: tuple[str, ...] = ()
    fans: tuple[str, ...] = ()
    """Those that turned."""
    redundant: tuple[str, ...] = ()
    """Groups that could lose a part."""
    silent: tuple[str, ...] = ()
    """Supplies and fans without a reading in the last run."""
    accepted: tuple[str, ...] = ()
    """Fans that stand still and groups without redundancy by design."""


def report_parts(chassis: Chassis, seen: SeenParts) -> Iterator[hv.Finding]:
    """Report what is wrong now, and what was *seen* and is gone."""
    supplies = list(_report_supplies(chassis.sensors))
    fans = list(_report_fans(chassis.sensors, seen))
    yield from supplies
    yield from fans
    failed = {SensorKind.POWER_SUPPLY: supplies, SensorKind.FAN: fans}
    for group in chassis.redundancy:
        if not any(f.code in REDUNDANCY_CAUSES for f in failed.get(group.kind, ())):
            yield from _report_redundancy(group, seen)
    yield from _report_temperatures(chassis.sensors)
    healths = {
        k: [s.health for s in chassis.sensors if s.kind is k and s.is_there] for k in NEEDED_KINDS
    }
    doubtful = [k for k, h in healths.items() if len(h) > 1 and {*h} == {SensorHealth.CRITICAL}]
    for sensor in chassis.sensors:
        if sensor.kind not in doubtful:
            yield from _report_other(sensor)
    for kind in doubtful:
        text = f"the BMC calls every {kind.value} failed, and the node runs: restart the BMC "
        yield hv.Finding("parts_doubtful", "node", f"{text}{BMC_FIX}; then look at the parts")
    yield from _report_summaries(chassis)
    if not chassis.is_partial:
        yield from _report_gone(chassis.sensors, seen)


def remember_parts(chassis: Chassis, seen: SeenParts, *, accept: bool) -> SeenParts:
    """Remember what this run saw beside what earlier ones *seen*; *accept* starts afresh."""
    supplies = {s.part for s in _list_supplies(chassis.sensors) if s.is_there}
    fans = {s.name for s in _list_fans(chassis.sensors) if s.is_there and s.value != 0}
    redundant = {g.name for g in chassis.redundancy if g.state is RedundancyState.FULL}
    if accept:
        meant = {g.name for g in chassis.redundancy if g.state in NOT_REDUNDANT}
        meant |= {s.name for s in _list_fans(chassis.sensors) if s.value == 0}
        return SeenParts(*map(_sort, (supplies, fans, redundant, (), meant)))
    silent = (*seen.supplies, *seen.fans)
    return SeenParts(
        supplies=_sort({*seen.supplies, *supplies}),
        fans=_sort({*seen.fans, *fans}),
        redundant=_sort({*seen.redundant, *redundant}),
        silent=_sort(n for n in silent if _find_presence(n, chassis.sensors) is None),
        accepted=_sort(set(seen.accepted) - fans - redundant),
    )


def _sort(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(names))


def _list_supplies(sensors: Iterable[ChassisSensor]) -> list[ChassisSensor]:
    return [s for s in sensors if s.kind is SensorKind.POWER_SUPPLY]


def _list_fans(sensors: Iterable[ChassisSensor]) -> list[ChassisSensor]:
    return [s for s in sensors if s.kind is SensorKind.FAN]


def _report_supplies(sensors: Sequence[ChassisSensor]) -> Iterator[hv.Finding]:
    supplies = _list_supplies(sensors)
    absent = {s.part for s in supplies if s.health is SensorHealth.ABSENT}
    there = [s for s in supplies if s.part not in absent and s.is_there]
    findings: dict[str, hv.Finding] = {}
    for defect, code, words in SUPPLY_FAULTS:
        for sensor in there:
            if sensor.defect is defect and sensor.health in FAULTS:
                findings.setdefault(sensor.part, _make_supply_fault(sensor, code, words))
    for sensor in there:
        if sensor.health is SensorHealth.CRITICAL:
            findings.setdefault(sensor.part, _make_supply_fault(sensor, "supply_failed", "failed"))
        elif sensor.health is SensorHealth.WARNING:
            made = _make_supply_fault(sensor, "supply_warning", "has a fault")
            findings.setdefault(sensor.part, made)
    dead = [part for part, finding in findings.items() if finding.code in DEAD_SUPPLY_CODES]
    if dead and len(dead) == len({s.part for s in there}):
        clause = "; ".join(f"{part} {findings[part].text.partition(':')[0]}" for part in dead)
        text = (
            f"the BMC calls every power supply dead ({clause}), and the node runs: restart the BMC "
            f"{BMC_FIX}; then look at the supplies"
        )
        yield hv.Finding("supplies_doubtful", "node", text)
        return
    yield from findings.values()


def _make_supply_fault(sensor: ChassisSensor, code: str, words: str) -> hv.Finding:
    text = f"{words} ({sensor.said}): {SUPPLY_FIXES[code]}"
    return hv.Finding(code, sensor.part, text, {"sensor": sensor.name})


def _report_fans(sensors: Iterable[ChassisSensor], seen: SeenParts) -> Iterator[hv.Finding]:
    for fan in _list_fans(sensors):
        if fan.health not in FAULTS or fan.name in seen.accepted:
            continue
        if fan.value is None:
            code = "fan_failed" if fan.health is SensorHealth.CRITICAL else "fan_slow"
            text = f"the BMC complains of it ({fan.said}): see what blocks it, or replace it"
            yield hv.Finding(code, fan.name, text)
        elif _find_side(fan) is not Defect.LOW or not _is_credible(fan):
            yield _list_fault(fan)
        elif fan.value == 0 and fan.name not in seen.fans:
            text = f"stands still, and has never turned in a run: an empty slot? {ACCEPT}; "
            yield hv.Finding("fan_still", fan.name, f"{text}else replace it")
        elif fan.health is SensorHealth.CRITICAL:
            text = f"turns at {_format_reading(fan)}: see what blocks it, or replace it"
            yield hv.Finding("fan_failed", fan.name, text)
        else:
            text = f"turns at {_format_reading(fan)}: see what blocks it"
            yield hv.Finding("fan_slow", fan.name, text)


def _report_temperatures(sensors: Sequence[ChassisSensor]) -> Iterator[hv.Finding]:
    hot = [
        s
        for s in sensors
        if s.kind is SensorKind.TEMPERATURE and s.health in FAULTS and s.value is not None
    ]
    room = [s for s in hot if s.is_ambient and _find_side(s) is Defect.HIGH and _is_credible(s)]
    for sensor in hot:
        has_limits = sensor.thresholds != Thresholds() or sensor.defect
        if has_limits and (_find_side(sensor) is not Defect.HIGH or not _is_credible(sensor)):
            yield _list_fault(sensor)
        elif sensor in room:
            text = f"is at {_format_reading(sensor)}: this is the air of the room, and no fault of "
            yield hv.Finding("room_hot", sensor.name, f"{text}the node: cool the room")
        elif sensor.health is SensorHealth.CRITICAL and has_limits and not room:
            text = f"is at {_format_reading(sensor)}: look at fans, heat sinks and air flow"
            yield hv.Finding("temperature_critical", sensor.part, text, {"sensor": sensor.name})
        else:
            text = f"is at {_format_reading(sensor)}: look at the air flow"
            text += f"; the air at {room[0].name} is too hot" if room else ""
            yield hv.Finding("temperature_high", sensor.part, text, {"sensor": sensor.name})


def _report_other(sensor: ChassisSensor) -> Iterator[hv.Finding]:
    if sensor.health not in FAULTS:
        return
    critical = sensor.health is SensorHealth.CRITICAL
    state = _format_reading(sensor) if sensor.value is not None else f"the BMC says {sensor.said}"
    match sensor.kind:
        case SensorKind.BATTERY if _find_side(sensor) is not Defect.HIGH:
            text = f"runs down ({state}): replace it (on most boards a CR2032)"
            yield hv.Finding("battery_low", sensor.name, text)
        case SensorKind.VOLTAGE if critical and _is_credible(sensor):
            text = f"{state}: look at the power supplies, and have the board looked at"
            yield hv.Finding("voltage_critical", sensor.name, text)
        case kind if kind in PART_FAULTS:
            failed, warning, fix = PART_FAULTS[kind]
            yield hv.Finding(failed if critical else warning, sensor.name, f"{state}: {fix}")
        case SensorKind.FAN | SensorKind.POWER_SUPPLY:
            pass
        case SensorKind.TEMPERATURE if sensor.value is not None:
            pass
        case SensorKind.SUMMARY if critical:
            pass
        case _:
            yield _list_fault(sensor)


def _report_summaries(chassis: Chassis) -> Iterator[hv.Finding]:
    """
    Report an overall health of Critical that no part explains.

    It only warns: several BMCs report wrong ones (gofish issue 303, check_redfish issues 127
    and 200).
    """
    critical = [s for s in chassis.sensors if s.health is SensorHealth.CRITICAL]
    summaries = [s.name for s in critical if s.kind is SensorKind.SUMMARY]
    unread = [s for s in critical if s.kind is SensorKind.TEMPERATURE and s.value is None]
    is_explained = len(critical) > len(summaries) + len(unread) or any(
        group.state is RedundancyState.LOST for group in chassis.redundancy
    )
    if summaries and not is_explained:
        text = (
            f"the BMC reports Critical for {', '.join(summaries)}, and no part that it shows "
            "explains why: see its own page and its event log"
        )
        yield hv.Finding("health_unexplained", "node", text)


def _report_redundancy(group: Redundancy, seen: SeenParts) -> Iterator[hv.Finding]:
    if group.state not in NOT_REDUNDANT or group.name in seen.accepted:
        return
    clause = f"the BMC says {group.said}"
    if group.name not in seen.redundant:
        yield hv.Finding("redundancy_none", group.name, f"is not redundant ({clause}): {ACCEPT}")
    elif group.state is RedundancyState.LOST:
        text = f"can lose no more of its parts ({clause}), and could before: look at each of them"
        yield hv.Finding("redundancy_lost", group.name, text)
    else:
        text = f"has less to spare than before ({clause}): look at each of its parts"
        yield hv.Finding("redundancy_degraded", group.name, text)


def _report_gone(sensors: Sequence[ChassisSensor], seen: SeenParts) -> Iterator[hv.Finding]:
    for kind, names in (("power supply", seen.supplies), ("fan", seen.fans)):
        for name in names:
            presence = _find_presence(name, sensors)
            if presence is False:
                text = f"the {kind} is gone; it was there in an earlier run: put it back; {ACCEPT}"
                yield hv.Finding("part_gone", name, text)
            elif presence is None and name in seen.silent:
                text = f"the {kind} has given no reading in two runs, and did before: is it there? "
                yield hv.Finding("part_gone", name, text + ACCEPT)


def _find_presence(name: str, sensors: Sequence[ChassisSensor]) -> bool | None:
    """Return whether the supply or fan *name* is there; None if no sensor of it can be read."""
    own = [
        s
        for s in (*_list_supplies(sensors), *_list_fans(sensors))
        if name == (s.part if s.kind is SensorKind.POWER_SUPPLY else s.name)
    ]
    if any(s.health is SensorHealth.ABSENT for s in own):
        return False
    return True if any(s.is_there for s in own) else None


def _find_side(sensor: ChassisSensor) -> Defect:
    """Say on which side of its thresholds *sensor* is; NONE if neither tells."""
    if sensor.defect in (Defect.LOW, Defect.HIGH) or sensor.value is None:
        return sensor.defect
    lows = (sensor.thresholds.low_warning, sensor.thresholds.low_critical)
    highs = (sensor.thresholds.high_warning, sensor.thresholds.high_critical)
    if any(bound is not None and sensor.value <= bound for bound in lows):
        return Defect.LOW
    if any(bound is not None and sensor.value >= bound for bound in highs):
        return Defect.HIGH
    return Defect.NONE


def _is_credible(sensor: ChassisSensor) -> bool:
    """
    Say whether a fault of the BMC can be true.

    Boards have been shipped with thresholds of zero, and with low ones above high ones.
    """
    bounds = sensor.thresholds
    ends = (bounds.low_critical, bounds.low_warning, bounds.high_warning, bounds.high_critical)
    if any(a > b for a, b in pairwise(bound for bound in ends if bound is not None)):
        return False
    if _find_side(sensor) is Defect.LOW:
        own = [b for b in (bounds.low_warning, bounds.low_critical) if b is not None]
        limit = max(own, default=None)
        margin = 1 + HYSTERESIS_SHARE
    else:
        own = [b for b in (bounds.high_warning, bounds.high_critical) if b is not None]
        limit = min(own, default=None)
        margin = 1 - HYSTERESIS_SHARE
    if limit is None or sensor.value is None:
        return True  # thresholds that cannot be read
    inside = sensor.value - limit * margin
    return limit > 0 and (inside <= 0 if margin > 1 else inside >= 0)


def _format_reading(sensor: ChassisSensor) -> str:
    """Write the value beside the threshold that it is beyond."""
    bounds, critical = sensor.thresholds, sensor.health is SensorHealth.CRITICAL
    low = _find_side(sensor) is Defect.LOW
    limit = (
        (bounds.low_critical if critical else bounds.low_warning)
        if low
        else (bounds.high_critical if critical else bounds.high_warning)
    )
    text = f"{sensor.value:g} {sensor.unit}".rstrip()
    if limit is None:
        return f"{text}, which the BMC calls {sensor.health.value}"
    word = "critical" if critical else "a warning"
    return f"{text}, {word} {'below' if low else 'from'} {limit:g}"


def _list_fault(sensor: ChassisSensor) -> hv.Finding:
    bounds = sensor.thresholds
    known = {
        "low critical": bounds.low_critical,
        "low warning": bounds.low_warning,
        "high warning": bounds.high_warning,
        "high critical": bounds.high_critical,
    }
    evidence = {name: f"{bound:g}" for name, bound in known.items() if bound is not None}
    value = "" if sensor.value is None else f"{sensor.value:g} {sensor.unit}".rstrip() + ", "
    return hv.Finding("sensor_noted", sensor.name, f"{value}the BMC says {sensor.said}", evidence)


NOT_REDUNDANT = (RedundancyState.LOST, RedundancyState.DEGRADED)
REDUNDANCY_CAUSES = (*DEAD_SUPPLY_CODES, "supplies_doubtful", "fan_failed")
"""Codes of faults that also cost a group its redundancy: only the cause is reported."""

PART_RULES = {
    **hv.fail_on(
        *("supply_failed", "supply_input_lost", "redundancy_lost", "temperature_critical"),
        *("memory_failed", "processor_failed", "gpu_failed", "leak_detected"),
    ),
    **hv.warn_on("supply_predicted", "battery_low", remedy=hv.Remedy.REPLACE),
    **hv.warn_on(
        *("supply_input_wrong", "supply_mismatched", "supply_warning", "supplies_doubtful"),
        *("parts_doubtful", "redundancy_degraded", "redundancy_none", "fan_slow", "fan_still"),
        *("temperature_high", "room_hot", "voltage_critical", "drive_predicted", "memory_warning"),
        *("processor_warning", "gpu_warning", "leak_warning", "controller_warning"),
        *("health_unexplained", "part_gone"),
    ),
    **hv.fail_on("fan_failed", "drive_failed", remedy=hv.Remedy.REPLACE),
    **hv.listed("sensor_noted"),
}
