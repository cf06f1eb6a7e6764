"""The tables of parts obey physics, and a part is never judged by another's sheet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from hpcverify.limits.specs import (
    MEASURED_UNITS,
    Spec,
    count_missing_from_board,
    explain_unknown,
    find_achievable,
    find_spec,
    load_specs,
    parse_specs,
    read_rows,
)
from hpcverify.model import Part
from tests.limits import physics

TABLE = tuple(read_rows("gpu_specs.csv"))
REACHED = tuple(read_rows("gpu_reached.csv"))
WORDS = {"name", "other_name", "pci_device_id", "memory_type"}
NUMBERS = tuple(row for row in TABLE if row["quantity"] not in WORDS)
LEAST = tuple(read_rows("gpu_least.csv"))
SPREAD = 1.05
"""Good parts of one model differ, and so do the sources that measured them."""
ALL = pytest.mark.parametrize("spec", load_specs(), ids=lambda spec: spec.key)


def gpu(**facts: str) -> Part:
    return Part(kind="gpu", id="GPU-1", label="GPU 0", facts=facts)


def of(key: str) -> Spec:
    return next(spec for spec in load_specs() if spec.key == key)


def faults_if(row: Mapping[str, str], value: str) -> list[str]:
    """Lint the part of *row* as if *value* stood in it."""
    part = [r for r in TABLE if r["part"] == row["part"]]
    [spec] = parse_specs({**r, "value": value} if r is row else r for r in part)
    return physics.faults(spec)


@ALL
def test_the_numbers_of_a_part_hang_together(spec: Spec) -> None:
    assert physics.faults(spec) == []


@pytest.mark.parametrize("factor", [10, 0.1, 1000, 0.001])
def test_a_slip_of_tens_in_any_number_of_any_part_is_noticed(factor: float) -> None:
    unnoticed = [
        (row["part"], row["quantity"])
        for row in NUMBERS
        if not faults_if(row, f"{float(row['value']) * factor:.12g}")
    ]
    assert unnoticed == []
    assert len(NUMBERS) > 400


def test_nearly_every_slip_of_two_is_noticed_as_well() -> None:
    unnoticed = [
        row["quantity"] for row in NUMBERS if not faults_if(row, f"{float(row['value']) * 2:.12g}")
    ]
    assert len(unnoticed) < len(NUMBERS) / 25
    assert set(unnoticed) <= {"tdp", "memory", "fp32"}  # parts do differ that much


@pytest.mark.parametrize(
    ("part", "quantity", "value", "fault"),
    [
        ("h200-sxm", "memory_bandwidth", "4.8", "Gbit/s per pin"),  # TB/s in GB/s
        ("h100-sxm5-80gb", "bf16", "1979", "SMs x clock x width"),  # with sparsity
        ("h100-sxm5-80gb", "peak_clock", "1980", "SMs x clock x width"),
        ("l4", "sms", "60", "SMs x clock x width"),  # as TechPowerUp prints it
        ("b300-sxm", "int8", "4500", "int8"),  # a B200's: it is cut
        ("a100-sxm4-40gb", "pci_device_id", "2330", "GH100"),
        ("h100-nvl-94gb", "memory", "80", "GB per stack"),
        ("a40", "nvlink_total", "600", "NVLink in all"),
    ],
)
def test_the_mistakes_of_others_are_noticed(
    part: str, quantity: str, value: str, fault: str
) -> None:
    [row] = [r for r in TABLE if (r["part"], r["quantity"]) == (part, quantity)]
    assert any(fault in text for text in faults_if(row, value))


@pytest.mark.parametrize(("cell", "text"), [("unit", "MB/s"), ("confidence", "D"), ("source", " ")])
def test_every_value_has_its_unit_a_confidence_and_a_source(cell: str, text: str) -> None:
    a10 = [row for row in TABLE if row["part"] == "a10"]
    [spec] = parse_specs(
        {**row, cell: text} if row["quantity"] == "memory_bandwidth" else row for row in a10
    )
    assert any("memory_bandwidth" in said for said in physics.faults(spec))


def test_the_linter_runs_by_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert physics.main([]) == 0
    assert capsys.readouterr().out == ""


def test_the_linter_names_the_part_in_a_table_that_it_is_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "mine.csv"
    lines = (f"{','.join(TABLE[0])}", *(",".join(r.values()) for r in odd_a10()))
    table.write_text("\n".join(lines))
    assert physics.main([str(table)]) == 1
    assert "a10: GFLOP/s per W" in capsys.readouterr().out


def odd_a10() -> Iterator[Mapping[str, str]]:
    """Give the rows of an A10 that draws 15 W."""
    for row in (r for r in TABLE if r["part"] == "a10"):
        value = "15" if row["quantity"] == "tdp" else row["value"]
        yield {**row, "value": value, "source": "a test"}


def test_keys_names_and_ids_are_unique() -> None:
    for field in ("names", "pci_device_ids"):
        found = [value for spec in load_specs() for value in getattr(spec, field)]
        assert len(found) == len(set(found))
    cells = [(r["part"], r["quantity"], r["value"]) for r in TABLE]
    assert len(cells) == len(set(cells))


def test_what_is_reached_is_reached_of_a_promise_and_stays_below_it() -> None:
    for row in REACHED:
        assert row["quantity"] in MEASURED_UNITS
        share = find_achievable(of(row["part"]), row["quantity"], row["mode"])
        assert share is not None
        assert 0.35 < share.value < 1
        assert share.confidence in ("A", "B", "C")
        assert len(share.source) > 10


def test_no_part_sustains_more_than_its_burst_or_its_best() -> None:
    for row in (r for r in REACHED if r["mode"] == "sustained"):
        for mode in ("burst", "best"):
            shorter = find_achievable(of(row["part"]), row["quantity"], mode)
            sustained = find_achievable(of(row["part"]), row["quantity"], "sustained")
            if shorter and sustained:
                assert sustained.value <= SPREAD * shorter.value


def test_the_least_that_is_reached_has_its_source_and_is_below_all_that_was_measured() -> None:
    for row in LEAST:
        assert row["confidence"] in ("A", "B", "C")
        assert len(row["source"]) > 10
    least = {(r["compute_capability"], r["quantity"]): float(r["share"]) for r in LEAST}
    for row in REACHED:
        spec = of(row["part"])
        share = find_achievable(spec, row["quantity"], row["mode"])
        floor = least.get((spec.compute_capability, row["quantity"]))
        floor = floor or least.get(("*", row["quantity"]))
        if share and floor and share.confidence != "C":
            assert floor < share.value


def test_a_part_is_found_by_id_before_its_name() -> None:
    spec = find_spec(gpu(pci_device_id="2330", name="NVIDIA H200"))
    assert spec is not None
    assert spec.key == "h100-sxm5-80gb"


def test_an_upper_case_id_is_found() -> None:
    assert find_spec(gpu(pci_device_id="233B")) is of("h200-nvl")


def test_a_name_must_match_exactly() -> None:
    assert find_spec(gpu(name="NVIDIA H200")) is not None
    assert find_spec(gpu(name="NVIDIA H200 something")) is None
    assert find_spec(gpu()) is None


A100 = {"pci_device_id": "20b2", "compute_capability": "8.0", "memory": "80 GiB"}


@pytest.mark.parametrize(
    ("odd", "why"),
    [
        ({"compute_capability": "9.0"}, "compute capability 9.0"),
        ({"memory": "40 GiB"}, "memory of 40 GiB"),  # a virtual GPU, or another part
        ({"name": "NVIDIA PG509-210"}, "NVIDIA PG509-210 is not in the table"),
    ],
)
def test_a_part_that_contradicts_the_sheet_is_unknown(odd: dict[str, str], why: str) -> None:
    assert find_spec(gpu(**A100)) is of("a100-sxm4-80gb")
    assert find_spec(gpu(**(A100 | odd))) is None
    assert why in explain_unknown(gpu(**(A100 | odd)))


@pytest.mark.parametrize(
    ("key", "memory"), [("a10", "22 GiB"), ("h200-sxm", "140 GiB"), ("b300-sxm", "269 GiB")]
)
def test_what_ecc_and_firmware_take_of_the_memory_contradicts_nothing(
    key: str, memory: str
) -> None:
    [device_id] = of(key).pci_device_ids
    assert find_spec(gpu(pci_device_id=device_id, memory=memory)) is of(key)


def test_an_unknown_part_is_said_to_be_unknown_by_name_and_id() -> None:
    part = gpu(name="NVIDIA GeForce RTX 4090", pci_device_id="2684")
    assert explain_unknown(part) == (
        "NVIDIA GeForce RTX 4090 (PCI device id 2684) is not in the table of parts"
    )
    assert explain_unknown(gpu(pci_device_id="2330")) == ""


@pytest.mark.parametrize(
    ("key", "count", "handed_on", "missing"),
    [
        *(("h100-sxm5-80gb", n, 0, m) for n, m in ((7, 1), (6, 2), (5, 3), (3, 1))),
        *(("h200-sxm", n, 0, 0) for n in (1, 2, 4, 8, 16)),
        *((key, 3, 0, 1) for key in ("gb200", "gb300", "b200-sxm", "b300-sxm")),
        ("a100-sxm4-80gb", 6, 2, 0),
        *((key, 7, 0, None) for key in ("h100-pcie-80gb", "h200-nvl", "gh200-96gb", "l40s")),
        ("v100-sxm2-16gb", 6, 0, None),
    ],
)
def test_gpus_are_missing_only_from_boards_of_four_or_eight(
    key: str, count: int, handed_on: int, missing: int | None
) -> None:
    name = next(spec.name for spec in load_specs() if spec.key == key)
    gpus = [Part("gpu", f"GPU-{i}", f"GPU {i}", {"name": name}) for i in range(count)]

    assert count_missing_from_board(gpus, handed_on) == missing


def test_gpus_of_several_parts_or_of_none_are_missing_from_no_board() -> None:
    names = ("NVIDIA H200", "NVIDIA B200", "NVIDIA H200")
    mixed = [Part("gpu", f"GPU-{i}", f"GPU {i}", {"name": name}) for i, name in enumerate(names)]
    nameless = [Part("gpu", f"GPU-{i}", f"GPU {i}") for i in range(3)]

    assert [count_missing_from_board(gpus) for gpus in (mixed, nameless)] == [None, None]
