"""
The words, icons and formats of the reports.

A verdict has a shape, a word and a colour, so that it survives a grey printer and colour
blindness.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import quote

from hpcverify.check import format_quantity
from hpcverify.model import Cause, Verdict
from hpcverify.summary.figures import RATE_WORDS
from hpcverify.summary.printable import make_printable
from hpcverify.units import PRINTED_UNITS, choose_unit

LabeledText = tuple[str, str]
"""A name and its value, ready to print."""
MAX_NAMED_NODES = 8
"""Nodes that a sentence names."""
CAUSE_SENTENCES = {
    Cause.NONE: "",
    Cause.BUSY: "Another process or user holds the part.",
    Cause.CHECKER: "The check failed its own self-test, or has a bug.",
    Cause.CRASHED: "The check crashed.",
    Cause.DENIED: "A permission is missing.",
    Cause.HUNG: "A driver call or a process did not return.",
    Cause.INTERRUPTED: "The run was stopped.",
    Cause.MISCONFIGURED: "The node's driver, libraries or settings do not match.",
    Cause.MISSING: "A tool or a library is not installed.",
    Cause.NOISY: "The metric varies too much to be judged.",
    Cause.NO_RESOURCES: "The node could not start more processes or open more files.",
    Cause.NO_SPACE: "There was not enough free disk space or memory.",
    Cause.NOT_APPLICABLE: "The node has no such part.",
    Cause.NOT_OBSERVABLE: "It cannot be observed on this node.",
    Cause.PARTIAL_VIEW: "A cgroup or an environment variable hides parts.",
    Cause.TIMEOUT: "The deadline passed.",
    Cause.UNMEASURED: "There is a limit, but no measurement for it.",
}
"""One sentence for each cause of an ERROR or a SKIP."""


@dataclass(frozen=True, slots=True)
class Icon:
    """
    The sign of a verdict on a square of 16: a *shape* with a *glyph* in it.

    *fill* is an attribute, for servers that ban styles; *key* names the CSS class that
    lightens it in dark mode.
    """

    key: str
    word: str
    fill: str
    shape: str
    glyph: str


ICONS = {
    Verdict.PASS: Icon(
        "pass", "pass", "#2c7a4b", "M8 1a7 7 0 1 0 0 14A7 7 0 0 0 8 1z", "M4.7 8.3 7 10.6l4.4-4.9"
    ),
    Verdict.SKIP: Icon(
        "skip",
        "skipped",
        "#69727d",
        "M4 4.5h8a3.5 3.5 0 0 1 0 7H4a3.5 3.5 0 0 1 0-7z",
        "M4.8 8h6.4",
    ),
    Verdict.WARN: Icon("warn", "warning", "#a86400", "M8 1 15.5 14.5H.5z", "M8 6.2v3.8M8 12.1v.2"),
    Verdict.ERROR: Icon(
        "error",
        "error",
        "#7548b0",
        "M8 .3 15.7 8 8 15.7.3 8z",
        "M6.3 6.4a1.8 1.8 0 1 1 2.6 1.6q-.9.4-.9 1.3M8 11.4v.2",
    ),
    Verdict.FAIL: Icon("fail", "fail", "#bf3026", "M1.2 1.2h13.6v13.6H1.2z", "M5 5l6 6M11 5l-6 6"),
}
"""Five shapes that differ even without their colours."""

INFO_ICON = Icon(
    "info",
    "for information",
    "#69727d",
    "M8 1a7 7 0 1 0 0 14A7 7 0 0 0 8 1z",
    "M8 7.2v4.3M8 4.4v.2",
)
"""The sign of a finding that is not judged: counters, changes."""


def choose_shown_unit(values: Iterable[float | None], unit: str) -> tuple[str, float]:
    """Choose one unit to print *values*, given in *unit*, in, and what to multiply them by."""
    values = list(values)
    if unit == "ratio" and all(abs(value) <= 1 for value in values if value is not None):
        return "%", 100.0
    return choose_unit(values, unit)


def format_number(value: float | None) -> str:
    """Print *value* without its unit, short enough for a column."""
    text = format_quantity(value, "").replace("e+", "e")
    return f"{int(text):,}" if text.removeprefix("-").isdecimal() else text


def format_unit(unit: str) -> str:
    """Print a unit as people write it; a ratio has none."""
    return "" if unit == "ratio" else RATE_WORDS.get(unit, PRINTED_UNITS.get(unit, unit))


def format_with_unit(value: float | None, unit: str) -> str:
    """Print *value* with its unit."""
    return f"{format_number(value)} {format_unit(unit)}".rstrip()


FACT_LABELS = {
    "board": "part number",
    "pci_address": "PCI address",
    "pci_device_id": "PCI device ID",
    "pcie_generation": "PCIe generation",
    "pcie_width": "PCIe width",
    "serial": "serial number",
    "vbios": "VBIOS",
}
"""Facts whose names in the run document are not what people call them."""


def label_fact(fact: str) -> str:
    """Name a *fact* of a part as people do."""
    return FACT_LABELS.get(fact, fact.replace("_", " "))


def make_anchor(*names: str) -> str:
    """Make an anchor from names alone, so that it is the same after a rerun."""
    return ".".join(quote(make_printable(name), safe="") for name in names)


def format_time(when: datetime | float | str) -> str:
    """
    Print date and time in UTC.

    *when* is a moment, seconds since 1970, or the text of a document. Text that is not a moment
    stays as it is: somebody wrote it by hand.
    """
    try:
        moment = datetime.fromisoformat(when) if isinstance(when, str) else when
    except ValueError:
        return str(when)
    if not isinstance(moment, datetime):
        moment = datetime.fromtimestamp(moment, UTC)
    return convert_to_utc(moment).strftime("%Y-%m-%d %H:%M UTC")


def convert_to_utc(when: datetime) -> datetime:
    """Convert *when* to UTC; without a zone it is taken to be UTC."""
    return when.astimezone(UTC) if when.tzinfo else when.replace(tzinfo=UTC)


def format_names(names: Sequence[str], limit: int = MAX_NAMED_NODES, separator: str = ", ") -> str:
    """List the first *names*, and count the others."""
    left = len(names) - limit
    if left <= 0:
        return separator.join(names)
    return f"{separator.join(names[:limit])}{separator.rstrip(' ,')} and {left} more"
