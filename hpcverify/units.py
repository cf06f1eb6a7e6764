"""
The units of measurements and limits, and the conversions between them.

A limit may have any unit of the measurement's dimension. A unit that is not in this
table is a mistake in a file, never a silent factor of one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated

from msgspec import Meta

from hpcverify.errors import ConfigError, UnknownNameError

GIGA = 1e9
KIB, MIB, GIB = 2**10, 2**20, 2**30
MINUTE_SECONDS, HOUR_SECONDS, DAY_SECONDS = 60.0, 3600.0, 86400.0
MAX_SECONDS = 253402300799.0
"""The last second of the year 9999 since 1970: no later one can be written as a date."""
UtcTime = Annotated[datetime, Meta(tz=True)]
"""A time in a JSON document, as RFC 3339 has it: 2026-11-21T03:45:00Z."""

_DIMENSIONS: dict[str, dict[str, float]] = {
    "count": {"": 1},
    "ratio": {"ratio": 1, "%": 0.01},
    "time": {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1, "min": 60, "h": 3600},
    "size": {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30},
    "bandwidth": {
        "B/s": 1,
        "MB/s": 1e6,
        "GB/s": 1e9,
        "TB/s": 1e12,
        "MiB/s": 2**20,
        "GiB/s": 2**30,
        "Gb/s": 1e9 / 8,
    },
    "compute": {"GFLOP/s": 1e9, "TFLOP/s": 1e12, "FLOP/s": 1},
    "integer compute": {"GOP/s": 1e9, "TOP/s": 1e12, "OP/s": 1},
    "rate": {"1/s": 1, "1/h": 1 / 3600},
    "temperature": {"°C": 1},
    "frequency": {"Hz": 1, "MHz": 1e6, "GHz": 1e9},
    "rotation": {"RPM": 1},
    "power": {"mW": 1e-3, "W": 1},
    "energy": {"J": 1, "kJ": 1e3},
    "voltage": {"V": 1},
}

_LADDERS = (
    ("ns", "us", "ms", "s"),
    ("B", "KiB", "MiB", "GiB"),
    ("kB", "MB", "GB"),
    ("B/s", "MB/s", "GB/s"),
    ("MiB/s", "GiB/s"),
    ("FLOP/s", "GFLOP/s", "TFLOP/s"),
    ("OP/s", "GOP/s", "TOP/s"),
    ("mW", "W"),
    ("J", "kJ"),
)
"""Units that a number is printed in, the smallest first. Clocks stay in MHz and links in
GB/s, as the tools of the vendors print them."""
PRINTED_UNITS = {"us": "\N{MICRO SIGN}s"}
"""The units that people read in another form than files have them."""
LEAST_PRINTED, MOST_PRINTED = 0.99995, 1000.0
"""What is printed as 1 to four digits, and where a larger unit begins."""

UNIT_FACTORS = {
    unit: (dimension, factor)
    for dimension, units in _DIMENSIONS.items()
    for unit, factor in units.items()
}


def convert_unit(value: float, unit: str, to: str) -> float:
    """Convert *value* from *unit* to the unit *to*."""
    if unit not in UNIT_FACTORS:
        raise UnknownNameError("unit", unit, filter(None, UNIT_FACTORS))
    (dimension, factor), (wanted, per) = UNIT_FACTORS[unit], UNIT_FACTORS[to]
    if dimension != wanted:
        raise ConfigError(f"unit {unit!r} is a {dimension}; {to!r} is a {wanted}")
    return value * (factor / per)


DECIMAL_COMMA_PATTERN = r"[+-]?(\d{1,3}(\.\d{3})+|\d+),\d+"
GROUPED_PATTERN = r"[+-]?\d{1,3}((,\d{3})+\.\d+|(,\d{3}){2,}|(\.\d{3}){2,})"
"""Numbers with separators between groups of three digits."""
EITHER_PATTERN = r"[+-]?[1-9]\d{0,2},\d{3}"
"""What matches `DECIMAL_COMMA_PATTERN` and may be a thousand and more as well."""


def parse_decimal(text: str) -> float:
    """Parse a number as people write it: 38.1, 38,1, 1,234.5; ValueError if ambiguous."""
    plain = text
    if re.fullmatch(EITHER_PATTERN, text):
        either = f"{text.replace(',', '.')} or {text.replace(',', '')}"
        raise ValueError(f"{text!r} may be {either}: write a decimal point and no separators")
    if re.fullmatch(DECIMAL_COMMA_PATTERN, text):
        plain = text.replace(".", "").replace(",", ".")
    elif re.fullmatch(GROUPED_PATTERN, text):
        plain = text.replace("," if "," in text else ".", "")
    try:
        return float(plain)
    except ValueError:
        raise ValueError(f"{text[:40]!r} is not a number") from None


def format_percent(share: float) -> str:
    """Print a share with two significant digits at least, as 0.09 % or 12 %."""
    percent = abs(share) * 100
    return f"{percent:.0f} %" if percent >= 10 else f"{percent:.2g} %"  # noqa: PLR2004 - digits


def format_count(count: float, noun: str) -> str:
    """Print *count* with its noun, as in "1 run", "2 runs" and "0.5 days"."""
    number = count if isinstance(count, int) else f"{count:g}"
    return f"{number} {noun}{'' if count == 1 else 's'}"


def format_age(seconds: float) -> str:
    """Print how long something lasts or has passed, as "5 min", "31 h" and "3 days"."""
    if seconds >= 2 * DAY_SECONDS:
        return f"{seconds // DAY_SECONDS:.0f} days"
    if seconds >= HOUR_SECONDS:
        return f"{seconds // HOUR_SECONDS:.0f} h"
    return f"{seconds // MINUTE_SECONDS:.0f} min" if seconds >= MINUTE_SECONDS else "under 1 min"


NEVER = "never"


def format_time_since(when: float | datetime | None, now: float) -> str:
    """Say how long before *now* the time *when* was; 0 and None are never."""
    if not when:
        return NEVER
    return format_age(now - (when.timestamp() if isinstance(when, datetime) else when))


def scale_unit(value: float, unit: str) -> tuple[float, str]:
    """Express *value*, given in *unit*, in a unit that keeps it from 1 to 1000, if there is one."""
    ladder = next((units for units in _LADDERS if unit in units), ())
    if not value or LEAST_PRINTED <= abs(value) < MOST_PRINTED or not ladder:
        return value, unit
    scaled = [(convert_unit(value, unit, to), to) for to in ladder]
    return next((pair for pair in reversed(scaled) if abs(pair[0]) >= LEAST_PRINTED), scaled[0])


def choose_unit(values: Iterable[float | None], unit: str) -> tuple[str, float]:
    """Choose one unit for *values* by the middle one that is not zero; also return its factor."""
    sizes = sorted(abs(v) for v in values if v and math.isfinite(v))
    if not sizes:
        return unit, 1.0
    middle = sizes[len(sizes) // 2]
    _, chosen = scale_unit(middle, unit)
    return chosen, 1.0 if chosen == unit else convert_unit(1.0, unit, chosen)


def have_one_dimension(unit: str, other: str) -> bool:
    """Whether values in the two units can be compared; an unknown unit only with itself."""
    known, compared = UNIT_FACTORS.get(unit), UNIT_FACTORS.get(other)
    return unit == other or bool(known and compared and known[0] == compared[0])


def convert_time(seconds: float) -> datetime | None:
    """Convert *seconds* since 1970 to UTC, in whole seconds; None for 0 and invalid times."""
    if not 0 < seconds <= MAX_SECONDS:
        return None
    return datetime.fromtimestamp(int(seconds), UTC)
