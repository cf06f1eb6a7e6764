"""Draws a dashboard with the answers to its queries as SVG: the panels where Grafana has them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from itertools import pairwise, zip_longest
from typing import Any

from msgspec import Struct

COLUMN, ROW, GAP = 42, 30, 6
"""The grid of Grafana, in pixels."""
TITLE = 22
LINE_COLORS = ("#3274d9", "#ff780a", "#56a64b", "#8f3bb8", "#e02f44", "#0aa5a5", "#8a6d3b")
INK, FAINT, FRAME = "#24292e", "#6b7280", "#d8dde3"
MAX_ROWS, SMALLEST_ROW = 9, 7
TICKS = 3
MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0


class Series(Struct, frozen=True):
    """What Prometheus answers for one set of labels."""

    name: str
    labels: Mapping[str, str]
    points: Sequence[tuple[float, float]]


class Picture(Struct, frozen=True):
    """A panel, the answers to its queries and the time that they cover."""

    panel: Mapping[str, Any]
    series: Sequence[Series]
    begin: float
    end: float
    marks: Sequence[tuple[float, str]] = ()
    """When something happened that is marked in all panels, and the colour of the mark."""


class Box(Struct, frozen=True):
    """A place in the picture."""

    x: float
    y: float
    width: float
    height: float


def draw_board(title: str, pictures: Sequence[Picture]) -> str:
    """Draw all panels of a dashboard."""
    width = 24 * COLUMN
    height = 40 + ROW * max(p.panel["gridPos"]["y"] + p.panel["gridPos"]["h"] for p in pictures)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" fill="{INK}"',
        f' width="{width}" font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="#f4f5f7"/>',
        _text(12, 26, title, size=17),
    ]
    for picture in pictures:
        parts += _draw_panel(picture)
    return "\n".join([*parts, "</svg>", ""])


def _draw_panel(picture: Picture) -> Iterator[str]:
    panel, place = picture.panel, picture.panel["gridPos"]
    x, y = place["x"] * COLUMN, 40 + place["y"] * ROW
    if panel["type"] == "row":
        yield _text(x + 12, y + 20, panel["title"], size=13, weight="bold")
        return
    width, height = place["w"] * COLUMN - GAP, place["h"] * ROW - GAP
    yield (
        f'<rect x="{x + GAP / 2}" y="{y + GAP / 2}" width="{width}" height="{height}" rx="3"'
        f' fill="#fff" stroke="{FRAME}"/>'
    )
    yield _text(x + 12, y + TITLE - 2, _shorten(panel["title"], width), weight="bold")
    inner = Box(x + 12, y + TITLE + 8, width - 20, height - TITLE - 14)
    yield from DRAWERS[panel["type"]](picture, inner)


def _draw_stat(picture: Picture, box: Box) -> Iterator[str]:
    values = [series.points[-1][1] for series in picture.series]
    defaults = picture.panel["fieldConfig"]["defaults"]
    mapped = _read_mappings(defaults)
    text, color = "n/a", FAINT
    if values:
        text, color = mapped.get(
            int(values[0]),
            (_format(values[0], defaults["unit"]), _find_step_color(defaults, values[0])),
        )
    yield _text(box.x + box.width / 2, box.y + 42, text, size=24, color=color, anchor="middle")


def _draw_time_series(picture: Picture, box: Box) -> Iterator[str]:
    panel = picture.panel
    defaults = panel["fieldConfig"]["defaults"]
    fixed = {
        override["matcher"]["options"]: override["properties"][0]["value"]["fixedColor"]
        for override in panel["fieldConfig"]["overrides"]
    }
    stacked = defaults.get("custom", {}).get("stacking", {}).get("mode") == "normal"
    series = [s for s in picture.series if not stacked or any(v for _, v in s.points)]
    plot = Box(box.x + 44, box.y, box.width - 50, box.height - 48)
    if not series:
        yield _text(box.x + box.width / 2, box.y + 60, "No data", color=FAINT, anchor="middle")
        return
    base: dict[float, float] = {}
    lines: list[tuple[str, list[tuple[float, float]], str, list[tuple[float, float]]]] = []
    for number, line in enumerate(series):
        color = fixed.get(line.name, LINE_COLORS[number % len(LINE_COLORS)])
        below = [(at, base.get(at, 0.0)) for at, _ in line.points]
        points = [(at, value + base.get(at, 0.0)) for at, value in line.points]
        if stacked:
            base |= dict(points)
        lines.append((line.name, points, color, below))
    values = [value for _, points, _, _ in lines for _, value in points]
    ticks = _choose_ticks(defaults.get("min", min(values)), max(values) or 1, defaults["unit"])
    bottom, top = ticks[0], ticks[-1]

    def put(at: float, value: float) -> str:
        height = plot.height * (1 - (value - bottom) / (top - bottom))
        return f"{_place(picture, plot, at):.1f},{plot.y + height:.1f}"

    for tick in ticks:
        height = plot.y + plot.height * (1 - (tick - bottom) / (top - bottom))
        yield f'<path d="M{plot.x} {height:.1f}h{plot.width}" stroke="{FRAME}"/>'
        label = _format(tick, defaults["unit"])
        yield _text(plot.x - 5, height + 4, label, size=10, color=FAINT, anchor="end")
    for _, points, color, below in lines:
        track = " ".join(put(*point) for point in points)
        if stacked:
            back = " ".join(put(*point) for point in reversed(below))
            yield f'<polygon points="{track} {back}" fill="{color}" fill-opacity="0.6"/>'
        else:
            yield f'<polyline points="{track}" fill="none" stroke="{color}" stroke-width="1.5"/>'
    yield from _draw_time_axis(picture, plot)
    yield from _draw_legend([(name, color) for name, _, color, _ in lines], box)


def _choose_ticks(low: float, high: float, unit: str) -> list[float]:
    """Choose round values from *low* or less to *high* or more."""
    size = next((size for size in (DAY, HOUR, MINUTE) if unit == "s" and high > size), 1.0)
    low, high = low / size, max(high, low + 1e-9) / size
    power = 10 ** math.floor(math.log10((high - low) / TICKS or 1))
    step = next(power * n for n in (1, 2, 5, 10) if power * n * TICKS >= high - low)
    first = math.floor(low / step)
    count = max(1, math.ceil(high / step - 1e-9) - first)
    return [(first + number) * step * size for number in range(count + 1)]


def _draw_bands(picture: Picture, box: Box) -> Iterator[str]:
    """Draw a row of rectangles for each series, coloured by value."""
    defaults = picture.panel["fieldConfig"]["defaults"]
    mapped = _read_mappings(defaults)
    series = sorted(picture.series, key=lambda line: line.name)[-24:]
    if not series:
        yield _text(box.x + box.width / 2, box.y + 30, "No data", color=FAINT, anchor="middle")
        return
    plot = Box(box.x + 110, box.y, box.width - 116, box.height - 38)
    height = min(22.0, plot.height / len(series))
    seen: dict[str, str] = {}
    for number, line in enumerate(series):
        y = plot.y + number * height
        if height > SMALLEST_ROW:
            yield _text(plot.x - 6, y + height / 2 + 3, line.name, size=9, anchor="end")
        for begin, end, value in _merge(line.points, picture.end, is_merged=bool(mapped)):
            text, color = mapped.get(int(value), ("", _find_step_color(defaults, value)))
            if text:
                seen[text] = color
            x = _place(picture, plot, begin)
            width = max(1.0, _place(picture, plot, end) - x - (not mapped))
            yield (
                f'<rect x="{x:.1f}" y="{y + 1:.1f}" width="{width:.1f}"'
                f' height="{height - 2:.1f}" fill="{color}"/>'
            )
    yield from _draw_time_axis(picture, plot)
    if not mapped:
        steps = defaults["thresholds"]["steps"]
        seen = {_format(s["value"] or 0, defaults["unit"]) + " or more": s["color"] for s in steps}
    yield from _draw_legend(list(seen.items()), box)


def _merge(
    points: Sequence[tuple[float, float]], last: float, *, is_merged: bool
) -> Iterator[tuple[float, float, float]]:
    """Yield from when to when each value lasted; a gap ends it."""
    step = min((b[0] - a[0] for a, b in pairwise(points)), default=last - points[0][0])
    begin = None
    for (at, value), following in zip_longest(points, points[1:]):
        begin = at if begin is None else begin
        if not is_merged or following != (at + step, value):
            yield begin, min(at + step, last), value
            begin = None


def _draw_table(picture: Picture, box: Box) -> Iterator[str]:
    panel = picture.panel
    columns: Mapping[str, str] = panel["transformations"][0]["options"]["renameByName"]
    unit = next(
        (
            override["properties"][0]["value"]
            for override in panel["fieldConfig"]["overrides"]
            if override["properties"][0]["id"] == "unit"
        ),
        "short",
    )
    width = box.width / len(columns)
    for number, heading in enumerate(columns.values()):
        yield _text(box.x + number * width, box.y + 8, heading, color=FAINT)
    if not picture.series:
        yield _text(box.x, box.y + 28, "No data", color=FAINT)
    rows = min(MAX_ROWS, int(box.height // 19) - 1)
    for row, line in enumerate(picture.series[:rows]):
        for number, name in enumerate(columns):
            value = line.points[-1][1]
            text = _format(value, unit) if name == "Value" else line.labels.get(name, "")
            x, y = box.x + number * width, box.y + 28 + row * 19
            yield _text(x, y, _shorten(text, width))


DRAWERS: Mapping[str, Callable[[Picture, Box], Iterator[str]]] = {
    "stat": _draw_stat,
    "timeseries": _draw_time_series,
    "state-timeline": _draw_bands,
    "status-history": _draw_bands,
    "table": _draw_table,
}


def _place(picture: Picture, plot: Box, at: float) -> float:
    return plot.x + (at - picture.begin) / (picture.end - picture.begin) * plot.width


def _draw_time_axis(picture: Picture, plot: Box) -> Iterator[str]:
    """Draw the days, and the marks above them."""
    days = (picture.end - picture.begin) / DAY
    for number in range(5):
        x = plot.x + plot.width * number / 4
        ago = days * (1 - number / 4)
        text = f"-{ago:g} d" if ago else "now"
        yield _text(x, plot.y + plot.height + 13, text, size=10, color=FAINT, anchor="middle")
    for at, color in picture.marks:
        x = _place(picture, plot, at)
        line = f'<path d="M{x:.1f} {plot.y}v{plot.height}" stroke="{color}"'
        yield f'{line} stroke-dasharray="2 4" stroke-opacity="0.6"/>'


def _draw_legend(entries: Sequence[tuple[str, str]], box: Box) -> Iterator[str]:
    """Name the colours, in two lines at most."""
    x, y = box.x, box.y + box.height - (16 if _measure(entries) > box.width else 4)
    for name, color in entries:
        width = _measure([(name, color)])
        if x + width > box.x + box.width and x > box.x:
            x, y = box.x, y + 13
        if y > box.y + box.height:
            return
        yield f'<rect x="{x:.0f}" y="{y - 8:.0f}" width="9" height="9" fill="{color}"/>'
        yield _text(x + 13, y, name, size=10)
        x += width


def _measure(entries: Sequence[tuple[str, str]]) -> float:
    return sum(24 + 5.2 * len(name) for name, _ in entries)


def _read_mappings(defaults: Mapping[str, Any]) -> Mapping[int, tuple[str, str]]:
    return {
        int(number): (result["text"], result["color"])
        for mapping in defaults.get("mappings", ())
        for number, result in mapping["options"].items()
    }


def _find_step_color(defaults: Mapping[str, Any], value: float) -> str:
    steps = defaults["thresholds"]["steps"]
    return str([s["color"] for s in steps if s["value"] is None or value >= s["value"]][-1])


def _format(value: float, unit: str) -> str:
    if unit == "percentunit":
        return f"{100 * value:.3g} %"
    if unit == "s":
        for size, name in ((DAY, "d"), (HOUR, "h"), (MINUTE, "min")):
            if abs(value) >= size:
                return f"{value / size:.3g} {name}"
        return f"{value:.3g} s"
    return f"{value:,.4g}"


def _shorten(text: str, width: float) -> str:
    """Cut *text* to so many pixels."""
    most = int(width / 6.2)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _text(
    x: float,
    y: float,
    text: str,
    *,
    size: int = 11,
    color: str = INK,
    weight: str = "normal",
    anchor: str = "start",
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" fill="{color}"'
        f' text-anchor="{anchor}">{escape(text)}</text>'
    )
