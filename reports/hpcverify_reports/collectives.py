"""
Collectives over ranks on several nodes: who came late, what was wrong, how fast it was.

One page for one document. With several, of more and more nodes, the page is that of the one
on the most nodes, and says how speed held up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from types import SimpleNamespace

from hpcverify.insight.node_names import fold_names, make_natural_key
from hpcverify.isolation.scaling import STEP, ScalingPoint, compute_scaling
from hpcverify.model import Verdict
from hpcverify.records.collectives import CollectiveRun, RankPlace, Straggler
from hpcverify.summary.figures import format_scaled
from hpcverify_reports.labels import ICONS, format_number, format_time
from hpcverify_reports.pages import render_page
from hpcverify_reports.ranks import LEVELS, draw_ranks, format_size

STRAGGLER_WORDS = {
    "arrives_late": "arrives late",
    "sends_slowly": "sends slowly",
    "receives_slowly": "receives slowly",
    "computes_slowly": "computes slowly",
    "waits_for_input": "waits for its input",
}
MAX_WRONG_ROWS = 100
"""Wrong results that are listed; the document has them all."""
MAX_NAMED_NODES = 8
"""Nodes that a sentence names."""
TIMING_HEADS = ("Collective", "Size", "Steps", "p50", "p95", "p99", "algbw", "busbw")
STRAGGLER_HEADS = ("Rank", "Node", "Device", "How", "More than the median rank", "All would gain")
WRONG_HEADS = ("Rank", "Node", "Collective", "Step", "Wrong elements", "First at", "Found", "Right")
OPINION_HEADS = ("Collective", "Size", "Its busbw", "Our busbw", "Wrong elements")
WIRE_HEADS = ("From", "To", "ib_write_bw")
MISSING_HEADS = ("Node", "Ranks", "Why")
BAR_PIXELS = 24
"""Of a full bar; a column is as wide."""
Row = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ScalingRow:
    """How one collective holds up, by number of nodes."""

    name: str
    cells: tuple[str, ...]
    bars: tuple[tuple[int, float, float, str], ...]
    """Left, top and height of each in pixels, and what it shows."""


def render(runs: Sequence[CollectiveRun]) -> str:
    """Render the run of *runs* on the most nodes as one HTML page, with how they scale."""
    run = max(runs, key=_count_nodes)
    points = compute_scaling(runs)
    counts = sorted({(point.nodes, point.ranks) for point in points})
    icon = ICONS[_judge(run)]
    page = SimpleNamespace(
        icons=tuple(ICONS.values()),
        icon=icon,
        headline=_write_headline(run),
        lede=_write_lede(run),
        unable=run.unable,
        id=run.id,
        facts=tuple(_list_facts(run)),
        picture=draw_ranks(run, _list_flagged(run)),
        levels=[(side, shade, f"{share:.0%}".replace("%", " %")) for share, side, shade in LEVELS],
        straggler_heads=STRAGGLER_HEADS,
        stragglers=tuple(_list_stragglers(run)),
        missing_heads=MISSING_HEADS,
        missing=tuple(_list_missing(run)),
        wrong_heads=WRONG_HEADS,
        wrong=tuple(_list_wrong(run)),
        more_wrong=max(0, len(run.wrong) - MAX_WRONG_ROWS),
        timing_heads=TIMING_HEADS,
        timings=tuple(_list_timings(run)),
        opinion_heads=OPINION_HEADS,
        opinion=tuple(_list_opinion(run)),
        opinion_source=_describe_opinion(run),
        wire_heads=WIRE_HEADS,
        wire=tuple(_list_wire_opinions(run)),
        versions=tuple(_list_versions(run)),
        counts=tuple(_describe_place_count(nodes, ranks) for nodes, ranks in counts),
        scaling=tuple(_list_scaling(points, counts)),
        bars_width=len(counts) * BAR_PIXELS,
    )
    return render_page("collectives.html.j2", page)


def _judge(run: CollectiveRun) -> Verdict:
    """Choose the sign of the page: what the exit status of the program said."""
    if run.wrong or run.missing:
        return Verdict.FAIL
    if run.unable:
        return Verdict.ERROR
    return Verdict.WARN if run.stragglers else Verdict.PASS


def _list_nodes(run: CollectiveRun) -> set[str]:
    """List the nodes; it may not be known where a rank was that never came."""
    return {place.node for place in run.ranks} - {""}


def _count_nodes(run: CollectiveRun) -> int:
    return len(_list_nodes(run))


def _find_places(run: CollectiveRun) -> dict[int, RankPlace]:
    return {place.rank: place for place in run.ranks}


def _name_nodes(run: CollectiveRun, ranks: Iterable[int]) -> str:
    places = _find_places(run)
    known = {r: places[r].node if r in places else "" for r in ranks}
    names = {node or f"rank {rank}" for rank, node in known.items()}
    nodes = sorted(names, key=make_natural_key)
    more = f" and {len(nodes) - MAX_NAMED_NODES} more" if len(nodes) > MAX_NAMED_NODES else ""
    return ", ".join(nodes[:MAX_NAMED_NODES]) + more


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _write_headline(run: CollectiveRun) -> str:
    """Write the worst that is true, and where."""
    if run.wrong:
        return f"Wrong results on {_name_nodes(run, (wrong.rank for wrong in run.wrong))}"
    if run.missing:
        return f"No answer from {_name_nodes(run, run.missing)}"
    if run.unable:
        return "Could not be measured"
    if run.stragglers:
        slow = [one.rank for one in run.stragglers]
        places = _find_places(run)
        several = len({places[rank].node for rank in slow if rank in places}) > 1
        return f"{_name_nodes(run, slow)} {'hold' if several else 'holds'} up the others"
    return "No rank holds up the others"


def _write_lede(run: CollectiveRun) -> str:
    size = _describe_place_count(_count_nodes(run), len(run.ranks))
    by = f" by {run.backend}" if run.backend else ""
    if run.stragglers:
        worst = max(run.stragglers, key=lambda one: one.gain)
        how = STRAGGLER_WORDS.get(worst.how, worst.how)
        told = (
            f"{_name_straggler(worst)} {how}; were it like the others, a step would take "
            f"{format_number(worst.gain * 100)} % less"
        )
    else:
        steps = sum(timing.steps for timing in run.timings)
        told = f"{_count(steps, 'step')} compared with the right result, to the bit"
    return f"{size}{by}: {told}."


def _name_straggler(one: Straggler) -> str:
    return f"{one.node}, with all its ranks," if one.node else f"rank {one.rank}"


def _describe_place_count(nodes: int, ranks: int) -> str:
    return f"{_count(ranks, 'rank')} on {_count(nodes, 'node')}"


def _list_flagged(run: CollectiveRun) -> Iterator[int]:
    yield from run.missing
    yield from (wrong.rank for wrong in run.wrong)
    yield from (one.rank for one in run.stragglers)
    slow = {one.node for one in run.stragglers if one.node}
    yield from (place.rank for place in run.ranks if place.node in slow)


def _list_facts(run: CollectiveRun) -> Iterator[tuple[str, str]]:
    yield "Started", _format_moment(run.started)
    yield "Ended", _format_moment(run.ended)
    if run.job:
        yield "Job", str(run.job)
    if run.algorithm:
        yield "Algorithm", run.algorithm
    if run.wire_share:  # 0: it is not known
        yield "Over the network", f"{format_number(run.wire_share * 100)} % of all bytes"
    if best := max((timing.busbw for timing in run.timings), default=0.0):
        yield "Fastest busbw", f"{format_number(best)} GB/s"


def _format_moment(text: str) -> str:
    try:
        return format_time(datetime.fromisoformat(text))
    except ValueError:  # the document may have been written by hand
        return text


def _list_stragglers(run: CollectiveRun) -> Iterator[Row]:
    places = _find_places(run)
    for one in sorted(run.stragglers, key=lambda one: -one.gain):
        place = places.get(one.rank)
        yield (
            "all of the node" if one.node else str(one.rank),
            one.node or (place.node if place else ""),
            _name_device(place) if place and not one.node else "",
            STRAGGLER_WORDS.get(one.how, one.how),
            f"{format_scaled(one.seconds, 's')} a step",
            _format_gain(one),
        )


def _name_device(place: RankPlace) -> str:
    return f"{place.name} ({place.device})" if place.name else place.device


def _format_gain(one: Straggler) -> str:
    return f"{format_number(one.gain * 100)} % of each step"


def _list_missing(run: CollectiveRun) -> Iterator[Row]:
    places = _find_places(run)
    gone = sorted(
        (place for rank in run.missing if (place := places.get(rank))),
        key=lambda place: (make_natural_key(place.node), place.rank),
    )
    for node, some in groupby(gone, key=lambda place: place.node):
        ranks = [place.rank for place in some]
        known = dict.fromkeys(run.reasons.get(rank, "") for rank in ranks)
        yield node, ", ".join(map(str, ranks)), "; ".join(filter(None, known)) or "not known"


def _list_wrong(run: CollectiveRun) -> Iterator[Row]:
    places = _find_places(run)
    for wrong in run.wrong[:MAX_WRONG_ROWS]:
        place = places.get(wrong.rank)
        yield (
            str(wrong.rank),
            place.node if place else "",
            f"{wrong.operation} {format_size(wrong.size)}",
            str(wrong.step),
            f"{wrong.elements:,}",
            str(wrong.index),
            wrong.found,
            wrong.expected,
        )


def _list_timings(run: CollectiveRun) -> Iterator[Row]:
    for timing in run.timings:
        yield (
            timing.operation,
            format_size(timing.size),
            f"{timing.steps:,}",
            *(format_scaled(seconds, "s") for seconds in (timing.p50, timing.p95, timing.p99)),
            *(f"{format_number(speed)} GB/s" for speed in (timing.algbw, timing.busbw)),
        )


def _list_opinion(run: CollectiveRun) -> Iterator[Row]:
    """List what another program measured, beside ours of the same size."""
    own = {one.size: one.busbw for one in run.timings if one.operation == "all_reduce"}
    for one in run.second_opinion.rates if run.second_opinion else ():
        yield (
            "all_reduce",
            format_size(one.size),
            f"{format_number(one.busbw)} GB/s",
            f"{format_number(own[one.size])} GB/s" if one.size in own else "",
            "not counted" if one.wrong is None else f"{one.wrong:g}",
        )


def _list_wire_opinions(run: CollectiveRun) -> Iterator[Row]:
    for one in run.wire_opinions:
        rate = f"{format_number(one.rate)} GB/s" if one.rate else one.unable
        yield one.sender, one.receiver, rate


def _describe_opinion(run: CollectiveRun) -> str:
    """Say who was asked, and what stood in the way; empty if nobody was."""
    opinion = run.second_opinion
    if opinion is None:
        return ""
    program = f"{opinion.program} on {_count(opinion.ranks, 'GPU')} of {opinion.node}"
    told = [f"{program}, the mean of its steps. It judges nothing."] if opinion.rates else []
    if opinion.rates and any(place.node != opinion.node for place in run.ranks):
        told.append("It is of this one node; ours went over the network.")
    if opinion.unable:
        told.append(f"{'Not all' if opinion.rates else 'Nothing'} was measured: {opinion.unable}.")
    return " ".join(told)


def _list_scaling(
    points: Sequence[ScalingPoint], counts: Sequence[tuple[int, int]]
) -> Iterator[ScalingRow]:
    by_name: dict[str, dict[tuple[int, int], ScalingPoint]] = {}
    for point in points:
        name = _name_measured(point)
        by_name.setdefault(name, {})[point.nodes, point.ranks] = point
    for name, found in by_name.items():
        cells = (_format_point(found[c]) if c in found else "" for c in counts)
        yield ScalingRow(name, tuple(cells), tuple(_draw_bars(found, counts)))


def _name_measured(point: ScalingPoint) -> str:
    if point.operation == STEP:
        return "step of equal work"
    return f"{point.operation} {format_size(point.size)}"


def _format_point(point: ScalingPoint) -> str:
    is_step = point.operation == STEP
    value = format_scaled(point.value, "s" if is_step else "GB/s")
    return f"{format_number(round(point.efficiency * 100, 1))} %, {value}"


def _draw_bars(
    found: Mapping[tuple[int, int], ScalingPoint], counts: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, float, float, str]]:
    """Draw the efficiency on each number of nodes; what is above 1 is a full bar."""
    for place, count in enumerate(counts):
        if point := found.get(count):
            height = round(BAR_PIXELS * min(1.0, max(0.0, point.efficiency)), 1)
            title = f"{_describe_place_count(*count)}: {_format_point(point)}"
            yield place * BAR_PIXELS + 2, BAR_PIXELS - height, height, title


def _list_versions(run: CollectiveRun) -> Iterator[tuple[str, str]]:
    yield "hpcverify", run.version
    yield from run.libraries.items()
    yield from run.settings.items()
    yield "nodes", fold_names(_list_nodes(run))
