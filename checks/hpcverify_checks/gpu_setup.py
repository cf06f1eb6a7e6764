"""
How the GPUs are set up, and what earlier jobs left on them.

This check only reads: it restores no setting, ends no process and frees no memory. A
setting that differs from the factory default is reported with the command to fix it.

Two things cannot be queried. Locked clocks (nvidia-smi -lgc) show only under load: the
clock stays at one value below the data sheet's, and the driver names no reason for it.
Leftover memory shows only on the host: NVML lists processes by the host's PIDs, so a
listed process that does not exist, or memory that no process holds, counts only where
this process sees all others (not in a container), and only if a second look one second
later finds it again.

Other jobs may be using the GPUs, and those are no leftovers: users of a GPU are listed
and pass. Where nobody else may be left, such as after a job that had the whole node,
`exclusive` makes them a warning, but for those that only draw and an MPS server that waits.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from msgspec import Struct, field

import hpcverify.check as hv
from hpcverify.limits.floors import shares_module_power
from hpcverify.limits.specs import Spec, find_spec
from hpcverify.processes import process_exists
from hpcverify.telemetry import problems
from hpcverify.telemetry.gpus import GpuAnswers, Setup
from hpcverify.telemetry.vendors import SourceFinder, find_source
from hpcverify.units import GIB
from hpcverify_checks.node import gpu_source
from hpcverify_checks.node.fixes import write_command, write_fix
from hpcverify_checks.node.parts import COHERENT_NAME_PREFIXES, look_up_spec

ROUNDING_WATTS = 1.0
"""Limits that differ by no more than this are the same."""
MAX_LEFTOVER_GIB = 1.0
"""Memory in use that no process holds, up to which it is no leftover (inferred): one
context on a large GPU takes half of that, and old drivers count their own use."""
SETTLE_SECONDS = 1.0
"""Time for a process that is ending to release its memory."""
CONTAINER_NOTICE = "GPU processes cannot be identified from inside a container"
HOST_PID_NAMESPACE = "pid:[4026531836]"
"""The first of all PID namespaces; its number is fixed (PROC_PID_INIT_INO)."""

MIN_BUSY_UTILIZATION = 0.9
"""Utilization at which a GPU counts as under load."""
MIN_BUSY_SAMPLES = 10
"""With fewer samples under load, the clock is not judged."""
MIN_LOCKED_SHARE = 0.95
"""Share of the samples in which a locked clock shows the same value."""


class GpuSetupParams(hv.Params, frozen=True):
    """Whether the GPUs are ours alone."""

    exclusive: bool = False
    """Nobody else may use a GPU now: any other process was left by a job."""


class ProcessTable(Struct, frozen=True):
    """The processes of this machine, and which belong to this run."""

    proc: Path = Path("/proc")
    engine: int = field(default_factory=os.getppid)
    """Our parent, which also started the other workers."""
    alive: Callable[[int], bool] = process_exists

    def sees_all(self) -> bool:
        """Whether a PID means the same here and to the driver."""
        namespace = self.proc / "self/ns/pid"
        return namespace.is_symlink() and str(namespace.readlink()) == HOST_PID_NAMESPACE

    def is_ours(self, pid: int) -> bool:
        """Whether *pid* is the engine or one of its descendants."""
        while pid > 1:
            if pid == self.engine:
                return True
            words = self._read(pid, "stat").rpartition(")")[2].split()
            pid = int(words[1]) if words else 0  # its parent
        return False

    def describe(self, pid: int) -> str:
        """Name process *pid*: its number and command."""
        name = self._read(pid, "comm").strip()
        return f"{pid} ({name})" if name else str(pid)

    def _read(self, pid: int, name: str) -> str:
        try:
            return (self.proc / str(pid) / name).read_text(errors="replace")
        except OSError:  # it has ended, or we may not read it
            return ""


def measure(
    ctx: hv.Context, params: GpuSetupParams, find: SourceFinder = find_source
) -> Iterator[hv.CheckItem]:
    """Report how the GPUs are set up, and what is left on them."""
    yield from report_setup(
        ctx, params, gpu_source.open_gpu_source(ctx, find).read_setup, ProcessTable()
    )


def report_setup(
    ctx: hv.Context,
    params: GpuSetupParams,
    ask: Callable[[], GpuAnswers[Setup]],
    host: ProcessTable,
    pause: Callable[[float], None] = time.sleep,
) -> Iterator[hv.CheckItem]:
    """Query the GPUs with *ask*, and compare their answers with the processes of *host*."""
    reply, vendor = ask(), gpu_source.name_vendor(ctx)
    alike = _group_alike(ctx, reply.answers)
    limits = [{reply.answers[uuid].power_limit_w for uuid in siblings} for siblings in alike]
    uniform = {
        uuid
        for siblings, watts in zip(alike, limits, strict=True)
        for uuid in siblings
        if len(siblings) > 1 and len(watts) == 1
    }
    for uuid, setup in reply.answers.items():
        yield from report_modes(uuid, setup, vendor)
        sheet = look_up_spec(ctx, uuid)
        yield from report_power(uuid, setup, vendor, sheet, meant=uuid in uniform)
        yield from _report_slowdown(uuid, setup)
        yield from _list_facts(uuid, setup)
        yield hv.Coverage(uuid, _describe_setup(setup))
    for siblings in alike:
        firmware = {uuid: reply.answers[uuid].firmware for uuid in siblings}
        for what in dict.fromkeys(name for names in firmware.values() for name in names):
            versions = {uuid: names[what] for uuid, names in firmware.items() if what in names}
            yield from _name_odd_versions(ctx, what, versions)
    if host.sees_all():

        def ask_again() -> Mapping[str, Setup]:
            pause(SETTLE_SECONDS)
            return ask().answers

        yield from _find_leftovers(ctx, reply.answers, host, ask_again)
        yield from _report_users(reply.answers, host, exclusive=params.exclusive)
    else:
        yield hv.Coverage("node", CONTAINER_NOTICE)
    yield from gpu_source.report_troubles(reply)


def _list_facts(uuid: str, setup: Setup) -> Iterator[hv.Fact]:
    """List what is as it is on every like GPU of the fleet; the inventory has the VBIOS."""
    facts = {
        "GPU persistence mode": _format_switch(setup.persistence),
        "GPU compute mode": setup.compute_mode,
        "GPU MIG mode": _format_switch(setup.mig),
        "GPU ECC": _format_switch(setup.ecc),
        "GPU InfoROM": setup.firmware.get("inforom"),
        "GPU GSP firmware": setup.firmware.get("gsp"),
    }
    for name, value in facts.items():
        if value:
            yield hv.Fact(name, value, uuid)


def _describe_setup(setup: Setup) -> str:
    facts = {
        "persistence": _format_switch(setup.persistence),
        "MIG": _format_switch(setup.mig),
        "compute mode": setup.compute_mode,
        "power limit": _format_share(setup.power_limit_w, setup.power_default_w, "W"),
        "applications clock": _format_share(
            setup.clock_applications_mhz, setup.clock_max_mhz, "MHz"
        ),
        **setup.firmware,
        "slowdown times from": setup.slowdown_counters,
    }
    return ", ".join(f"{name} {value}" for name, value in facts.items() if value)


def _format_switch(value: bool | None) -> str | None:  # noqa: FBT001 - a setting and not an option
    return None if value is None else ("on" if value else "off")


def _format_share(value: float | None, whole: float | None, unit: str) -> str | None:
    if value is None:
        return None
    return f"{value:g} {unit}" if whole is None else f"{value:g} of {whole:g} {unit}"


def _report_slowdown(uuid: str, setup: Setup) -> Iterator[hv.Finding]:
    # The numbers belong to the finding: a later look cannot show them.
    if not setup.slowed_by:
        return
    clock, celsius = setup.slowed_to
    reasons = {
        "clock": _format_share(clock, setup.clock_max_mhz, "MHz"),
        "temperature": _format_share(celsius, None, "°C"),
    }
    numbers = {name: text for name, text in reasons.items() if text}
    shown = f" ({', '.join(numbers.values())})" if numbers else ""
    text = f"clock throttled now: {', '.join(setup.slowed_by)}{shown}"
    yield hv.Finding("slowed_down", uuid, text, numbers)


def report_modes(uuid: str, setup: Setup, vendor: str) -> Iterator[hv.Finding]:
    """Report modes that a compute GPU should not be in."""
    if setup.persistence is False:
        text = (
            "persistence mode is off: the driver unloads the GPU's state between jobs: "
            f"{write_fix('persistence', vendor)}"
        )
        fix = write_command("persistence", vendor, uuid)
        yield hv.Finding("persistence_off", uuid, text, fix=fix)
    if setup.mig:
        yield hv.Finding("mig_on", uuid, "split into MIG instances")
    if None is not setup.mig_pending is not setup.mig:
        text = f"MIG will be {_format_switch(setup.mig_pending)} after the next GPU reset"
        yield hv.Finding("mig_pending", uuid, text)
    if setup.compute_mode == "prohibited":
        fix = write_fix("compute_mode", vendor)
        text = f"compute mode is 'prohibited', so nothing can run: {fix}"
        command = write_command("compute_mode", vendor, uuid)
        yield hv.Finding("compute_prohibited", uuid, text, fix=command)
    elif setup.compute_mode not in (None, "default"):
        fix = write_fix("compute_mode", vendor)
        text = f"compute mode is {setup.compute_mode}: if several processes share it, {fix}"
        yield hv.Finding("compute_exclusive", uuid, text)


def report_power(
    uuid: str, setup: Setup, vendor: str, sheet: Spec | None = None, *, meant: bool
) -> Iterator[hv.CheckItem]:
    """
    Report the power limits, and whatever keeps the GPU below its own.

    A limit that all GPUs of this model share is *meant*: sites cap their power.
    """
    limit, enforced = setup.power_limit_w, setup.power_enforced_w
    if limit is None:
        return
    yield hv.Measurement("power.limit", limit, "W", uuid)
    default = limit if setup.power_default_w is None else setup.power_default_w
    if limit < default - ROUNDING_WATTS:
        text = f"power limit set to {limit:g} W, default {default:g} W"
        if meant:
            yield hv.Finding("power_capped", uuid, f"{text}, like all GPUs of this model")
        else:
            fix = f"{write_fix('power', vendor)} {default:g}"
            command = write_command("power", vendor, uuid)
            exact = f"{command} {default:g}" if command else ""
            yield hv.Finding("power_limited", uuid, f"{text}: {fix}", fix=exact)
    if limit > default + ROUNDING_WATTS:
        yield hv.Finding(
            "power_raised", uuid, f"power limit raised to {limit:g} W, default {default:g} W"
        )
    if enforced is None or enforced >= limit - ROUNDING_WATTS:
        return
    if shares_module_power(sheet, enforced, limit):
        text = f"gets {enforced:g} of {limit:g} W: the power of its module is limited"
        yield hv.Finding("power_shared", uuid, text)
    else:
        text = (
            f"held to {enforced:g} W although the limit is {limit:g} W: something else "
            "limits it (temperature, a power cable, the chassis)"
        )
        yield hv.Finding("power_held", uuid, text)


def _group_alike(ctx: hv.Context, answers: Mapping[str, Setup]) -> list[list[str]]:
    groups: dict[tuple[str, str], list[str]] = {}
    for gpu in ctx.inventory.of_kind("gpu"):
        if gpu.id in answers:
            kind = (gpu.facts.get("name", ""), gpu.facts.get("board", ""))
            groups.setdefault(kind, []).append(gpu.id)
    return list(groups.values())


def _name_odd_versions(
    ctx: hv.Context, what: str, versions: Mapping[str, str]
) -> Iterator[hv.Finding]:
    ranks = Counter(versions.values()).most_common()
    if len(ranks) < 2:  # noqa: PLR2004 - all the same
        return
    (common, most), (_, next_most), *_ = ranks
    if most == next_most:
        versioned = (f"{ctx.inventory.find_label(u)} {v}" for u, v in versions.items())
        text = f"{what} differs among GPUs of the same model: {', '.join(versioned)}"
        yield hv.Finding("firmware_differs", "node", text)
        return
    for uuid, version in versions.items():
        if version != common:
            text = f"{what} is {version}, but {common} on {most} GPUs of the same model"
            yield hv.Finding("firmware_differs", uuid, text)


def _find_leftovers(
    ctx: hv.Context,
    answers: Mapping[str, Setup],
    host: ProcessTable,
    again: Callable[[], Mapping[str, Setup]],
) -> Iterator[hv.CheckItem]:
    places = {uuid: index for index, uuid in enumerate(answers)}
    dead, spare = _list_ghosts(answers, host), _measure_unowned(ctx, answers)
    if dead or any(gib > MAX_LEFTOVER_GIB for gib in spare.values()):
        later = again()
        dead &= _list_ghosts(later, host)
        still = _measure_unowned(ctx, later)
        spare = {uuid: min(spare[uuid], still[uuid]) for uuid in spare.keys() & still}
    for uuid, pid in sorted(dead, key=lambda ghost: (places[ghost[0]], ghost[1])):
        vendor = gpu_source.name_vendor(ctx)
        end = write_fix("heir", vendor)
        text = f"process {pid} is gone but still holds this GPU: {end}, or reset the GPU"
        yield hv.Finding("process_dead", uuid, text, fix=write_command("heir", vendor, uuid))
    for uuid, gib in sorted(spare.items(), key=lambda kept: places[kept[0]]):
        yield hv.Measurement("memory.leftover", gib, "GiB", uuid)


def _list_ghosts(answers: Mapping[str, Setup], host: ProcessTable) -> set[tuple[str, int]]:
    return {
        (uuid, process.pid)
        for uuid, setup in answers.items()
        for process in setup.processes or ()
        if not host.alive(process.pid)
    }


def _measure_unowned(ctx: hv.Context, answers: Mapping[str, Setup]) -> dict[str, float]:
    names = {p.id: p.facts.get("name", "") for p in ctx.inventory.of_kind("gpu")}
    return {
        uuid: setup.memory_used / GIB
        for uuid, setup in answers.items()
        if setup.processes == ()
        and setup.memory_used is not None
        and not names.get(uuid, "").startswith(COHERENT_NAME_PREFIXES)
    }


def _report_users(
    answers: Mapping[str, Setup], host: ProcessTable, *, exclusive: bool
) -> Iterator[hv.Finding]:
    for uuid, setup in answers.items():
        others = {
            process.pid: process
            for process in setup.processes or ()
            if host.alive(process.pid) and not host.is_ours(process.pid)
        }
        for computes, verb in ((True, "used"), (False, "drawn on or held")):
            alike = {pid: p for pid, p in others.items() if p.computes is computes}
            if alike:
                names = ", ".join(map(host.describe, alike))
                gib = sum(process.memory or 0 for process in alike.values()) / GIB
                code = "process_left" if exclusive and computes else "in_use"
                yield hv.Finding(code, uuid, f"{verb} by process {names}: {gib:.1f} GiB")


Gauges = Mapping[str, Mapping[float, float]]
"""The samples of one part: by series, by time."""


def observe(watch: hv.Watch, ctx: hv.Context, params: GpuSetupParams) -> Iterator[hv.CheckItem]:
    """Measure the clocks that stay at one value, by a lock or by applications clocks."""
    sampled: dict[str, dict[str, dict[float, float]]] = {}
    for sample in watch.samples:
        if sample.name.startswith(("utilization", "clock", "event.", "throttled.")):
            series = sampled.setdefault(sample.part_id, {}).setdefault(sample.name, {})
            series[sample.t] = sample.value
    for gpu in ctx.inventory.of_kind("gpu"):
        spec = find_spec(gpu)
        if spec and spec.peak_clock_mhz and gpu.id in sampled:
            yield from _report_clocks(gpu.id, spec.peak_clock_mhz, sampled[gpu.id])


def _report_clocks(uuid: str, expected: float, sampled: Gauges) -> Iterator[hv.CheckItem]:
    clock = sampled.get("clock", {})
    causes = list_slowdown_causes(sampled)
    usage = sampled.get("utilization", {})
    busy = [t for t, used in usage.items() if used >= MIN_BUSY_UTILIZATION and t in clock]
    if len(busy) < MIN_BUSY_SAMPLES:
        return
    yield hv.Coverage(uuid, f"clock sampled {len(busy)} times under load")
    free = [clock[t] for t in busy if not causes.get(t)]
    requested = [clock[t] for t in busy if "applications_clocks" in causes.get(t, ())]
    locked = _find_locked_value(free) if len(free) >= MIN_BUSY_SAMPLES else None
    if locked is not None:
        yield hv.Measurement("clock.locked", locked / expected, "ratio", uuid)
    if len(requested) >= MIN_LOCKED_SHARE * len(busy):
        share = max(requested) / expected
        yield hv.Measurement("clock.applications", share, "ratio", uuid)


def list_slowdown_causes(sampled: Gauges) -> dict[float, set[str]]:
    """
    List by time of sample what slowed the part down (or that it was idle).

    An event is seen at the moment of the sample; a counter rose since the last one.
    """
    causes: dict[float, set[str]] = {}
    for name, values in sampled.items():
        kind, _, cause = name.partition(".")
        times: list[float] = []
        if kind == "event":
            times = [t for t, value in values.items() if value]
        elif kind == "throttled":
            times = [t for (_, a), (t, b) in pairwise(sorted(values.items())) if b > a]
        for t in times:
            causes.setdefault(t, set()).add(cause)
    return causes


def _find_locked_value(values: Sequence[float]) -> float | None:
    # The one value that nearly all have and none exceeds.
    (value, times), *_ = Counter(values).most_common(1)
    return value if times >= MIN_LOCKED_SHARE * len(values) and value == max(values) else None


CHECK = hv.Check(
    summary="GPU settings, locked clocks, matching firmware, leftovers of earlier jobs",
    measure=measure,
    observe=observe,
    params=GpuSetupParams,
    metrics={
        "power.limit": hv.Metric("W", "low", "the power limit that is set"),
        "clock.locked": hv.Metric(
            "ratio", "neither", "the one clock under load that nothing explains / data sheet"
        ).warn(
            low=0.97,
            remedy=hv.Remedy.FIX_CONFIGURATION,
            source="a lock above that costs less than 3 %; nvidia-smi -rgc unlocks the clock",
        ),
        "clock.applications": hv.Metric(
            "ratio", "neither", "the clock under load that applications clocks set / data sheet"
        ).warn(
            low=0.97,
            remedy=hv.Remedy.FIX_CONFIGURATION,
            source="as for clock.locked; nvidia-smi -rac resets the applications clocks",
        ),
        "memory.leftover": hv.Metric("GiB", "high", "in use, but held by no process").warn(
            high=MAX_LEFTOVER_GIB,
            remedy=hv.Remedy.RESET_GPU,
            source="memory that no process holds is lost until a reset",
        ),
    },
    finding_rules={
        **problems.PROBLEM_RULES,
        **hv.warn_on(
            *("persistence_off", "power_limited", "firmware_differs"),
            remedy=hv.Remedy.FIX_CONFIGURATION,
        ),
        **hv.listed(
            "mig_on", "compute_exclusive", "power_capped", "power_shared", "power_raised", "in_use"
        ),
        **hv.warn_on("mig_pending", remedy=hv.Remedy.RESET_GPU),
        **hv.not_set_up("compute_prohibited"),
        **hv.warn_on("slowed_down", "power_held", "process_dead", "process_left"),
    },
    placement=hv.Placement.PASSIVE,
    timeout=60,
)
