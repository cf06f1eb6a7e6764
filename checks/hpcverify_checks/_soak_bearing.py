"""What the telemetry tells of a soak: heat, clocks, power, throttling, cooling."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from statistics import fmean, median

from hpcverify.check import Context, Sample, Watch
from hpcverify.limits.specs import find
from hpcverify.model import Finding, Found, Measurement
from hpcverify.telemetry import problems
from hpcverify.telemetry.thinning import thinned
from hpcverify_checks._soak import Account

GAUGES = ("temperature", "clock", "throttled.hw_thermal", "event.hw_thermal")
"""Series of which one is enough to tell how a part bears a load."""

CAUSES = (
    "hw_thermal",
    "hw_slowdown",
    "hw_power_brake",
    "sw_thermal",
    "sw_power_cap",
    "cores",
)
"""Why a part may run slower; of a CPU's cores the time is added up."""

SHOWN = (
    "temperature",
    "temperature.memory",
    "temperature.headroom",
    "clock",
    "clock.slowest",
    "power",
    "utilization",
)
"""Series that go into the report."""

KNOWN = frozenset(
    (
        *GAUGES,
        *SHOWN,
        "energy",
        "event.idle",
        *(f"throttled.{cause}" for cause in CAUSES),
        *(f"event.{cause}" for cause in CAUSES),
        *problems.RULINGS,
    )
)
"""Series that anything is made of here."""

QUARTERS = 4
FEWEST = 8
"""Values, below which there is no late against early, and no mean to judge by."""
LEAST_RISE = 10.0
"""°C, below which a share of the rise is lost in the steps of 1 °C of the sensor."""
LEAST_SOAK, LEAST_REST = 100.0, 60.0
"""Seconds of load, and of none after it, in which a part comes near its last
temperature (heat sinks follow with 10 to 25 s): before, it shows how inert it is and
what an earlier check left in it."""
LEAST_ALIKE = 3
"""With two that differ nobody can say which one is wrong."""
PETA = 1e15
NEAR_SECONDS = 3.0
"""Between two samples that were taken one after the other, and none left out."""
SURE = 3
"""Samples that are an event that lasts, even if others were left out between them."""

Values = Mapping[str, Sequence[Sample]]
"""The samples of one part, by the name of the series."""


@dataclass(frozen=True, slots=True)
class Bearing:
    """The samples of one part: all, those under any load, those under a steady one."""

    where: str
    account: Account | None
    """None if the worker did not come to its end: then all may be of the load."""
    all: Values
    loaded: Values
    steady: Values

    def mean(self, name: str) -> float | None:
        """Average the series *name* under recent steady load, if there is enough."""
        return mean_of(self.steady.get(name, ()), self.account)

    def unloaded(self, name: str) -> list[float]:
        """List the values of a series before and after the load."""
        account = self.account
        return [
            s.value
            for s in self.all.get(name, ())
            if account and not account.start <= s.t <= account.end
        ]


def mean_of(samples: Sequence[Sample], account: Account | None) -> float | None:
    """Average those of *samples* that are of recent steady load, if enough are."""
    recent = account.recent if account else None
    values = [
        s.value
        for s in samples
        if recent is None or any(done.holds(s.t) for done in recent)
    ]
    return fmean(values) if len(values) >= FEWEST else None


def sampled(watch: Watch) -> Mapping[str, Values]:
    """Sort what was sampled by part and name, in one pass: there may be millions."""
    parts: dict[str, dict[str, list[Sample]]] = {}
    for sample in watch.samples:
        if sample.name in KNOWN:
            series = parts.setdefault(sample.where, {})
            series.setdefault(sample.name, []).append(sample)
    return parts


def sorted_out(series: Values, where: str, account: Account | None) -> Bearing:
    """Sort the *series* of the part *where* by the load that they were under."""
    if account is None:
        return Bearing(where, None, series, series, series)

    start, end, stretches = account.start, account.end, account.steady

    def loaded(t: float) -> bool:
        return start <= t <= end

    def steady(t: float) -> bool:
        return any(done.holds(t) for done in stretches)

    return Bearing(where, account, series, _kept(series, loaded), _kept(series, steady))


def _kept(series: Values, wanted: Callable[[float], bool]) -> Values:
    return {name: [s for s in values if wanted(s.t)] for name, values in series.items()}


def bearing(watch: Watch, ctx: Context, account: Account | None) -> Iterator[Found]:
    """Yield how the part of *ctx* bore its load, by what was sampled of it."""
    where = ctx.device.part
    parts = sampled(watch)
    borne = sorted_out(parts.get(where, {}), where, account)
    seen = max(len(borne.all.get(name, ())) for name in GAUGES)
    yield Measurement("samples", seen, "", where)
    yield from _troubles(borne)
    yield from _extremes(borne)
    yield from _throttled(borne)
    yield from _cooling(borne)
    if ctx.device.kind != "cpu":  # other programs have their share in a CPU's numbers
        yield from _work(borne, ctx)
        yield from _held_back(parts, ctx, borne)
    yield from (thinned(borne.all[n], watch.start) for n in SHOWN if n in borne.all)


def _troubles(borne: Bearing) -> Iterator[Finding]:
    """Yield what the telemetry met when it asked the part."""
    for code in problems.RULINGS:
        times = [s.t for s in borne.all.get(code, ()) if s.value]
        if times:
            text = f"{code.replace('_', ' ')} at {len(times)} samples of the soak"
            yield Finding(code, borne.where, text)


def _extremes(borne: Bearing) -> Iterator[Measurement]:
    """Yield the highest, lowest and mean values that say something."""
    for name, suffix, combine in SUMMARIES:
        values = [sample.value for sample in borne.all.get(name, ())]
        if values:
            unit = borne.all[name][0].unit
            yield Measurement(f"{name}{suffix}", combine(values), unit, borne.where)
    for name, unit in (("clock", "MHz"), ("power", "W")):
        mean = borne.mean(name)
        if mean is not None:
            yield Measurement(f"{name}.mean", mean, unit, borne.where)
    clock = [sample.value for sample in borne.steady.get("clock", ())]
    if len(clock) >= FEWEST:
        yield Measurement("clock.sag", sag(clock), "ratio", borne.where)


def sag(values: Sequence[float]) -> float:
    """Say by what share the last quarter of *values* lies below the first."""
    quarter = len(values) // QUARTERS
    early, late = median(values[:quarter]), median(values[-quarter:])
    return 1 - late / early if early else 0.0


def _first(values: Sequence[float]) -> float:
    """Take the value from before the load took hold."""
    return values[0]


SUMMARIES: tuple[tuple[str, str, Callable[[Sequence[float]], float]], ...] = (
    ("temperature", ".idle", _first),
    ("temperature", ".max", max),
    ("temperature.memory", ".max", max),
    ("temperature.headroom", ".min", min),
    ("power", ".max", max),
)


def _throttled(borne: Bearing) -> Iterator[Measurement]:
    """Yield for how long each cause held the part back, and what share that is."""
    for cause in CAUSES:
        counted = borne.loaded.get(f"throttled.{cause}", ())
        sampled = borne.loaded.get(f"event.{cause}", ())
        times = [s.t for s in (*counted, *sampled)]
        span = max(times) - min(times) if times else 0.0
        if span:
            # Samples overrule only a counter that does not count at all.
            seconds = _grown(counted) or _lasted(sampled)
            yield Measurement(f"throttled.{cause}", seconds, "s", borne.where)
            share = Measurement(
                f"throttled.{cause}.share", seconds / span, "ratio", borne.where
            )
            yield share


def _grown(counter: Sequence[Sample]) -> float:
    """Add up what a counter of seconds grew by; one that fell was reset."""
    return sum(max(0.0, b.value - a.value) for a, b in pairwise(counter))


def _lasted(event: Sequence[Sample]) -> float:
    """
    Add up the time for which sample after sample showed an *event*.

    Old samples are thinned to extremes: two that lie far apart may be two instants.
    """
    runs = [list(run) for up, run in groupby(event, lambda s: bool(s.value)) if up]
    return sum(
        run[-1].t - run[0].t
        for run in runs
        if len(run) >= SURE or run[-1].t - run[0].t <= NEAR_SECONDS
    )


def _cooling(borne: Bearing) -> Iterator[Measurement]:
    """Yield how far the part rose over idle, at what power, and how it came back."""
    for name in ("temperature", "temperature.memory"):
        rise = _rise(borne, name)
        if rise is not None and rise >= LEAST_RISE:
            yield Measurement(f"{name}.rise", rise, "°C", borne.where)
    yield from _resistance(borne)
    yield from _recovery(borne)


def _rise(borne: Bearing, name: str) -> float | None:
    """
    Take the coolest from the last quarter of a steady load that lasted, in °C.

    The coolest before or after it: what an earlier check left behind is no idle.
    """
    steady, samples = borne.steady.get(name, ()), borne.all.get(name, ())
    if not borne.account or len(steady) < FEWEST:
        return None
    soak = borne.account.end - borne.account.start
    rest = samples[-1].t - borne.account.end
    if soak < LEAST_SOAK or rest < LEAST_REST:
        return None
    late = steady[-(len(steady) // QUARTERS) :]
    return fmean(s.value for s in late) - min(borne.unloaded(name))


def _resistance(borne: Bearing) -> Iterator[Measurement]:
    rise, power = _rise(borne, "temperature"), borne.mean("power")
    idle = borne.unloaded("power")
    if rise is None or rise < LEAST_RISE or power is None or not idle:
        return
    added = (power - min(idle)) / 1e3
    if added > 0:
        yield Measurement("temperature.rise_per_kW", rise / added, "°C", borne.where)


def _recovery(borne: Bearing) -> Iterator[Measurement]:
    """Yield how long the part took to cool half-way, or at least takes."""
    account, samples = borne.account, borne.all.get("temperature", ())
    hot = [s.value for s in borne.loaded.get("temperature", ())][-1:]
    after = [s for s in samples if account and s.t > account.end]
    if account is None or not hot or not after:
        return
    yield Measurement("temperature.recovered", after[-1].value, "°C", borne.where)
    idle = samples[0].value
    if hot[0] - idle >= LEAST_RISE:
        half = (hot[0] + idle) / 2
        cool = next((s for s in after if s.value <= half), after[-1])
        yield Measurement("recovery", cool.t - account.end, "s", borne.where)


def _work(borne: Bearing, ctx: Context) -> Iterator[Measurement]:
    """Yield whether the part was at work, and what it made of clock and energy."""
    account, clock = borne.account, borne.mean("clock")
    if account is None or account.rate is None:
        return
    seen = _seen_at_work(borne)
    if seen is not None:
        yield Measurement("loaded", seen, "ratio", borne.where)
    if clock:
        per_clock = account.rate / (clock * 1e6)
        yield Measurement("work_per_clock", per_clock, "", borne.where)
        part = next((p for p in ctx.inventory.parts if p.id == borne.where), None)
        spec = find(part) if part else None
        if spec and spec.sms and spec.flop_per_clk_per_sm:
            full = spec.sms * spec.flop_per_clk_per_sm
            yield Measurement("efficiency", per_clock / full, "ratio", borne.where)
    watts = _watts(borne)
    if watts:
        energy = watts / account.rate * PETA
        yield Measurement("energy_per_work", energy, "J", borne.where)


def _seen_at_work(borne: Bearing) -> float | None:
    """Say what share of the steady load the telemetry saw the part at work."""
    idle = [s.value for s in borne.steady.get("event.idle", ())]
    shares = [
        borne.mean("utilization"),
        1 - fmean(idle) if len(idle) >= FEWEST else None,
    ]
    return min((share for share in shares if share is not None), default=None)


def _watts(borne: Bearing) -> float | None:
    """Average the power of the steady load: by the counter of energy, if there is."""
    if borne.account is None:
        return None
    energy = borne.steady.get("energy", ())
    # Only within a stretch: what was used between two is not of the steady load.
    pairs = [
        (a, b)
        for done in borne.account.recent
        for a, b in pairwise(s for s in energy if done.holds(s.t))
        if b.value >= a.value
    ]
    seconds = sum(b.t - a.t for a, b in pairs)
    if seconds:
        return sum(b.value - a.value for a, b in pairs) / seconds
    return borne.mean("power")


def _held_back(
    parts: Mapping[str, Values], ctx: Context, borne: Bearing
) -> Iterator[Measurement]:
    """
    Yield what the part lacks of both the clock and the power of its siblings.

    One of poorer silicon runs slower at the power cap; one of better silicon needs
    less power. What lacks both is held back by something that its counters may hide.
    """
    model = _name(ctx, borne.where)
    alike = [p.part for p in ctx.peers if _name(ctx, p.part) == model]
    reached: list[float] = []
    for name in ("clock", "power"):
        each = (
            mean_of(parts.get(part, {}).get(name, ()), borne.account) for part in alike
        )
        means = [mean for mean in each if mean is not None]
        own = borne.mean(name)
        if own is None or len(means) < LEAST_ALIKE or not median(means):
            return
        reached.append(own / median(means))
    yield Measurement("held_back", max(0.0, 1 - max(reached)), "ratio", borne.where)


def _name(ctx: Context, where: str) -> str:
    part = next((p for p in ctx.inventory.parts if p.id == where), None)
    return part.facts.get("name", "") if part else ""
