"""
What is known of parts: their data sheets, and how much of those good parts reach.

The tables are package data, with one value per line and a source and a confidence for
each; `floors` makes floors from them. Peaks are dense (without sparsity) and, if the
part has tensor cores for a type, those of the tensor cores. `tests/limits/physics.py`
checks every number against the others of its part: run it after an edit.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from msgspec import Struct

from hpcverify.model import Part
from hpcverify.units import convert_unit

DTYPES = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8")
SOUND_CONFIDENCES = frozenset("AB")
"""The confidence that a limit needs to fail a part."""
FLIT_EFFICIENCY = 242 / 256
"""What a flit of 256 bytes carries beside the 8 of its CRC and the 6 of its FEC."""
PCIE_LANE_RATES = {
    1: (2.5, 8 / 10),
    2: (5.0, 8 / 10),
    3: (8.0, 128 / 130),
    4: (16.0, 128 / 130),
    5: (32.0, 128 / 130),
    6: (64.0, FLIT_EFFICIENCY),
}
"""By generation, what a lane transfers (GT/s) and what its encoding leaves of that (PCI
Express base specification)."""
PCIE_WIDTHS = frozenset({1, 2, 4, 8, 12, 16, 32})
"""Lanes that a link can have; a virtual machine may show 0 or 63, which says nothing."""
BITS_PER_BYTE = 8
BOARD_PARTS = frozenset(
    {
        *("a100-sxm4-40gb", "a100-sxm4-80gb", "h100-sxm5-80gb", "h200-sxm", "b200-sxm", "b300-sxm"),
        *("a800-sxm4-80gb", "h800-sxm5-80gb", "h20-96gb", "gb200", "gb300"),
    }
)
"""Parts of which a node has 1, 2, 4 or 8, or a multiple of 8: their boards and trays have 4 or
8, and partitions of these for virtual machines are halves. Not those with an SXM2 socket: some
mainboards have six."""
BOARD_SIZES = (4, 8)
MEMORY_SHOWN_RANGE = (0.88, 1.06)
"""NVML's memory in GiB over the GB of the sheet: ECC and firmware take some (22 of 24
on an A10), and sheets print 141 GB for 140 GiB."""


class SheetValue(Struct, frozen=True):
    """One cell of a data sheet."""

    text: str
    unit: str
    confidence: str
    """A: read in a source that cites or is the vendor, or that measured it; B: second
    hand, mixed or derived; C: recalled, unattributed, or sources disagree."""
    source: str

    @property
    def number(self) -> float:
        """The value, in its `unit`."""
        return float(self.text)


class Promise(Struct, frozen=True):
    """What a data sheet says about a measured quantity."""

    value: float
    unit: str
    confidence: str


class Spec(Struct, frozen=True):
    """The data sheet of one part; unknown values are None."""

    key: str
    sheet: Mapping[str, SheetValue]
    """By quantity, with confidence and source."""
    names: tuple[str, ...]
    """As NVML prints them; drivers differ."""
    other_names: tuple[str, ...]
    """The names of other products with the same device id."""
    pci_device_ids: tuple[str, ...]

    @property
    def name(self) -> str:
        """What to call the part in a reason."""
        return self.names[0]

    @property
    def compute_capability(self) -> str:
        """As CUDA prints it: ``9.0``."""
        return self.sheet["compute_capability"].text

    @property
    def peaks(self) -> Mapping[str, float]:
        """Dense GFLOP/s (int8: GOP/s) by data type."""
        promised = {dtype: self.find_promise(dtype) for dtype in DTYPES}
        return {dtype: peak.value for dtype, peak in promised.items() if peak}

    @property
    def sms(self) -> int | None:
        """Streaming multiprocessors."""
        return self._find_count("sms")

    @property
    def peak_clock_mhz(self) -> float | None:
        """The clock for which the peaks of tensor cores hold."""
        return self._find_number("peak_clock")

    @property
    def flop_per_clk_per_sm(self) -> float | None:
        """Dense bf16, or fp16 where the part has no bf16."""
        return self._find_number("flop_per_clk_per_sm")

    @property
    def memory_gb(self) -> float:
        """As printed."""
        return self.sheet["memory"].number

    @property
    def nvlink_links(self) -> int:
        """How many links; 0 on a part without."""
        return self._find_count("nvlink_links") or 0

    @property
    def nvlink_link_gbs(self) -> float:
        """Both directions of one link together."""
        return self._find_number("nvlink_per_link") or 0.0

    @property
    def pcie_width(self) -> int:
        """Lanes."""
        return int(self.sheet["pcie_width"].text)

    @property
    def tdp_w(self) -> float:
        """The default power limit."""
        return self.sheet["tdp"].number

    def find_promise(self, quantity: str) -> Promise | None:
        """
        Find what the sheet promises for *quantity*, as checks name it.

        That is a data type, ``memory`` (bytes read and written together), or one direction
        of all NVLinks together: what a GPU can send to another one through switches
        (``p2p``, ``tray``), and what bounds an all-reduce by rings (``ring``, ``tray``,
        ``mesh``). Where the switches add up (``nvls``), both directions bound it.
        """
        cell, share = _SHEET_CELLS.get(quantity, (quantity, 1.0))
        value = self.sheet.get(cell)
        if value is None or quantity not in MEASURED_UNITS:
            return None
        unit = MEASURED_UNITS[quantity]
        number = share * convert_unit(value.number, value.unit, unit)
        return Promise(number, unit, value.confidence)

    def _find_number(self, quantity: str) -> float | None:
        value = self.sheet.get(quantity)
        return None if value is None else value.number

    def _find_count(self, quantity: str) -> int | None:
        value = self.sheet.get(quantity)
        return None if value is None else int(value.text)


_SHEET_CELLS = {
    "memory": ("memory_bandwidth", 1.0),
    **dict.fromkeys(("p2p", "tray", "ring", "mesh"), ("nvlink_total", 0.5)),
    "nvls": ("nvlink_total", 1.0),
}
"""The cell that a measured quantity is compared with, and the share of it."""
MEASURED_UNITS: Mapping[str, str] = {
    **dict.fromkeys(DTYPES, "GFLOP/s"),
    "int8": "GOP/s",
    **dict.fromkeys(("memory", "p2p", "tray", "ring", "mesh", "nvls"), "GB/s"),
}
"""The quantities that a sheet promises, and the units that we measure in."""


class Fraction(Struct, frozen=True):
    """The measured share of a promise that a healthy part reaches."""

    value: float
    confidence: str
    source: str


def compute_pcie_bandwidth(generation: int, width: int) -> float:
    """Compute what a link carries in one direction, GB/s, before any packet's header."""
    transfers, payload = PCIE_LANE_RATES[generation]
    return transfers * payload * width / BITS_PER_BYTE


def find_spec(part: Part) -> Spec | None:
    """Look up *part* by PCI device id or name; None if unknown, or if its facts contradict it."""
    spec = _look_up(part)
    return None if spec is None or _find_contradiction(spec, part.facts) else spec


def count_missing_from_board(gpus: Sequence[Part], handed_on: int = 0) -> int | None:
    """Count the GPUs that a board lacks beyond *gpus* and *handed_on*; None if not on a board."""
    keys = {spec.key if (spec := find_spec(gpu)) else "" for gpu in gpus if "name" in gpu.facts}
    if len(keys) != 1 or not keys <= BOARD_PARTS:
        return None
    count = len(gpus) + handed_on
    size = next((size for size in BOARD_SIZES if size / 2 < count < size), count)
    return size - count


def explain_unknown(part: Part) -> str:
    """Say why *part* has no data sheet, if it has none."""
    facts = part.facts
    spec = _look_up(part)
    if spec is not None:
        return _find_contradiction(spec, facts)
    name = facts.get("name", "a GPU without a name")
    device_id = facts.get("pci_device_id", "unknown")
    return f"{name} (PCI device id {device_id}) is not in the table of parts"


def _look_up(part: Part) -> Spec | None:
    device_id = part.facts.get("pci_device_id", "").lower()
    return _index_by("pci_device_ids").get(device_id) or _index_by("names").get(
        part.facts.get("name", "")
    )


def _find_contradiction(spec: Spec, facts: Mapping[str, str]) -> str:
    identity = f"the device id or name matches {spec.name}"
    capability = facts.get("compute_capability", spec.compute_capability)
    if capability != spec.compute_capability:
        return f"{identity}, but compute capability {capability} does not"
    if facts.get("name") in spec.other_names:
        return f"{facts['name']} is not in the table of parts, though {identity}"
    gib = float(facts.get("memory", f"{spec.memory_gb} GiB").split()[0])
    low, high = MEMORY_SHOWN_RANGE
    if not low <= gib / spec.memory_gb <= high:
        return f"{identity}, but the memory of {gib:g} GiB does not"
    return ""


def find_achievable(spec: Spec, quantity: str, mode: str) -> Fraction | None:
    """Find the share of *quantity* that the part *spec* reaches in a *mode*, as ``sustained``."""
    return _load_fractions().get((spec.key, quantity, mode))


@cache
def load_specs() -> tuple[Spec, ...]:
    """Read the table of parts."""
    return parse_specs(read_rows("gpu_specs.csv"))


def parse_specs(table: Iterable[Mapping[str, str]]) -> tuple[Spec, ...]:
    """Make data sheets from a *table* with one value per row."""
    parts: dict[str, dict[str, list[SheetValue]]] = {}
    for row in table:
        cells = parts.setdefault(row["part"], {}).setdefault(row["quantity"], [])
        cells.append(SheetValue(row["value"], row["unit"], row["confidence"], row["source"]))
    return tuple(_build_spec(key, cells) for key, cells in parts.items())


def _build_spec(key: str, cells: Mapping[str, list[SheetValue]]) -> Spec:
    def texts(quantity: str) -> tuple[str, ...]:
        return tuple(value.text for value in cells.get(quantity, ()))

    return Spec(
        key=key,
        sheet={quantity: values[0] for quantity, values in cells.items()},
        names=texts("name"),
        other_names=texts("other_name"),
        pci_device_ids=texts("pci_device_id"),
    )


@cache
def _load_fractions() -> Mapping[tuple[str, str, str], Fraction]:
    by_key = {spec.key: spec for spec in load_specs()}
    return {
        (row["part"], row["quantity"], row["mode"]): share
        for row in read_rows("gpu_reached.csv")
        if (share := _build_fraction(row, by_key[row["part"]]))
    }


def _build_fraction(row: Mapping[str, str], spec: Spec) -> Fraction | None:
    promise = spec.find_promise(row["quantity"])
    if promise is None:
        return None
    reached = convert_unit(float(row["reached"]), row["unit"], promise.unit)
    return Fraction(reached / promise.value, row["confidence"], row["source"])


@cache
def load_least_shares() -> Mapping[tuple[str, str], Fraction]:
    """Read the least share that any good part reaches, by compute capability and quantity."""
    return {
        (row["compute_capability"], row["quantity"]): Fraction(
            float(row["share"]), row["confidence"], row["source"]
        )
        for row in read_rows("gpu_least.csv")
    }


@cache
def _index_by(field: str) -> Mapping[str, Spec]:
    return {key: spec for spec in load_specs() for key in getattr(spec, field)}


def read_rows(name: str) -> Iterator[dict[str, str]]:
    """Read the table *name* of the package, a row at a time."""
    text = (Path(__file__).parent / name).read_text(encoding="utf-8")
    yield from csv.DictReader(text.splitlines())
