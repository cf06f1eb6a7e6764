"""
The memory modules as the firmware lists them (SMBIOS 3.6, section 7.18, type 17).

The kernel gives each structure as /sys/firmware/dmi/entries/17-N/raw, to root
only: a header of four bytes (type, length, handle), the formatted area, then the
strings, each ended by a zero byte and counted from one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hpcverify.model import Part
from hpcverify.telemetry import sysfs

SIZE_OFFSET, EXTENDED_SIZE_OFFSET = 0x0C, 0x1C
SIZE_IS_EXTENDED = 0x7FFF
KILOBYTES_BIT = 0x8000
STRING_OFFSETS = {
    "locator": 0x10,
    "manufacturer": 0x17,
    "serial": 0x18,
    "part_number": 0x1A,
    "bank": 0x11,
}
"""Where the formatted area has the number of a string."""
PLACEHOLDERS = frozenset({"", "unknown", "not specified", "none", "00000000", "no dimm", "empty"})


def list_dimms(root: Path = Path("/")) -> Iterator[Part]:
    """Describe each module that is plugged in; none where this is not readable."""
    seen: set[str] = set()
    for entry in sysfs.list_entries(root / "sys/firmware/dmi/entries", "17-*"):
        try:
            module = _parse_module((entry / "raw").read_bytes())
        except (OSError, IndexError):  # not root, or cut short by the firmware
            continue
        if module is not None and module.id not in seen:
            seen.add(module.id)
            yield module


def _parse_module(raw: bytes) -> Part | None:
    size = _decode_mebibytes(raw)
    if not size:
        return None
    texts = raw[raw[1] :].split(b"\0")
    handle = int.from_bytes(raw[2:4], "little")
    facts = {"size_mib": str(size), "handle": f"{handle:#06x}"}
    for name, offset in STRING_OFFSETS.items():
        index = raw[offset] if offset < raw[1] else 0
        text = texts[index - 1].decode(errors="replace").strip() if index else ""
        if text.lower() not in PLACEHOLDERS:
            facts[name] = text
    locator = facts.get("locator", f"{handle:#x}")
    return Part("dimm", facts.get("serial", f"dimm-{locator}"), locator, facts)


def _decode_mebibytes(raw: bytes) -> int:
    """Decode the size: MiB, or KiB by its top bit, or in the extended field."""
    size = int.from_bytes(raw[SIZE_OFFSET : SIZE_OFFSET + 2], "little")
    if size == SIZE_IS_EXTENDED:
        return int.from_bytes(raw[EXTENDED_SIZE_OFFSET : EXTENDED_SIZE_OFFSET + 4], "little")
    if size == 0xFFFF:  # noqa: PLR2004 - the code for "unknown"
        return 0
    return (size & ~KILOBYTES_BIT) // 1024 if size & KILOBYTES_BIT else size
