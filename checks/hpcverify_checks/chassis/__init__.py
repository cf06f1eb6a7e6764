"""
What the service processor (BMC) sees and the operating system does not: the chassis.

Fans, power supplies and their redundancy, temperatures against their own thresholds,
batteries, and the event log since this node's last run. A fifth of the named faults of a cluster
for language models are of these kinds. The BMC is asked in band, by FreeIPMI over /dev/ipmi0: a
node without one, as a virtual machine, is skipped.

The state of a part comes from its sensor, by the BMC's own verdict. The log shows what is over:
an uncorrected error of memory, a processor that stopped. Only entries since the last run count,
as in `kernel_log`; a first run takes one day. The log is never cleared.

A BMC that does not answer is an ERROR, and nothing waits for it longer than its deadline.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Struct

import hpcverify.check as hv
from hpcverify.processes import ToolRunner, run_tool
from hpcverify.telemetry import fault_table, ipmi
from hpcverify.telemetry.chassis import Chassis, SensorHealth, SensorKind
from hpcverify.units import format_count
from hpcverify_checks.chassis.events import (
    ROWS,
    LogMark,
    LogPart,
    find_row,
    make_mark,
    quote,
    report_events,
    select_new,
)
from hpcverify_checks.chassis.parts import PART_RULES, SeenParts, remember_parts, report_parts

T = TypeVar("T")
LOG_MARK, PARTS_MARK = "log", "parts"
"""The names of the marks with the end of the log, and with the parts that the chassis had."""
MEASURED = {
    SensorKind.TEMPERATURE: ("temperature", "°C"),
    SensorKind.FAN: ("fan.speed", "RPM"),
}


class ChassisParams(hv.Params, frozen=True):
    """How long to wait for all that the BMC has to say, in seconds."""

    patience: Annotated[float, Meta(gt=0)] = 60.0


class ChassisSeams(Struct, frozen=True):
    """Where the check looks, and by what: a test gives another machine."""

    root: Path = Path("/")
    tool: ToolRunner = run_tool


def measure(ctx: hv.Context, params: ChassisParams) -> Iterator[hv.CheckItem]:
    """Report what the BMC of this node says."""
    yield from inspect(ctx, params, ChassisSeams())


def inspect(ctx: hv.Context, params: ChassisParams, node: ChassisSeams) -> Iterator[hv.CheckItem]:
    """Report what the BMC of *node* says."""
    try:
        chassis = _ask(node, params.patience)
    except hv.Unable as unable:
        yield from ctx.carry_overs  # the next run goes on where this one should have
        if unable.cause in (hv.Cause.MISSING, hv.Cause.DENIED) and not ctx.carry_overs:
            raise hv.Skip(str(unable), hv.Cause.NOT_OBSERVABLE) from None
        raise
    yield from report_chassis(chassis, ctx)


def _ask(node: ChassisSeams, patience: float) -> Chassis:
    device = ipmi.find_device(node.root)
    if device is None:
        # Without -a, modprobe takes the second name for a parameter of the first module.
        fix = "modprobe -a ipmi_devintf ipmi_si"
        text = f"no /dev/ipmi0: this node has no BMC, or its driver is not loaded: {fix}"
        raise hv.Unable(text, hv.Cause.MISSING)
    if not os.access(device, os.R_OK | os.W_OK):
        raise hv.Unable(f"only root may ask the BMC ({device})", hv.Cause.DENIED)
    return ipmi.read_chassis(device, node.root, node.tool, patience)


def interpret(chassis: Chassis, ctx: hv.Context, _params: ChassisParams) -> Iterator[hv.CheckItem]:
    """Report the same of a *chassis* that was read from another machine."""
    return report_chassis(chassis, ctx)


def report_chassis(chassis: Chassis, ctx: hv.Context) -> Iterator[hv.CheckItem]:
    """Report what is wrong in *chassis* now, and what its log says since the last run."""
    mark = _recall(ctx, LOG_MARK, LogMark)
    known = _recall(ctx, PARTS_MARK, SeenParts)
    accept = ctx.previous is None and known is not None
    seen = SeenParts() if accept or known is None else known
    now = seen if chassis.is_partial else remember_parts(chassis, seen, accept=accept)
    yield from report_parts(chassis, now if accept else seen)
    yield hv.CarryOver(PARTS_MARK, msgspec.json.encode(now).decode())
    yield hv.Coverage("node", _describe(chassis))
    yield from _report_log(chassis, mark)
    for sensor in chassis.sensors:
        name, unit = MEASURED.get(sensor.kind, ("", ""))
        if name and sensor.unit == unit and sensor.value is not None:
            yield hv.Measurement(name, sensor.value, unit, sensor.name)
    if chassis.bmc.firmware:
        yield hv.Fact("BMC firmware", chassis.bmc.firmware)


def _recall(ctx: hv.Context, name: str, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(ctx.recall(name) or "", type=kind)
    except msgspec.MsgspecError:  # there is none, or an older version wrote another format
        return None


def _report_log(chassis: Chassis, mark: LogMark | None) -> Iterator[hv.CheckItem]:
    log = chassis.log
    if log.unread_reason:
        text = f"the event log cannot be read ({log.unread_reason}): see ipmi-sel --info"
        yield hv.Finding("log_unread", "node", text)
        if mark is not None:
            yield hv.CarryOver(LOG_MARK, msgspec.json.encode(mark).decode())
        return
    part = LogPart(()) if log.is_reported else select_new(log, mark)
    yield from report_events(part.new, chassis)
    faults = [e for e in part.older if (row := find_row(e)) and row.verdict > hv.Verdict.PASS]
    if faults:
        text = (
            f"{len(faults)} of {len(part.older)} older entries report faults, which may have "
            f"been repaired; the last: {quote(faults[-1])}"
        )
        yield hv.Finding("before_first_run", "node", text)
    if part.note:
        yield hv.Coverage("node", part.note)
    if log.is_full and not (mark and mark.was_full and part.new):  # else it goes round
        text = (
            "the event log is full, so that the BMC may drop new events: ipmi-sel > FILE, "
            "then ipmi-sel --clear"
        )
        yield hv.Finding("log_full", "node", text)
    yield hv.CarryOver(LOG_MARK, msgspec.json.encode(make_mark(log)).decode())
    read = "1 new entry" if len(part.new) == 1 else f"{len(part.new)} new entries"
    yield hv.Coverage("node", f"event log: {read} of {len(log.events)}")


def _describe(chassis: Chassis) -> str:
    readable = [s for s in chassis.sensors if s.is_there or s.health is SensorHealth.ABSENT]
    supplies = {s.part for s in readable if s.kind is SensorKind.POWER_SUPPLY}
    supplies -= {s.part for s in readable if s.health is SensorHealth.ABSENT}
    fans = [s for s in readable if s.kind is SensorKind.FAN and s.value]
    firmware = f", firmware {chassis.bmc.firmware}" if chassis.bmc.firmware else ""
    counts = ", ".join(
        (
            format_count(len(chassis.sensors), "sensor"),
            format_count(len(fans), "fan"),
            f"{len(supplies)} power {'supply' if len(supplies) == 1 else 'supplies'}",
        )
    )
    return f"{chassis.bmc.name}{firmware}: {counts}"


CHECK = hv.Check(
    summary="fans, power supplies, temperatures and event log, as reported by the BMC",
    measure=measure,
    params=ChassisParams,
    metrics={
        "temperature": hv.Metric("°C", "high", "a sensor of the BMC"),
        "fan.speed": hv.Metric("RPM", "neither", "a fan"),
    },
    finding_rules={
        **PART_RULES,
        **fault_table.build_finding_rules(ROWS.values()),
        **hv.warn_on("log_full", remedy=hv.Remedy.FIX_CONFIGURATION),
        **hv.error_on("log_unread", cause=hv.Cause.UNMEASURED),
        **hv.listed("before_first_run"),
    },
    interpret=interpret,
    placement=hv.Placement.PASSIVE,
    timeout=180,
)
