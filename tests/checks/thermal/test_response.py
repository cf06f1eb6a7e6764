"""Eight GPUs in one soak: each fault is distinguished from the others; healthy parts pass."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import pytest

from hpcverify.check import Context, Sample, Watch
from hpcverify.limits.specs import find_achievable, load_specs
from hpcverify.model import CheckItem, Device, Finding, Inventory, Measurement, Part, Verdict
from hpcverify.telemetry import problems
from hpcverify.testing import judge_items, make_context
from hpcverify_checks import thermal
from hpcverify_checks.exact.soak import Stretch, StretchResult, plan_stretches
from hpcverify_checks.ranks.board import FolderBoard
from hpcverify_checks.thermal import CHECK, ThermalParams, plan
from hpcverify_checks.thermal.plan import LoadRecord
from tests.limits.physics import read_number

FULL = 132 * 4096
"""FLOP that an H100 does in a tick of its clock."""


@dataclasses.dataclass(frozen=True)
class Soak:
    """A soak that begins at 8 s of its watch, and is watched to its end."""

    seconds: float
    recovery: float

    @property
    def table(self) -> tuple[Stretch, ...]:
        """What is done when."""
        return plan_stretches(8.0, self.seconds, 0.2, (0.5, 0.05, 0.005))

    @property
    def end(self) -> float:
        """When the watch ends."""
        return 8.0 + self.seconds + self.recovery

    def load(self, t: float) -> float:
        """Say what share of the load there is at *t*."""
        for stretch in self.table:
            if stretch.start <= t < stretch.end:
                return 0.6 if stretch.period else 1.0
        return 0.0


LONG, QUICK = Soak(120.0, 100.0), Soak(15.0, 8.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU as the laws of heat and power have it; °C, W, MHz, s, K/kW."""

    inlet: float = 24.0
    resistance: float = 45.0
    inertia: float = 15.0
    watts: float = 690.0
    idle_watts: float = 75.0
    mhz: float = 1500.0
    dither: float = 40.0
    """The standard deviation of the clock, MHz."""
    efficiency: float = 0.88
    busy: float = 1.0
    events: tuple[str, ...] = ()
    """What is up under load, beside the power cap."""
    known: bool = True
    stuck: Mapping[str, float] = dataclasses.field(default_factory=dict[str, float])
    """The gauges that stay at one value."""
    before: float = 75.0
    """The power that it was warmed by before."""
    works: bool = True
    """Whether its worker does the load to its end."""

    def account(self, soak: Soak) -> LoadRecord:
        """Say what its worker had done."""
        rate = self.efficiency * FULL * self.mhz * 1e6
        return LoadRecord(
            tuple(
                StretchResult(s.period, s.start, s.end, 1, rate * (s.end - s.start), 0)
                for s in soak.table
            )
        )

    def samples(self, part_id: str, chance: random.Random, soak: Soak) -> Iterator[Sample]:
        """Sample it once a second, with the noise and the steps of real sensors."""
        heat, energy = self.before, 1e6
        for second in range(int(soak.end) + 1):
            load = soak.load(second) * self.works
            power = self.idle_watts + load * (self.watts - self.idle_watts)
            heat += (power - heat) / self.inertia
            energy += power
            celsius = self.inlet + self.resistance * heat / 1e3
            readings = {
                "temperature": round(celsius + chance.gauss(0, 0.3)),
                "temperature.memory": round(celsius * 1.1 + chance.gauss(0, 0.3)),
                "power": power + chance.gauss(0, 4),
                "energy": energy,
                "clock": self.mhz + chance.gauss(0, self.dither) if load else 345.0,
                "utilization": self.busy if load else 0.0,
                "event.idle": float(not load or self.busy < 0.5),
                "event.sw_power_cap": float(bool(load)),
                "throttled.sw_power_cap": 3.0 * second,
                **{f"event.{name}": float(bool(load)) for name in self.events},
                **self.stuck,
            }
            for name, value in readings.items():
                yield Sample(name, value, UNITS.get(name, ""), part_id, float(second))


UNITS = {
    "temperature": "°C",
    "temperature.memory": "°C",
    "power": "W",
    "energy": "J",
    "clock": "MHz",
    "utilization": "ratio",
    "throttled.sw_power_cap": "s",
}


def healthy(chance: random.Random) -> list[Gpu]:
    """Make eight GPUs that differ as good ones do, the last four behind the others."""
    warm = chance.uniform(80, 650)  # by the check before
    return [
        Gpu(
            inlet=24 + (7 if rear else 0) + chance.uniform(-2, 2),
            resistance=45 * (1.2 if rear else 1) * chance.uniform(0.93, 1.07),
            watts=chance.uniform(670, 700),
            idle_watts=chance.uniform(65, 85),
            mhz=1500 * chance.uniform(0.94, 1.06),
            efficiency=chance.uniform(0.87, 0.89),
            inertia=chance.uniform(10, 25),
            before=warm * chance.uniform(0.9, 1.0),
        )
        for rear in (False,) * 4 + (True,) * 4
    ]


def node(tmp_path: Path, gpus: Sequence[Gpu], soak: Soak = LONG) -> list[Context]:
    """Make the contexts of a soak of *gpus*, with the accounts that workers left."""
    parts, devices, sensors = list[Part](), list[Device](), list[str]()
    for i, gpu in enumerate(gpus):
        facts = {"name": "NVIDIA H100 80GB HBM3" if gpu.known else "NVIDIA X1"}
        parts.append(Part("gpu", f"GPU-{i}", f"GPU {i}", facts))
        devices.append(Device("cuda", f"GPU-{i}", f"GPU {i}"))
        sensors.append(f"GPU-{i}/temperature")
    base = make_context(
        tmp_path,
        peers=tuple(devices),
        inventory=Inventory(tuple(parts), tuple(devices), (), tuple(sensors)),
    )
    for rank, gpu in enumerate(gpus):
        if gpu.works:
            plan.write_record(FolderBoard(base.shared), rank, gpu.account(soak))
    return [msgspec.structs.replace(base, device=device) for device in devices]


def observed(tmp_path: Path, gpus: Sequence[Gpu], soak: Soak = LONG) -> list[CheckItem]:
    """Make of the telemetry of *gpus* what the check makes of it."""
    chance = random.Random(repr(gpus))  # noqa: S311 - noise, no secret
    samples = [
        sample for i, gpu in enumerate(gpus) for sample in gpu.samples(f"GPU-{i}", chance, soak)
    ]
    watch = Watch(start=0.0, end=soak.end, samples=sorted(samples, key=lambda s: s.t))
    rates = [
        Measurement("rate.mean", (gpu.account(soak).rate or 0.0) / 1e9, "GFLOP/s", f"GPU-{i}")
        for i, gpu in enumerate(gpus)
        if gpu.works
    ]
    return [
        *rates,
        *(
            found
            for ctx in node(tmp_path, gpus, soak)
            for found in thermal.observe(watch, ctx, ThermalParams())
        ),
    ]


def judge_board(
    tmp_path: Path, gpus: Sequence[Gpu], soak: Soak = LONG, past: Mapping[str, float] | None = None
) -> tuple[Verdict, str, str]:
    """Judge *gpus*, with a *past* of six like runs if there is one."""

    def runs(name: str, _where: str) -> list[float]:
        return [past[name]] * 6 if past and name in past else []

    inventory = node(tmp_path, gpus, soak)[0].inventory
    verdict = judge_items(CHECK, observed(tmp_path, gpus, soak), inventory, runs)
    return verdict.verdict, verdict.reason, verdict.remedy.value


def value(found: Sequence[CheckItem], name: str, part_id: str = "GPU-0") -> float:
    [number] = [
        f.value
        for f in found
        if isinstance(f, Measurement) and (f.name, f.part_id) == (name, part_id)
    ]
    assert number is not None
    return number


def alike(**changes: Gpu) -> list[Gpu]:
    """Make eight equal GPUs but for the one that is given."""
    return [changes.get(f"gpu{i}", Gpu()) for i in range(8)]


@pytest.mark.parametrize("soak", [LONG, QUICK])
@pytest.mark.parametrize("seed", range(10))
def test_good_gpus_pass_though_they_differ_and_some_breathe_warm_air(
    tmp_path: Path, seed: int, soak: Soak
) -> None:
    gpus = healthy(random.Random(seed))  # noqa: S311 - noise, no secret
    assert judge_board(tmp_path, gpus, soak) == (Verdict.PASS, "", "none")


def test_every_number_has_the_unit_that_was_declared(tmp_path: Path) -> None:
    numbers = [f for f in observed(tmp_path, alike()) if isinstance(f, Measurement)]
    for number in numbers:
        metric = CHECK.find_metric(number.name)
        assert metric is not None, number.name
        assert metric.unit == number.unit, number.name
    judged_by = set(CHECK.rules) & {n.name for n in numbers}
    assert {"held_back", "work_per_clock", "energy_per_work", "loaded"} < judged_by


def test_a_throttled_gpu_works_well_in_the_ticks_that_it_is_given(tmp_path: Path) -> None:
    hot = Gpu(mhz=900, watts=400, resistance=110, events=("hw_thermal", "hw_slowdown"))
    found = observed(tmp_path, alike(gpu3=hot))
    assert value(found, "efficiency", "GPU-3") == pytest.approx(0.88, rel=0.02)
    assert value(found, "held_back", "GPU-3") == pytest.approx(0.4, abs=0.03)
    verdict, reason, _ = judge_board(tmp_path, alike(gpu3=hot))
    assert verdict is Verdict.FAIL
    assert "GPU 3: throttled.hw_thermal 119 s" in reason
    assert "work_per_clock" not in reason


@pytest.mark.parametrize("cause", ["hw_power_brake", "hw_thermal"])
def test_what_slows_all_gpus_down_is_the_nodes(tmp_path: Path, cause: str) -> None:
    braked = Gpu(mhz=700, watts=300, events=(cause, "hw_slowdown"))
    verdict, reason, remedy = judge_board(tmp_path, [braked] * 8)
    assert (verdict, remedy) == (Verdict.FAIL, "inspect")
    assert reason.startswith(f"node: throttled.{cause} 119 s > 1 (")
    assert ";" not in reason
    _, reason, _ = judge_board(tmp_path, [*[braked] * 7, Gpu()])
    assert f"GPU 6: throttled.{cause} 119 s" in reason
    _, reason, _ = judge_board(tmp_path, [*[braked] * 7, Gpu(works=False)])
    assert reason.startswith(f"node: throttled.{cause} 119 s > 1 (")
    assert ";" not in reason


@pytest.mark.parametrize("soak", [LONG, QUICK])
@pytest.mark.parametrize(
    ("gauge", "value", "unjudged"),
    [
        ("temperature", 60, "cooling"),
        ("temperature", 0, "cooling"),
        ("temperature", 255, "cooling"),
        ("power", 650, "power"),
    ],
)
def test_a_gauge_that_ignores_the_load_is_broken_and_judges_nothing(
    tmp_path: Path, soak: Soak, gauge: str, value: float, unjudged: str
) -> None:
    verdict, reason, _ = judge_board(tmp_path, alike(gpu3=Gpu(stuck={gauge: value})), soak)
    assert verdict is Verdict.WARN
    assert reason.startswith(f"GPU 3: {gauge} stays at {value} ")
    assert f"its {unjudged} was not judged" in reason
    assert ";" not in reason


def test_gauges_that_all_stay_at_zero_say_nothing_of_each_other(tmp_path: Path) -> None:
    unknown = Gpu(stuck={"temperature": 0, "power": 0, "clock": 0})
    found = observed(tmp_path, alike(gpu3=unknown))
    assert [f for f in found if isinstance(f, Finding)] == []


def test_a_defective_gpu_has_its_clock_and_does_less_with_it(tmp_path: Path) -> None:
    bad = Gpu(efficiency=0.75)
    found = observed(tmp_path, alike(gpu3=bad))
    assert value(found, "held_back", "GPU-3") < 0.02
    assert value(found, "efficiency", "GPU-3") == pytest.approx(0.75, rel=0.02)
    verdict, reason, remedy = judge_board(tmp_path, alike(gpu3=bad))
    assert (verdict, remedy) == (Verdict.FAIL, "inspect")
    assert reason.startswith("GPU 3: work_per_clock")
    assert reason.count(";") == 0


def test_a_short_soak_finds_the_defective_one_as_well(tmp_path: Path) -> None:
    verdict, reason, _ = judge_board(tmp_path, alike(gpu3=Gpu(efficiency=0.75)), QUICK)
    assert verdict is Verdict.FAIL
    assert reason.startswith("GPU 3: work_per_clock")


@pytest.mark.parametrize(("soak", "count"), [(QUICK, 0), (LONG, 1)])
def test_work_per_clock_needs_as_many_samples_as_the_clock_dithers(
    tmp_path: Path, soak: Soak, count: int
) -> None:
    """Under a power limit the clock dithers by 100 to 200 MHz: ten samples are off by 2 to 4 %."""
    found = observed(tmp_path, alike(gpu3=Gpu(dither=150)), soak)
    names = [f.name for f in found if isinstance(f, Measurement) and f.part_id == "GPU-3"]
    assert names.count("work_per_clock") == count
    assert names.count("efficiency") == 1


def test_an_unknown_part_is_judged_by_its_siblings_and_its_past(tmp_path: Path) -> None:
    new = Gpu(known=False)
    slow = dataclasses.replace(new, efficiency=0.75)
    assert judge_board(tmp_path, [new] * 8)[0] is Verdict.PASS
    assert judge_board(tmp_path, [*[new] * 7, slow])[0] is Verdict.FAIL
    past = {"work_per_clock": FULL * 0.88}
    assert judge_board(tmp_path, [new], past=past)[0] is Verdict.PASS
    degraded = dataclasses.replace(new, efficiency=0.65)
    verdict, reason, _ = judge_board(tmp_path, [degraded], past=past)
    assert verdict is Verdict.FAIL
    assert "this node's last 6 runs" in reason


@pytest.mark.parametrize(
    ("gpu", "reason"),
    [
        (Gpu(resistance=75), "temperature.rise_per_kW"),
        # Heat has throttled it: it draws less and is no hotter than the others.
        (Gpu(resistance=75, watts=420, mhz=1300), "temperature.rise_per_kW"),
        (Gpu(mhz=1100, watts=450), "held_back"),
        (Gpu(mhz=1200), "clock.mean"),
        (Gpu(watts=900), "energy_per_work"),
        (Gpu(watts=480), "power.mean"),
        (Gpu(inertia=120), "recovery"),
    ],
)
def test_what_sets_a_gpu_apart_from_its_siblings_is_a_warning(
    tmp_path: Path, gpu: Gpu, reason: str
) -> None:
    verdict, why, remedy = judge_board(tmp_path, alike(gpu5=gpu))
    assert (verdict, remedy) == (Verdict.WARN, "inspect")
    assert f"GPU 5: {reason}" in why
    assert {part.split(":")[0] for part in why.split("; ")} == {"GPU 5"}


def test_two_gpus_are_not_held_against_each_other(tmp_path: Path) -> None:
    pair = [Gpu(), Gpu(resistance=60, mhz=1300)]
    assert judge_board(tmp_path, pair)[0] is Verdict.PASS


def test_cooling_is_judged_by_the_rise_and_not_by_the_degrees(tmp_path: Path) -> None:
    found = observed(tmp_path, alike(gpu7=Gpu(inlet=38)))
    warm, others = (value(found, "temperature.max", f"GPU-{i}") for i in (7, 0))
    assert warm - others == pytest.approx(14, abs=2)
    rises = [value(found, "temperature.rise_per_kW", f"GPU-{i}") for i in (7, 0)]
    assert rises == pytest.approx([45, 45], rel=0.1)


def test_a_gpu_that_idles_while_it_should_work_was_not_verified(tmp_path: Path) -> None:
    lazy = Gpu(busy=0.3, watts=200, mhz=1980, efficiency=0.88)
    verdict, why, remedy = judge_board(tmp_path, alike(gpu2=lazy))
    assert (verdict, remedy) == (Verdict.ERROR, "rerun")
    assert "GPU 2: loaded 0 % < 90 %" in why


def test_the_energy_of_the_waves_is_not_that_of_steady_work(tmp_path: Path) -> None:
    rate = 0.88 * FULL * 1500e6
    found = observed(tmp_path, alike())
    joules = value(found, "energy_per_work")
    assert joules == pytest.approx(690 / rate * 1e15, rel=0.01)


def test_a_gpu_that_was_lost_in_the_soak_is_a_finding(tmp_path: Path) -> None:
    ctx = node(tmp_path, alike())[0]
    lost = [Sample("gpu_lost", 1.0, "", "GPU-0", float(t)) for t in (50, 51)]
    watch = Watch(start=0.0, end=LONG.end, samples=lost)
    found = thermal.observe(watch, ctx, ThermalParams())
    assert [f.code for f in found if isinstance(f, Finding)] == ["gpu_lost"]
    assert set(problems.PROBLEM_RULES) < set(CHECK.finding_rules)


HELD_BY_POWER = {"a10"}
"""Parts whose power limit keeps the clock far below the highest: 150 W for 72 SMs."""


def test_the_least_efficiency_is_below_that_of_every_part_that_is_known() -> None:
    limit = CHECK.rules["efficiency"].low
    assert limit is not None
    for spec in load_specs():
        for dtype in ("bf16", "fp16"):
            share = find_achievable(spec, dtype, "sustained") or find_achievable(
                spec, dtype, "best"
            )
            if share and spec.peak_clock_mhz and spec.key not in HELD_BY_POWER:
                # The clock it was measured at is not known; it was not above this.
                highest = read_number(spec, "max_clock") or spec.peak_clock_mhz
                assert share.value * spec.peak_clock_mhz / highest > limit
