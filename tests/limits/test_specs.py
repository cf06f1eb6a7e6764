"""The tables of parts obey physics, and a part is never judged by another's sheet."""

from __future__ import annotations

import csv
from importlib.resources import files

import pytest

from hpcverify.limits.specs import DTYPES, Spec, achievable, find, specs
from hpcverify.model import Part

ALL = pytest.mark.parametrize("spec", specs(), ids=lambda s: s.key)


def fractions() -> list[dict[str, str]]:
    text = (files("hpcverify.limits") / "gpu_fractions.csv").read_text()
    return list(csv.DictReader(text.splitlines()))


def gpu(**facts: str) -> Part:
    return Part(kind="gpu", id="GPU-1", label="GPU 0", facts=facts)


@ALL
def test_peak_is_sms_times_clock_times_width(spec: Spec) -> None:
    if spec.sms is None or spec.flop_per_clk_per_sm is None:
        assert spec.key == "gb300", "only this part's SM count is not published"
        return
    assert spec.peak_clock_mhz is not None
    peak = spec.peaks.get("bf16") or spec.peaks["fp16"]
    reached = spec.sms * spec.peak_clock_mhz * spec.flop_per_clk_per_sm / 1e3
    assert peak == pytest.approx(reached, rel=0.015)


@ALL
def test_width_per_clock_is_a_power_of_two(spec: Spec) -> None:
    assert spec.flop_per_clk_per_sm in (None, 1024, 2048, 4096, 8192)


@ALL
def test_halving_the_operand_doubles_the_dense_peak(spec: Spec) -> None:
    peaks = spec.peaks
    if "bf16" in peaks:
        assert peaks["fp16"] == peaks["bf16"]
        assert peaks["tf32"] == pytest.approx(peaks["bf16"] / 2, rel=0.02)
    if "fp8" in peaks:
        assert peaks["fp8"] == pytest.approx(2 * peaks["bf16"], rel=0.02)
    if "int8" in peaks and spec.key != "b300-sxm":  # there it is cut
        assert peaks["int8"] == pytest.approx(2 * peaks["bf16"], rel=0.02)


@ALL
def test_fp8_peak_needs_a_part_that_has_fp8(spec: Spec) -> None:
    major, minor = map(int, spec.compute_capability.split("."))
    assert ("fp8" in spec.peaks) == ((major, minor) >= (8, 9))
    assert ("bf16" in spec.peaks) == (major >= 8)


@ALL
def test_nvlink_bandwidth_is_links_times_rate(spec: Spec) -> None:
    assert spec.nvlink_bidir_gbs == spec.nvlink_links * spec.nvlink_link_gbs


@ALL
def test_units_are_plausible(spec: Spec) -> None:
    # DCGM ships an H200 with a bandwidth in GB/s where MB/s is meant.
    assert 250 <= spec.memory_bandwidth_gbs <= 10_000
    assert 16 <= spec.memory_gb <= 400
    assert 70 <= spec.tdp_w <= 1500
    assert spec.pcie_width in (8, 16)
    assert spec.pcie_gen in (None, 3, 4, 5, 6)
    assert all(1e3 < peak < 1e7 for peak in spec.peaks.values())


@ALL
def test_every_row_says_where_it_comes_from(spec: Spec) -> None:
    assert len(spec.source) > 20
    assert spec.confidence in ("A", "B", "C")
    assert all(len(i) == 4 and int(i, 16) for i in spec.pci_device_ids)


def test_keys_names_and_ids_are_unique() -> None:
    for field in ("names", "pci_device_ids"):
        found = [value for spec in specs() for value in getattr(spec, field)]
        assert len(found) == len(set(found))
    assert len({spec.key for spec in specs()}) == len(specs())


def test_fractions_belong_to_parts_and_never_exceed_one() -> None:
    by_key = {spec.key: spec for spec in specs()}
    for row in fractions():
        assert row["dtype"] in by_key[row["part"]].peaks
        assert row["mode"] in ("burst", "sustained")
        assert 0.3 < float(row["fraction"]) < 1
        assert len(row["source"]) > 10


def test_no_part_sustains_more_than_its_burst() -> None:
    both = {
        (r["part"], r["dtype"], r["mode"]): float(r["fraction"]) for r in fractions()
    }
    for (part, dtype, mode), value in both.items():
        if mode == "sustained":
            assert value <= both.get((part, dtype, "burst"), 1)


def test_a_part_is_found_by_id_before_its_name() -> None:
    spec = find(gpu(pci_device_id="2330", name="NVIDIA H200"))
    assert spec is not None
    assert spec.key == "h100-sxm5-80gb"


def test_an_upper_case_id_is_found() -> None:
    spec = find(gpu(pci_device_id="233B"))
    assert spec is not None
    assert spec.key == "h200-nvl"


def test_a_name_must_match_exactly() -> None:
    assert find(gpu(name="NVIDIA H200")) is not None
    assert find(gpu(name="NVIDIA H200 something")) is None
    assert find(gpu()) is None


def test_a_part_whose_capability_contradicts_the_sheet_is_unknown() -> None:
    assert find(gpu(pci_device_id="2330", compute_capability="9.0")) is not None
    assert find(gpu(pci_device_id="2330", compute_capability="8.0")) is None


def test_peaks_are_in_gflops() -> None:
    spec = find(gpu(pci_device_id="2330"))
    assert spec is not None
    assert spec.peaks["bf16"] == 989_000
    assert set(spec.peaks) == set(DTYPES)


def test_burst_and_sustained_differ_and_unknown_is_none() -> None:
    spec = find(gpu(pci_device_id="2330"))
    assert spec is not None
    burst, sustained = (achievable(spec, "bf16", m) for m in ("burst", "sustained"))
    assert burst is not None
    assert sustained is not None
    assert sustained.value < burst.value
    assert achievable(spec, "fp64", "sustained") is None
