"""
Scenarios of healthy nodes: every part of the data sheets, and some that are on none.

A healthy GPU is not one whose numbers stand still. Under load it warms up, is capped
by its power limit and says so, retrains its PCIe link (which counts as a recovery),
and corrects a memory error once in a while; idle, its link is slow. It has scars of
earlier times, and its like beside it are a little warmer or slower than it is. And
most parts lack something that others have: `na` is an answer that a check must take.

Facts of the parts come from their data sheets. What is not on those (thresholds, idle
clocks, banks for remapped rows) is from `nvidia-smi -q` of such parts where it could
be found, and else what the parts next to it have.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hpcverify.limits.specs import Spec, load_specs
from tests.limits.physics import read_number

Values = dict[str, object]
"""Scenario values by key, of all GPUs; None is `na`."""

VOLTA, TURING, AMPERE, ADA, HOPPER, BLACKWELL = 5, 6, 7, 8, 9, 10
"""Architectures as NVML numbers them."""


@dataclass(frozen=True, slots=True)
class Chip:
    """What all parts with one chip have in common."""

    arch: int
    cores: int
    """In one SM."""
    limits: tuple[int, int, int]
    """Maximum operating, slowdown and shutdown temperature, °C."""
    mig: int | None
    """How many instances it can be cut into, if it can."""
    link: tuple[int, int]
    """NVLink version as NVML numbers them, and MB/s of a link as signalled."""
    idle_clock: int

    @property
    def margins(self) -> bool:
        """Whether it tells distances to the limits (T.Limit) in place of degrees."""
        return self.arch >= ADA

    @property
    def driver(self) -> str:
        """One that knows it."""
        return "580.95.05" if self.arch >= BLACKWELL else "580.105.08"


CHIPS = {
    "7.0": Chip(VOLTA, 64, (83, 87, 90), None, (2, 25781), 135),
    "7.5": Chip(TURING, 64, (85, 93, 96), None, (0, 0), 300),
    "8.0": Chip(AMPERE, 64, (85, 89, 92), 7, (4, 25000), 210),
    "8.6": Chip(AMPERE, 128, (88, 95, 98), None, (5, 14062), 210),
    "8.9": Chip(ADA, 128, (87, 89, 92), None, (0, 0), 210),
    "9.0": Chip(HOPPER, 128, (87, 89, 95), 7, (6, 26562), 345),
    "10.0": Chip(BLACKWELL, 128, (88, 91, 93), 7, (7, 53125), 120),
    "10.3": Chip(BLACKWELL, 128, (88, 91, 93), 7, (7, 53125), 120),
    "12.0": Chip(BLACKWELL, 128, (88, 91, 93), 4, (0, 0), 180),
    "12.1": Chip(BLACKWELL, 128, (88, 91, 93), None, (0, 0), 208),
}
"""By compute capability."""

BASE_CLOCKS = {
    "v100-sxm2-16gb": 1312,
    "v100-sxm2-32gb": 1290,
    "a100-sxm4-40gb": 1095,
    "a100-sxm4-80gb": 1275,
    "a100-pcie-40gb": 765,
    "a100-pcie-80gb": 1065,
}
"""The default of the applications clock where it is below the maximum, MHz."""
BANKS_PER_STACK = {"8.0": 128, "9.0": 512, "10.0": 512, "10.3": 512}
"""With room for remapped rows, by stack of HBM; seen on A100, H100 and H200."""
BANKS_PER_GB = 4
"""Of GDDR6; seen on L4."""
FITTED = {"GDDR6": 0.9375, "gb10": 0.95, "b300-sxm": 0.934, "gb300": 0.934, "gh200-144gb": 1.017}
"""GiB that NVML shows, of the GB on the sheet; nearly all on other parts."""
GPUS = {"gh200-96gb": 1, "gh200-144gb": 1, "gb200": 4, "gb300": 4, "gb10": 1}
"""In a node; eight of other parts."""
C2C = ("gh200-96gb", "gh200-144gb", "gb200", "gb300")
"""On a module with the CPU, to which their own link leads."""
MESH = ("v100-sxm2-16gb", "v100-sxm2-32gb")
"""With NVLinks from GPU to GPU; from A100 on they lead to switches."""
SXM = ("sxm", "gb200", "gb300", "h20-")
BRIDGED = (
    *("a100-pcie", "a800-pcie", "a30", "a40", "h100-pcie", "h800-pcie"),
    *("h100-nvl", "h200-nvl", "gh200"),
)
"""With links that lead nowhere unless someone bought a bridge or a backplane."""
SPEEDS = {1: 2500, 2: 5000, 3: 8000, 4: 16000, 5: 32000, 6: 64000}
"""MT/s of a lane by PCIe generation."""
HEALTHY_FABRIC = 0b01_01_0001_10_10_10_10
"""Manager connected, partition assigned, configuration not incorrect; and nothing of
timeout, unhealthy route, route recovery and degraded bandwidth."""
NVLINK5 = (
    *("xmit_packets", "rcv_packets", "malformed_packet_errors"),
    *("buffer_overrun_errors", "rcv_errors", "rcv_remote_errors"),
    *("rcv_general_errors", "local_link_integrity_errors", "xmit_discards"),
    *("link_recovery_successful", "link_recovery_failed", "link_recovery_events"),
    *("effective_errors", "symbol_errors"),
)
NVLINK4 = ("replay_errors", "recovery_errors", "crc_flit_errors", "crc_data_errors")
WARM_UP = 60
"""Seconds until the temperature is nearly what it will be."""


def profile(spec: Spec, *, busy: bool, linked: bool = True) -> list[str]:
    """
    Describe a healthy node of a known part, idle or under load from its second 0.

    Without *linked*, a part that is sold without bridges for its NVLinks has none.
    """
    chip = CHIPS[spec.compute_capability]
    gpus = GPUS.get(spec.key, 8)
    values = {
        **_identity(spec, chip),
        **_memory(spec, chip),
        **_abilities(spec, chip),
        **_links(spec, chip, linked=linked or not spec.key.startswith(BRIDGED)),
        **_pcie(spec, chip, busy=busy),
        **(_load(spec, chip) if busy else _rest(spec, chip)),
    }
    lines = [f"gpus = {gpus}", f"node_id = {spec.key}", f"driver.version = {chip.driver}"]
    lines += [_line("*", key, value) for key, value in values.items()]
    for gpu in range(gpus):
        lines += _spread(spec, chip, gpu, busy=busy)
    return [*lines, *_scars(spec, gpus)]


def _line(gpu: object, key: str, value: object) -> str:
    return f"gpu.{gpu}.{key} = {'na' if value is None else value}"


def _identity(spec: Spec, chip: Chip) -> Values:
    major, _, minor = spec.compute_capability.partition(".")
    clock = read_number(spec, "max_clock") or spec.peak_clock_mhz or 1950
    wish = BASE_CLOCKS.get(spec.key, clock) if chip.arch < BLACKWELL else None
    return {
        "name": spec.name,
        "pci.device_id": f"0x{spec.pci_device_ids[0]}10DE",
        "architecture": chip.arch,
        "compute_capability.major": major,
        "compute_capability.minor": minor,
        "cores": (spec.sms or 160) * chip.cores,
        "clocks.max.graphics": clock,
        "clocks.max.sm": clock,
        "clocks.applications.graphics": wish,
        "clocks.applications.sm": wish,
        "clocks.default_applications.graphics": wish,
        "clocks.default_applications.sm": wish,
        **{
            f"power.{limit}_mw": int(spec.tdp_w * 1000)
            for limit in ("limit", "enforced_limit", "default_limit", "max_limit")
        },
        "power.min_limit_mw": int(spec.tdp_w * 300),
    }


def _memory(spec: Spec, chip: Chip) -> Values:
    kind, pins = spec.sheet["memory_type"].text, spec.sheet["memory_bus"].number
    share = FITTED.get(spec.key, FITTED.get(kind, 0.996))
    clock = int(spec.sheet["memory_bandwidth"].number * 8000 / pins / 2)
    return {
        "memory.total": int(spec.memory_gb * share * 2**30),
        "memory.bus_width": int(pins),
        "clocks.memory": clock,
        "clocks.max.memory": clock,
        "clocks.applications.memory": clock if chip.arch < BLACKWELL else None,
        "clocks.default_applications.memory": clock if chip.arch < BLACKWELL else None,
    }


def _abilities(spec: Spec, chip: Chip) -> Values:
    """Say what the part can and cannot answer."""
    maximum, slowdown, shutdown = chip.limits
    hbm = spec.sheet["memory_type"].text.startswith("HBM")
    values: Values = {
        "temperature.gpu_max": maximum,
        "temperature.slowdown": slowdown,
        "temperature.shutdown": shutdown,
        "temperature.margins": int(chip.margins),
        "temperature.absolute": int(not chip.margins),
        "mig.mode": None if chip.mig is None else 0,
        "mig.mode_pending": None if chip.mig is None else 0,
        "mig.max_devices": chip.mig,
        "remapped_rows.histogram.max": _banks(spec),
    }
    if not hbm:
        values |= dict.fromkeys(("temperature.memory", "temperature.memory_max"))
    if chip.arch < HOPPER:
        values["repair.unrepairable_memory"] = None
        values["power.memory_mw"] = None
    if chip.arch < AMPERE:
        values |= _before_ampere()
    if "rtx" in spec.key:  # it sits under a desk, too
        values |= {"fan.speed": 30, "fan.count": 1}
    return values


def _banks(spec: Spec) -> int:
    if spec.sheet["memory_type"].text == "GDDR6":
        return int(BANKS_PER_GB * spec.memory_gb)
    stacks = round(spec.sheet["memory_bus"].number / 1024)
    return stacks * BANKS_PER_STACK.get(spec.compute_capability, 0)


def _before_ampere() -> Values:
    """Retire pages and do not remap rows; tell of neither SRAM nor firmware."""
    rows = ("correctable", "uncorrectable", "pending", "failure")
    banks = ("max", "high", "partial", "low", "none")
    ages = ("volatile", "aggregate")
    sram = ("sram_parity", "sram_secded", "sram_correctable")
    return {
        **{f"retired_pages.{what}": 0 for what in ("single_bit", "double_bit")},
        "retired_pages.pending": 0,
        **dict.fromkeys(f"remapped_rows.{row}" for row in rows),
        **dict.fromkeys(f"remapped_rows.{row}_inactive" for row in rows[:2]),
        **dict.fromkeys(f"remapped_rows.histogram.{bank}" for bank in banks),
        **dict.fromkeys(f"ecc.{age}.{s}" for age in ages for s in sram),
        **dict.fromkeys(("gsp.mode", "gsp.mode_default", "gsp.version")),
        **dict.fromkeys(("recovery_action", "power.instant_mw", "power.memory_mw")),
        **dict.fromkeys(("repair.channel_pending", "repair.tpc_pending")),
        **dict.fromkeys(f"violation_ns.{cause}" for cause in SLOWDOWNS),
        **dict.fromkeys(f"pcie.{counter}" for counter in PCIE_COUNTERS),
    }


SLOWDOWNS = ("sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake")
PCIE_COUNTERS = (
    *("correctable_errors", "naks_received", "receiver_errors", "bad_tlp"),
    *("naks_sent", "bad_dllp", "non_fatal_errors", "fatal_errors"),
    *("unsupported_requests", "lcrc_errors", "lane_errors", "l0_to_recovery"),
)


def _links(spec: Spec, chip: Chip, *, linked: bool) -> Values:
    version, speed = chip.link
    values = _fabric(spec, chip)
    if not spec.nvlink_links:
        return {**values, "nvlink.count": None}
    newer = chip.arch >= BLACKWELL
    values |= dict.fromkeys((f"nvlink.*.{kind}" for kind in (NVLINK4 if newer else NVLINK5)), None)
    values |= {f"nvlink.*.{kind}": 0 for kind in (NVLINK5 if newer else NVLINK4)}
    return {
        **values,
        "nvlink.count": spec.nvlink_links,
        "nvlink.*.state": int(linked),
        "nvlink.*.speed_mbps": speed if linked else 0,
        "nvlink.*.version": version,
        "nvlink.*.remote_type": 2 if _switched(spec) else 0,
        "nvlink.*.effective_ber": 1.5e-254 if newer else None,
        "nvlink.*.symbol_ber": 1.5e-254 if newer else None,
    }


def _switched(spec: Spec) -> bool:
    return any(form in spec.key for form in SXM) and spec.key not in MESH


def _fabric(spec: Spec, chip: Chip) -> Values:
    """Tell of a fabric from Hopper on; without switches that there is none."""
    if chip.arch < HOPPER:
        return {"fabric.status": None}
    racked = spec.key in ("gb200", "gb300")
    return {
        "fabric.state": "COMPLETED" if _switched(spec) else 0,
        "fabric.health_mask": HEALTHY_FABRIC if racked else 0,
        "fabric.health_summary": int(racked),
    }


def _pcie(spec: Spec, chip: Chip, *, busy: bool) -> Values:
    """Lower the generation of an idle link; a change passes through recovery."""
    most = int(read_number(spec, "pcie_gen") or 5)
    values: Values = {
        "pcie.gen_max": most,
        "pcie.gen_gpu_max": most,
        "pcie.max_speed_enum": most,
        "pcie.gen": f"steps 0:1 1:{most}" if busy else 1,
        "pcie.speed_mbps": f"steps 0:2500 1:{SPEEDS[most]}" if busy else 2500,
        "pcie.tx_kbps": "steps 0:500 2:2100000" if busy else 500,
        "pcie.rx_kbps": "steps 0:500 2:1900000" if busy else 500,
    }
    if chip.arch >= AMPERE:
        values["pcie.l0_to_recovery"] = "steps 0:12 1:14" if busy else 12
    if spec.key in C2C:  # the host is on NVLink-C2C; DCGM asks for a width of 1 here
        values |= {"pcie.width": 1, "c2c.count": 10, "c2c.status": 1}
        values |= {"c2c.speed_mbps": 44712, "c2c.interrupts": 0, "c2c.replays": 0}
    return values


def _rest(spec: Spec, chip: Chip) -> Values:
    watts = _idle_watts(spec)
    return {
        "clocks.graphics": chip.idle_clock,
        "clocks.sm": chip.idle_clock,
        "clocks.event_reasons": "GpuIdle",
        "power.energy_mj": f"rate 1000000:{watts * 1000:.0f}",
    }


def _idle_watts(spec: Spec) -> float:
    return 10 + 0.09 * spec.tdp_w


def _load(spec: Spec, chip: Chip) -> Values:
    """Run products of matrices, as if this process did, mostly at the power limit."""
    # nvml.h: HW slowdown may be reported during a change of the P-state, too.
    begin = "HwSlowdown" if chip.arch <= AMPERE else "GpuIdle"
    kib = int(spec.nvlink_link_gbs * 0.3e6)
    values: Values = {
        "utilization.gpu": "steps 0:0 1:100",
        "utilization.memory": "steps 0:0 1:41",
        "memory.used": int(0.8 * spec.memory_gb * FITTED["GDDR6"] * 2**30),
        "clocks.event_reasons": f"steps 0:GpuIdle 1:{begin} 1.4:SwPowerCap",
        "violation_ns.power": "rate 0:900000000",
        "process": f"{os.getpid()} {int(0.7 * spec.memory_gb * 2**30)} python3",
    }
    if spec.nvlink_links and chip.arch >= BLACKWELL:
        values |= {f"nvlink.*.{way}_bytes": f"rate 0:{kib * 1024}" for way in WAYS}
        values |= {f"nvlink.*.{way}_packets": f"rate 0:{kib}" for way in WAYS}
    elif spec.nvlink_links:
        values |= {f"nvlink.*.{way}_data_kib": f"rate 0:{kib}" for way in ("tx", "rx")}
    return values


WAYS = ("xmit", "rcv")


def _spread(spec: Spec, chip: Chip, gpu: int, *, busy: bool) -> Iterator[str]:
    """Differ from the siblings as good GPUs do: by 6 °C, 2 % of clock, 1 % of power."""
    row = gpu % 2  # of two rows of coolers, one gets the air that the other warmed
    cool = 27 + gpu % 3 + 2 * row
    warm = chip.limits[0] - 21 + gpu % 3 + 4 * row
    hbm = spec.sheet["memory_type"].text.startswith("HBM")
    watts = _idle_watts(spec) * (1 + 0.01 * (gpu % 3))
    values: Values = {"temperature.gpu": cool, "power.usage_mw": int(1000 * watts)}
    if hbm:
        values["temperature.memory"] = cool + 6
    if busy:
        values |= _working(spec, chip, gpu, (cool, warm), watts)
    elif chip.arch > VOLTA:
        values["power.instant_mw"] = int(1000 * watts) + 400
    yield from (_line(gpu, key, value) for key, value in values.items())


def _working(
    spec: Spec, chip: Chip, gpu: int, celsius: tuple[int, int], idle_watts: float
) -> Values:
    cool, warm = celsius
    watts = spec.tdp_w * (0.985 + 0.002 * (gpu % 4))
    peak = spec.peak_clock_mhz or 1900
    clock = int(peak * (0.93 - 0.005 * (gpu % 4)))
    ramp = f"ramp 0:{int(1000 * idle_watts)} 3:{int(1000 * watts)}"
    values: Values = {
        "temperature.gpu": f"ramp 0:{cool} {WARM_UP}:{warm} {10 * WARM_UP}:{warm + 2}",
        "power.usage_mw": ramp,
        "power.energy_mj": f"rate 1000000:{int(1000 * watts)}",
        "clocks.graphics": f"steps 0:{chip.idle_clock} 1:{int(peak)} 6:{clock}",
        "clocks.sm": f"steps 0:{chip.idle_clock} 1:{int(peak)} 6:{clock}",
    }
    if chip.arch > VOLTA:
        values["power.instant_mw"] = ramp
    if spec.sheet["memory_type"].text.startswith("HBM"):
        values["temperature.memory"] = f"ramp 0:{cool + 6} {WARM_UP}:{warm + 7}"
    return values


def _scars(spec: Spec, gpus: int) -> Iterator[str]:
    """Tell of what healthy GPUs have behind them, and of what goes on."""
    yield "gpu.0.pcie.replay = 7"  # as on a board whose nvidia-smi -q was published
    last = gpus - 1
    hourly = 1 / 3600
    yield f"gpu.{last}.ecc.volatile.dram_correctable = rate 2:{hourly:.6f}"
    yield f"gpu.{last}.ecc.aggregate.dram_correctable = rate 17:{hourly:.6f}"
    if spec.compute_capability == "7.0":
        yield f"gpu.{last}.retired_pages.single_bit = 2"
        return
    yield f"gpu.{last}.remapped_rows.correctable = 1"
    yield f"gpu.{last}.remapped_rows.histogram.max = {_banks(spec) - 1}"
    yield f"gpu.{last}.remapped_rows.histogram.high = 1"


NOTHING = (
    *("serial", "board_part_number", "inforom.oem", "inforom.ecc", "inforom.image"),
    *("ecc.mode", "ecc.mode_pending", "ecc.mode_default"),
    *(f"remapped_rows.{row}" for row in ("correctable", "uncorrectable", "pending")),
    *("remapped_rows.failure", "remapped_rows.correctable_inactive"),
    *("remapped_rows.uncorrectable_inactive", "remapped_rows.histogram.max"),
    *("mig.mode", "mig.mode_pending", "mig.max_devices", "nvlink.count"),
    *("fabric.status", "recovery_action", "repair.channel_pending"),
    *("repair.tpc_pending", "repair.unrepairable_memory", "temperature.memory"),
    *("power.memory_mw", "clocks.applications.graphics", "clocks.applications.sm"),
    *("clocks.applications.memory", "clocks.default_applications.graphics"),
    *("clocks.default_applications.sm", "clocks.default_applications.memory"),
    *("ecc.sram_threshold_exceeded", "p2p.status", "violation_ns.board_limit"),
    *(f"violation_ns.{cause}" for cause in SLOWDOWNS),
    *(f"pcie.{counter}" for counter in PCIE_COUNTERS),
)
"""What a card for games does not answer."""
SENSES = (
    *("temperature.gpu", "power.usage_mw", "power.instant_mw", "power.energy_mj"),
    *("power.limit_mw", "power.enforced_limit_mw", "power.default_limit_mw"),
    *("clocks.event_reasons", "violation_ns.power", "violation_ns.thermal"),
    *("pcie.gen", "pcie.gen_max", "pcie.gen_gpu_max", "pcie.width", "pcie.width_max"),
    *("pcie.replay", "utilization.gpu", "persistence_mode", "violation_ns.sync_boost"),
    *("pcie.replay_rollover", "gsp.mode", "gsp.version", "temperature.margins"),
    "temperature.absolute",
)
"""What a virtual GPU does not answer either."""


def _na(keys: Sequence[str]) -> Values:
    values: Values = {}
    values.update(dict.fromkeys(keys))
    return values


def strangers(*, busy: bool) -> Mapping[str, list[str]]:
    """Describe healthy nodes of parts that are on no data sheet here, by name."""
    by_key = {spec.key: spec for spec in load_specs()}

    def like(key: str, name: str, device_id: str, more: Values) -> list[str]:
        values = {"name": name, "pci.device_id": f"0x{device_id}10DE", **more}
        lines = profile(by_key[key], busy=busy)
        return [*lines, *(_line("*", key, value) for key, value in values.items())]

    bare = _na(NOTHING)
    games = {**bare, "fan.speed": 30, "fan.count": 2}
    memory = {"memory.total": 8 * 2**30, "memory.used": 2**20}
    newer: Values = {"compute_capability.major": 11, "compute_capability.minor": 0}
    return {
        "card for games": like("l40s", "NVIDIA GeForce RTX 4090", "2684", games),
        "virtual GPU": like(*("a10", "NVIDIA A10-8Q", "2236"), bare | _na(SENSES) | memory),
        "same id, other product": like(*("a100-sxm4-80gb", "NVIDIA PG509-210", "20b2"), {}),
        "next generation": like("b300-sxm", "NVIDIA R200", "3301", newer),
    }
