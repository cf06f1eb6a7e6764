"""
Say what the numbers of the same runs show about why a part is slow: clock, heat, power.

Names no cause that the numbers do not have: a part at the clock of its peers does not throttle,
whatever else is wrong with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from hpcverify.peers.values import SENSORS, PartValue
from hpcverify.stats import MAD_SCALE, find_mad, median

MIN_SCORE = 2.0
"""A part that is named already needs no more: one in forty is as far by chance."""
LEAST = {"clock": 0.01, "power": 0.03}
"""The least relative distances from the peers that explain anything."""
LEAST_DEGREES = 5.0
"""The same for a temperature (°C)."""
MIN_PEERS_READ = 8


class SensorReading(Struct, frozen=True):
    """What a sensor of a part read in its runs, and those of its peers."""

    sensor: str
    value: float
    peers: float
    """The median of the peers."""
    side: int
    """-1 if it is notably lower than theirs, 1 if higher, else 0."""

    def __str__(self) -> str:
        """Print it with its unit."""
        return f"{self.sensor} {self.value:.0f} {SENSORS[self.sensor]} (peers {self.peers:.0f})"


def compare_sensors(part: PartValue, peers: Sequence[PartValue]) -> dict[str, SensorReading]:
    """Compare each sensor of *part* with those of its *peers*, if enough of them have it."""
    readings = {}
    for sensor, value in part.sensors.items():
        others = [peer.sensors[sensor] for peer in peers if sensor in peer.sensors]
        if len(others) >= MIN_PEERS_READ:
            centre = median(others)
            least = LEAST_DEGREES if sensor == "temperature" else LEAST[sensor] * centre
            away = max(least, MIN_SCORE * MAD_SCALE * find_mad(others, centre))
            side = (value - centre >= away) - (centre - value >= away)
            readings[sensor] = SensorReading(sensor, value, centre, side)
    return readings


def explain(readings: Mapping[str, SensorReading]) -> str:
    """Say what *readings* of a slow part mean; empty if there are none."""
    # Heat may limit a part of low power, which would be cooler than its peers. Temperatures of a
    # fleet differ so much that a part may be too hot without being an outlier.
    heat, power = readings.get("temperature"), readings.get("power")
    is_warm = power is not None and power.side == -1
    is_warm = is_warm and (heat is None or heat.value - heat.peers >= LEAST_DEGREES)
    always_shown = {"clock"} | ({"temperature"} if is_warm else set())
    shown = [f"{r}" for r in readings.values() if r.side or r.sensor in always_shown]
    return f"{_name_cause(readings, is_warm=is_warm)}: {', '.join(shown)}" if shown else ""


def _name_cause(readings: Mapping[str, SensorReading], *, is_warm: bool) -> str:
    sides = {sensor: reading.side for sensor, reading in readings.items()}
    low = {sensor for sensor, side in sides.items() if side == -1}
    if sides.get("temperature") == 1 and low & {"clock", "power"}:
        return "throttles by heat"
    if low >= {"clock", "power"} and is_warm:
        return "limited by heat, power or software"
    if low >= {"clock", "power"}:
        return "limited by power or software"
    if "clock" in low:
        return "low clock at the power of its peers" if sides.get("power") == 0 else "low clock"
    if "power" in low:
        return "low power at the clock of its peers, so it waits or throttles in bursts"
    return "normal clock, so not throttled" if "clock" in sides else "clock unknown"


def explain_members(members: Iterable[PartValue], peers: Sequence[PartValue]) -> str:
    """
    Say why a node is slow: by the part with the lowest clock if one stands out, or by all.

    Of a group of nodes something is said only if it is true of most of its parts: among so many,
    one has a low clock by chance, and the others do not wait for it.
    """
    compared = [(part, compare_sensors(part, peers)) for part in members]
    read = [(part, readings) for part, readings in compared if readings]
    if not read:
        return ""
    held = [(p, r) for p, r in read if "clock" in r and r["clock"].side == -1]
    several = len({part.node for part, _ in read}) > 1
    if several and 2 * len(held) <= len(read):
        return ""
    if not held:
        return explain(read[0][1])
    part, readings = min(held, key=lambda candidate: candidate[1]["clock"].value)
    why = f"{part.name}: {explain(readings)}"
    if several or len(held) == len(read):
        share = "all" if len(held) == len(read) else "most"
        return f"{share} of its parts run at a low clock; {why}"
    return f"{why}; the other parts may wait for it"
