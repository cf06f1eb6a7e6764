"""
The geometry of the charts: from numbers to SVG paths.

Charts use no scripts, and colours are attributes, so that they work in an archive, on
paper, and on a server that bans both. The templates only print these values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from hpcverify.telemetry.thinning import thin
from hpcverify_reports.labels import Icon, format_names, format_number, format_with_unit

MAX_POINTS = 200
"""Points of a line: the minimum and maximum of each short stretch."""
FULL_DETAIL_LINES, MIN_POINTS = 8, 40
"""More lines than these share their points, down to `MIN_POINTS` each."""
MAX_LABELED_LINES = 12
"""Lines that all have a label; of more, only the flagged and the extremes."""
HUES = ("#3f78b5", "#c2762b", "#4b9560", "#8d66b8", "#2f9698", "#bf5f80", "#8a8636", "#7a8491")
"""Equally strong on white and black; labels, not hues, identify the lines."""
CHART_WIDTH, CHART_HEIGHT = 560, 210
STRIP_WIDTH = 132.0
SPARKLINE_WIDTH, SPARKLINE_HEIGHT = 120, 26
"""In pixels, as all lengths here."""

_MAX_MAGNITUDE = 1e300
_STEPS_PER_PIXEL = 10
_CHARACTER_PIXELS = 7.4
"""The width of a bold character of a wide font."""
_LABEL_PITCH = 12
"""From one label to the next below it."""
_TIME_UNITS = ((3600, "hours"), (60, "minutes"), (1, "seconds"), (1e-3, "ms"), (1e-6, "µs"))
_MIN_UNITS = 3
"""A unit is used from this many on."""
_LEAST_SPAN = 0.1
"""The least span of a value axis, as a share of its largest value: noise must not look large."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps the range from *low* to *high* to the pixels from *start* to *end*."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Place *value*, to a tenth of a pixel."""
        share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)


@dataclass(frozen=True, slots=True)
class Trace:
    """The samples of one part; *flagged* if the part is outside a limit."""

    label: str
    t: Sequence[float]
    values: Sequence[float]
    flagged: bool = False
    is_limit: bool = False
    """Whether it is a limit that differs along the axis, and not measured."""


@dataclass(frozen=True, slots=True)
class DrawnTrace:
    """A trace, its place among the others, and its points after thinning."""

    trace: Trace
    place: int
    points: tuple[tuple[float, float], ...]

    @property
    def label(self) -> str:
        """The name at its end, without the id: GPU 3, not GPU 3 (…4f21)."""
        return self.trace.label.split(" (", maxsplit=1)[0][:16]

    @property
    def end(self) -> tuple[float, float]:
        """The last point."""
        return self.points[-1]


@dataclass(frozen=True, slots=True)
class Tick:
    """A place on an axis, a limit across the chart, or a label, and its text."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Axis:
    """The name and the ticks of a horizontal axis that is not the time of a check."""

    name: str
    ticks: tuple[Tick, ...]


@dataclass(frozen=True, slots=True)
class ChartLine:
    """One part's line, and its name at the right edge; paths in tenths of a pixel."""

    name: str
    path: str
    hue: str
    width: float
    weight: int
    label: Tick | None
    """Its name and height, if it has one."""
    leader_path: str
    """From the line to its name."""
    is_limit: bool


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines of one or more parts over time or sizes, `CHART_WIDTH` by `CHART_HEIGHT` pixels."""

    name: str
    unit: str
    description: str
    x: Scale
    y: Scale
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    x_name: str
    lines: tuple[ChartLine, ...]
    bounds: tuple[Tick, ...]
    marks: tuple[Tick, ...]
    """Events along the axis, such as the start of a load."""


@dataclass(frozen=True, slots=True)
class Sparkline:
    """A small line of values, with a dot at the last one and a dashed *rule*."""

    title: str
    path: str
    x: float
    y: float
    rule: float


@dataclass(frozen=True, slots=True)
class Strip:
    """All values of one metric on one axis, with its limits."""

    title: str
    zones: tuple[tuple[float, float], ...]
    """Start and width of what is out of bounds."""
    bounds: str
    """One path with a stroke for each limit, as *ticks* for each value."""
    ticks: str
    icons: tuple[tuple[float, Icon], ...]
    """The places of values outside a limit, with the icons of their verdicts."""


def thin_trace(trace: Trace, points: int = MAX_POINTS) -> tuple[tuple[float, float], ...]:
    """Leave out non-numbers, then points that nobody could see; no spike is lost."""
    pairs = zip(trace.t, trace.values, strict=False)
    finite = [pair for pair in pairs if all(map(is_drawable, pair))]
    t, values = thin([t for t, _ in finite], [v for _, v in finite], points)
    return tuple(zip(t, values, strict=True))


def is_drawable(value: float) -> bool:
    """Whether *value* can be drawn; differences must not overflow either."""
    return abs(value) < _MAX_MAGNITUDE


def pad_range(low: float, high: float, share: float) -> tuple[float, float]:
    """Widen the range from *low* to *high* by *share*, so that nothing lies on its ends."""
    pad = (high - low) * share or abs(high) * 0.05 or 1.0
    return low - pad, high + pad


def choose_round_steps(low: float, high: float, about: int) -> list[float]:
    """Choose roughly *about* round numbers that cover the range; at least two."""
    if high - low <= max(abs(low), abs(high), 1e-9) * 1e-9:
        low, high = low - (abs(low) * 0.05 or 1), high + (abs(high) * 0.05 or 1)
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [i * step for i in range(first, last + 1)]


def draw_chart(
    name: str,
    unit: str,
    traces: Sequence[Trace],
    bounds: Sequence[Tick] = (),
    *,
    axis: Axis | None = None,
    marks: Sequence[Tick] = (),
    least: float | None = None,
) -> Chart | None:
    """
    Draw *traces* with the limits *bounds* and the events *marks*; None without samples.

    Without an *axis*, the traces are over the time since the check began. The value axis includes
    *least*, if it is given.
    """
    points = max(MIN_POINTS, MAX_POINTS * FULL_DETAIL_LINES // max(FULL_DETAIL_LINES, len(traces)))
    drawn = [DrawnTrace(trace, i, thin_trace(trace, points)) for i, trace in enumerate(traces)]
    drawn = [d for d in drawn if d.points]
    if not drawn:
        return None
    named = _select_labeled(drawn)
    y, y_ticks = _make_value_axis(drawn, bounds, least)
    end = round(CHART_WIDTH - _CHARACTER_PIXELS * max(len(d.label) for d in named) - 18, 1)
    times = [t for d in drawn for t, _ in d.points]
    axis = axis or _make_time_axis(min(0.0, *times), max(times))
    places = [*times, *(tick.at for tick in axis.ticks)]
    low, high = min(places), max(places)
    x = Scale(low, high if high > low else low + 1, 44, end)
    return Chart(
        name=name,
        unit=unit,
        description=_describe(unit, traces),
        x=x,
        y=y,
        x_ticks=tuple(Tick(x(tick.at), tick.text) for tick in axis.ticks),
        y_ticks=y_ticks,
        x_name=axis.name,
        lines=tuple(_draw_lines(drawn, named, x, y)),
        bounds=tuple(Tick(y(bound.at), bound.text) for bound in bounds),
        marks=tuple(Tick(x(mark.at), mark.text) for mark in marks if low <= mark.at <= high),
    )


def _select_labeled(drawn: Sequence[DrawnTrace]) -> list[DrawnTrace]:
    if len(drawn) <= MAX_LABELED_LINES:
        return list(drawn)
    flagged = [d for d in drawn if d.trace.flagged][: MAX_LABELED_LINES - 2]
    by_end = sorted(drawn, key=lambda d: d.end[1])
    return flagged + [d for d in (by_end[0], by_end[-1]) if d not in flagged]


def _make_value_axis(
    drawn: Sequence[DrawnTrace], bounds: Sequence[Tick], least: float | None
) -> tuple[Scale, tuple[Tick, ...]]:
    values = [y for d in drawn for _, y in d.points] + [b.at for b in bounds]
    values += [] if least is None else [least]
    low, high = min(values), max(values)
    missing = max(0.0, _LEAST_SPAN * max(abs(low), abs(high)) - (high - low)) / 2
    steps = choose_round_steps(low - missing, high + missing, about=4)
    scale = Scale(steps[0], steps[-1], CHART_HEIGHT - 34, 10)
    return scale, tuple(Tick(scale(step), format_number(step)) for step in steps)


def _make_time_axis(first: float, last: float) -> Axis:
    length = last - first or 1.0
    seconds, unit = next(u for u in _TIME_UNITS if length >= u[0] * _MIN_UNITS or u[1] == "µs")
    steps = choose_round_steps(first / seconds, (first + length) / seconds, about=5)
    inside = (step for step in steps if first <= step * seconds <= first + length)
    ticks = tuple(Tick(step * seconds, format_number(step)) for step in inside)
    return Axis(f"{unit} since the check began", ticks)


def _draw_lines(
    drawn: Sequence[DrawnTrace], named: Sequence[DrawnTrace], x: Scale, y: Scale
) -> Iterator[ChartLine]:
    wanted = [y(d.end[1]) for d in named]
    places = dict(zip((d.place for d in named), space_labels(wanted, y.end, y.start), strict=True))
    for d in sorted(drawn, key=lambda d: d.trace.flagged):
        at = places.get(d.place)
        points = [(x(t), y(value)) for t, value in d.points]
        yield ChartLine(
            name=d.trace.label,
            path=write_path(points),
            hue="#bf3026" if d.trace.is_limit else HUES[-1] if at is None else HUES[d.place % 8],
            width=2.2 if d.trace.flagged else 1.1,
            weight=700 if d.trace.flagged else 400,
            label=None if at is None else Tick(at, d.label),
            leader_path="" if at is None else write_path([points[-1], (x.end + 11, at)]),
            is_limit=d.trace.is_limit,
        )


def space_labels(wanted: Sequence[float], low: float, high: float) -> list[float]:
    """Move labels apart, in their order, and keep them between *low* and *high*."""
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    heights = [wanted[i] for i in order]
    down = _push_apart(heights, low, high)
    up = [-y for y in _push_apart([-y for y in reversed(heights)], -high, -low)]
    # Both keep the distance, and so does their mean, which is close to the lines' ends.
    middle = [(a + b) / 2 for a, b in zip(down, reversed(up), strict=True)]
    placed = dict(zip(order, middle, strict=True))
    return [round(placed[i], 1) for i in range(len(wanted))]


def _push_apart(heights: Sequence[float], low: float, high: float) -> list[float]:
    placed = list(heights)
    floor = low
    for i, y in enumerate(placed):
        placed[i] = max(y, floor)
        floor = placed[i] + _LABEL_PITCH
    ceiling = high
    for i in reversed(range(len(placed))):
        placed[i] = min(placed[i], ceiling)
        ceiling = placed[i] - _LABEL_PITCH
    return placed


def write_path(points: Sequence[tuple[float, float]]) -> str:
    """Write *points* as steps in tenths of a pixel, the shortest form."""
    whole = [(round(x * _STEPS_PER_PIXEL), round(y * _STEPS_PER_PIXEL)) for x, y in points]
    steps = [(bx - ax, by - ay) for (ax, ay), (bx, by) in pairwise(whole)]
    text = " ".join(f"{x} {y}" for x, y in steps)
    # A line of one sample is a dot: an empty step with a round cap.
    return f"M{whole[0][0]} {whole[0][1]}l{text or '0 0'}".replace(" -", "-")


def _describe(unit: str, traces: Sequence[Trace]) -> str:
    ranges = [
        f"{trace.label}: {format_with_unit(min(finite), '')} to "
        f"{format_with_unit(max(finite), unit)}"
        for trace in traces
        if (finite := [v for v in trace.values if is_drawable(v)])
    ]
    return format_names(ranges, MAX_LABELED_LINES, "; ")


def draw_strip(
    unit: str,
    values: Sequence[tuple[float, Icon | None]],
    lows: Sequence[float],
    highs: Sequence[float],
) -> Strip | None:
    """Put *values* on one axis with the limits; values outside one have an icon."""
    everything = [*(value for value, _ in values), *lows, *highs]
    if not values or len(everything) < 2:  # noqa: PLR2004 - one value alone says nothing
        return None
    x = Scale(*pad_range(min(everything), max(everything), 0.08), 0, STRIP_WIDTH)
    forbidden = [(0.0, x(min(lows)))] if lows else []
    forbidden += [(x(max(highs)), STRIP_WIDTH - x(max(highs)))] if highs else []
    return Strip(
        title=_format_span(unit, [value for value, _ in values]),
        zones=tuple(forbidden),
        bounds=_draw_strokes([x(bound) for bound in (*lows, *highs)], 1, 18),
        ticks=_draw_strokes([x(value) for value, mark in values if mark is None], 5, 10),
        icons=tuple((x(value), mark) for value, mark in values if mark),
    )


def _draw_strokes(places: Sequence[float], top: int, height: int) -> str:
    """Draw a vertical stroke at each of *places*, once where they coincide."""
    return "".join(f"M{x:g} {top}v{height}" for x in dict.fromkeys(places))


def _format_span(unit: str, values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    if low == high:
        return format_with_unit(low, unit)
    return f"from {format_with_unit(low, '')} to {format_with_unit(high, unit)}"


def draw_sparkline(
    title: str, values: Sequence[float], rule: float, *, least: float | None = None
) -> Sparkline:
    """
    Draw *values* in their order, the last one as a dot, and a *rule* such as their median.

    The axis begins at *least*, if it is given.
    """
    low, high = min(*values, rule), max(*values, rule)
    low, high = pad_range(low if least is None else min(low, least), high, 0.1)
    y = Scale(low, high, SPARKLINE_HEIGHT - 3, 3)
    x = Scale(0, max(len(values) - 1, 1), 3, SPARKLINE_WIDTH - 5)
    points = [(x(i), y(value)) for i, value in enumerate(values)]
    return Sparkline(title, write_path(points), *points[-1], y(rule))
