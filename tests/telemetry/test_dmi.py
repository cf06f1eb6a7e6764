"""Memory modules as the firmware lists them."""

from __future__ import annotations

import struct
from pathlib import Path

from hpcverify.telemetry import dmi


def module(size: int, *texts: str, extended: int = 0) -> bytes:
    formatted = bytearray(0x28)
    formatted[:4] = struct.pack("<BBH", 17, len(formatted), 0x1100)
    formatted[0x0C:0x0E] = struct.pack("<H", size)
    formatted[0x1C:0x20] = struct.pack("<I", extended)
    for index, offset in enumerate(dmi.STRING_OFFSETS.values(), 1):
        formatted[offset] = index if index <= len(texts) else 0
    return bytes(formatted) + b"".join(t.encode() + b"\0" for t in texts) + b"\0"


def enter(root: Path, *modules: bytes) -> Path:
    for number, raw in enumerate(modules):
        entry = root / f"sys/firmware/dmi/entries/17-{number}"
        entry.mkdir(parents=True)
        (entry / "raw").write_bytes(raw)
    return root


def test_a_module_goes_by_its_serial_number(tmp_path: Path) -> None:
    raw = module(0x7FFF, "DIMM_A1", "Samsung", "80CE01", "M321R8GA", extended=65536)
    (part,) = dmi.list_dimms(enter(tmp_path, raw))
    assert (part.kind, part.id, part.label) == ("dimm", "80CE01", "DIMM_A1")
    assert part.facts == {
        "size_mib": "65536",
        "handle": "0x1100",
        "locator": "DIMM_A1",
        "manufacturer": "Samsung",
        "serial": "80CE01",
        "part_number": "M321R8GA",
    }


def test_an_empty_slot_and_one_of_unknown_size_are_no_modules(tmp_path: Path) -> None:
    assert list(dmi.list_dimms(enter(tmp_path, module(0), module(0xFFFF)))) == []


def test_a_module_without_serial_number_goes_by_its_slot(tmp_path: Path) -> None:
    raw = module(16384, "DIMM 3", "Unknown", "Not Specified")
    assert [p.id for p in dmi.list_dimms(enter(tmp_path, raw))] == ["dimm-DIMM 3"]


def test_a_table_cut_short_by_the_firmware_is_left_out(tmp_path: Path) -> None:
    whole = module(16384, "DIMM 3", "Hynix", "1234")
    root = enter(tmp_path, whole[:9], b"", whole)
    assert [part.id for part in dmi.list_dimms(root)] == ["1234"]
