"""
Collectives over ranks on several nodes: who came late, what was wrong, how fast it was.

One page for one document.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import groupby
from types import SimpleNamespace

from hpcverify.insight.node_names import fold_names, make_natural_key
from hpcverify.model import Verdict
from hpcverify.records.collectives import CollectiveRun, RankPlace
from hpcverify.summary.figures import format_scaled
from hpcverify.units import format_count
from hpcverify_reports.labels import ICONS, format_names, format_number, format_time
from hpcverify_reports.pages import render_page
from hpcverify_reports.ranks import draw_ranks
from hpcverify_reports.squares import LEVELS
from hpcverify_reports.tables import Cells, PageSection, build_list, build_table

STRAGGLER_WORDS = {
    "arrives_late": "arrives late",
    "sends_slowly": "sends slowly",
    "receives_slowly": "receives slowly",
    "computes_slowly": "computes slowly",
    "waits_for_input": "waits for its input",
}
TIMING_HEADS = ("Collective", "Size", "Steps", "p50", "p95", "p99", "algbw", "busbw")
STRAGGLER_HEADS = ("Rank", "Node", "Device", "How", "More than the median rank", "All would gain")
WRONG_HEADS = ("Rank", "Node", "Collective", "Step", "Wrong elements", "First at", "Found", "Right")
OPINION_HEADS = ("Collective", "Size", "Its busbw", "Our busbw", "Wrong elements")
WIRE_HEADS = ("From", "To", "ib_write_bw")
MISSING_HEADS = ("Node", "Ranks", "Why")
MISSING_NOTE = "The others waited for these ranks and got no answer."
TIMING_NOTE = (
    "Each step as its slowest rank took it. algbw and busbw as nccl-tests defines them, of the "
    "median step."
)
MAX_SHOWN_ROWS = 100
"""Rows of a table that are shown unfolded."""
_build_list = partial(build_list, source="see the document", shown=MAX_SHOWN_ROWS)
Rows = Iterable[Cells]
Places = Mapping[int, RankPlace]


def render(run: CollectiveRun) -> str:
    """Render *run* as one HTML page."""
    places = {place.rank: place for place in run.ranks}
    page = SimpleNamespace(
        icons=tuple(ICONS.values()),
        icon=ICONS[_judge(run)],
        headline=_write_headline(run, places),
        lede=_write_lede(run),
        unable=run.unable,
        id=run.id,
        facts=tuple(_list_facts(run)),
        faults=[section for section in _list_faults(run, places) if section.count],
        picture=draw_ranks(run, _list_flagged(run)),
        levels=[(side, shade, f"{share * 100:.0f} %") for share, side, shade in LEVELS],
        speeds=[s for s in _list_speeds(run) if s.count or s.id == "opinion"],
        versions=tuple(_list_versions(run)),
    )
    return render_page("collectives.html.j2", page)


def _list_faults(run: CollectiveRun, places: Places) -> Iterator[PageSection]:
    stragglers, missing = _list_stragglers(run, places), _list_missing(run, places)
    yield _build_list("stragglers", "Stragglers", (), STRAGGLER_HEADS, stragglers)
    yield _build_list("missing", "No answer", (MISSING_NOTE,), MISSING_HEADS, missing)
    yield _build_list("wrong", "Wrong results", (), WRONG_HEADS, _list_wrong(run, places))


def _list_speeds(run: CollectiveRun) -> Iterator[PageSection]:
    yield _build_list("timings", "Timings", (TIMING_NOTE,), TIMING_HEADS, _list_timings(run))
    if source := _describe_opinion(run):
        opinion = build_table("Second opinion", OPINION_HEADS, list(_list_opinion(run)))
        wires = list(_list_wire_opinions(run))
        wire = build_table("Second opinion on the wire", WIRE_HEADS, wires, shown=len(wires))
        yield PageSection("opinion", "Second opinion", (source,), tables=(opinion, wire))


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


def _find_node(rank: int, places: Places) -> str:
    return places[rank].node if rank in places else ""


def _name_nodes(ranks: Iterable[int], places: Places) -> str:
    names = {_find_node(rank, places) or f"rank {rank}" for rank in ranks}
    return format_names(sorted(names, key=make_natural_key))


def _write_headline(run: CollectiveRun, places: Places) -> str:
    """Write the worst that is true, and where."""
    if run.wrong:
        return f"Wrong results on {_name_nodes((wrong.rank for wrong in run.wrong), places)}"
    if run.missing:
        return f"No answer from {_name_nodes(run.missing, places)}"
    if run.unable:
        return "Could not be measured"
    if run.stragglers:
        slow = [straggler.rank for straggler in run.stragglers]
        several = len({places[rank].node for rank in slow if rank in places}) > 1
        return f"{_name_nodes(slow, places)} {'hold' if several else 'holds'} up the others"
    return "No rank holds up the others"


def _write_lede(run: CollectiveRun) -> str:
    size = _describe_place_count(_count_nodes(run), len(run.ranks))
    by = f" by {run.backend}" if run.backend else ""
    if run.stragglers:
        worst = max(run.stragglers, key=lambda straggler: straggler.gain)
        name = f"{worst.node}, with all its ranks," if worst.node else f"rank {worst.rank}"
        how = STRAGGLER_WORDS.get(worst.how, worst.how)
        gain = f"{format_number(worst.gain * 100)} %"
        return f"{size}{by}: {name} {how}; fixing it would shorten each step by {gain}."
    steps = format_count(sum(timing.steps for timing in run.timings), "step")
    return f"{size}{by}: {steps} compared with the right result, to the bit."


def _describe_place_count(nodes: int, ranks: int) -> str:
    return f"{format_count(ranks, 'rank')} on {format_count(nodes, 'node')}"


def _list_flagged(run: CollectiveRun) -> Iterator[int]:
    yield from run.missing
    yield from (wrong.rank for wrong in run.wrong)
    yield from (straggler.rank for straggler in run.stragglers)
    slow = {straggler.node for straggler in run.stragglers if straggler.node}
    yield from (place.rank for place in run.ranks if place.node in slow)


def _list_facts(run: CollectiveRun) -> Iterator[tuple[str, str]]:
    yield "Started", format_time(run.started)
    yield "Ended", format_time(run.ended)
    if run.job:
        yield "Job", str(run.job)
    if run.algorithm:
        yield "Algorithm", run.algorithm
    if run.wire_share:  # 0: it is not known
        yield "Over the network", f"{format_number(run.wire_share * 100)} % of all bytes"
    if best := max((timing.busbw for timing in run.timings), default=0.0):
        yield "Fastest busbw", f"{format_number(best)} GB/s"


def _list_stragglers(run: CollectiveRun, places: Places) -> Rows:
    for straggler in sorted(run.stragglers, key=lambda straggler: -straggler.gain):
        place = places.get(straggler.rank)
        yield (
            "all of the node" if straggler.node else str(straggler.rank),
            straggler.node or _find_node(straggler.rank, places),
            _name_device(place) if place and not straggler.node else "",
            STRAGGLER_WORDS.get(straggler.how, straggler.how),
            f"{format_scaled(straggler.seconds, 's')} a step",
            f"{format_number(straggler.gain * 100)} % of each step",
        )


def _name_device(place: RankPlace) -> str:
    return f"{place.name} ({place.device})" if place.name else place.device


def _list_missing(run: CollectiveRun, places: Places) -> Rows:
    missing = sorted(
        (place for rank in run.missing if (place := places.get(rank))),
        key=lambda place: (make_natural_key(place.node), place.rank),
    )
    for node, group in groupby(missing, key=lambda place: place.node):
        ranks = [place.rank for place in group]
        reasons = dict.fromkeys(run.reasons.get(rank, "") for rank in ranks)
        yield node, ", ".join(map(str, ranks)), "; ".join(filter(None, reasons)) or "not known"


def _list_wrong(run: CollectiveRun, places: Places) -> Rows:
    for wrong in run.wrong:
        yield (
            str(wrong.rank),
            _find_node(wrong.rank, places),
            f"{wrong.operation} {format_scaled(wrong.size, 'B')}",
            str(wrong.step),
            f"{wrong.elements:,}",
            str(wrong.index),
            wrong.found,
            wrong.expected,
        )


def _list_timings(run: CollectiveRun) -> Rows:
    for timing in run.timings:
        yield (
            timing.operation,
            format_scaled(timing.size, "B"),
            f"{timing.steps:,}",
            *(format_scaled(seconds, "s") for seconds in (timing.p50, timing.p95, timing.p99)),
            *(f"{format_number(speed)} GB/s" for speed in (timing.algbw, timing.busbw)),
        )


def _list_opinion(run: CollectiveRun) -> Rows:
    """List what another program measured, beside ours of the same size."""
    own = {timing.size: timing.busbw for timing in run.timings if timing.operation == "all_reduce"}
    for rate in run.second_opinion.rates if run.second_opinion else ():
        yield (
            "all_reduce",
            format_scaled(rate.size, "B"),
            f"{format_number(rate.busbw)} GB/s",
            f"{format_number(own[rate.size])} GB/s" if rate.size in own else "",
            "not counted" if rate.wrong is None else f"{rate.wrong:g}",
        )


def _list_wire_opinions(run: CollectiveRun) -> Rows:
    for opinion in run.wire_opinions:
        rate = f"{format_number(opinion.rate)} GB/s" if opinion.rate else opinion.unable
        yield opinion.sender, opinion.receiver, rate


def _describe_opinion(run: CollectiveRun) -> str:
    """Say who was asked, and what stood in the way; empty if nobody was."""
    opinion = run.second_opinion
    if opinion is None:
        return ""
    sentences: list[str] = []
    if opinion.rates:
        program = f"{opinion.program} on {format_count(opinion.ranks, 'GPU')} of {opinion.node}"
        sentences.append(f"{program}, the mean of its steps. It judges nothing.")
        if any(place.node != opinion.node for place in run.ranks):
            sentences.append("It ran on this one node; ours went over the network.")
    if opinion.unable:
        scope = "Not all" if opinion.rates else "Nothing"
        sentences.append(f"{scope} was measured: {opinion.unable}.")
    return " ".join(sentences)


def _list_versions(run: CollectiveRun) -> Iterator[tuple[str, str]]:
    yield "hpcverify", run.version
    yield from run.libraries.items()
    yield from run.settings.items()
    yield "nodes", fold_names(_list_nodes(run))
