"""
The fleet in the morning: who failed and what to do, then the lists, then the map.

One page that opens anywhere; what it links to are pages of nodes, written beside it.
The lists say in words all that the map shows by signs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import groupby

from hpcverify.fleet.overview import (
    NEVER,
    NodeRow,
    Overview,
    cap_verdict,
    choose_page_results,
    count_outcomes,
    count_states,
    describe_breaker,
    fold_names,
    format_age,
    guess_rack,
    make_natural_key,
)
from hpcverify.fleet.states import DAY_S, FAILED_STATES, OTHERS_STATE
from hpcverify.model import Remedy, Verdict
from hpcverify.records.last_result import LastResult
from hpcverify_reports.faults import Fault, Sighting, group_faults, list_widespread
from hpcverify_reports.heat import BLOCK_ROWS, Block, HeatRow, Square, draw_blocks
from hpcverify_reports.labels import ICONS, REMEDY_SENTENCES, Icon, format_time, make_anchor
from hpcverify_reports.pages import render_page

MAX_NODE_ROWS = 2000
"""More nodes than these are shown by rack: a row for each would be too long to read."""
MAX_OPEN_RACKS = 4
"""Racks of the map that are open from the start: the first in which a node failed."""
MAX_FAULTS = 100
"""Faults that are told; JSON has them all."""
MAX_FAULT_NODES = 20
"""Nodes of one fault that are told with what was found there; the host list has all."""
MAX_SHOWN_ROWS, MAX_LISTED_ROWS = 20, 500
"""Rows of a list that are shown at once, and with those that can be opened."""
MAX_NAMED_NODES = 8
"""Nodes that are named for what to do."""
MAX_CAUSES = 5
"""Common causes to look for that are named."""
FAILURE_WINDOW = "in the last 7 days"
"""How far back runs that failed are counted."""
REASON_CHARACTERS = 300
"""Characters of a reason in a table; the page of the node has all of it."""
HINT_CHARACTERS = 60
"""The same in the map."""
LEADING_COLUMNS = ("state", "")
"""The first columns of the map: what is not a check stands apart."""

Links = Mapping[tuple[str, str], str]
"""Where the page of a node's run of a suite lies: (node, suite) -> a relative URL."""
IN_SERVICE_STATES = ("healthy", "unverified")
"""States in which nothing is held."""
STATE_VERDICTS = {
    "repeat offender": Verdict.FAIL,
    "quarantined": Verdict.FAIL,
    "suspect": Verdict.WARN,
    "healthy": Verdict.PASS,
}
"""What a state is in the map; any other says nothing of the hardware."""


@dataclass(frozen=True, slots=True)
class NodeFault:
    """A fault on one node."""

    node: str
    page: str
    href: str
    """Of the check in the page."""
    state: str
    found: str
    seen_at: str


@dataclass(frozen=True, slots=True)
class FaultRow:
    """One fault: on one node, which is *only*, or on several."""

    icon: Icon
    check: str
    metric: str
    single_node: tuple[NodeFault, ...]
    several_nodes: tuple[NodeFault, ...]
    count: int
    hosts: str
    example: NodeFault
    hint: tuple[str, ...]
    next: str
    more: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ListedNode:
    """A node in one of the lists."""

    name: str
    page: str
    cells: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NodeList:
    """A section that lists nodes; *more* says where the rest is."""

    id: str
    title: str
    summary: str
    columns: tuple[str, ...]
    rows: tuple[ListedNode, ...]
    rest: tuple[ListedNode, ...]
    count: int
    more: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FleetAction:
    """What to do, and on which nodes."""

    text: str
    nodes: tuple[tuple[str, str], ...]
    """Name and page."""
    more: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rack:
    """A piece of the map; *open* is the attribute of one that is unfolded."""

    name: str
    summary: str
    open: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class FleetPage:
    """All that the template prints, in its order."""

    icons: tuple[Icon, ...]
    headline: str
    icon: Icon
    lede: str
    breaker_notice: tuple[str, ...]
    actions: tuple[FleetAction, ...]
    facts: tuple[tuple[str, str], ...]
    faults: tuple[FaultRow, ...]
    fault_count: int
    more: tuple[str, ...]
    lists: tuple[NodeList, ...]
    unit: str
    racks: tuple[Rack, ...]
    made: str


def render(fleet: Overview, links: Links) -> str:
    """Print *fleet* as one HTML page that links to the pages of *links*."""
    return render_page("fleet.html.j2", page=lay_out(fleet, links))


def lay_out(fleet: Overview, links: Links) -> FleetPage:
    """Decide all that the page says."""
    faults = group_faults(fleet.rows)
    by_rack = len(fleet.rows) > MAX_NODE_ROWS
    racks = _draw_rack_map(fleet.rows, links) if by_rack else _draw_node_map(fleet.rows, links)
    return FleetPage(
        icons=tuple(ICONS.values()),
        headline=write_headline(fleet.rows),
        icon=ICONS[_judge_fleet(fleet.rows)],
        lede=write_lede(fleet),
        breaker_notice=(_capitalize(describe_breaker(fleet)),) if fleet.tripped else (),
        actions=tuple(_list_actions(fleet.rows, faults, links)),
        facts=tuple(_list_facts(fleet)),
        faults=tuple(_build_fault_row(f, fleet.made, links) for f in faults[:MAX_FAULTS]),
        fault_count=len(faults),
        more=_format_more(len(faults) - MAX_FAULTS),
        lists=tuple(listing for listing in _build_lists(fleet, links) if listing.rows),
        unit="rack" if by_rack else "node",
        racks=racks,
        made=_format_epoch(fleet.made),
    )


def write_headline(rows: Sequence[NodeRow]) -> str:
    """Say the worst that is true; that all is well only if that is known."""
    count = len(rows)
    failed = sum(row.outcome is Verdict.FAIL for row in rows)
    unclear = sum(row.outcome is Verdict.ERROR for row in rows)
    lately = sum(bool(row.failures) for row in rows)
    unverified = sum(row.overdue for row in rows)
    both = f", {unclear} could not be judged" if unclear else ""
    told = (
        (not rows, "No node is known yet"),
        (failed, f"{failed} of {count} {_pluralize_nodes(count)} failed{both}"),
        (unclear, f"{unclear} of {count} {_pluralize_nodes(count)} could not be judged"),
        (lately, f"{lately} of {count} {_pluralize_nodes(count)} failed in the last 7 days"),
        (unverified == count, "No node is verified"),
        (unverified, f"No node failed, but {unverified} of {count} are not verified"),
        (count == 1, "The node passed"),
    )
    return next((text for true, text in told if true), f"All {count} nodes passed")


def write_lede(fleet: Overview) -> str:
    """Say what else an operator has to know, in whole sentences."""
    rows = fleet.rows
    if not rows:
        return "Neither the controller nor a run has reported one."
    days = f"in the last {fleet.overdue_days:g} days"
    told = (
        _write_count(
            sum(row.node.state in FAILED_STATES and not row.node.enforced for row in rows),
            "failed node stays in service (observe mode)",
            "failed nodes stay in service (observe mode)",
        ),
        _write_count(
            sum(row.outcome is Verdict.FAIL and row.state in IN_SERVICE_STATES for row in rows),
            "failed node is in service: the controller did not order its run",
            "failed nodes are in service: the controller did not order their runs",
        ),
        _write_count(
            sum(bool(row.failures) and not row.attention for row in rows),
            f"node failed {FAILURE_WINDOW}, and has had no full pass since",
            f"nodes failed {FAILURE_WINDOW}, and have had no full pass since",
        ),
        _write_count(
            sum(row.outcome is Verdict.WARN for row in rows),
            "node has warnings",
            "nodes have warnings",
        ),
        _write_count(
            sum(row.overdue for row in rows),
            f"node has had no full pass {days}",
            f"nodes have had no full pass {days}",
        ),
        _write_count(
            sum(not row.known for row in rows),
            "node is not known to the controller: only runs of its own are",
            "nodes are not known to the controller: only runs of their own are",
        ),
    )
    return " ".join(filter(None, told)) or f"Each had a full pass {days}."


def _write_count(count: int, one: str, many: str) -> str:
    """Make a sentence of how many there are; none if there is none."""
    return f"{count} {one if count == 1 else many}." if count else ""


def _pluralize_nodes(count: int) -> str:
    return "node" if count == 1 else "nodes"


def _capitalize(text: str) -> str:
    return text[:1].upper() + text[1:]


def _judge_fleet(rows: Sequence[NodeRow]) -> Verdict:
    """Say what the whole looks like: green only if all nodes are verified."""
    worst = max((row.outcome or Verdict.SKIP for row in rows), default=Verdict.SKIP)
    if any(row.failures for row in rows):
        worst = max(worst, Verdict.WARN)
    return max(worst, Verdict.SKIP) if any(row.overdue for row in rows) else worst


def _list_actions(
    rows: Sequence[NodeRow], faults: Sequence[Fault], links: Links
) -> Iterator[FleetAction]:
    """Say what to do: look for common causes first, then see to each node."""
    shared = list_widespread(faults)
    for fault in shared[:MAX_CAUSES]:
        some = [sighting.row for sighting in fault.sightings]
        yield _build_action(f"Look for a common cause of {fault.name}", some, links)
    if len(shared) > MAX_CAUSES:
        left = f"Look for common causes of {len(shared) - MAX_CAUSES} more of the faults below"
        yield FleetAction(left, (), ())
    explained = {
        (sighting.row.node.name, check)
        for fault in shared
        for check in fault.checks
        for sighting in fault.sightings
    }
    by_remedy: dict[Remedy, list[NodeRow]] = {}
    for row in rows:
        if row.attention and not _is_explained(row, explained):
            by_remedy.setdefault(_choose_remedy(row), []).append(row)
    for remedy in sorted(by_remedy, key=list(Remedy).index, reverse=True):
        yield _build_action(REMEDY_SENTENCES[remedy].removesuffix("."), by_remedy[remedy], links)


def _is_explained(row: NodeRow, explained: set[tuple[str, str]]) -> bool:
    """Whether all that decides on *row* may have a common cause."""
    deciding = [one.check for one in row.said if cap_verdict(one) is row.worst]
    if row.worst < Verdict.ERROR:
        deciding = [""]
    return all((row.node.name, check) in explained for check in deciding)


def _build_action(text: str, rows: Sequence[NodeRow], links: Links) -> FleetAction:
    more = len(rows) - MAX_NAMED_NODES
    return FleetAction(
        text=text,
        nodes=tuple((row.node.name, _find_page(row, links)) for row in rows[:MAX_NAMED_NODES]),
        more=(f"and {more} more",) if more > 0 else (),
    )


def _choose_remedy(row: NodeRow) -> Remedy:
    """Choose the strongest remedy of the worst; without one, somebody has to look."""
    asked = [one.remedy for one in row.said if cap_verdict(one) is row.worst]
    if row.worst < Verdict.ERROR:
        return Remedy.RERUN
    return max(asked, key=list(Remedy).index, default=Remedy.INSPECT)


def _list_facts(fleet: Overview) -> Iterator[tuple[str, str]]:
    rows = fleet.rows
    passed = sum(not row.overdue for row in rows)
    flakes = sum(row.node.flakes for row in rows)
    yield "Results", count_outcomes(rows) or "none"
    yield "States", count_states(rows) or "none"
    days = f"{fleet.overdue_days:g} days"
    yield (f"Verified in the last {days}", f"{passed} of {len(rows)} {_pluralize_nodes(len(rows))}")
    yield "New in the last 24 h", _name_newly_failed(fleet)
    yield "Automatic draining", "paused" if fleet.tripped else "not paused"
    yield "Failures not reproduced", str(flakes)
    yield "Made", _format_epoch(fleet.made)


def _name_newly_failed(fleet: Overview) -> str:
    """Name the nodes that failed since yesterday, and not in the week before that."""
    new = [row.node.name for row in fleet.rows if _is_new(row, fleet.made - DAY_S)]
    more = f" and {len(new) - MAX_NAMED_NODES} more" if len(new) > MAX_NAMED_NODES else ""
    return ", ".join(new[:MAX_NAMED_NODES]) + more or "none"


def _is_new(row: NodeRow, since: float) -> bool:
    if row.node.state in FAILED_STATES:
        return row.node.since >= since
    begun = (one.started.timestamp() for one in row.said if cap_verdict(one) is Verdict.FAIL)
    return row.failures <= 1 and max(begun, default=row.failed) >= since


def _draw_node_map(rows: Iterable[NodeRow], links: Links) -> tuple[Rack, ...]:
    """Draw the map of the nodes rack by rack; racks where nothing failed are folded."""
    ordered = sorted(rows, key=lambda row: make_natural_key(row.node.name))
    checks = sorted({one.check for row in ordered for one in row.said})
    racks = groupby(ordered, key=lambda row: guess_rack(row.node.name))
    inside = [(name, list(some)) for name, some in racks]
    few = len(ordered) <= BLOCK_ROWS
    return _limit_open_racks(
        Rack(
            name=name,
            summary=_summarize(some),
            open="open" if few or any(row.attention for row in some) else "",
            blocks=draw_blocks(
                (*LEADING_COLUMNS, *checks),
                [_build_heat_row(row, checks, links) for row in some],
                prefix=f"heat-{place}",
            ),
        )
        for place, (name, some) in enumerate(inside, 1)
    )


def _draw_rack_map(rows: Iterable[NodeRow], links: Links) -> tuple[Rack, ...]:
    """Draw the map with a row for each rack, so many racks at a time."""
    ordered = sorted(rows, key=lambda row: make_natural_key(row.node.name))
    checks = sorted({one.check for row in ordered for one in row.said})
    racks = [
        (name, list(some))
        for name, some in groupby(ordered, key=lambda row: guess_rack(row.node.name))
    ]
    parts = [racks[start : start + BLOCK_ROWS] for start in range(0, len(racks), BLOCK_ROWS)]
    inside = [[row for _, some in part for row in some] for part in parts]
    return _limit_open_racks(
        Rack(
            name=f"{part[0][0]} to {part[-1][0]}",
            summary=_summarize(some),
            open="open" if any(row.attention for row in some) else "",
            blocks=draw_blocks(
                (*LEADING_COLUMNS, *checks),
                [_fold_rack(name, some, checks, links) for name, some in part],
                prefix=f"heat-{place}",
            ),
        )
        for place, (part, some) in enumerate(zip(parts, inside, strict=True), 1)
    )


def _limit_open_racks(racks: Iterable[Rack]) -> tuple[Rack, ...]:
    """Leave of the racks that are to be open only the first ones open."""
    left = MAX_OPEN_RACKS
    kept: list[Rack] = []
    for one in racks:
        kept.append(one if left else replace(one, open=""))
        left -= bool(one.open) and left > 0
    return tuple(kept)


def _summarize(rows: Sequence[NodeRow]) -> str:
    return f"{len(rows)} {_pluralize_nodes(len(rows))}: {count_outcomes(rows)}"


def _build_heat_row(row: NodeRow, checks: Sequence[str], links: Links) -> HeatRow:
    said = {one.check: _build_square(one, links) for one in row.said}
    return HeatRow(
        name=row.node.name,
        href=_find_page(row, links),
        weight=700 if row.attention else 400,
        squares=(_build_state_square(row, links), None, *(said.get(check) for check in checks)),
    )


def _build_state_square(row: NodeRow, links: Links) -> Square:
    sign = STATE_VERDICTS.get(row.state, Verdict.SKIP)
    title = f"{row.node.name}: {row.state_label}"
    return Square(sign, _find_page(row, links), title)


def _build_square(one: LastResult, links: Links) -> Square:
    """Make the square of a result; what is in beta can do no more than warn."""
    verdict = cap_verdict(one)
    told = f"{one.node} {one.check}: {ICONS[verdict].word}"
    hint = f", {_cut(one.reason, HINT_CHARACTERS)}" if one.reason else ""
    return Square(verdict, _link_check(one, links), told + hint)


def _fold_rack(name: str, rows: Sequence[NodeRow], checks: Sequence[str], links: Links) -> HeatRow:
    """Fold the rows of a rack into one: of each check the worst, and how many so."""
    lines = [_build_heat_row(row, checks, links) for row in rows]
    columns = zip(*(line.squares for line in lines), strict=True)
    heads = (*LEADING_COLUMNS, *checks)
    return HeatRow(
        name=f"{name} ({len(rows)})",
        href="",
        weight=700 if any(row.attention for row in rows) else 400,
        squares=tuple(
            _fold_column(f"{name} {head}", column)
            for head, column in zip(heads, columns, strict=True)
        ),
    )


def _fold_column(subject: str, column: Sequence[Square | None]) -> Square | None:
    there = [square for square in column if square is not None]
    if not there:
        return None
    worst = max(there, key=lambda square: square.verdict)
    alike = sum(square.verdict is worst.verdict for square in there)
    word = ICONS[worst.verdict].word
    told = f"{subject}: {word} on {alike} of {len(there)}, as {worst.title}"
    return Square(worst.verdict, worst.href, told)


def _build_fault_row(fault: Fault, now: float, links: Links) -> FaultRow:
    """Lay out one fault: the node that has it, or how many do and which."""
    some = tuple(_build_node_fault(one, now, links) for one in fault.sightings[:MAX_FAULT_NODES])
    count = len(fault.sightings)
    single = count == 1
    left = count - MAX_FAULT_NODES
    hint = (
        f"On {count} of {fault.nodes_checked or count} nodes: look for a common cause first, as "
        "an image, a driver, a setting, or a limit that is too strict."
    )
    return FaultRow(
        icon=ICONS[fault.verdict],
        check=", ".join(fault.checks),
        metric=fault.metric,
        single_node=some if single else (),
        several_nodes=() if single else some,
        count=count,
        hosts=fold_names(sighting.row.node.name for sighting in fault.sightings),
        example=some[0],
        hint=(hint,) if fault.common else (),
        next=REMEDY_SENTENCES[fault.remedy],
        more=_format_more(left),
    )


def _build_node_fault(sighting: Sighting, now: float, links: Links) -> NodeFault:
    row, one = sighting.row, sighting.result
    return NodeFault(
        node=row.node.name,
        page=_find_page(row, links),
        href="" if one is None else _link_check(one, links),
        state=", since ".join(filter(None, (row.state_label, _format_since(row, now)))),
        found=_cut(row.why if one is None else one.reason, REASON_CHARACTERS),
        seen_at=_format_age(row.node.last_run_at if one is None else one.started.timestamp(), now),
    )


def _build_lists(fleet: Overview, links: Links) -> Iterator[NodeList]:
    yield _list_out_of_service(fleet, links)
    yield _list_held_by_others(fleet, links)
    yield _list_recently_failed(fleet, links)
    yield _list_overdue(fleet, links)
    yield _list_unreproduced(fleet, links)


def _list_out_of_service(fleet: Overview, links: Links) -> NodeList:
    out = [r for r in fleet.rows if r.state not in (*IN_SERVICE_STATES, OTHERS_STATE)]
    return _build_list(
        "held",
        "Out of service",
        "Taken out of service by hpcverify, or only marked so in observe mode.",
        ("State", "Since", "Why", "Release requires"),
        [
            _build_listed_node(
                r, links, r.state_label, _format_since(r, fleet.made), r.why, _join_checks(r)
            )
            for r in out
        ],
    )


def _list_held_by_others(fleet: Overview, links: Links) -> NodeList:
    return _build_list(
        "others",
        "Held by someone else",
        "Somebody else took these out of service. hpcverify leaves them alone.",
        ("Why", "Last full pass"),
        [
            _build_listed_node(
                r, links, r.node.foreign, _format_age(r.node.last_pass_at, fleet.made)
            )
            for r in fleet.rows
            if r.state == OTHERS_STATE
        ],
    )


def _list_recently_failed(fleet: Overview, links: Links) -> NodeList:
    some = [r for r in fleet.rows if r.failures and not r.attention]
    return _build_list(
        "lately",
        f"Failed {FAILURE_WINDOW}",
        "The newest results passed, but no full pass that the controller ordered came "
        "after the failure.",
        ("Failed runs", "The last one", "State"),
        [
            _build_listed_node(
                r, links, str(r.failures), _format_age(r.failed, fleet.made), r.state_label
            )
            for r in sorted(some, key=lambda r: -r.failures)
        ],
    )


def _list_overdue(fleet: Overview, links: Links) -> NodeList:
    overdue = sorted((r for r in fleet.rows if r.overdue), key=lambda r: r.node.last_pass_at)
    return _build_list(
        "unverified",
        f"No full pass in the last {fleet.overdue_days:g} days",
        "A full pass is a run of all checks that the controller ordered. The longest "
        "ago comes first.",
        ("Last full pass", "State", "Newest run"),
        [
            _build_listed_node(
                r,
                links,
                _format_age(r.node.last_pass_at, fleet.made),
                r.state_label,
                _describe_newest_run(r, fleet.made),
            )
            for r in overdue
        ],
    )


def _describe_newest_run(row: NodeRow, now: float) -> str:
    """Tell the newest run, and whether it was one of the controller's."""
    if row.verdict is None and not row.said:
        return "none"
    verdict = row.verdict or row.worst
    began = max((one.started.timestamp() for one in row.said), default=row.node.last_run_at)
    told = f"{ICONS[verdict].word}, {_format_age(max(began, row.heard), now)}"
    return told if row.known and row.verdict else f"{told}, not ordered by the controller"


def _list_unreproduced(fleet: Overview, links: Links) -> NodeList:
    taken_back = [r for r in fleet.rows if r.node.flakes]
    return _build_list(
        "flaky",
        "Failures not reproduced",
        "A second run passed. Often on one node: a part may be about to fail. On many "
        "nodes: a limit may be too strict.",
        ("How often", "State"),
        [
            _build_listed_node(r, links, str(r.node.flakes), r.state_label)
            for r in sorted(taken_back, key=lambda r: -r.node.flakes)
        ],
    )


def _build_list(
    name: str, title: str, summary: str, columns: tuple[str, ...], rows: Sequence[ListedNode]
) -> NodeList:
    return NodeList(
        id=name,
        title=title,
        summary=summary,
        columns=columns,
        rows=tuple(rows[:MAX_SHOWN_ROWS]),
        rest=tuple(rows[MAX_SHOWN_ROWS:MAX_LISTED_ROWS]),
        count=len(rows),
        more=_format_more(len(rows) - MAX_LISTED_ROWS),
    )


def _build_listed_node(row: NodeRow, links: Links, *cells: str) -> ListedNode:
    return ListedNode(
        row.node.name, _find_page(row, links), tuple(_cut(c, REASON_CHARACTERS) for c in cells)
    )


def _format_more(left: int) -> tuple[str, ...]:
    return (f"and {left} more: hpcverify report --fleet --format json",) * (left > 0)


def _join_checks(row: NodeRow) -> str:
    return ", ".join(row.node.checks)


def _format_since(row: NodeRow, now: float) -> str:
    """Say since when it has been in its state, if that is known."""
    return _format_age(row.node.since, now) if row.node.since else ""


def _format_age(when: float, now: float) -> str:
    """Print a time and how long ago it was when the page was made."""
    return f"{_format_epoch(when)} ({format_age(when, now)} ago)" if when else NEVER


def _format_epoch(when: float) -> str:
    return format_time(datetime.fromtimestamp(when, UTC))


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def _find_page(row: NodeRow, links: Links) -> str:
    """Say where the page of a node lies: of the run that says most of it."""
    for one in choose_page_results(row)[:1]:
        return links.get((one.node, one.suite), "")
    return ""


def _link_check(one: LastResult, links: Links) -> str:
    """Say where a check has its place in the page of its run."""
    there = links.get((one.node, one.suite))
    return f"{there}#{make_anchor(one.check)}" if there else ""
