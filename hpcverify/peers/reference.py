"""
A learned reference: what a fleet measured when it was known to be good.

Peers cannot see a fleet that degrades together. A reference can: a file that somebody made with
``hpcverify peers --learn``, reviewed and keeps under version control. Nothing here ever writes to
one that is there, so it does not follow the fleet down.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from msgspec import Struct

from hpcverify.errors import ConfigError, UnusableError
from hpcverify.peers.values import MetricName

FORMAT = 1


class ReferenceEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One metric as it was."""

    metric: str
    check: str = ""
    mode: str = ""
    unit: str = ""
    median: float
    spread: float
    """Robust and relative, between parts."""
    parts: int
    nodes: int

    @property
    def name(self) -> MetricName:
        """The metric that the entry speaks of."""
        return MetricName(self.metric, self.check, self.mode, self.unit)


class FleetReference(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A reviewed file: the metrics of a good fleet, and what they were learned from."""

    format: int = FORMAT
    learned: str
    """The day, as 2026-11-22."""
    source: str
    """What it was learned from."""
    first: str = ""
    """The days of the first and the last run in the sample, where runs have a time."""
    last: str = ""
    versions: dict[str, tuple[str, ...]] = {}
    """Drivers and the like that the sample had, by their column."""
    metrics: tuple[ReferenceEntry, ...] = ()

    def find(self, name: MetricName) -> ReferenceEntry | None:
        """Find the entry of the metric *name*."""
        return next((entry for entry in self.metrics if entry.name == name), None)


def format_day(time: float) -> str:
    """Print the day (UTC) of a time in seconds since 1970."""
    return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d}"


def read_reference(path: Path) -> FleetReference:
    """
    Read a learned reference.

    Raises:
        ConfigError: *path* cannot be read, or is none.

    """
    try:
        reference = msgspec.json.decode(path.read_bytes(), type=FleetReference)
    except OSError as exc:
        raise ConfigError(f"the reference {path} cannot be read: {exc.strerror}") from exc
    except msgspec.MsgspecError as exc:
        raise ConfigError(
            f"{path} is not a reference ({exc}): hpcverify peers --learn FILE makes one"
        ) from exc
    if reference.format > FORMAT:
        raise ConfigError(f"{path} has format {reference.format}: upgrade hpcverify")
    return reference


def write_reference(path: Path, reference: FleetReference) -> None:
    """
    Write *reference* to a new file.

    Raises:
        UnusableError: *path* exists, or cannot be written.

    """
    text = msgspec.json.format(msgspec.json.encode(reference), indent=1) + b"\n"
    try:
        with path.open("xb") as file:
            file.write(text)
    except FileExistsError as exc:
        raise UnusableError(
            f"{path} exists, and a reference never moves by itself: choose a new name"
        ) from exc
    except OSError as exc:
        raise UnusableError(f"{path} cannot be written: {exc.strerror}") from exc


def list_versions(groups: Iterable[Mapping[str, str]]) -> dict[str, tuple[str, ...]]:
    """List the values that each field of *groups* has, those with many left out."""
    most = 8
    seen: dict[str, set[str]] = {}
    for fields in groups:
        for field, value in fields.items():
            seen.setdefault(field, set()).add(value)
    return {
        field: tuple(sorted(values - {""}))
        for field, values in sorted(seen.items())
        if len(values) <= most
    }
