"""
Holds every number of a data sheet to the others of the same part.

A sheet is typed by hand, and a slip of ten in it is a check that cannot fail (DCGM
ships an H200 whose floor for memory bandwidth is in GB/s where MB/s is meant). The
numbers of a part hang together: each law below says how, and complains in words.
By itself it reads the package's table, or the one that it is given:

    python -m tests.limits.physics [TABLE.csv]
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from hpcverify.limits.specs import DTYPES, Spec, parse_specs, read_rows

EXACT = 0.015
"""Sheets round, and solve their clocks from rounded peaks."""
CLOSE = 0.04
"""For what sources disagree on."""

CHIPS = {
    "1d": ("7.0", "GV100"),
    "1e": ("7.5", "TU104"),
    "20": ("8.0", "GA100"),
    "22": ("8.6", "GA102"),
    "23": ("9.0", "GH100"),
    "26": ("8.9", "AD102"),
    "27": ("8.9", "AD104"),
    "29": ("10.0", "GB100"),
    "2b": ("12.0", "GB202"),
    "2e": ("12.1", "GB20B"),
    "31": ("10.3", "GB110"),
}
"""The chip by the upper half of the PCI device id, with its compute capability."""
FLOP_PER_CLOCK = {
    **dict.fromkeys(("7.0", "7.5", "8.6", "12.0", "12.1"), (1024,)),
    "8.0": (2048,),
    "8.9": (1024, 512),  # an L40 has half the rate
    "9.0": (4096,),
    **dict.fromkeys(("10.0", "10.3"), (8192,)),
}
"""Of the tensor cores of one SM, dense, with operands of 16 bits."""
LANES = {"7.0": 64, "7.5": 64, "8.0": 64}
"""Of 32 bits in one SM; 128 in all others."""
FP64_OF_FP32 = {"7.0": 1 / 2, "8.0": 1, "9.0": 1, "10.0": 1 / 2, "10.3": 1 / 60}
"""With tensor cores where they do fp64; other chips are left out of the sheet."""
INT8_OF_16 = {"10.3": 1 / 18}
"""Twice the rate of 16 bits, but cut on this chip."""
FP32_OF_16 = (0.03, 0.3)
"""FP32 lanes against tensor cores at their full rate: from Blackwell to GA102."""
PIN_GBITS = {
    "HBM2": (1.6, 2.5),
    "HBM2e": (2.8, 3.7),
    "HBM3": (4.8, 6.5),
    "HBM3e": (6.0, 9.3),
    "GDDR6": (12.0, 20.5),
    "GDDR6 7.5": (9.0, 11.0),  # of the T4, the slowest
    "GDDR7": (24.0, 32.0),
    "LPDDR5X": (6.4, 10.7),
}
"""What one data pin carries, Gbit/s, by type of memory."""
STACKS = {
    "HBM": (1024, (4, 8, 16, 24, 36)),
    "GDDR": (32, (1, 2, 4, 6)),
    "LPDD": (32, (16,)),
}
"""How many pins a stack, chip or pair of chips has, and the sizes that it comes in, GB."""
USABLE = (0.93, 1.001)
"""Of the memory that is fitted, what is sold."""
NVLINK = {2: ("7", {6}), 3: ("8", {4, 8, 12}), 4: ("9", {8, 12, 18}), 5: ("10", {18})}
"""By generation: the major compute capability that has it, and numbers of links."""
PER_LINK = {2: {50.0}, 3: {50.0, 28.125}, 4: {50.0}, 5: {100.0}}
"""Both directions, GB/s; the bridge of GA102 is slower than that of GA100."""
PCIE = {"7": {3}, "8": {4}, "9": {5}, "10": {5, 6}, "12": {5}}
"""The generation by major compute capability."""
GFLOPS_PER_WATT = {
    "7.0": (300, 600),
    "7.5": (700, 1100),
    "8.0": (600, 1400),
    "8.6": (400, 1000),
    "8.9": (600, 1900),
    "9.0": (280, 2400),
    "10.0": (1700, 2600),
    "10.3": (1500, 2600),
    "12.0": (700, 1600),
    "12.1": (700, 1100),
}
"""Dense, with operands of 16 bits, at the default power limit."""
UNITS = {
    **dict.fromkeys(DTYPES, "TFLOP/s"),
    "int8": "TOP/s",
    "peak_clock": "MHz",
    "max_clock": "MHz",
    "memory": "GB",
    "memory_bandwidth": "GB/s",
    "memory_bus": "bit",
    "nvlink_per_link": "GB/s",
    "nvlink_total": "GB/s",
    "tdp": "W",
}
WORDS = frozenset({"name", "other_name", "memory_type"})
COUNTS = frozenset(
    {"sms", "flop_per_clk_per_sm", "memory_bus"}
    | {"nvlink_gen", "nvlink_links", "pcie_gen", "pcie_width"}
)
FORMS = {"pci_device_id": "[0-9a-f]{4}", "compute_capability": r"\d+\.\d"}
REQUIRED = frozenset(
    {"name", "pci_device_id", "compute_capability", "fp32", "fp16", "memory"}
    | {"memory_type", "memory_bus", "memory_bandwidth", "pcie_width", "tdp"}
)
WHOLE = r"[1-9]\d*"
NUMBER = r"\d*\.?\d+"


def faults(spec: Spec) -> list[str]:
    """Say everything that cannot be true of *spec*."""
    misshapen = list(shape(spec))
    laws = () if misshapen else LAWS  # which reckon with what they are given
    found = [*misshapen, *(text for law in laws for text in law(spec))]
    return [f"{spec.key}: {text}" for text in found]


def read_number(spec: Spec, quantity: str) -> float | None:
    """Read a number of the data sheet; None if the sheet does not have it."""
    value = spec.sheet.get(quantity)
    return None if value is None else value.number


def _sixteen(spec: Spec) -> float:
    """Give the dense peak for operands of 16 bits, TFLOP/s."""
    return read_number(spec, "bf16") or read_number(spec, "fp16") or 0.0


def _near(what: str, value: float | None, wanted: float, by: float) -> Iterator[str]:
    if value is not None and abs(value - wanted) > by * wanted:
        yield f"{what} is {value:g}, and {wanted:g} follows from the rest"


def _among(what: str, value: object, allowed: object) -> Iterator[str]:
    if value not in allowed:  # type: ignore[operator]
        yield f"{what} is {value}, and only {allowed} can be"


def _between(what: str, value: float, bounds: tuple[float, float]) -> Iterator[str]:
    low, high = bounds
    if not low <= value <= high:
        yield f"{what} is {value:.4g}, not from {low:g} to {high:g}"


def shape(spec: Spec) -> Iterator[str]:
    """Demand that counts are whole, numbers are numbers, and nothing is missing."""
    for quantity in sorted(REQUIRED - spec.sheet.keys()):
        yield f"{quantity} is missing"
    for quantity, value in spec.sheet.items():
        form = WHOLE if quantity in COUNTS else FORMS.get(quantity, NUMBER)
        if quantity not in WORDS and not re.fullmatch(form, value.text):
            yield f"{quantity} cannot be {value.text!r}"


def units(spec: Spec) -> Iterator[str]:
    """Hold every quantity to its one unit: nothing in MB/s among GB/s."""
    for quantity, value in spec.sheet.items():
        if quantity not in {*UNITS, *WORDS, *COUNTS, *FORMS}:
            yield f"{quantity} is no quantity of a sheet"
        yield from _among(f"unit of {quantity}", value.unit, [UNITS.get(quantity, "")])
        yield from _among(f"confidence of {quantity}", value.confidence, list("ABC"))
        if not value.source.strip():
            yield f"{quantity} has no source"


def chip(spec: Spec) -> Iterator[str]:
    """Infer the chip from the PCI device id, and from it what it can."""
    for device_id in spec.pci_device_ids:
        capability, name = CHIPS.get(device_id[:2], ("", "an unknown chip"))
        if capability != spec.compute_capability:
            yield f"{device_id} is {name}, not {spec.compute_capability}"
    major, _, minor = spec.compute_capability.partition(".")
    newer = (int(major), int(minor))
    for dtype, since in (("bf16", (8, 0)), ("tf32", (8, 0)), ("fp8", (8, 9))):
        if (dtype in spec.sheet) != (newer >= since):
            yield f"{dtype} begins with compute capability {since}"


def tensor_cores(spec: Spec) -> Iterator[str]:
    """Reckon the peak of 16 bits: SMs x clock x width."""
    width, widths = spec.flop_per_clk_per_sm, FLOP_PER_CLOCK.get(spec.compute_capability, ())
    if width is not None:
        yield from _among("flop_per_clk_per_sm", width, widths)
    if width is None or spec.sms is None or spec.peak_clock_mhz is None:
        return
    reached = spec.sms * spec.peak_clock_mhz * width / 1e6
    yield from _near("SMs x clock x width", reached, _sixteen(spec), EXACT)


def operands(spec: Spec) -> Iterator[str]:
    """Double the rate for half the bits."""
    sixteen = _sixteen(spec)
    yield from _near("fp16", read_number(spec, "fp16"), sixteen, 0)
    yield from _near("tf32", read_number(spec, "tf32"), sixteen / 2, EXACT)
    yield from _near("fp8", read_number(spec, "fp8"), 2 * sixteen, EXACT)
    int8 = INT8_OF_16.get(spec.compute_capability, 2) * sixteen
    yield from _near("int8", read_number(spec, "int8"), int8, EXACT)


def lanes(spec: Spec) -> Iterator[str]:
    """Reckon FP32, lanes x 2 x SMs at the highest clock, and FP64, a share of it."""
    fp32, full = spec.sheet["fp32"].number, FLOP_PER_CLOCK.get(spec.compute_capability, (1,))[0]
    rate = (spec.flop_per_clk_per_sm or full) / full
    yield from _between("fp32 / 16 bits", rate * fp32 / _sixteen(spec), FP32_OF_16)
    clock = read_number(spec, "max_clock") or spec.peak_clock_mhz
    if spec.sms and clock:
        reached = 2 * LANES.get(spec.compute_capability, 128) * spec.sms * clock / 1e6
        yield from _near("lanes x SMs x clock", reached, fp32, CLOSE)
    share = FP64_OF_FP32.get(spec.compute_capability)
    if share is None and "fp64" in spec.sheet:
        yield "this chip has next to no fp64"
    if share is not None:  # what is cut is printed with one digit
        tolerance = CLOSE if share > 0.1 else 2 * CLOSE
        yield from _near("fp64", read_number(spec, "fp64"), share * fp32, tolerance)
    if (clock := read_number(spec, "max_clock")) and spec.peak_clock_mhz:
        ratio = clock / spec.peak_clock_mhz
        yield from _between("maximal clock / clock of the peak", ratio, (1, 1.2))


def memory(spec: Spec) -> Iterator[str]:
    """Reckon bandwidth, pins x rate of the type, and size, stacks x one of theirs."""
    kind, pins = spec.sheet["memory_type"].text, spec.sheet["memory_bus"].number
    rate = spec.sheet["memory_bandwidth"].number * 8 / pins
    rates = PIN_GBITS.get(f"{kind} {spec.compute_capability}", PIN_GBITS.get(kind, (0, 0)))
    yield from _between(f"Gbit/s per pin of {kind}", rate, rates)
    width, sizes = STACKS["HBM" if kind.startswith("HBM") else kind[:4]]
    per_stack = spec.memory_gb / round(pins / width) if pins >= width else 0.0
    low, high = USABLE
    if not any(low * size <= per_stack <= high * size for size in sizes):
        yield f"{per_stack:.3g} GB per stack or chip: they come in {sizes}"


def nvlink(spec: Spec) -> Iterator[str]:
    """Multiply links and rate; each must fit the generation, and that the chip."""
    generation = read_number(spec, "nvlink_gen")
    if generation is None:
        yield from _among("NVLink without a generation", spec.nvlink_links, [0])
        return
    major, counts = NVLINK.get(int(generation), ("", set[int]()))
    yield from _among("NVLink generation", generation, list(NVLINK))
    yield from _among("its chip", spec.compute_capability.partition(".")[0], [major])
    yield from _among("NVLink links", spec.nvlink_links, counts)
    rates = PER_LINK.get(int(generation), set[float]())
    yield from _among("NVLink rate", spec.nvlink_link_gbs, rates)
    total = spec.nvlink_links * spec.nvlink_link_gbs
    yield from _near("NVLink in all", read_number(spec, "nvlink_total"), total, 0)


def pcie(spec: Spec) -> Iterator[str]:
    """Fit the generation to the chip; all these parts have 16 lanes."""
    allowed = PCIE.get(spec.compute_capability.partition(".")[0], set[int]())
    if (generation := read_number(spec, "pcie_gen")) is not None:
        yield from _among("PCIe generation", generation, allowed)
    yield from _among("PCIe lanes", read_number(spec, "pcie_width"), [16])


def power(spec: Spec) -> Iterator[str]:
    """Compare what a watt computes: much the same over the parts with one chip."""
    bounds = GFLOPS_PER_WATT.get(spec.compute_capability, (0, 0))
    yield from _between("GFLOP/s per W", _sixteen(spec) * 1e3 / spec.tdp_w, bounds)


LAWS: tuple[Callable[[Spec], Iterator[str]], ...] = (
    *(units, chip, tensor_cores, operands, lanes, memory, nvlink, pcie, power),
)


def main(args: list[str]) -> int:
    """Print what is wrong with the table in *args*, or with the package's."""
    if args:
        table = list(csv.DictReader(Path(args[0]).read_text().splitlines()))
    else:
        table = list(read_rows("gpu_specs.csv"))
    found = [text for spec in parse_specs(table) for text in faults(spec)]
    sys.stdout.writelines(f"{text}\n" for text in found)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
