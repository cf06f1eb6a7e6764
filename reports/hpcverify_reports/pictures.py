"""The pictures of a node's page, each with its numbers as a table."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import log2
from statistics import median

from hpcverify.insight.judgement import FleetJudgement
from hpcverify.insight.node_names import make_natural_key
from hpcverify.model import Inventory, Measurement, Result, Run, Series, Verdict
from hpcverify.summary.figures import FIGURE_METRICS, find_sheet_value
from hpcverify.summary.run_summary import RunSummary
from hpcverify.summary.speeds import is_low_speed
from hpcverify.units import convert_unit, format_percent, have_one_dimension, scale_unit
from hpcverify_reports.grid import TableValue, choose_units, list_values
from hpcverify_reports.histogram import OutlierPoint, draw_histogram
from hpcverify_reports.labels import (
    ICONS,
    choose_shown_unit,
    format_number,
    format_unit,
    format_with_unit,
)
from hpcverify_reports.rows import RowValues, draw_rows
from hpcverify_reports.squares import MapRow, Panel, Square, draw_map
from hpcverify_reports.svg import Axis, Tick, Trace, draw_chart
from hpcverify_reports.tables import Cells, Picture, build_table, make_heads

SOAK_SERIES = ("temperature", "temperature.memory", "memory_temperature", "clock", "power")
"""Series of the check ``thermal`` that show how the GPUs cope with the load."""
BANDWIDTH_CHECKS = ("allreduce", "collectives")
LATENCY_CHECKS = ("storage", "training")
FARTHEST_LIMIT = 3
"""How many times the largest value a limit is that rows still show."""
LIMIT_SUFFIXES = frozenset({"max", "min", "mean", "peak"})
"""Suffixes of measurements whose limit can be drawn into the series' chart."""
_PERCENTILE = re.compile(r"(?P<stem>.+)[._]p(?P<digits>50|95|99|999)")
_SIZE = re.compile(r"busbw\.(?:(?P<operation>\w+)\.)?(?P<number>\d+)(?P<unit>[KMG]iB|B)")


def build_pictures(summary: RunSummary) -> tuple[Picture, ...]:
    """Draw what the results of a run have the numbers for."""
    results, inventory = [check.result for check in summary.checks], summary.inventory
    drawn: list[Picture | None] = []
    for result in results:
        if result.check == "thermal":
            drawn += _draw_soak(result, inventory)
    drawn.append(_draw_bandwidth([r for r in results if r.check in BANDWIDTH_CHECKS]))
    for result in results:
        drawn += _draw_pairs(result, inventory)
        if result.check in LATENCY_CHECKS:
            drawn.append(_draw_latencies(result, inventory))
    return tuple(picture for picture in drawn if picture)


def draw_throughput(summary: RunSummary) -> Picture | None:
    """Draw the lowest speed of the GPUs, else their first key figure, next to what is expected."""
    faults = [fault for part in summary.parts.values() for fault in part if is_low_speed(fault)]
    lowest = max(faults, key=lambda fault: fault.distance or 0.0, default=None)
    gpus = {part.id for part in summary.inventory.of_kind("gpu")}
    for name, metrics in FIGURE_METRICS.items():
        if lowest:
            name, metrics = lowest.check, (lowest.code,)  # noqa: PLW2901 - the fault decides
        check = summary.by_name.get(name)
        values = list_values(check.result, choose_units(check.result)) if check else []
        for metric in metrics:
            known = [
                v
                for v in values
                if v.item.name == metric and v.item.part_id in gpus and v.item.value is not None
            ]
            if len(known) > 1 and known[0].item.unit.endswith("/s"):
                return _draw_bars(f"{name} {metric}", known, summary.inventory)
    return None


def _draw_bars(name: str, values: Sequence[TableValue], inventory: Inventory) -> Picture:
    unit = values[0].item.unit
    middle = median(v.item.value or 0.0 for v in values)
    promised = find_sheet_value(values[0].item, inventory)
    lows = [limit.low for v in values for limit in v.limits if limit.low is not None]
    references = {"median": middle, "data sheet": promised, "limit": max(lows, default=None)}
    rows, cells = list[RowValues](), list[Cells]()
    labeled = {inventory.find_label(v.item.part_id): v for v in values}
    for label, v in sorted(labeled.items(), key=lambda pair: make_natural_key(pair[0])):
        value = v.item.value or 0.0
        icon = ICONS[v.verdict] if v.verdict and v.verdict >= Verdict.WARN else None
        share = format_percent(value / promised) if promised else ""
        change = f"{value / middle - 1:+.1%}" if middle else ""
        rows.append(RowValues(label.split(" (")[0], (value,), format_number(value), icon))
        cells.append((label, format_number(value), share, change))
    bounds = [Tick(at, f"{text} {format_number(at)}") for text, at in references.items() if at]
    heads = make_heads("GPU", unit, "Of data sheet", "To the median")
    numbers = build_table(name, heads, cells)
    return Picture(name, numbers, rows=draw_rows(name, unit, rows, bounds))


def draw_places(run: Run, judgement: FleetJudgement | None) -> Iterator[Picture]:
    """Draw where the parts of *run* are among the fleet, in the metrics with outliers."""
    facts = {part.id: part.facts for part in run.inventory.parts}
    models = {i: some.get("name", some.get("model", "")) for i, some in facts.items()}
    values = {(r.check, m.name): list[Measurement]() for r in run.results for m in r.measurements}
    for result in run.results:
        for item in result.measurements:
            values[result.check, item.name].append(item)
    for metric, distribution in judgement.metrics if judgement else ():
        name, middle = metric.name, metric.median
        suite, _, model = name.mode.partition(", ")
        found = values.get((name.check, name.metric), ())
        if not middle or suite != run.suite:
            continue
        points = [
            OutlierPoint(
                name=run.inventory.find_label(item.part_id),
                value=item.value,
                distance=f"{item.value / middle - 1:+.1%} to the median",
                icon=ICONS[Verdict.PASS],
            )
            for item in found
            if item.value is not None and models.get(item.part_id, "") == model
        ]
        if not points:
            continue
        about = f"{metric.parts} parts of the fleet, night of {judgement and judgement.night}"
        drawn = draw_histogram(name, distribution, middle, points, about)
        cells = [(point.name, format_number(point.value), point.distance) for point in points]
        heads = make_heads("Part", format_unit(name.unit), "In the fleet")
        title = f"{name.check} {name.metric} in the fleet"
        yield Picture(title, build_table(title, heads, cells), histogram=drawn, note=about)


def _draw_soak(result: Result, inventory: Inventory) -> Iterator[Picture | None]:
    """Draw temperatures, clocks and power over the soak, and what slowed the GPUs down."""
    works = [series.t for series in result.series if series.name == "work" and series.t]
    marks = []
    if works:
        marks.append(Tick(min(t[0] for t in works), "load begins"))
        marks.append(Tick(max(t[-1] for t in works), "load ends"))
    yield from draw_series(result, inventory, lambda name: name in SOAK_SERIES, marks)
    yield _draw_throttling(result, inventory)


def draw_series(
    result: Result,
    inventory: Inventory,
    is_wanted: Callable[[str], bool],
    marks: Sequence[Tick] = (),
) -> Iterator[Picture]:
    """Draw the wanted series of *result* over time, each with the limits that all parts share."""
    faulty = {fault.part_id for fault in result.faults}
    alike: dict[tuple[str, str], list[Series]] = {}
    for series in result.series:
        if is_wanted(series.name):
            alike.setdefault((series.name, series.unit), []).append(series)
    judged = _group_by_series(list_values(result, choose_units(result))) if alike else {}
    for (name, stored), some in alike.items():
        unit, factor = choose_shown_unit((v for s in some for v in s.values), stored)
        traces = [
            Trace(
                inventory.find_label(s.part_id),
                s.t,
                tuple(value * factor for value in s.values),
                flagged=s.part_id in faulty,
            )
            for s in some
        ]
        lines = _choose_limit_lines(unit, judged.get(name, ()))
        if chart := draw_chart(name, format_unit(unit), traces, lines, marks=marks):
            heads = make_heads("Part", "Lowest", "Median", "Highest")
            cells = [
                (t.label, *(format_number(f(t.values)) for f in (min, median, max)))
                for t in traces
                if t.values
            ]
            yield Picture(name, build_table(name, heads, cells), chart)


def _choose_limit_lines(unit: str, some: Sequence[TableValue]) -> list[Tick]:
    """Choose the limits of the measurements *some* that a chart in *unit* shows as lines."""
    lows, highs = set[float](), set[float]()
    for one in some:
        shown = one.item.unit
        if have_one_dimension(shown, unit):
            for bounds, bound in [
                *((lows, limit.low) for limit in one.limits),
                *((highs, limit.high) for limit in one.limits),
            ]:
                if bound is not None:
                    bounds.add(bound if shown == unit else convert_unit(bound, shown, unit))
    # Limits that differ from part to part cannot be one line.
    alone = [value for values in (lows, highs) if len(values) == 1 for value in values]
    return [Tick(value, f"limit {format_with_unit(value, unit)}") for value in alone]


def _group_by_series(values: Iterable[TableValue]) -> dict[str, list[TableValue]]:
    """Group the measurements by the series whose chart shows their limits."""
    by_series: dict[str, list[TableValue]] = {}
    for one in values:
        base, _, rest = one.item.name.rpartition(".")
        for name in {one.item.name, *([base] if rest in LIMIT_SUFFIXES else [])}:
            by_series.setdefault(name, []).append(one)
    return by_series


def _draw_throttling(result: Result, inventory: Inventory) -> Picture | None:
    """Draw by cause which share of the load's time each GPU was throttled."""
    shares: dict[str, dict[str, float]] = {}
    for item in result.measurements:
        prefix, _, cause = item.name.removesuffix(".share").partition(".")
        if prefix == "throttled" and item.name.endswith(".share") and item.value is not None:
            shares.setdefault(item.part_id, {})[cause] = item.value
    causes = tuple(dict.fromkeys(cause for some in shares.values() for cause in some))
    if not any(value for some in shares.values() for value in some.values()):
        return None
    rows = {inventory.find_label(i): [some.get(c) for c in causes] for i, some in shares.items()}
    note = (
        "Share of the load's time. A dot is below 5 %; a larger square is a larger share. "
        "A power cap is normal under full load."
    )
    names = tuple(cause.replace("_", " ") for cause in causes)
    drawn = _draw_squares("throttling", "ratio", names, rows, float, note)
    return replace(drawn, style="neutral")


def _draw_pairs(result: Result, inventory: Inventory) -> Iterator[Picture]:
    """Draw how far the rate between each two GPUs is below the median."""
    for pairs in filter(None, (covered.pairs for covered in result.coverage)):
        if not (known := [rate for row in pairs.rates for rate in row if rate]):
            continue
        usual = median(known)
        labels = [inventory.find_label(part_id) for part_id in pairs.part_ids]
        note = (
            f"A row sends, a column receives. The median is {format_with_unit(usual, pairs.unit)}. "
            "A dot is less than 5 % below it; a larger square is further below."
        )
        yield _draw_squares(
            f"{result.check} by pair",
            pairs.unit,
            tuple(label.split(" (")[0] for label in labels),
            dict(zip(labels, pairs.rates, strict=True)),
            partial(_compute_loss, usual),
            note,
        )


def _compute_loss(usual: float, rate: float) -> float:
    return max(0.0, 1 - rate / usual)


def _draw_squares(  # noqa: PLR0917 - a table, how its values are drawn, and a note
    title: str,
    unit: str,
    heads: tuple[str, ...],
    rows: Mapping[str, Sequence[float | None]],
    weigh: Callable[[float], float],
    note: str,
) -> Picture:
    """Draw a square for each value of *rows*, as large as *weigh* makes it."""
    unit, factor = choose_shown_unit((v for row in rows.values() for v in row), unit)
    lines, numbers = list[MapRow](), list[Cells]()
    for label, row in rows.items():
        texts = ["" if v is None else format_number(v * factor) for v in row]
        squares = [
            None if v is None else Square(f"{text} {unit}", share=weigh(v))
            for v, text in zip(row, texts, strict=True)
        ]
        lines.append(MapRow(label, (tuple(squares),)))
        numbers.append((label, *texts))
    table = build_table(title, make_heads(unit, *heads), numbers)
    return Picture(title, table, blocks=draw_map([Panel("", heads)], [lines]), note=note)


def _draw_bandwidth(results: Iterable[Result]) -> Picture | None:
    """Draw the bus bandwidth of each collective over the size of its messages, with the limits."""
    found: dict[str, dict[float, float]] = {}
    limits, floors = dict[float, float](), set[float]()
    for value in (value for result in results for value in list_values(result, {})):
        lows = [limit.low for limit in value.limits if limit.low is not None]
        match = _SIZE.fullmatch(value.item.name)
        if match and value.item.value is not None:
            size = convert_unit(float(match["number"]), match["unit"], "B")
            found.setdefault(match["operation"] or "all_reduce", {})[size] = value.item.value
            limits |= {size: max(lows)} if lows and not match["operation"] else {}
        elif value.item.name.endswith(".busbw"):
            floors.update(lows)
    lines = [*found.items(), *([("limit", limits)] if limits else [])]
    sizes = sorted({size for _, some in lines for size in some})
    traces = [
        Trace(
            name,
            [*map(log2, sorted(some))],
            [some[s] for s in sorted(some)],
            is_limit=i >= len(found),
        )
        for i, (name, some) in enumerate(lines)
    ]
    axis = Axis("message size", tuple(Tick(log2(size), _format_size(size)) for size in sizes))
    bounds = [Tick(low, f"limit {format_with_unit(low, 'GB/s')}") for low in floors]
    chart = (
        draw_chart("bus bandwidth", "GB/s", traces, bounds, axis=axis) if len(sizes) > 1 else None
    )
    heads = make_heads("Message", *(name for name, _ in lines))
    cells = [
        (
            _format_size(size),
            *(format_number(some[size]) if size in some else "" for _, some in lines),
        )
        for size in sizes
    ]
    return (
        Picture("bus bandwidth", build_table("Bus bandwidth", heads, cells), chart)
        if chart
        else None
    )


def _format_size(size: float) -> str:
    number, unit = scale_unit(size, "B")
    return f"{number:g} {unit}"


def _draw_latencies(result: Result, inventory: Inventory) -> Picture | None:
    """Draw the range from the median to the highest percentile of what *result* timed."""
    ranges: dict[tuple[str, str], dict[str, TableValue]] = {}
    for value in list_values(result, {}):
        if (match := _PERCENTILE.fullmatch(value.item.name)) and value.item.value is not None:
            subject = match["stem"], inventory.find_label(value.item.part_id)
            ranges.setdefault(subject, {})[f"p{match['digits']}"] = value
    whole = {subject: some for subject, some in ranges.items() if len(some) > 1}
    if not whole:
        return None
    everything = [v for some in whole.values() for v in some.values()]
    unit, factor = choose_shown_unit((v.item.value for v in everything), everything[0].item.unit)
    rows, cells = list[RowValues](), list[Cells]()
    digits = sorted({name for some in whole.values() for name in some})
    for (stem, part), some in sorted(whole.items()):
        values = {name: (v.item.value or 0.0) * factor for name, v in sorted(some.items())}
        text = " / ".join(map(format_number, values.values()))
        rows.append(RowValues(f"{stem} {part.split(' (')[0]}", (*sorted(values.values()),), text))
        cells.append(
            (f"{stem} {part}", *(format_number(values[d]) if d in values else "" for d in digits))
        )
    highest = max(values[-1] for values in (row.values for row in rows))
    limits = {
        limit.high * factor for v in everything for limit in v.limits if limit.high is not None
    }
    bounds = [
        Tick(limit, f"limit {format_with_unit(limit, unit)}")
        for limit in sorted(limits)
        if limit <= FARTHEST_LIMIT * highest
    ]
    title = f"{result.check} latency"
    heads = make_heads(format_unit(unit), *digits)
    note = f"Strokes: {', '.join(digits)}."
    picture = draw_rows(title, format_unit(unit), rows, bounds)
    return Picture(title, build_table(title, heads, cells), rows=picture, note=note)
