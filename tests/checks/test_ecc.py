"""Memory errors: what counters do during a run, apart from what they show."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate
from pathlib import Path

import msgspec
import pytest

from hpcverify.check import Context, Sample, Skip, Unable, Watch, judge
from hpcverify.limits import resolve
from hpcverify.model import (
    Cause,
    Finding,
    Found,
    Inventory,
    Measurement,
    Remedy,
    Verdict,
)
from hpcverify.telemetry.probe import probe as probe_files
from hpcverify_checks import ecc
from hpcverify_checks.ecc import CHECK, EccParams
from tests.doubles import context
from tests.nvml_lab.nvmllab import Lab
from tests.telemetry import trees
from tests.telemetry.test_nvml import probe

MEASURE = """
import sys, pathlib, msgspec
from hpcverify.model import Finding, Inventory, Measurement
from hpcverify_checks import ecc
from tests.doubles import context
inventory = msgspec.json.decode(sys.argv[2], type=Inventory)
ctx = context(pathlib.Path(sys.argv[1]), inventory=inventory)
found = list(ecc.read_counters(ctx, pathlib.Path(sys.argv[1])))
print(msgspec.json.encode([[f for f in found if isinstance(f, Measurement)],
                           [f for f in found if isinstance(f, Finding)]]).decode())
"""


def measured(lab: Lab, *later: str) -> list[Found]:
    """Probe the node, bring about what comes *later*, and measure."""
    inventory = msgspec.json.encode(probe(lab)).decode()
    if later:
        lab.write(*later)
    numbers, facts = msgspec.json.decode(
        lab.python(MEASURE, inventory),
        type=tuple[list[Measurement], list[Finding]],
    )
    return [*numbers, *facts]


def observed(watch: Watch, ctx: Context) -> list[Found]:
    return list(ecc.observe(watch, ctx, EccParams()))


def no_past(_name: str, _where: str) -> tuple[float, ...]:
    return ()


def judged(found: Iterable[Found]) -> tuple[Verdict, Remedy, str]:
    items = [f for f in found if isinstance(f, Measurement | Finding)]
    numbers = [f for f in items if isinstance(f, Measurement)]
    limits = resolve(CHECK.rules, numbers, Inventory(), no_past)
    judgement = judge(items, limits, CHECK.rulings)
    return judgement.verdict, judgement.remedy, judgement.reason


def counter(name: str, *values: float, period: float = 1.0) -> list[Sample]:
    return [Sample(i * period, name, "", "mc0", v) for i, v in enumerate(values)]


def number(found: Iterable[Found], name: str) -> float | None:
    (value,) = (m.value for m in found if isinstance(m, Measurement) and m.name == name)
    return value


def test_a_machine_without_counters_is_not_observable(tmp_path: Path) -> None:
    ctx = context(tmp_path, inventory=probe_files(tmp_path / "bare"))
    with pytest.raises(Skip, match="no EDAC driver") as skip:
        list(ecc.read_counters(ctx, tmp_path / "bare"))
    assert skip.value.cause is Cause.NOT_OBSERVABLE


def test_a_gpu_without_its_driver_is_no_reason_to_skip(tmp_path: Path) -> None:
    problem = Finding("driver_not_loaded", "node", "no driver")
    ctx = context(tmp_path, inventory=Inventory(problems=(problem,)))
    with pytest.raises(Unable, match="no driver") as unable:
        list(ecc.read_counters(ctx, tmp_path / "bare"))
    assert unable.value.cause is Cause.MISCONFIGURED


@pytest.mark.parametrize(
    ("uncorrected", "verdict"), [(0, Verdict.PASS), (1, Verdict.WARN)]
)
def test_what_the_host_counted_before_the_run_warns_at_most(
    tmp_path: Path, uncorrected: int, verdict: Verdict
) -> None:
    root = trees.edac(tmp_path / "root", corrected=900, uncorrected=uncorrected)
    ctx = context(tmp_path, inventory=probe_files(root))
    found = list(ecc.read_counters(ctx, root))
    assert judged(found)[0] is verdict


def test_counters_that_stand_still_pass_whatever_they_show(tmp_path: Path) -> None:
    samples = [
        *counter("ecc.corrected", *[9e6] * 60),
        *counter("ecc.uncorrected", *[12] * 60),
    ]
    watch = Watch(start=0, end=60, samples=samples)
    found = observed(watch, context(tmp_path))
    assert judged(found)[0] is Verdict.PASS
    assert number(found, "ecc.uncorrected.delta") == 0


def test_one_uncorrected_error_during_the_run_fails(tmp_path: Path) -> None:
    samples = counter("ecc.uncorrected", 12, 12, 13)
    watch = Watch(start=0, end=3, samples=samples)
    assert judged(observed(watch, context(tmp_path)))[0] is Verdict.FAIL


@pytest.mark.parametrize(("errors", "verdict"), [(9, "pass"), (6000, "warn")])
def test_a_burst_of_corrected_errors_does_not_drown_in_a_long_run(
    tmp_path: Path, errors: int, verdict: str
) -> None:
    hours = [0.0] * 10_000 + [errors / 20] * 20 + [0.0] * 10_000
    samples = counter("ecc.corrected", *accumulate(hours))
    watch = Watch(start=0, end=20_000, samples=samples)
    found = observed(watch, context(tmp_path))
    assert judged(found)[0].value == verdict
    assert number(found, "ecc.corrected.delta") == pytest.approx(errors)


def test_a_single_corrected_error_in_a_short_check_is_no_rate(tmp_path: Path) -> None:
    samples = counter("ecc.corrected", 0, 1, period=0.1)
    found = observed(Watch(start=0, end=1, samples=samples), context(tmp_path))
    assert judged(found)[0] is Verdict.PASS


def test_a_counter_that_was_reset_under_way_counts_on(tmp_path: Path) -> None:
    samples = counter("ecc.uncorrected", 7, 0, 2)
    found = observed(Watch(start=0, end=3, samples=samples), context(tmp_path))
    assert number(found, "ecc.uncorrected.delta") == 2


def test_a_single_sample_gives_no_difference(tmp_path: Path) -> None:
    watch = Watch(start=0, end=1, samples=counter("ecc.uncorrected", 5))
    assert observed(watch, context(tmp_path)) == []


def test_a_healthy_board_passes_every_time(tmp_path: Path, lab: Lab) -> None:
    lab.load("healthy-8xh100")
    for _ in range(3):
        assert judged(measured(lab)) == (Verdict.PASS, Remedy.NONE, "")
    found = observed(lab.watch("healthy-8xh100", 60), context(tmp_path))
    assert len([f for f in found if isinstance(f, Measurement)]) == 8 * 3
    assert judged(found) == (Verdict.PASS, Remedy.NONE, "")


def test_errors_that_a_load_brings_out_are_found_on_their_gpus(
    tmp_path: Path, lab: Lab
) -> None:
    watch = lab.watch("ecc-row-remap-failure", 60)
    where = [part for part, _ in watch.series("ecc.corrected")]
    found = observed(watch, context(tmp_path))
    rates = {
        f.where: f.value
        for f in found
        if isinstance(f, Measurement) and f.name == "ecc.corrected.rate" and f.value
    }
    assert list(rates.values()) == [5.0]
    assert rates.keys() < set(where)
    verdict, _, reason = judged(found)
    assert verdict is Verdict.FAIL
    assert "ecc.uncorrected.delta 2" in reason


@pytest.mark.parametrize(
    ("fault", "verdict", "remedy", "reason"),
    [
        ("remapped_rows.failure = 1", "fail", "replace", "remap.failed 1"),
        ("remapped_rows.pending = 1", "warn", "reset_gpu", "remap.pending 1"),
        ("remapped_rows.uncorrectable = 512", "fail", "contact_vendor", "512 > 511"),
        ("retired_pages.pending = 1", "warn", "reset_gpu", "retired.pending"),
        ("ecc.sram_threshold_exceeded = 1", "fail", "contact_vendor", "sram_threshold"),
        ("ecc.mode = 0", "warn", "fix_configuration", "ECC is off"),
        ("inforom.valid = 0", "fail", "contact_vendor", "InfoROM"),
        ("ecc.aggregate.dram_uncorrectable = 3", "pass", "none", ""),
    ],
)
def test_each_trace_of_bad_memory_has_its_remedy(
    lab: Lab, fault: str, verdict: str, remedy: str, reason: str
) -> None:
    lab.write(f"gpu.2.{fault}")
    found_verdict, found_remedy, why = judged(measured(lab))
    assert (found_verdict.value, found_remedy.value) == (verdict, remedy)
    assert reason in why


def test_a_gpu_that_was_lost_under_way_fails(lab: Lab) -> None:
    loss = "fault = nvmlDeviceGetPowerUsage gpu=3 return=GPU_IS_LOST"
    verdict, remedy, why = judged(measured(lab, loss))
    assert (verdict, remedy) == (Verdict.FAIL, Remedy.REBOOT)
    assert "gpu lost" in why
