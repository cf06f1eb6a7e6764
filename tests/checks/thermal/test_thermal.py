"""Heat and power under load: what holds a part back, and what does not."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from torch import Tensor

from hpcverify.check import Context, Sample, Skip, Watch
from hpcverify.model import (
    Cause,
    CheckItem,
    Coverage,
    Device,
    Finding,
    Inventory,
    Measurement,
    Remedy,
    Result,
    Series,
    Verdict,
)
from hpcverify.testing import INVENTORY, judge_by, judge_items, make_context
from hpcverify_checks import thermal
from hpcverify_checks.exact.product_loop import ProductSeams
from hpcverify_checks.node.dtypes import multiply
from hpcverify_checks.ranks.board import FolderBoard
from hpcverify_checks.thermal import CHECK, ThermalParams, load, plan
from hpcverify_checks.thermal.plan import LoadRecord
from hpcverify_checks.thermal.response import compute_sag
from tests.checks.sdc.work_clock import WorkClock
from tests.nvml_lab.nvmllab import Lab

SECONDS = 60
SHORT = ThermalParams(seconds=2.0, wave_periods=(0.05,), recovery_seconds=0.3)


def on(tmp_path: Path, part: str, *series: str) -> Context:
    """Make the context of a device with sensors for *series*."""
    device = Device("cuda", part, part)
    sensors = tuple(f"{part}/{name}" for name in series)
    inventory = Inventory(parts=INVENTORY.parts, devices=(device,), sensors=sensors)
    return make_context(tmp_path, device=device, peers=(device,), inventory=inventory)


def observed(watch: Watch, ctx: Context) -> list[CheckItem]:
    return list(thermal.observe(watch, ctx, ThermalParams()))


def values(found: Iterable[CheckItem]) -> dict[str, float | None]:
    return {f.name: f.value for f in found if isinstance(f, Measurement)}


def samples(name: str, *readings: float, unit: str = "") -> list[Sample]:
    return [Sample(name, v, unit, "G", float(t)) for t, v in enumerate(readings)]


def watching(*series: list[Sample]) -> Watch:
    return Watch(start=0, end=SECONDS, samples=[s for one in series for s in one])


def gpus(lab: Lab, tmp_path: Path, story: str) -> list[Result]:
    watch = lab.watch(story, SECONDS)
    parts = dict.fromkeys(s.part_id for s in watch.samples)  # by index, as NVML lists
    return [judge_items(CHECK, observed(watch, on(tmp_path, p, "temperature"))) for p in parts]


def test_a_part_without_sensors_is_skipped_before_it_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(Skip, match="no sensor for temperature, clock or throttling") as skip:
        next(thermal.measure(make_context(tmp_path), ThermalParams(seconds=1e9)))
    assert skip.value.cause is Cause.NOT_OBSERVABLE


@dataclasses.dataclass(frozen=True)
class Soaked:
    """A soak of this machine's CPU, with its times on the clock of work."""

    began: float
    ended: float
    found: list[CheckItem]
    account: LoadRecord


@pytest.fixture(scope="module")
def soaked(tmp_path_factory: pytest.TempPathFactory) -> Soaked:
    sensors = Inventory(parts=INVENTORY.parts, sensors=("cpu/temperature",))
    ctx = make_context(tmp_path_factory.mktemp("soak"), inventory=sensors)
    clock = WorkClock(product_seconds=0.01)
    with pytest.MonkeyPatch.context() as patch:
        clock.put_into(patch)
        for sizes in (load.STEADY_SIZES, load.WAVE_SIZES):
            patch.setitem(sizes, "cpu", 128)
        found = list(thermal.measure(ctx, SHORT))
    account = plan.read_record(FolderBoard(ctx.shared), 0)
    assert account is not None
    return Soaked(0.0, clock.now, found, account)


def test_the_load_is_work_whose_rate_is_told_over_time(soaked: Soaked) -> None:
    (series,) = [f for f in soaked.found if isinstance(f, Series)]
    assert series.unit == "GFLOP/s"
    assert series.values
    assert all(rate > 0 for rate in series.values)


def test_what_was_done_is_said_and_was_right(soaked: Soaked) -> None:
    (covered,) = [f for f in soaked.found if isinstance(f, Coverage)]
    assert covered.part_id == "cpu"
    edges = values(soaked.found)["wave.edges"] or 0
    assert edges > 1
    assert f"{edges:g} edges of a square wave of 0.05 s" in covered.text
    assert not [f for f in soaked.found if isinstance(f, Finding)]


def test_every_number_has_the_unit_that_was_declared(soaked: Soaked) -> None:
    for number in soaked.found:
        if isinstance(number, Measurement):
            metric = CHECK.find_metric(number.name)
            assert metric is not None
            assert metric.unit == number.unit


def test_what_the_worker_did_reaches_those_who_saw_the_samples(soaked: Soaked) -> None:
    assert soaked.account.rate
    assert soaked.account.start >= soaked.began + plan.SETTLE_SECONDS
    waves = [bool(d.period) for d in soaked.account.done]
    assert waves == [False, True, False]


def test_a_check_stays_until_the_part_has_cooled(soaked: Soaked) -> None:
    assert soaked.ended >= soaked.account.end + SHORT.recovery_seconds


@pytest.mark.parametrize(
    ("rates", "expected"), [([100.0] * 16, 0.0), ([100.0] * 8 + [60.0] * 8, 0.4), ([0.0] * 8, 0.0)]
)
def test_sag_is_what_the_end_lacks_of_the_beginning(rates: list[float], expected: float) -> None:
    assert compute_sag(rates) == pytest.approx(expected)


def test_a_product_that_is_not_the_first_one_fails_and_ends_the_soak(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(load.STEADY_SIZES, "cpu", 64)
    monkeypatch.setitem(load.WAVE_SIZES, "cpu", 32)
    made = iter(range(10**9))

    def faulty(a: Tensor, b: Tensor, out: Tensor) -> None:
        multiply(a, b, out)
        if len(out) == 64 and next(made) > 10:
            out[0, 0] += 1

    sensors = Inventory(parts=INVENTORY.parts, sensors=("cpu/temperature",))
    ctx = make_context(tmp_path, inventory=sensors)
    WorkClock(product_seconds=0.01).put_into(monkeypatch)
    params = ThermalParams(seconds=500.0, recovery_seconds=0.0)
    found = list(thermal.measure(ctx, params, ProductSeams(multiply=faulty)))
    items = [f for f in found if isinstance(f, Finding | Measurement)]
    left = list(thermal.CHECK.reconcile(items, sensors)) if thermal.CHECK.reconcile else []
    judgement = judge_by(left, (), CHECK.finding_rules)
    assert (judgement.verdict, judgement.remedy) == (Verdict.FAIL, Remedy.REPLACE)
    assert "fp64 product" in judgement.reason
    assert "steady load, compared with its own first product" in judgement.reason
    assert values(found)["stress.mismatched"] == 1


@pytest.mark.parametrize(
    "wrong", [{"seconds": 0}, {"wave_share": 1.5}, {"wave_periods": [0]}, {"recovery_seconds": -1}]
)
def test_parameters_that_make_no_soak_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(wrong, ThermalParams)


def test_a_healthy_board_passes_though_it_meets_its_power_cap(tmp_path: Path, lab: Lab) -> None:
    for _ in range(3):
        answers = gpus(lab, tmp_path, "healthy-8xh100")
        assert [answer.faults for answer in answers] == [()] * 8


def test_heat_and_power_brake_are_found_on_their_gpus_and_told_apart(
    tmp_path: Path, lab: Lab
) -> None:
    answers = gpus(lab, tmp_path, "thermal-throttle")
    assert [i for i, a in enumerate(answers) if a.verdict is Verdict.FAIL] == [3, 6]
    hot, braked = answers[3].reason, answers[6].reason
    assert "throttled.hw_thermal 20 s" in hot
    assert "throttled.sw_thermal.share 66.67 %" in hot
    assert "power_brake" not in hot
    assert "throttled.hw_power_brake 10 s" in braked
    assert "thermal" not in braked


def test_a_report_gets_what_was_sampled_and_its_extremes(tmp_path: Path, lab: Lab) -> None:
    watch = lab.watch("thermal-throttle", SECONDS)
    part = list(dict.fromkeys(s.part_id for s in watch.samples))[3]
    found = observed(watch, on(tmp_path, part, "temperature"))
    read = values(found)
    assert (read["temperature.idle"], read["temperature.max"]) == (40, 90)
    assert read["temperature.headroom.min"] == -3
    assert (read["power.max"], read["samples"]) == (650, SECONDS + 1)
    assert read["clock.sag"] == pytest.approx(1 - 690 / 1755)
    shown = {f.name: f for f in found if isinstance(f, Series)}
    assert {"temperature", "clock", "power", "utilization"} <= shown.keys()
    assert len(shown["clock"].values) == SECONDS + 1


def test_events_count_where_a_driver_has_no_counters(tmp_path: Path) -> None:
    bits = samples("event.hw_thermal", 0, 1, 1, 1, 0, 0)
    found = observed(
        watching(samples("clock", *[1755] * 6, unit="MHz"), bits), on(tmp_path, "G", "clock")
    )
    assert values(found)["throttled.hw_thermal"] == 2
    assert judge_items(CHECK, found).verdict is Verdict.FAIL


def test_an_event_of_an_instant_is_no_slowdown(tmp_path: Path) -> None:
    bits = samples("event.hw_slowdown", *[0, 1, 0, 0, 1, 0] * 5)
    clock = samples("clock", *[1755] * 30, unit="MHz")
    found = observed(watching(bits, clock), on(tmp_path, "G", "clock"))
    assert values(found)["throttled.hw_slowdown"] == 0
    assert judge_items(CHECK, found).verdict is Verdict.PASS


def test_instants_far_apart_in_thinned_samples_are_no_slowdown(tmp_path: Path) -> None:
    # The sampler keeps the extremes of older stretches: here, two instants meet.
    old = [Sample("event.hw_slowdown", v, "", "G", t) for t, v in THINNED]
    clock = samples("clock", *[1755] * 30, unit="MHz")
    found = observed(watching(old, clock), on(tmp_path, "G", "clock"))
    assert values(found)["throttled.hw_slowdown"] == 0
    lasting = [msgspec.structs.replace(s, value=1.0) for s in old]
    found = observed(watching(lasting, clock), on(tmp_path, "G", "clock"))
    assert values(found)["throttled.hw_slowdown"] == 48


THINNED = [(0.0, 0.0), (10.0, 1.0), (20.0, 1.0), (30.0, 0.0), (40.0, 1.0), (48.0, 0.0)]


def test_a_counter_that_stands_still_is_overruled_by_the_mask(tmp_path: Path) -> None:
    still = samples("throttled.hw_power_brake", *[0.0] * 30, unit="s")
    bits = samples("event.hw_power_brake", *[0.0] * 10, *[1.0] * 20)
    clock = samples("clock", *[1755] * 30, unit="MHz")
    found = observed(watching(still, bits, clock), on(tmp_path, "G", "clock"))
    assert values(found)["throttled.hw_power_brake"] == 19
    assert judge_items(CHECK, found).verdict is Verdict.FAIL


def test_hot_memory_is_a_warning(tmp_path: Path) -> None:
    memory = samples("temperature.memory", 60, 90, 97, unit="°C")
    clock = samples("clock", *[1755] * 3, unit="MHz")
    found = observed(watching(memory, clock), on(tmp_path, "G", "clock"))
    judgement = judge_items(CHECK, found)
    assert judgement.verdict is Verdict.WARN
    assert "temperature.memory.max 97" in judgement.reason


def test_what_was_throttled_before_the_check_is_not_held_against_it(tmp_path: Path) -> None:
    counted = samples("throttled.hw_thermal", *[900.0] * 30, unit="s")
    temperature = samples("temperature", *[50.0] * 30, unit="°C")
    found = observed(watching(counted, temperature), on(tmp_path, "G", "temperature"))
    assert judge_items(CHECK, found).verdict is Verdict.PASS


def test_little_headroom_warns(tmp_path: Path) -> None:
    near = samples("temperature.headroom", 30, 10, 1, unit="°C")
    hot = samples("temperature", 50, 70, 79, unit="°C")
    found = observed(watching(near, hot), on(tmp_path, "G", "temperature"))
    assert judge_items(CHECK, found).verdict is Verdict.WARN


def test_sensors_that_fell_silent_are_no_pass(tmp_path: Path) -> None:
    found = observed(watching(), on(tmp_path, "G", "temperature"))
    assert judge_items(CHECK, found).verdict is Verdict.ERROR


def test_nothing_is_said_of_a_part_without_sensors(tmp_path: Path) -> None:
    assert observed(watching(samples("load", 1, 2)), on(tmp_path, "G")) == []
