"""Throughput is measured as it is, and a slow part does not pass."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest
import torch

from hpcverify.check import Unable
from hpcverify.model import (
    Cause,
    CheckItem,
    Coverage,
    Device,
    Finding,
    Inventory,
    Measurement,
    Part,
    Remedy,
    Series,
    Verdict,
)
from hpcverify.testing import judge_by, judge_items, make_context
from hpcverify_checks import gemm
from hpcverify_checks.exact.families import FAMILIES
from hpcverify_checks.node import peaks
from hpcverify_checks.node.device import use_threads
from hpcverify_checks.node.timing import (
    MIN_STEPS,
    make_product_step,
    time_on_host,
)

TINY = gemm.GemmParams(
    size=128, burst_seconds=0.02, seconds=0.05, core_seconds=0.02, dtypes=("fp32",)
)
CPU = torch.device("cpu")


def numbers(found: Sequence[CheckItem]) -> dict[tuple[str, str], float]:
    return {
        (m.name, m.part_id): m.value
        for m in found
        if isinstance(m, Measurement) and m.value is not None
    }


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[CheckItem]:
    return list(gemm.measure(make_context(tmp_path_factory.mktemp("gemm")), TINY))


def test_every_number_has_the_unit_that_was_declared(found: list[CheckItem]) -> None:
    measured = [m for m in found if isinstance(m, Measurement)]
    assert {"fp32.sustained", "fp32.step_p95"} <= {m.name for m in measured}
    for number in measured:
        metric = gemm.CHECK.find_metric(number.name)
        assert metric is not None
        assert number.unit == metric.unit
        assert number.value


def test_each_core_is_timed_under_its_own_name(found: list[CheckItem]) -> None:
    cores = {part_id for name, part_id in numbers(found) if name == "fp32.core"}
    assert cores == {f"cpu{core}" for core in os.sched_getaffinity(0)}


def test_coverage_says_that_the_data_are_random(found: list[CheckItem]) -> None:
    texts = [f.text for f in found if isinstance(f, Coverage)]
    assert any("random normal" in text for text in texts)
    assert "one at a time" in texts[-1]


def test_the_series_is_thinned_and_in_order(found: list[CheckItem]) -> None:
    [series] = [f for f in found if isinstance(f, Series)]
    assert series.name == "fp32.rate"
    assert 1 < len(series.t) == len(series.values) <= gemm.MAX_POINTS
    assert list(series.t) == sorted(series.t)


def test_all_native_types_are_taken_by_default(tmp_path: Path) -> None:
    params = gemm.GemmParams(size=64, burst_seconds=0.01, seconds=0.01, core_seconds=0.0)
    measured = numbers(list(gemm.measure(make_context(tmp_path), params)))
    assert {("fp32.sustained", "cpu"), ("fp64.sustained", "cpu")} <= measured.keys()
    assert not [name for name, _ in measured if name.endswith(".core")]


def test_a_type_that_is_not_native_is_a_mistake_in_the_suite(tmp_path: Path) -> None:
    with pytest.raises(Unable, match="fp8") as caught:
        list(gemm.measure(make_context(tmp_path), gemm.GemmParams(dtypes=("fp8",))))
    assert caught.value.cause is Cause.MISCONFIGURED


@pytest.mark.parametrize("dtype", FAMILIES)
def test_a_step_is_the_product_of_its_operands(dtype: str) -> None:
    step = make_product_step(dtype, 64, CPU)
    a, b = step.args[:2]
    product = step()
    assert product.dtype == getattr(torch, FAMILIES[dtype].job_output)
    right = a.double() @ b.double()
    torch.testing.assert_close(product.double(), right, rtol=0.02, atol=0.1)


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "int8"])
def test_operands_are_normal_and_the_same_in_every_run(dtype: str) -> None:
    first, again = (make_product_step(dtype, 256, CPU).args[0] for _ in range(2))
    assert torch.equal(first, again)
    values = first.double() / (32 if dtype == "int8" else 1)
    assert abs(values.mean()) < 0.02
    assert 0.97 < values.std() < 1.03


def test_steps_are_timed_one_by_one_and_never_too_few() -> None:
    assert len(time_on_host(lambda: None, 0.0)) >= MIN_STEPS
    assert all(t > 0 for t in time_on_host(lambda: sum(range(1000)), 0.01))


def test_what_others_do_on_a_core_does_not_count_as_its_own_time() -> None:
    slow = time_on_host(lambda: time.sleep(0.01), 0.0, time.thread_time)
    assert max(slow) < 0.01


def load(part_id: str = "GPU-1", peak: peaks.Peak | None = None) -> gemm.GemmLoad:
    return gemm.GemmLoad("bf16", part_id, 2e12, peak)


def test_burst_is_the_median_and_sustained_the_second_half() -> None:
    burst, sustained = [0.004, 0.004, 0.1], [0.004] * 500 + [0.005] * 400
    found = numbers(list(gemm.report_steps(load(), burst, sustained, 0.0)))
    assert found["bf16.burst", "GPU-1"] == pytest.approx(500_000)
    assert found["bf16.sustained", "GPU-1"] == pytest.approx(400_000, rel=1e-3)
    assert found["bf16.step_p50", "GPU-1"] == pytest.approx(5.0)


def test_uneven_steps_show_in_the_spread() -> None:
    steps = [0.01] * 90 + [0.05] * 10
    found = numbers(list(gemm.report_steps(load(), steps, steps[::-1] + steps, 0.0)))
    assert found["bf16.spread", "GPU-1"] == pytest.approx(5.0)


def test_of_peak_is_a_share_of_the_data_sheet(tmp_path: Path) -> None:
    device = Device("cuda", "GPU-1", "GPU 0")
    part = Part("gpu", "GPU-1", "GPU 0", {"pci_device_id": "2330"})
    this = make_context(
        tmp_path, device=device, inventory=Inventory(parts=(part,), devices=(device,))
    )
    peak = peaks.find_peak(this, "bf16")
    assert peak is not None
    assert (peak.value, peak.derived) == (989_000, False)
    found = numbers(list(gemm.report_steps(load(peak=peak), [0.004], [0.004], 0.0)))
    assert found["bf16.of_peak", "GPU-1"] == pytest.approx(500 / 989)
    assert ("bf16.peak_derived", "GPU-1") not in found


def test_a_cpus_peak_is_cores_times_clock_times_width() -> None:
    facts = {"cores": "64", "max_mhz": "3000", "vector_bits": "512"}
    peak = peaks.derive_peak(facts, {}, "fp64")
    assert peak is not None
    assert peak.value == pytest.approx(64 * 3.0 * 8 * 2 * 2)
    assert "64 cores x 3000 MHz" in peak.source
    assert peaks.derive_peak(facts, {}, "bf16") is None
    assert peaks.derive_peak({"cores": "64"}, {}, "fp64") is None


@pytest.mark.parametrize(("dtype", "per_cycle"), [("bf16", 1024), ("int8", 2048)])
def test_a_cpu_with_tiles_has_their_peak(dtype: str, per_cycle: int) -> None:
    facts = {"cores": "64", "max_mhz": "3000", "vector_bits": "512"}
    peak = peaks.derive_peak(facts, {"flags": "avx512f amx_tile amx_bf16 amx_int8"}, dtype)
    assert peak is not None
    assert peak.value == pytest.approx(64 * 3.0 * per_cycle)


@pytest.mark.parametrize("dtype", ["fp64", "fp32", "bf16"])
def test_a_clock_that_the_cores_exceed_is_no_peak(dtype: str) -> None:
    facts = {"cores": "2", "vector_bits": "512"}
    flags = {"flags": "avx512f amx_bf16 hypervisor", "cpu MHz": "2600"}
    assert peaks.derive_peak(facts, {**flags, "flags": "avx512f amx_bf16"}, dtype) is None
    assert peaks.derive_peak({**facts, "max_mhz": "2600"}, flags, dtype) is None


def test_a_number_that_is_not_of_all_cores_says_of_how_many() -> None:
    (left,) = gemm.report_cores("bf16", 1.0, 2, others=0.0)
    all_of_them, crowded = (
        next(gemm.report_cores("bf16", busy, 2, others))
        for busy, others in ((1.96, 0.0), (1.0, 1.0))
    )
    measured = [left, Measurement("bf16.sustained", 1.0, "GFLOP/s", "cpu")]
    judgement = judge_items(gemm.CHECK, measured)

    assert (judgement.verdict, "1.0 of 2 cores" in judgement.reason) == (Verdict.PASS, True)
    assert isinstance(all_of_them, Coverage)
    assert isinstance(crowded, Coverage)


def test_a_type_that_is_no_faster_than_fp32_is_called_converted() -> None:
    rates = {"fp64": 170.0, "fp32": 400.0, "fp16": 390.0, "bf16": 2500.0}
    assert [c.text[:5] for c in gemm.report_emulated(rates)] == ["fp16:"]
    assert not list(gemm.report_emulated({"fp16": 390.0}))


def test_all_cores_multiply_whatever_number_of_threads_torch_was_given(tmp_path: Path) -> None:
    seen: set[int] = set()

    def noting(dtype: str, size: int, device: torch.device) -> Callable[[], object]:
        step = make_product_step(dtype, size, device)

        def work() -> None:
            seen.add(torch.get_num_threads())
            step()

        return work

    params = msgspec.structs.replace(TINY, core_seconds=0.0)
    with use_threads(1):
        list(gemm.measure(make_context(tmp_path), params, noting))
    assert seen == {gemm.count_physical_cores()}


@pytest.mark.parametrize(("threads", "size"), [(1, 1024), (2, 2048), (31, 2048), (32, 4096)])
def test_products_are_large_enough_for_all_cores(threads: int, size: int) -> None:
    with use_threads(threads):
        assert gemm.choose_size("bf16", CPU) == size


def verdict(values: dict[str, float], name: str, facts: dict[str, str]) -> Verdict:
    measured = [Measurement(name, v, "GFLOP/s", part) for part, v in values.items()]
    parts = tuple(Part("gpu", part, part, facts) for part in values)
    return judge_items(gemm.CHECK, measured, Inventory(parts=parts)).verdict


@pytest.mark.parametrize(("slow", "expected"), [(0.95, "pass"), (0.85, "warn"), (0.75, "fail")])
def test_a_gpu_that_lags_behind_its_siblings_warns_then_fails(slow: float, expected: str) -> None:
    values = {f"GPU-{i}": 700e3 for i in range(7)} | {"GPU-7": 700e3 * slow}
    assert verdict(values, "bf16.sustained", {}) is Verdict(expected)


@pytest.mark.parametrize(
    ("reached", "expected"), [(650e3, "pass"), (600e3, "warn"), (560e3, "fail")]
)
def test_a_gpu_alone_is_held_against_its_data_sheet(reached: float, expected: str) -> None:
    facts = {"pci_device_id": "2330"}
    assert verdict({"GPU-0": reached}, "bf16.sustained", facts) is Verdict(expected)


def test_a_slow_core_is_a_warning_and_never_a_fail() -> None:
    measured = [Measurement("fp32.core", 100.0, "GFLOP/s", f"cpu{core}") for core in range(7)]
    measured.append(Measurement("fp32.core", 20.0, "GFLOP/s", "cpu7"))
    assert judge_items(gemm.CHECK, measured).verdict is Verdict.WARN


def test_the_main_thread_is_left_as_it_was(tmp_path: Path) -> None:
    before = os.sched_getaffinity(0), torch.get_num_threads()
    list(gemm.measure(make_context(tmp_path), TINY))
    assert (os.sched_getaffinity(0), torch.get_num_threads()) == before


REFUSED = "CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling cublasLtMatmul"


def raising(message: str) -> Callable[[str, int, torch.device], Callable[[], object]]:
    """Make steps that work, but for fp64: those raise *message*."""

    def make(dtype: str, size: int, device: torch.device) -> Callable[[], object]:
        def fail() -> object:
            raise RuntimeError(message)

        return fail if dtype == "fp64" else make_product_step(dtype, size, device)

    return make


def test_a_type_that_the_library_refuses_is_left_out_and_warns(tmp_path: Path) -> None:
    both = msgspec.structs.replace(TINY, dtypes=("fp64", "fp32"), core_seconds=0.0)
    ctx = make_context(tmp_path)
    found = list(gemm.measure(ctx, both, raising(REFUSED)))
    assert {m.name.partition(".")[0] for m in found if isinstance(m, Measurement)} == {"fp32"}
    facts = [f for f in found if isinstance(f, Finding)]
    judgement = judge_by(facts, [], gemm.CHECK.finding_rules)
    assert (judgement.verdict, judgement.remedy) == (Verdict.WARN, Remedy.FIX_CONFIGURATION)
    assert "fp64 is not measured: the library refuses its products" in judgement.reason
    assert not [f for f in gemm.measure(ctx, both) if isinstance(f, Finding)]


@pytest.mark.parametrize(
    "message",
    ["CUDA error: uncorrectable ECC error encountered", "CUBLAS_STATUS_EXECUTION_FAILED"],
)
def test_what_is_no_refusal_of_a_type_goes_through(tmp_path: Path, message: str) -> None:
    params = msgspec.structs.replace(TINY, dtypes=("fp64",), core_seconds=0.0)
    with pytest.raises(RuntimeError, match=message):
        list(gemm.measure(make_context(tmp_path), params, raising(message)))


def test_without_torch_it_is_missing_and_the_check_does_not_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)

    with pytest.raises(Unable) as caught:
        list(gemm.measure(make_context(tmp_path), gemm.GemmParams()))

    assert caught.value.cause is Cause.MISSING
    assert caught.value.code == "torch_missing"
