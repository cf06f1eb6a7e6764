"""Cores, NUMA nodes, memory, and the settings of kernel and processor that a site lists."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

import hpcverify.check as hv
from hpcverify.telemetry import cpu, sysfs
from hpcverify.units import GIB
from hpcverify_checks.host.needs import Expectation, fits, is_pattern

CPU_FACTS = ("sockets", "cores", "threads", "numa_nodes")
# Threads are a setting of the firmware; cores and sockets hardly ever.
HELD_FACTS = {"sockets": "cores_missing", "cores": "cores_missing", "numa_nodes": "numa_missing"}
"""What a CPU is held to, and the code of the finding if it has less."""
COUNTS_MARK = "counts"
"""The name of the `CarryOver` with the most that a CPU has had of `HELD_FACTS`."""
SMT_OFF = frozenset({"off", "forceoff", "notsupported", "notimplemented"})


def measure_memory(memory: Mapping[str, float]) -> Iterator[hv.Measurement]:
    """Report what there is and what is left, of memory and swap."""
    for name, field in (
        ("memory.total", "MemTotal"),
        ("memory.available", "MemAvailable"),
        ("swap.total", "SwapTotal"),
        ("swap.free", "SwapFree"),
    ):
        if field in memory:
            yield hv.Measurement(name, memory[field] / GIB, "GiB")
    if memory.get("MemTotal") and "MemAvailable" in memory:
        share = memory["MemAvailable"] / memory["MemTotal"]
        yield hv.Measurement("memory.available_share", share, "ratio")


def measure_cores(ctx: hv.Context, root: Path) -> Iterator[hv.CheckItem]:
    """
    Count sockets, cores, threads and NUMA nodes, and report those that are gone.

    What is gone is reported in each run until it is back, or accepted: otherwise the rerun that
    is to confirm it would find nothing missing.
    """
    parts = ctx.inventory.of_kind("cpu")
    for part in parts:
        for fact in CPU_FACTS:
            if fact in part.facts:
                yield hv.Measurement(fact, float(part.facts[fact]), "", part.id)
    if cpu.is_virtual(root):  # it may be resized
        return
    offline = list_offline(root)
    if offline:
        numbers = ", ".join(map(str, offline))
        text = (
            f"CPU {numbers} is offline: see the kernel log for why; then "
            f"echo 1 > /sys/devices/system/cpu/cpu{offline[0]}/online"
        )
        yield hv.Finding("cores_offline", "cpu", text)
    for part in parts:
        have = _list_counts(part)
        had = _recall_counts(ctx, part)
        if not offline and not cpu.list_limits(root):
            yield from _compare_counts(part.id, have, had, root)
        most = {fact: max(have.get(fact, 0), had.get(fact, 0)) for fact in {**have, **had}}
        yield hv.CarryOver(COUNTS_MARK, msgspec.json.encode(most).decode(), part.id)


def _list_counts(part: hv.Part) -> dict[str, int]:
    return {fact: int(part.facts[fact]) for fact in HELD_FACTS if fact in part.facts}


def _recall_counts(ctx: hv.Context, part: hv.Part) -> dict[str, int]:
    if ctx.previous is None:  # the first run, or --accept-parts
        return {}
    if mark := ctx.recall(COUNTS_MARK, part.id):
        return msgspec.json.decode(mark, type=dict[str, int])
    before = ctx.previous.find_part(part.id)  # of a version that kept no mark
    return _list_counts(before) if before else {}


def _compare_counts(
    part_id: str, have: Mapping[str, int], had: Mapping[str, int], root: Path
) -> Iterator[hv.Finding]:
    # The firmware can turn cores off too, but only as many in each socket: what fails does
    # so in one.
    for fact, code in HELD_FACTS.items():
        if fact in have and have[fact] < had.get(fact, 0):
            words = fact.replace("numa_nodes", "NUMA nodes with cores and memory")
            text = (
                f"{have[fact]} {words}, {had[fact]} in an earlier run: see the event log of the "
                "BMC, and reseat or replace what it names; if they were turned off in the "
                "firmware, run once with --accept-parts"
            )
            per_socket = Counter(socket for socket, _ in cpu.list_cores(root)).values()
            is_setting = fact == "cores" and len(per_socket) > 1 == len(set(per_socket))
            yield hv.Finding("cores_fewer" if is_setting else code, part_id, text)
            return  # a lost socket takes its cores and NUMA nodes with it


def list_offline(root: Path) -> tuple[int, ...]:
    """List the CPUs that are there and offline, unless simultaneous threads are turned off."""
    folder = root / cpu.CPU_FOLDER
    present, online = (
        set(sysfs.parse_cpu_list(sysfs.read_text(folder / name) or ""))
        for name in ("present", "online")
    )
    if not online:
        return ()
    absent = present - online
    # With threads turned off, one, three or seven are absent for each that is online.
    if sysfs.read_text(folder / "smt/control") in SMT_OFF and len(absent) % len(online) == 0:
        return ()
    return tuple(sorted(absent))


def compare_settings(need: Expectation, root: Path) -> Iterator[hv.Finding]:
    """Report each setting of kernel and processor that is not as the site needs it."""
    for module in need.modules:
        if not _is_loaded(module, root):
            text = f"module {module} is not loaded: modprobe {module}"
            yield hv.Finding("module_missing", "node", text)
    yield from _compare_arguments(need.kernel_arguments, root)
    yield from _compare_sysctls(need.sysctls, root)
    yield from _compare_huge_pages(need.hugepages, root)
    yield from _compare_frequency(need, root)
    if need.smt is not None:
        active = sysfs.read_text(root / cpu.CPU_FOLDER / "smt/active") == "1"
        if active != need.smt:
            words = {True: "on", False: "off"}
            fix = f"echo {words[need.smt]} > /sys/devices/system/cpu/smt/control"
            text = f"simultaneous multithreading is {words[active]}: {fix}, or set it in the BIOS"
            yield hv.Finding("smt", "cpu", text)


def _compare_sysctls(wanted_values: Mapping[str, str], root: Path) -> Iterator[hv.Finding]:
    for name, wanted in wanted_values.items():
        # As sysctl(8) has it, a slash is a dot in the name of a part: eth0/100.
        file = root / "proc/sys" / name.translate({46: "/", 47: "."})
        shown = sysfs.read_text(file)
        if shown is None:
            unknown = "is unknown to this kernel: correct its name, or load the module that has it"
            text = "cannot be read: run as root" if file.exists() else unknown
            yield hv.Finding("sysctl", "node", f"{name} {text}")
        elif not fits(value := " ".join(shown.split()), wanted):
            fix = "correct it" if is_pattern(wanted) else f"sysctl -w {name}={wanted}"
            text = f"{name} is {value}, not {wanted}: {fix}, and set it in /etc/sysctl.d"
            yield hv.Finding("sysctl", "node", text)


def _compare_huge_pages(wanted_counts: Mapping[str, int], root: Path) -> Iterator[hv.Finding]:
    for size, count in wanted_counts.items():
        place = f"sys/kernel/mm/hugepages/hugepages-{size}/nr_hugepages"
        have = sysfs.read_number(root / place)
        if have is None and count:
            folders = sysfs.list_entries((root / place).parents[1])
            known = ", ".join(folder.name.removeprefix("hugepages-") for folder in folders)
            text = f"this kernel has no huge pages of {size} (it has: {known or 'none'})"
            yield hv.Finding("hugepages", "node", f"{text}: correct params.host.expect")
        elif have is not None and have < count:
            text = f"{have:.0f} huge pages of {size}, not {count}: echo {count} > /{place}"
            yield hv.Finding("hugepages", "node", text)


def _is_loaded(module: str, root: Path) -> bool:
    name = module.replace("-", "_")
    if (root / "sys/module" / name).exists():
        return True
    # One that is built in has a folder there only if it has parameters or a version.
    release = sysfs.read_text(root / "proc/sys/kernel/osrelease") or ""
    built_in = sysfs.read_text(root / "lib/modules" / release / "modules.builtin") or ""
    return f"/{name}.ko" in built_in.replace("-", "_")


def _compare_arguments(wanted: Iterable[str], root: Path) -> Iterator[hv.Finding]:
    arguments = (sysfs.read_text(root / "proc/cmdline") or "").split()
    for pattern in wanted:
        if pattern.startswith("!"):
            there = [argument for argument in arguments if fits(argument, pattern[1:])]
            text = f"the kernel was started with {' '.join(there)}: take it out" if there else ""
        else:
            there = [argument for argument in arguments if fits(argument, pattern)]
            text = "" if there else f"the kernel was started without {pattern}: add it"
        if text:
            yield hv.Finding("kernel_argument", "node", f"{text} (grub), and reboot the node")


def _compare_frequency(need: Expectation, root: Path) -> Iterator[hv.Finding]:
    if not (need.governor or need.frequency_mhz):
        return
    policies = sysfs.list_entries(root / cpu.CPU_FOLDER / "cpufreq", "policy*")
    other: dict[str, int] = {}
    slow: list[float] = []
    for policy in policies:
        governor = sysfs.read_text(policy / "scaling_governor") or "unknown"
        if need.governor and not fits(governor, need.governor):
            other[governor] = other.get(governor, 0) + 1
        mhz = (sysfs.read_number(policy / "scaling_max_freq") or 0) / 1e3
        if mhz < need.frequency_mhz:
            slow.append(mhz)
    if not policies:
        text = "the kernel has no cpufreq driver here: turn on P-states in the BIOS"
        yield hv.Finding("governor", "cpu", text)
    for governor, count in other.items():
        text = f"the governor of {count} of {len(policies)} cpufreq policies is {governor}"
        yield hv.Finding("governor", "cpu", f"{text}: cpupower frequency-set -g {need.governor}")
    if slow:
        text = (
            f"{len(slow)} of {len(policies)} cpufreq policies may not run above {min(slow):.0f} "
            f"MHz: cpupower frequency-set -u {need.frequency_mhz:.0f}MHz"
        )
        yield hv.Finding("frequency", "cpu", text)
