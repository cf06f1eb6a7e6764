"""
What a part should reach: its data sheet, and the share of it that good ones reach.

Both tables are package data with a source in every row. The peaks are dense (without
sparsity) and, where the part has tensor cores for a type, those of the tensor cores.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from hpcverify.model import Part

DTYPES = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8")
TERA = 1000.0
"""GFLOP/s in a TFLOP/s: data sheets print the one, we measure in the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """The data sheet of one part; what it does not say, or we do not know, is None."""

    key: str
    names: tuple[str, ...]
    """As NVML prints them; drivers differ."""
    pci_device_ids: tuple[str, ...]
    compute_capability: str
    peaks: Mapping[str, float]
    """Dense GFLOP/s (int8: GOP/s) by data type."""
    sms: int | None
    peak_clock_mhz: float | None
    """The clock for which the peaks hold; NVML's maximum is often higher."""
    flop_per_clk_per_sm: float | None
    """Dense bf16, or fp16 where the part has no bf16."""
    memory_gb: float
    memory_bandwidth_gbs: float
    nvlink_links: int
    nvlink_link_gbs: float
    """Both directions of one link together."""
    nvlink_bidir_gbs: float
    pcie_gen: int | None
    pcie_width: int
    tdp_w: float
    confidence: str
    """A: a source that cites the vendor; B: mixed; C: partly from memory."""
    source: str

    @property
    def name(self) -> str:
        """What to call the part in a reason."""
        return self.names[0]


@dataclass(frozen=True, slots=True)
class Fraction:
    """The share of the dense peak that a healthy part was seen to reach."""

    value: float
    source: str


def find(part: Part) -> Spec | None:
    """
    Look up *part* by its PCI device id, else by its exact name.

    None if it is unknown, or if its compute capability contradicts what was found:
    to judge a part by another one's data sheet is worse than not to judge it.
    """
    device_id = part.facts.get("pci_device_id", "").lower()
    spec = _by("pci_device_ids").get(device_id) or _by("names").get(
        part.facts.get("name", "")
    )
    if spec is None:
        return None
    capability = part.facts.get("compute_capability", spec.compute_capability)
    return spec if capability == spec.compute_capability else None


def achievable(spec: Spec, dtype: str, mode: str) -> Fraction | None:
    """Say what share of its peak *spec* reaches in *mode*: burst or sustained."""
    return _fractions().get((spec.key, dtype, mode))


@cache
def specs() -> tuple[Spec, ...]:
    """Read the table of parts."""
    return tuple(_spec(row) for row in _rows("gpu_specs.csv"))


@cache
def _fractions() -> Mapping[tuple[str, str, str], Fraction]:
    return {
        (row["part"], row["dtype"], row["mode"]): Fraction(
            float(row["fraction"]), row["source"]
        )
        for row in _rows("gpu_fractions.csv")
    }


@cache
def _by(field: str) -> Mapping[str, Spec]:
    return {key: spec for spec in specs() for key in getattr(spec, field)}


def _rows(name: str) -> Iterator[dict[str, str]]:
    text = (files("hpcverify.limits") / name).read_text(encoding="utf-8")
    yield from csv.DictReader(text.splitlines())


def _spec(row: dict[str, str]) -> Spec:
    return Spec(
        key=row["key"],
        names=tuple(row["names"].split("|")),
        pci_device_ids=tuple(row["pci_device_ids"].split("|")),
        compute_capability=row["compute_capability"],
        peaks={d: float(row[d]) * TERA for d in DTYPES if row[d]},
        sms=int(row["sms"]) if row["sms"] else None,
        peak_clock_mhz=_number(row["peak_clock_mhz"]),
        flop_per_clk_per_sm=_number(row["flop_per_clk_per_sm"]),
        memory_gb=float(row["memory_gb"]),
        memory_bandwidth_gbs=float(row["memory_bandwidth_gbs"]),
        nvlink_links=int(row["nvlink_links"] or 0),
        nvlink_link_gbs=float(row["nvlink_link_gbs"] or 0),
        nvlink_bidir_gbs=float(row["nvlink_bidir_gbs"] or 0),
        pcie_gen=int(row["pcie_gen"]) if row["pcie_gen"] else None,
        pcie_width=int(row["pcie_width"]),
        tdp_w=float(row["tdp_w"]),
        confidence=row["confidence"],
        source=row["source"],
    )


def _number(text: str) -> float | None:
    return float(text) if text else None
