"""What the telemetry shows of a soak: heat, clocks, power, throttling, cooling."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from math import sqrt
from operator import itemgetter
from statistics import fmean, median, stdev

import hpcverify.check as hv
from hpcverify.telemetry import problems
from hpcverify.telemetry.reading import MAX_CELSIUS
from hpcverify.telemetry.thinning import build_series
from hpcverify_checks.node.counters import sum_increases
from hpcverify_checks.node.parts import find_model, look_up_spec
from hpcverify_checks.thermal.plan import LoadRecord

GAUGES = ("temperature", "clock", "throttled.hw_thermal", "event.hw_thermal")
"""Any one of these series shows how a part copes with a load."""

THROTTLE_CAUSES = (
    "hw_thermal",
    "hw_slowdown",
    "hw_power_brake",
    "sw_thermal",
    "sw_power_cap",
    "cores",
)
"""Why a part may run slower; "cores" adds up the time of a CPU's cores."""

REPORTED_SERIES = (
    "temperature",
    "temperature.memory",
    "temperature.headroom",
    "clock",
    "clock.slowest",
    "power",
    "utilization",
)
USED_SERIES = frozenset(
    (
        *GAUGES,
        *REPORTED_SERIES,
        "energy",
        "event.idle",
        *(f"throttled.{cause}" for cause in THROTTLE_CAUSES),
        *(f"event.{cause}" for cause in THROTTLE_CAUSES),
        *problems.PROBLEM_RULES,
    )
)

WATCHED_GAUGES = {"temperature": "cooling", "power": "power"}
"""The gauges that follow the load of a GPU, and what is judged by them."""
MIN_SWING = 1.5
"""By what factor another gauge moves where the load changed."""

NODE_CAUSES = frozenset({"hw_power_brake", "hw_thermal", "hw_slowdown", "sw_thermal"})
"""Those that the node's power supply or cooling can bring upon all GPUs."""
SPECIFIC_CAUSES = NODE_CAUSES - {"hw_slowdown"}
"""Where the hardware shows one of these, it shows "hardware slowdown" as well."""
MIN_SHARED_SECONDS = 1.0
"""The time from which a GPU is slowed down, as by the limits of one."""
MAX_SHARED_RATIO = 2.0
"""A GPU that is slowed down for more times the median has trouble of its own as well."""

QUARTERS = 4
MIN_SAMPLES = 8
"""With fewer values, start and end are not compared, and no mean is judged."""
MAX_CLOCK_ERROR = 0.015
"""The standard error of the mean clock, as a share, up to which work per clock is compared: a
tenth less than that of the siblings is then more than four of both errors away. A clock that
dithers by 7 % under a power limit needs 22 samples, a steady one `MIN_SAMPLES`."""
MIN_RISE_CELSIUS = 10.0
"""A smaller rise drowns in the sensor's steps of 1 °C."""
MIN_SOAK_SECONDS, MIN_REST_SECONDS = 100.0, 60.0
"""Seconds of load, and of rest after it, until a part is near its final temperature
(heat sinks follow with 10 to 25 s). Before, its temperature shows its thermal inertia and
the heat of an earlier check."""
MIN_SIBLINGS = 3
"""When only two differ, it is not known which one is wrong."""
PETA = 1e15
MAX_SAMPLE_GAP_SECONDS = 3.0
"""The most between two consecutive samples, with none thinned out."""
MIN_EVENT_SAMPLES = 3
"""This many samples show an event that lasts, even with others thinned out between."""

Values = Mapping[str, Sequence[hv.Sample]]
"""The samples of one part, by the name of the series."""


@dataclass(frozen=True, slots=True)
class LoadSamples:
    """The samples of one part: all, those under any load, those under steady load."""

    part_id: str
    account: LoadRecord | None
    """None if the worker did not finish: then any sample may be under load."""
    all: Values
    loaded: Values
    steady: Values

    def average(self, name: str) -> float | None:
        """Average the series *name* under recent steady load, if there is enough."""
        return average_recent(self.steady.get(name, ()), self.account)

    def list_unloaded(self, name: str) -> list[float]:
        """List the values of a series before and after the load."""
        account = self.account
        return [
            s.value
            for s in self.all.get(name, ())
            if account and not account.start <= s.t <= account.end
        ]


def average_recent(samples: Sequence[hv.Sample], account: LoadRecord | None) -> float | None:
    """Average the *samples* under recent steady load, if there are enough."""
    values = list_recent(samples, account)
    return fmean(values) if len(values) >= MIN_SAMPLES else None


def list_recent(samples: Sequence[hv.Sample], account: LoadRecord | None) -> list[float]:
    """List the values of *samples* under recent steady load."""
    recent = account.recent if account else None
    return [
        s.value for s in samples if recent is None or any(done.contains(s.t) for done in recent)
    ]


def split_by_load(series: Values, part_id: str, account: LoadRecord | None) -> LoadSamples:
    """Split the *series* of the part *part_id* by the load it was under."""
    if account is None:
        return LoadSamples(part_id, None, series, series, series)
    start, end, stretches = account.start, account.end, account.steady
    loaded = _filter_series(series, lambda t: start <= t <= end)
    steady = _filter_series(series, lambda t: any(done.contains(t) for done in stretches))
    return LoadSamples(part_id, account, series, loaded, steady)


def _filter_series(series: Values, wanted: Callable[[float], bool]) -> Values:
    return {name: [s for s in values if wanted(s.t)] for name, values in series.items()}


def observe_soak(
    watch: hv.Watch, ctx: hv.Context, account: LoadRecord | None
) -> Iterator[hv.CheckItem]:
    """Yield how the part of *ctx* coped with its load, from its samples."""
    part_id = ctx.device.part
    parts: dict[str, dict[str, list[hv.Sample]]] = {}
    for sample in watch.samples:  # in one pass: there may be millions
        if sample.name in USED_SERIES:
            parts.setdefault(sample.part_id, {}).setdefault(sample.name, []).append(sample)
    own = dict(parts.get(part_id, {}))
    seen = max(len(own.get(name, ())) for name in GAUGES)
    yield hv.Measurement("samples", seen, "", part_id)
    stuck = find_stuck_gauges(own) if account and ctx.device.kind != "cpu" else {}
    yield from (hv.Finding("gauge_stuck", part_id, text) for text in stuck.values())
    for name in stuck:
        del own[name]
    observed = split_by_load(_drop_impossible(own, stuck), part_id, account)
    # After a pause in its answers a GPU is read again; if it has none, the passive checks report.
    for code in problems.PROBLEM_RULES.keys() - {problems.MUTE}:
        times = [s.t for s in observed.all.get(code, ()) if s.value]
        if times:
            text = f"{code.replace('_', ' ')} at {len(times)} samples of the soak"
            yield hv.Finding(code, part_id, text)
    yield from _measure_extremes(observed)
    yield from _measure_throttling(observed)
    for name in ("temperature", "temperature.memory"):
        rise = _compute_rise(observed, name)
        if rise is not None and rise >= MIN_RISE_CELSIUS:
            yield hv.Measurement(f"{name}.rise", rise, "°C", part_id)
    yield from _measure_resistance(observed)
    yield from _measure_recovery(observed)
    if ctx.device.kind != "cpu":  # other programs have their share in a CPU's numbers
        yield from _measure_work(observed, ctx)
        yield from _compare_with_siblings(parts, ctx, observed)
    yield from (
        build_series(observed.all[n], watch.start) for n in REPORTED_SERIES if n in observed.all
    )


def find_stuck_gauges(series: Values) -> dict[str, str]:
    """Say in words, by gauge, which stay at one value although others follow the load."""
    spans: dict[str, str] = {}
    for name in (*WATCHED_GAUGES, "clock"):
        values = [sample.value for sample in series.get(name, ())]
        if values and max(values) > MIN_SWING * min(values):
            spans[name] = f"{min(values):.0f} to {max(values):.0f} {series[name][0].unit}"
    stuck: dict[str, str] = {}
    for name, judged in WATCHED_GAUGES.items():
        samples = series.get(name, ())
        moved = [f"{other} goes from {span}" for other, span in spans.items() if other != name]
        constant = len({sample.value for sample in samples}) == 1
        if constant and len(samples) >= 2 * MIN_SAMPLES and moved:
            at = f"{samples[0].value:g} {samples[0].unit}"
            stuck[name] = (
                f"{name} stays at {at} while {moved[0]}: its sensor is broken, and its {judged} "
                "was not judged"
            )
    return stuck


def _drop_impossible(series: Values, stuck: Collection[str]) -> Values:
    """Leave out temperatures that no part has, and what a broken sensor says of the margin."""
    kept = dict(series)
    for name in ("temperature", "temperature.memory"):
        if name in kept:
            kept[name] = [s for s in kept[name] if s.value <= MAX_CELSIUS]
    if "temperature" in stuck:
        kept.pop("temperature.headroom", None)
    return kept


def _measure_extremes(observed: LoadSamples) -> Iterator[hv.Measurement]:
    for name, suffix, combine in SUMMARIES:
        values = [sample.value for sample in observed.all.get(name, ())]
        if values:
            unit = observed.all[name][0].unit
            yield hv.Measurement(f"{name}{suffix}", combine(values), unit, observed.part_id)
    for name, unit in (("clock", "MHz"), ("power", "W")):
        mean = observed.average(name)
        if mean is not None:
            yield hv.Measurement(f"{name}.mean", mean, unit, observed.part_id)
    clock = [sample.value for sample in observed.steady.get("clock", ())]
    if len(clock) >= MIN_SAMPLES:
        yield hv.Measurement("clock.sag", compute_sag(clock), "ratio", observed.part_id)


def compute_sag(values: Sequence[float]) -> float:
    """Compute by what share the last quarter of *values* is below the first."""
    quarter = len(values) // QUARTERS
    early, late = median(values[:quarter]), median(values[-quarter:])
    return 1 - late / early if early else 0.0


SUMMARIES: tuple[tuple[str, str, Callable[[Sequence[float]], float]], ...] = (
    ("temperature", ".idle", itemgetter(0)),  # the first sample is from before the load
    ("temperature", ".max", max),
    ("temperature.memory", ".max", max),
    ("temperature.headroom", ".min", min),
    ("power", ".max", max),
)


def _measure_throttling(observed: LoadSamples) -> Iterator[hv.Measurement]:
    for cause in THROTTLE_CAUSES:
        counted = observed.loaded.get(f"throttled.{cause}", ())
        sampled = observed.loaded.get(f"event.{cause}", ())
        times = [s.t for s in (*counted, *sampled)]
        span = max(times) - min(times) if times else 0.0
        if span:
            # Samples count only where the counter does not count at all.
            growth = sum_increases(counted)[-1][1] if counted else 0.0
            seconds = growth or _sum_event_seconds(sampled)
            name = f"throttled.{cause}"
            yield hv.Measurement(name, seconds, "s", observed.part_id)
            yield hv.Measurement(f"{name}.share", seconds / span, "ratio", observed.part_id)


def move_to_node(
    items: Iterable[hv.JudgedItem], inventory: hv.Inventory
) -> Iterator[hv.JudgedItem]:
    """
    Yield *items*, with what slowed all GPUs as the node's: it supplies and cools them.

    A GPU that was lost, or whose worker ended early, was not under load: it does not count.
    """
    gpus = {device.part for device in inventory.devices if device.kind == "cuda"}
    items = list(items)
    times: dict[str, dict[str, float]] = {}
    for item in items:
        if isinstance(item, hv.Measurement) and item.part_id in gpus and item.value is not None:
            times.setdefault(item.name, {})[item.part_id] = item.value
    worked = times.get("rate.mean", {}).keys()
    shared = {
        cause
        for cause in NODE_CAUSES
        if len(worked) >= hv.MIN_PARTS_FOR_ALL
        and worked <= (seconds := times.get(f"throttled.{cause}", {})).keys()
        and min(seconds[part_id] for part_id in worked) > MIN_SHARED_SECONDS
    }
    told = shared - {"hw_slowdown"} if shared & SPECIFIC_CAUSES else shared
    usual = {
        f"throttled.{cause}{end}": median(times[f"throttled.{cause}{end}"][p] for p in worked)
        for cause in shared
        for end in ("", ".share")
    }
    for item in items:
        if isinstance(item, hv.Measurement) and item.part_id in gpus and item.name in usual:
            most = MAX_SHARED_RATIO * usual[item.name]
            yield from [item] * ((item.value or 0) > most)
        else:
            yield item
    for cause in sorted(told):
        name = f"throttled.{cause}"
        yield hv.Measurement(name, usual[name], "s", "node")
        yield hv.Measurement(f"{name}.share", usual[f"{name}.share"], "ratio", "node")


def _sum_event_seconds(event: Sequence[hv.Sample]) -> float:
    """
    Add up the time for which consecutive samples showed an *event*.

    Old samples are thinned to extremes: two that are far apart may be two instants.
    """
    runs = [list(run) for up, run in groupby(event, lambda s: bool(s.value)) if up]
    return sum(
        run[-1].t - run[0].t
        for run in runs
        if len(run) >= MIN_EVENT_SAMPLES or run[-1].t - run[0].t <= MAX_SAMPLE_GAP_SECONDS
    )


def _compute_rise(observed: LoadSamples, name: str) -> float | None:
    """
    Subtract the idle temperature from that of a long steady load's last quarter, in °C.

    Idle is the coolest sample before or after the load: an earlier check may have left heat.
    """
    steady, samples = observed.steady.get(name, ()), observed.all.get(name, ())
    if not observed.account or len(steady) < MIN_SAMPLES:
        return None
    soak = observed.account.end - observed.account.start
    rest = samples[-1].t - observed.account.end
    if soak < MIN_SOAK_SECONDS or rest < MIN_REST_SECONDS:
        return None
    late = steady[-(len(steady) // QUARTERS) :]
    return fmean(s.value for s in late) - min(observed.list_unloaded(name))


def _measure_resistance(observed: LoadSamples) -> Iterator[hv.Measurement]:
    rise, power = _compute_rise(observed, "temperature"), observed.average("power")
    idle = observed.list_unloaded("power")
    if rise is None or rise < MIN_RISE_CELSIUS or power is None or not idle:
        return
    added = (power - min(idle)) / 1e3
    if added > 0:
        yield hv.Measurement("temperature.rise_per_kW", rise / added, "°C", observed.part_id)


def _measure_recovery(observed: LoadSamples) -> Iterator[hv.Measurement]:
    """Yield how long the part took to cool half-way, or at least how long it was watched."""
    account, samples = observed.account, observed.all.get("temperature", ())
    hot = [s.value for s in observed.loaded.get("temperature", ())][-1:]
    after = [s for s in samples if account and s.t > account.end]
    if account is None or not hot or not after:
        return
    yield hv.Measurement("temperature.recovered", after[-1].value, "°C", observed.part_id)
    idle = samples[0].value
    if hot[0] - idle >= MIN_RISE_CELSIUS:
        half = (hot[0] + idle) / 2
        cool = next((s for s in after if s.value <= half), after[-1])
        yield hv.Measurement("recovery", cool.t - account.end, "s", observed.part_id)


def _measure_work(observed: LoadSamples, ctx: hv.Context) -> Iterator[hv.Measurement]:
    account, clock = observed.account, observed.average("clock")
    if account is None or account.rate is None:
        return
    idle = [s.value for s in observed.steady.get("event.idle", ())]
    shares = (
        observed.average("utilization"),
        1 - fmean(idle) if len(idle) >= MIN_SAMPLES else None,
    )
    if known := [share for share in shares if share is not None]:
        yield hv.Measurement("loaded", min(known), "ratio", observed.part_id)
    if clock:
        per_clock = account.rate / (clock * 1e6)
        clocks = list_recent(observed.steady.get("clock", ()), account)
        # The standard error of the mean, as a share of it.
        if stdev(clocks) / sqrt(len(clocks)) / fmean(clocks) <= MAX_CLOCK_ERROR:
            yield hv.Measurement("work_per_clock", per_clock, "", observed.part_id)
        spec = look_up_spec(ctx, observed.part_id)
        if spec and spec.sms and spec.flop_per_clk_per_sm:
            full = spec.sms * spec.flop_per_clk_per_sm
            yield hv.Measurement("efficiency", per_clock / full, "ratio", observed.part_id)
    watts = _average_watts(observed)
    if watts:
        yield hv.Measurement("energy_per_work", watts / account.rate * PETA, "J", observed.part_id)


def _average_watts(observed: LoadSamples) -> float | None:
    if observed.account is None:
        return None
    energy = observed.steady.get("energy", ())
    # Only within a stretch: energy used between two is not of the steady load.
    pairs = [
        (a, b)
        for done in observed.account.recent
        for a, b in pairwise(s for s in energy if done.contains(s.t))
        if b.value >= a.value
    ]
    seconds = sum(b.t - a.t for a, b in pairs)
    if seconds:
        return sum(b.value - a.value for a, b in pairs) / seconds
    return observed.average("power")


def _compare_with_siblings(
    parts: Mapping[str, Values], ctx: hv.Context, observed: LoadSamples
) -> Iterator[hv.Measurement]:
    """
    Yield by how much the part falls short of its siblings in both clock and power.

    Poorer silicon runs slower at the power cap; better silicon needs less power. A part
    that is lower in both is held back by something that its counters may hide.
    """
    model = find_model(ctx, observed.part_id)
    alike = [p.part for p in ctx.peers if find_model(ctx, p.part) == model]
    reached: list[float] = []
    for name in ("clock", "power"):
        averages = (
            average_recent(parts.get(part, {}).get(name, ()), observed.account) for part in alike
        )
        means = [mean for mean in averages if mean is not None]
        own = observed.average(name)
        if own is None or len(means) < MIN_SIBLINGS or not median(means):
            return
        reached.append(own / median(means))
    yield hv.Measurement("held_back", max(0.0, 1 - max(reached)), "ratio", observed.part_id)
