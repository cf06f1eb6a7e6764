"""
Temperatures, power and voltages from the kernel's hwmon and thermal classes.

Files and units are those of the kernel's sysfs-interface document: ``tempN_input``
and ``tempN_crit`` in m°C, ``powerN_input`` in uW, ``inN_input`` in mV. A chip has
many sensors and a node many chips of one kind, so the readings of a part are its
hottest, its least headroom, and its power in all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from hpcverify.model import Part
from hpcverify.telemetry import sysfs
from hpcverify.telemetry.reading import Reading

CPU_CHIPS = frozenset({"coretemp", "k10temp", "k8temp", "zenpower", "fam15h_power", "cpu_thermal"})
CPU_ZONE_PREFIXES = ("x86_pkg_temp", "cpu", "soc")
"""How the types of thermal zones that sit in the processor begin."""

THRESHOLD_KINDS = ("crit", "max", "emergency")
"""The thresholds of a sensor, preferred first: hardware steps in at ``crit``."""

MAX_PLAUSIBLE_CELSIUS = 200.0
"""°C: drivers report unset thresholds as 255, 65261.85 and the like."""


class Sensor(Struct, frozen=True):
    """A file with a number, the factor to its unit, and the part it belongs to."""

    path: Path
    name: str
    unit: str
    part_id: str
    factor: float
    threshold: float | None = None

    def read_value(self) -> float | None:
        """Read it now; None if the chip does not answer."""
        number = sysfs.read_number(self.path)
        return None if number is None else number * self.factor


class HwmonReader:
    """Reads what the node's sensor chips and drives say."""

    def __init__(self, root: Path = Path("/"), disks: Sequence[Part] = ()) -> None:
        """Find the sensors once; a drive's go by the id that *disks* has for it."""
        self._sensors = list(_find_sensors(root, disks))

    def read(self) -> Iterator[Reading]:
        """Yield one reading for each part and quantity."""
        values = [(s, v) for s in self._sensors if (v := s.read_value()) is not None]
        heat = [(s, v) for s, v in values if s.name == "temperature"]
        yield from _merge_by_part(heat, max)
        yield from _merge_by_part(
            [
                (
                    Sensor(s.path, "temperature.headroom", s.unit, s.part_id, s.factor),
                    s.threshold - v,
                )
                for s, v in heat
                if s.threshold is not None
            ],
            min,
        )
        yield from _merge_by_part([(s, v) for s, v in values if s.name == "power"], sum)
        yield from _merge_by_part([(s, v) for s, v in values if s.unit == "V"], min)

    def close(self) -> None:
        """Hold nothing."""


def _merge_by_part(
    values: Iterable[tuple[Sensor, float]], combine: Callable[[list[float]], float]
) -> Iterator[Reading]:
    parts: dict[tuple[str, str, str], list[float]] = {}
    for sensor, value in values:
        key = (sensor.name, sensor.unit, sensor.part_id)
        parts.setdefault(key, []).append(value)
    for (name, unit, part_id), readings in parts.items():
        yield Reading(name, combine(readings), unit, part_id)


def _find_sensors(root: Path, disks: Sequence[Part]) -> Iterator[Sensor]:
    sensors: list[Sensor] = []
    for chip in sysfs.list_entries(root / "sys/class/hwmon", "hwmon*"):
        sensors += _list_chip_sensors(chip, disks)
    yield from sensors
    if not any(s.part_id == "cpu" and s.name == "temperature" for s in sensors):
        for zone in sysfs.list_entries(root / "sys/class/thermal", "thermal_zone*"):
            if (sysfs.read_text(zone / "type") or "").lower().startswith(CPU_ZONE_PREFIXES):
                path = zone / "temp"
                yield Sensor(path, "temperature", "°C", "cpu", 1e-3, _read_trip_point(zone))


def _list_chip_sensors(chip: Path, disks: Sequence[Part]) -> Iterator[Sensor]:
    part_id = _find_part(chip, disks)
    for path in sysfs.list_entries(chip, "temp*_input"):
        yield Sensor(path, "temperature", "°C", part_id, 1e-3, _read_threshold(path))
    for kind in ("input", "average"):
        for path in sysfs.list_entries(chip, f"power*_{kind}"):
            yield Sensor(path, "power", "W", part_id, 1e-6)
    for path in sysfs.list_entries(chip, "in*_input"):
        channel = path.name.removesuffix("_input")
        label = sysfs.read_text(chip / f"{channel}_label") or channel
        yield Sensor(path, f"voltage.{label}", "V", part_id, 1e-3)


def _find_part(chip: Path, disks: Sequence[Part]) -> str:
    """Name the part that *chip* measures: the CPU, a drive, or the chip itself."""
    name = sysfs.read_text(chip / "name") or chip.name
    if name in CPU_CHIPS:
        return "cpu"
    device = sysfs.resolve_link(chip / "device")
    if device is None:
        return name
    # nvme: the device is the controller nvme0, the disk nvme0n1; drivetemp: the
    # device is the SCSI address, whose folder block/ names the disk.
    held = {entry.name for entry in sysfs.list_entries(device / "block")}
    for disk in disks:
        if disk.label in held or disk.label.startswith(f"{device.name}n"):
            return disk.id
    return name


def _read_threshold(path: Path) -> float | None:
    """Find the lowest temperature at which the hardware defends itself, in °C."""
    stem = path.name.removesuffix("input")
    for kind in THRESHOLD_KINDS:
        value = sysfs.read_number(path.with_name(stem + kind))
        if value is not None and 0 < value * 1e-3 < MAX_PLAUSIBLE_CELSIUS:
            return value * 1e-3
    return None


def _read_trip_point(zone: Path) -> float | None:
    for kind in sysfs.list_entries(zone, "trip_point_*_type"):
        if sysfs.read_text(kind) == "critical":
            value = sysfs.read_number(kind.with_name(kind.name.replace("type", "temp")))
            return None if value is None else value * 1e-3
    return None
