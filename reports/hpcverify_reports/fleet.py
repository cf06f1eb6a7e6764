"""
The fleet in the morning: what failed and what to do, then the lists, then the map.

One page that opens anywhere and links to the pages of nodes beside it. The lists say in
words what the map shows by symbols.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import groupby

from hpcverify.fleet.states import DAY_S, FAILED_STATES, OTHERS_STATE, Caveat
from hpcverify.insight.drift_wording import DriftLine, list_drift_lines, summarize_drift
from hpcverify.insight.node_names import fold_names, guess_rack, make_natural_key
from hpcverify.insight.overview import (
    NEVER,
    NodeRow,
    Overview,
    cap_verdict,
    choose_page_results,
    count_outcomes,
    count_states,
    describe_breaker,
    describe_company,
    describe_links,
    format_time_since,
    list_malfunction_lines,
)
from hpcverify.model import Remedy, Verdict
from hpcverify.records.last_result import LastResult
from hpcverify.summary.verdict import REMEDY_SENTENCES
from hpcverify.units import format_count
from hpcverify_reports.faults import Fault, Sighting, group_faults, list_widespread
from hpcverify_reports.heat import BLOCK_ROWS, Block, HeatRow, Square, draw_blocks
from hpcverify_reports.labels import ICONS, Icon, format_time, make_anchor
from hpcverify_reports.listing import (
    MAX_LISTED_ROWS,
    MAX_SHOWN_ROWS,
    ListedRow,
    Listing,
    build_listing,
    cut,
    format_more,
)
from hpcverify_reports.outlook import build_next, build_reliability
from hpcverify_reports.pages import render_page
from hpcverify_reports.standing import build_standing

MAX_NODE_ROWS = 2000
"""More nodes are shown by rack: a row for each would be too long to read."""
MAX_OPEN_RACKS = 4
"""Racks of the map that are open at first: the first with a failed node."""
MAX_FAULTS = 100
"""Faults on the page; JSON has them all."""
MAX_FAULT_NODES = 20
"""Nodes of one fault that are listed with the finding; the host list has them all."""
MAX_NAMED_NODES = 8
"""Nodes that an action names."""
MAX_CAUSES = 5
"""Common causes that are named among the actions."""
NO_RESULT = "no result is kept"
"""Stands for the check of a fault of which only the ledger knows."""
FAILURE_WINDOW = "in the last 7 days"
"""How far back failed runs are counted."""
HINT_CHARACTERS = 60
"""Characters of a reason in the map."""
LEADING_COLUMNS = ("state", "")
"""The first columns of the map: the state, and a gap before the checks."""

Links = Mapping[tuple[str, str], str]
"""(node, suite) -> the relative URL of the page of that run."""
IN_SERVICE_STATES = ("healthy", "unverified")
"""States of nodes that are in service."""
STATE_VERDICTS = {
    "repeat offender": Verdict.FAIL,
    "quarantined": Verdict.FAIL,
    "suspect": Verdict.WARN,
    "healthy": Verdict.PASS,
}
"""The verdicts of states in the map; others say nothing about the hardware."""


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
    """One fault, and the nodes that have it."""

    icon: Icon
    check: str
    metric: str
    nodes: tuple[NodeFault, ...]
    """At most `MAX_FAULT_NODES`."""
    count: int
    hosts: str
    hint: str
    """Set if it may have a common cause."""
    next: str
    more: str

    @property
    def example(self) -> NodeFault:
        """The node that stands for all of them."""
        return self.nodes[0]


@dataclass(frozen=True, slots=True)
class DriftTable:
    """How versions and settings differ: the lines shown, those folded, and how to get all."""

    summary: str
    lines: tuple[DriftLine, ...]
    rest: tuple[DriftLine, ...]
    more: str


@dataclass(frozen=True, slots=True)
class FleetAction:
    """What to do, on which nodes, and on how many more."""

    text: str
    nodes: tuple[tuple[str, str], ...]
    """Name and page."""
    more: int


@dataclass(frozen=True, slots=True)
class Rack:
    """A piece of the map."""

    name: str
    summary: str
    is_open: bool
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class FleetPage:
    """All that the template prints, in its order; empty fields are not shown."""

    icons: tuple[Icon, ...]
    headline: str
    icon: Icon
    lede: str
    breaker_notice: str
    actions: tuple[FleetAction, ...]
    facts: tuple[tuple[str, str], ...]
    faults: tuple[FaultRow, ...]
    fault_count: int
    more: str
    lists: tuple[Listing, ...]
    drift: DriftTable
    unit: str
    """What a row of the map is."""
    racks: tuple[Rack, ...]
    made: str


def render(fleet: Overview, links: Links) -> str:
    """Render *fleet* as one HTML page that links to the pages of *links*."""
    return render_page("fleet.html.j2", lay_out(fleet, links))


def lay_out(fleet: Overview, links: Links) -> FleetPage:
    """Lay out all that the page shows."""
    faults = group_faults(fleet.rows)
    return FleetPage(
        icons=tuple(ICONS.values()),
        headline=write_headline(fleet.rows),
        icon=ICONS[_judge_fleet(fleet.rows)],
        lede=write_lede(fleet),
        breaker_notice=describe_breaker(fleet) if fleet.tripped else "",
        actions=tuple(_list_actions(fleet.rows, faults, links)),
        facts=tuple(_list_facts(fleet)),
        faults=tuple(_build_fault_row(f, fleet.made, links) for f in faults[:MAX_FAULTS]),
        fault_count=len(faults),
        more=format_more(len(faults) - MAX_FAULTS),
        lists=tuple(_list_sections(fleet, links)),
        drift=_build_drift_table(fleet),
        unit="rack" if len(fleet.rows) > MAX_NODE_ROWS else "node",
        racks=tuple(_draw_map(fleet.rows, links)),
        made=_format_epoch(fleet.made),
    )


def write_headline(rows: Sequence[NodeRow]) -> str:
    """Write the worst that is true; all is well only if that is known."""
    nodes = _count_nodes(rows)
    failed = sum(row.outcome is Verdict.FAIL for row in rows)
    unclear = sum(row.outcome is Verdict.ERROR for row in rows)
    lately = sum(bool(row.failures) for row in rows)
    unverified = sum(row.overdue or row.outcome is None for row in rows)
    verb = "is" if unverified == 1 else "are"
    both = f", {unclear} could not be judged" if unclear else ""
    headlines = (
        (not rows, "No node is known yet"),
        (failed, f"{failed} of {nodes} failed{both}"),
        (unclear, f"{unclear} of {nodes} could not be judged"),
        (lately, f"{lately} of {nodes} failed {FAILURE_WINDOW}"),
        (unverified == len(rows), "No node is verified"),
        (unverified, f"No node failed, but {unverified} of {len(rows)} {verb} not verified"),
        (len(rows) == 1, "The node passed"),
    )
    return next((text for applies, text in headlines if applies), f"All {nodes} passed")


def write_lede(fleet: Overview) -> str:
    """Write what else an operator must know."""
    rows = fleet.rows
    if not rows:
        return "Neither the controller nor a run has reported a node."
    days = _name_overdue_window(fleet)
    counts = {
        "failed node{} still in service (a check is doubted, or draining is paused)": sum(
            row.node.caveat is Caveat.SPARED for row in rows
        ),
        "failed node{} still in service (observed only)": sum(
            row.node.state in FAILED_STATES
            and not row.node.enforced
            and row.node.caveat is not Caveat.SPARED
            for row in rows
        ),
        "failed node{} still in service (run not started by the controller)": sum(
            row.outcome is Verdict.FAIL and row.state in IN_SERVICE_STATES for row in rows
        ),
        f"node{{}} failed {FAILURE_WINDOW}, without a full pass since": sum(
            bool(row.failures) and not row.attention for row in rows
        ),
        "node{} with warnings": sum(row.outcome is Verdict.WARN for row in rows),
        f"node{{}} without a full pass {days}": sum(row.overdue for row in rows),
        "node{} without a full pass so far, and not overdue yet": sum(
            not row.node.last_pass_at and not row.overdue for row in rows
        ),
        "node{} unknown to the controller (only runs started on the node are known)": sum(
            not row.known for row in rows
        ),
    }
    sentences = [f"{n} {text.format('s' * (n > 1))}." for text, n in counts.items() if n]
    return " ".join(sentences) or f"Each had a full pass {days}."


def _name_overdue_window(fleet: Overview) -> str:
    return f"in the last {format_count(fleet.overdue_days, 'day')}"


def _count_nodes(rows: Sequence[NodeRow]) -> str:
    return format_count(len(rows), "node")


def _judge_fleet(rows: Sequence[NodeRow]) -> Verdict:
    """Judge the whole fleet; it is green only if all nodes are verified."""
    worst = max((row.outcome or Verdict.SKIP for row in rows), default=Verdict.SKIP)
    if any(row.failures for row in rows):
        worst = max(worst, Verdict.WARN)
    return max(worst, Verdict.SKIP) if any(row.overdue for row in rows) else worst


def _list_actions(
    rows: Sequence[NodeRow], faults: Sequence[Fault], links: Links
) -> Iterator[FleetAction]:
    """Yield what to do: first about common causes, then about each node."""
    shared = list_widespread(faults)
    for fault in shared[:MAX_CAUSES]:
        some = [sighting.row for sighting in fault.sightings]
        yield _build_action(f"Look for a common cause of {fault.name}", some, links)
    if (left := len(shared) - MAX_CAUSES) > 0:
        yield _build_action(f"Look for common causes of {left} more of the faults below", [], links)
    explained = {
        (sighting.row.node.name, check)
        for fault in shared
        for check in fault.checks
        for sighting in fault.sightings
    }
    by_remedy: dict[Remedy, list[NodeRow]] = {}
    for row in rows:
        deciding = _list_deciding(row)
        if row.attention and any((row.node.name, check) not in explained for check in deciding):
            strongest = max(deciding.values(), key=list(Remedy).index)
            by_remedy.setdefault(strongest, []).append(row)
    for remedy in sorted(by_remedy, key=list(Remedy).index, reverse=True):
        yield _build_action(REMEDY_SENTENCES[remedy].removesuffix("."), by_remedy[remedy], links)


def _list_deciding(row: NodeRow) -> dict[str, Remedy]:
    """Map the checks that decide on *row* to what they call for; "" stands for no check."""
    if row.worst < Verdict.ERROR:
        return {"": Remedy.RERUN}
    return {one.check: one.remedy for one in row.said if cap_verdict(one) is row.worst}


def _build_action(text: str, rows: Sequence[NodeRow], links: Links) -> FleetAction:
    return FleetAction(
        text=text,
        nodes=tuple((row.node.name, _find_page(row, links)) for row in rows[:MAX_NAMED_NODES]),
        more=max(0, len(rows) - MAX_NAMED_NODES),
    )


def _list_facts(fleet: Overview) -> Iterator[tuple[str, str]]:
    rows = fleet.rows
    passed = sum(bool(row.node.last_pass_at) and not row.overdue for row in rows)
    yield "Results", count_outcomes(rows) or "none"
    yield "States", count_states(rows) or "none"
    yield f"Verified {_name_overdue_window(fleet)}", f"{passed} of {_count_nodes(rows)}"
    yield "New in the last 24 h", _name_newly_failed(fleet)
    yield "Versions and settings", summarize_drift(fleet.drift) or "no difference known"
    if tried := describe_links(fleet):
        yield "Links tried", tried
    draining = "not for checks in doubt" if fleet.doubts else "not paused"
    yield "Automatic draining", "paused" if fleet.tripped else draining
    if fleet.doubts:
        yield "Checks in doubt", "; ".join(fleet.doubts)
    if fleet.malfunctions:
        yield "Not working", "; ".join(list_malfunction_lines(fleet))
    yield "Failures not reproduced", str(sum(row.node.flakes for row in rows))
    yield "Generated", _format_epoch(fleet.made)


def _name_newly_failed(fleet: Overview) -> str:
    """Name the nodes that failed in the last day, but not in the week before."""
    new = [row.node.name for row in fleet.rows if _is_new(row, fleet.made - DAY_S)]
    more = f" and {len(new) - MAX_NAMED_NODES} more" if len(new) > MAX_NAMED_NODES else ""
    return ", ".join(new[:MAX_NAMED_NODES]) + more or "none"


def _is_new(row: NodeRow, since: float) -> bool:
    if row.node.state in FAILED_STATES:
        return row.node.since >= since
    begun = (one.started.timestamp() for one in row.said if cap_verdict(one) is Verdict.FAIL)
    return row.failures <= 1 and max(begun, default=row.failed) >= since


def _draw_map(rows: Iterable[NodeRow], links: Links) -> Iterator[Rack]:
    """Draw the map rack by rack; with very many nodes, a row is a whole rack."""
    ordered = sorted(rows, key=lambda row: make_natural_key(row.node.name))
    checks = sorted({one.check for row in ordered for one in row.said})
    by_rack = groupby(ordered, key=lambda row: guess_rack(row.node.name))
    racks = [(name, list(some)) for name, some in by_rack]
    if len(ordered) <= MAX_NODE_ROWS:
        pieces = [
            (name, some, [_build_heat_row(row, checks, links) for row in some])
            for name, some in racks
        ]
    else:
        parts = [racks[start : start + BLOCK_ROWS] for start in range(0, len(racks), BLOCK_ROWS)]
        pieces = [
            (
                f"{part[0][0]} to {part[-1][0]}",
                [row for _, some in part for row in some],
                [_fold_rack(name, some, checks, links) for name, some in part],
            )
            for part in parts
        ]
    few = len(ordered) <= BLOCK_ROWS
    failed = [name for name, some, _ in pieces if few or any(row.attention for row in some)]
    for place, (name, some, lines) in enumerate(pieces, 1):
        yield Rack(
            name=name,
            summary=f"{_count_nodes(some)}: {count_outcomes(some)}",
            is_open=name in failed[:MAX_OPEN_RACKS],
            blocks=draw_blocks((*LEADING_COLUMNS, *checks), lines, prefix=f"heat-{place}"),
        )


def _build_heat_row(row: NodeRow, checks: Sequence[str], links: Links) -> HeatRow:
    page = _find_page(row, links)
    state = Square(
        STATE_VERDICTS.get(row.state, Verdict.SKIP), page, f"{row.node.name}: {row.state_label}"
    )
    results = {one.check: _build_square(one, links) for one in row.said}
    return HeatRow(
        name=row.node.name,
        href=page,
        weight=700 if row.attention else 400,
        squares=(state, None, *(results.get(check) for check in checks)),
    )


def _build_square(one: LastResult, links: Links) -> Square:
    """Make the square of a result; a check in beta can only warn."""
    verdict = cap_verdict(one)
    hint = f", {cut(one.reason, HINT_CHARACTERS)}" if one.reason else ""
    title = f"{one.node} {one.check}: {ICONS[verdict].word}{hint}"
    return Square(verdict, _link_check(one, links), title)


def _fold_rack(name: str, rows: Sequence[NodeRow], checks: Sequence[str], links: Links) -> HeatRow:
    """Fold a rack into one row: the worst of each check, and its count."""
    columns = zip(*(_build_heat_row(row, checks, links).squares for row in rows), strict=True)
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
    squares = [square for square in column if square is not None]
    if not squares:
        return None
    worst = max(squares, key=lambda square: square.verdict)
    alike = sum(square.verdict is worst.verdict for square in squares)
    count = f"{ICONS[worst.verdict].word} on {alike} of {len(squares)}"
    return Square(worst.verdict, worst.href, f"{subject}: {count}, e.g. {worst.title}")


def _build_fault_row(fault: Fault, now: float, links: Links) -> FaultRow:
    count = len(fault.sightings)
    hint = (
        f"On {count} of {fault.nodes_checked or count} nodes: look for a common cause first, such "
        "as an image, a driver, a setting, or a limit that is too strict."
    )
    return FaultRow(
        icon=ICONS[fault.verdict],
        check=", ".join(fault.checks).strip() or NO_RESULT,
        metric=fault.metric,
        nodes=tuple(_build_node_fault(s, now, links) for s in fault.sightings[:MAX_FAULT_NODES]),
        count=count,
        hosts=fold_names(sighting.row.node.name for sighting in fault.sightings),
        hint=_explain_by_rollouts(fault) or (hint if fault.common else ""),
        next=REMEDY_SENTENCES[fault.remedy],
        more=format_more(count - MAX_FAULT_NODES),
    )


def _explain_by_rollouts(fault: Fault) -> str:
    """Say that all nodes were first seen with the fault as the same rollout reached them."""
    reached = [
        set() if s.result is None else set(s.row.rollouts.get(s.result.check, ()))
        for s in fault.sightings
    ]
    shared = sorted(set.intersection(*reached)) if len(reached) > 1 else []
    if not shared:
        return ""
    return f"On {len(reached)} nodes, {describe_company(shared)}: look there first."


def _build_node_fault(sighting: Sighting, now: float, links: Links) -> NodeFault:
    row, one = sighting.row, sighting.result
    company = "" if one is None else describe_company(row.rollouts.get(one.check, ()))
    found = cut(sighting.reason)
    return NodeFault(
        node=row.node.name,
        page=_find_page(row, links),
        href="" if one is None else _link_check(one, links),
        state=", since ".join(filter(None, (row.state_label, _format_since(row, now)))),
        found=f"{found} ({company})" if company else found,
        seen_at=_format_age(row.node.last_run_at if one is None else one.started.timestamp(), now),
    )


def _list_sections(fleet: Overview, links: Links) -> Iterator[Listing]:
    """Yield the lists that are not empty, and what the past says, be it nothing."""
    lists = [each for each in _build_lists(fleet, links) if each.rows]
    if (outlook := fleet.outlook) is None:
        yield from lists
        return
    pages = {row.node.name: _find_page(row, links) for row in fleet.rows}
    yield from build_standing(outlook.judgement, pages, outlook.judgement_error)
    yield from lists
    yield build_next(outlook, pages)
    yield build_reliability(outlook.reliability)


def _build_lists(fleet: Overview, links: Links) -> Iterator[Listing]:
    rows, now = fleet.rows, fleet.made
    build = partial(_build_list, links=links)
    yield build(
        "held",
        "Out of service",
        "Taken out of service by hpcverify, or only marked so, where it observes.",
        [r for r in rows if r.state not in (*IN_SERVICE_STATES, OTHERS_STATE)],
        {
            "State": lambda r: r.state_label,
            "Since": lambda r: _format_since(r, now),
            "Why": lambda r: r.why,
            "Release requires": lambda r: ", ".join(r.node.checks),
        },
    )
    yield build(
        "others",
        OTHERS_STATE.capitalize(),
        "hpcverify does not touch these.",
        [r for r in rows if r.state == OTHERS_STATE],
        {
            "Why": lambda r: r.node.foreign,
            "Last full pass": lambda r: _format_age(r.node.last_pass_at, now),
        },
    )
    yield build(
        "lately",
        f"Failed {FAILURE_WINDOW}",
        "The newest results passed, but the node has had no full pass since the failure.",
        sorted((r for r in rows if r.failures and not r.attention), key=lambda r: -r.failures),
        {
            "Failed runs": lambda r: str(r.failures),
            "Last failure": lambda r: _format_age(r.failed, now),
            "State": lambda r: r.state_label,
        },
    )
    yield build(
        "unverified",
        f"No full pass {_name_overdue_window(fleet)}",
        "A full pass is a run of all checks, started by the controller. Oldest first.",
        sorted((r for r in rows if r.overdue), key=lambda r: r.node.last_pass_at),
        {
            "Last full pass": lambda r: _format_age(r.node.last_pass_at, now),
            "State": lambda r: r.state_label,
            "Newest run": lambda r: _describe_newest_run(r, now),
        },
    )
    yield build(
        "flaky",
        "Failures not reproduced",
        "A second run passed. If one node has many, a part may be about to fail; if many "
        "nodes have some, a limit may be too strict.",
        sorted((r for r in rows if r.node.flakes), key=lambda r: -r.node.flakes),
        {"Count": lambda r: str(r.node.flakes), "State": lambda r: r.state_label},
    )


def _build_drift_table(fleet: Overview) -> DriftTable:
    lines = tuple(list_drift_lines(fleet.drift, fleet.made))
    return DriftTable(
        summary=summarize_drift(fleet.drift),
        lines=lines[:MAX_SHOWN_ROWS],
        rest=lines[MAX_SHOWN_ROWS:MAX_LISTED_ROWS],
        more=format_more(len(lines) - MAX_LISTED_ROWS),
    )


def _build_list(
    name: str,
    title: str,
    summary: str,
    rows: Sequence[NodeRow],
    columns: Mapping[str, Callable[[NodeRow], str]],
    *,
    links: Links,
) -> Listing:
    listed = [
        ListedRow(
            name=row.node.name,
            page=_find_page(row, links),
            cells=tuple(cut(write(row)) for write in columns.values()),
        )
        for row in rows[:MAX_LISTED_ROWS]
    ]
    return build_listing(name, title, [summary], tuple(columns), listed, count=len(rows))


def _describe_newest_run(row: NodeRow, now: float) -> str:
    if row.verdict is None and not row.said:
        return "none"
    verdict = row.verdict or row.worst
    began = max((one.started.timestamp() for one in row.said), default=row.node.last_run_at)
    newest = f"{ICONS[verdict].word}, {_format_age(max(began, row.heard), now)}"
    return newest if row.known and row.verdict else f"{newest}, not started by the controller"


def _format_since(row: NodeRow, now: float) -> str:
    return _format_age(row.node.since, now) if row.node.since else ""


def _format_age(when: float, now: float) -> str:
    return f"{_format_epoch(when)} ({format_time_since(when, now)} ago)" if when else NEVER


def _format_epoch(when: float) -> str:
    return format_time(datetime.fromtimestamp(when, UTC))


def _find_page(row: NodeRow, links: Links) -> str:
    """Find the page of a node: of the run that says most about it."""
    for one in choose_page_results(row)[:1]:
        return links.get((one.node, one.suite), "")
    return ""


def _link_check(one: LastResult, links: Links) -> str:
    page = links.get((one.node, one.suite))
    return f"{page}#{make_anchor(one.check)}" if page else ""
