"""
The fleet in the morning: what failed and what to do, then the lists, then the map.

One page that opens anywhere and links to the pages of nodes beside it. The lists say in
words what the map shows by symbols.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace

from hpcverify.fleet.states import DAY_S, FAILED_STATES, OTHERS_STATE, Caveat, Hold
from hpcverify.insight.drift import list_drift_lines, summarize_drift
from hpcverify.insight.month import list_changes
from hpcverify.insight.node_names import fold_names, make_natural_key, name_block
from hpcverify.insight.overview import (
    NodeRow,
    Overview,
    cap_verdict,
    choose_page_results,
    count_outcomes,
    count_states,
    describe_breaker,
    describe_company,
    describe_links,
    list_malfunction_lines,
)
from hpcverify.model import Remedy, Verdict
from hpcverify.records.last_result import LastResult
from hpcverify.summary.verdict import REMEDY_SENTENCES, shorten
from hpcverify.units import NEVER, format_count, format_time_since
from hpcverify_reports.faults import FaultGroup, Sighting, group_faults, list_widespread
from hpcverify_reports.labels import ICONS, MAX_NAMED_NODES, format_time, make_anchor
from hpcverify_reports.month import build_month_section
from hpcverify_reports.outlook import build_outlook
from hpcverify_reports.pages import render_page
from hpcverify_reports.squares import BLOCK_ROWS, Block, MapRow, Panel, Square, draw_map
from hpcverify_reports.tables import (
    Cells,
    PageSection,
    RowDetails,
    TableCell,
    TableColumn,
    TableRow,
    build_list,
    build_table,
    cut,
)

MAX_NODE_ROWS = 2000
"""More nodes are shown by rack: a row for each would be too long to read."""
MAX_OPEN_RACKS = 4
"""Racks of the map that are open at first: the first with a failed node."""
MAX_FAULTS = 100
"""Faults on the page; JSON has them all."""
MAX_FAULT_NODES = 20
"""Nodes of one fault that are listed with the finding; the host list has them all."""
MAX_CAUSES = 5
"""Common causes that are named among the actions."""
NO_RESULT = "no result is kept"
"""Stands for the check of a fault of which only the ledger knows."""
FAILURE_WINDOW = "in the last 7 days"
"""How far back failed runs are counted."""
HINT_CHARACTERS = 60
"""Characters of a reason in the map."""
DRIFT_NOTE = (
    "Compared with nodes of the same machine, CPUs and GPUs. A difference is not a fault, but it "
    "may explain one."
)
FAULT_COLUMNS = (
    *("Fault", TableColumn("Nodes", "names"), TableColumn("Finding", "found")),
    *("What to do", "Last seen"),
)

Links = Mapping[tuple[str, str], str]
"""(node, suite) -> the relative URL of the page of that run."""
IN_SERVICE_STATES = ("healthy", "unverified")
STATE_VERDICTS = {
    "repeat offender": Verdict.FAIL,
    "quarantined": Verdict.FAIL,
    "suspect": Verdict.WARN,
    "healthy": Verdict.PASS,
}
"""The verdicts of states in the map; others say nothing about the hardware."""


@dataclass(frozen=True, slots=True)
class NodeNames:
    """The first nodes, each with the URL of its page, and how many more there are."""

    nodes: tuple[tuple[str, str], ...]
    more: int


@dataclass(frozen=True, slots=True)
class Rack:
    """A piece of the map."""

    name: str
    summary: str
    is_open: bool
    blocks: tuple[Block, ...]


def render(fleet: Overview, links: Links) -> str:
    """Render *fleet* as one HTML page that links to the pages of *links*."""
    return render_page("fleet.html.j2", lay_out(fleet, links))


def lay_out(fleet: Overview, links: Links) -> SimpleNamespace:
    """Lay out all that the template prints; empty fields are not shown."""
    faults = group_faults(fleet.rows)
    return SimpleNamespace(
        icons=tuple(ICONS.values()),
        headline=write_headline(fleet.rows),
        icon=ICONS[_judge_fleet(fleet.rows)],
        lede=write_lede(fleet),
        breaker_notice=describe_breaker(fleet) if fleet.tripped else "",
        actions=tuple(_list_actions(faults, links)),
        facts=tuple(_list_facts(fleet, links)),
        sections=tuple(_list_sections(fleet, faults, links)),
        unit="block of nodes" if len(fleet.rows) > MAX_NODE_ROWS else "node",
        racks=tuple(_draw_racks(fleet.rows, fleet.places, links)),
        made=format_time(fleet.made),
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
    faults: Sequence[FaultGroup], links: Links
) -> Iterator[tuple[str, NodeNames, str]]:
    """Yield what to do: first about common causes, then about each node."""
    shared = list_widespread(faults)
    for fault in shared[:MAX_CAUSES]:
        affected = [sighting.row for sighting in fault.sightings]
        text = f"Look for a common cause of {fault.name}"
        yield text, _name_nodes(affected, links), ""
    if (left := len(shared) - MAX_CAUSES) > 0:
        text = f"Look for common causes of {left} more of the faults below"
        yield text, NodeNames((), 0), ""
    by_remedy: dict[Remedy, dict[str, NodeRow]] = {}
    for fault in faults:
        for row in (s.row for s in fault.sightings if fault not in shared and _decides(s)):
            by_remedy.setdefault(fault.remedy, {})[row.node.name] = row
    for remedy in sorted(by_remedy, key=list(Remedy).index, reverse=True):
        text = REMEDY_SENTENCES[remedy].removesuffix(".")
        affected = [*by_remedy[remedy].values()]
        yield text, _name_nodes(affected, links), _write_command(affected)


def _write_command(rows: Sequence[NodeRow]) -> str:
    """Write the command that verifies nodes once the remedy is applied."""
    drained = [row.node.name for row in rows if row.node.desired_hold is Hold.DRAIN]
    if drained:
        return f'hpcverify nodes repaired {fold_names(drained)} --reason "…"'
    return f"hpcverify fleet sweep {fold_names(row.node.name for row in rows)}"


def _decides(sighting: Sighting) -> bool:
    """Whether somebody has to act on the node for this."""
    row = sighting.row
    return row.attention and (not sighting.results or sighting.verdict is row.worst)


def _name_nodes(rows: Sequence[NodeRow], links: Links) -> NodeNames:
    named = rows[:MAX_NAMED_NODES]
    nodes = tuple((row.node.name, _find_page(row, links)) for row in named)
    return NodeNames(nodes, len(rows) - len(named))


def _list_facts(fleet: Overview, links: Links) -> Iterator[tuple[str, str | NodeNames]]:
    rows = fleet.rows
    passed = sum(bool(row.node.last_pass_at) and not row.overdue for row in rows)
    new = [row for row in rows if _is_new(row, fleet.made - DAY_S)]
    yield "Results", count_outcomes(rows) or "none"
    yield "States", count_states(rows) or "none"
    yield f"Verified {_name_overdue_window(fleet)}", f"{passed} of {_count_nodes(rows)}"
    yield "New in the last 24 h", _name_nodes(new, links)
    if fleet.month and fleet.month.nodes:
        yield from list_changes(fleet.month)
    yield "Versions and settings", summarize_drift(fleet.drift) or "no difference known"
    if tried := describe_links(fleet):
        yield "Links tried", tried
    draining = "not for checks in doubt" if fleet.doubts else "not paused"
    yield "Automatic draining", "paused" if fleet.tripped else draining
    if fleet.doubts:
        yield "Checks in doubt", "; ".join(doubt.text for doubt in fleet.doubts)
    if fleet.malfunctions:
        yield "Not working", "; ".join(list_malfunction_lines(fleet))
    yield "Failures not reproduced", str(sum(row.node.flakes for row in rows))
    yield "Generated", format_time(fleet.made)


def _is_new(row: NodeRow, since: float) -> bool:
    """Whether a node failed after *since*, but not in the week before."""
    if row.node.state in FAILED_STATES:
        return row.node.since >= since
    begun = (r.started.timestamp() for r in row.said if cap_verdict(r) is Verdict.FAIL)
    return row.failures <= 1 and max(begun, default=row.failed) >= since


def _draw_racks(rows: Iterable[NodeRow], places: Mapping[str, str], links: Links) -> Iterator[Rack]:
    """Draw the map rack by rack, or by switches; with very many nodes, a row is a whole rack."""
    ordered = sorted(rows, key=lambda row: make_natural_key(row.node.name))
    checks = sorted({result.check for row in ordered for result in row.said})
    by_place: dict[str, list[NodeRow]] = {}
    for row in ordered:
        place = places.get(row.node.name) or name_block(row.node.name)
        by_place.setdefault(place, []).append(row)
    racks = list(by_place.items())
    if len(ordered) <= MAX_NODE_ROWS:
        pieces = [
            (name, group, [_build_map_row(row, checks, links) for row in group])
            for name, group in racks
        ]
    else:
        parts = [racks[start : start + BLOCK_ROWS] for start in range(0, len(racks), BLOCK_ROWS)]
        pieces = [
            (
                f"{part[0][0]} to {part[-1][0]}",
                [row for _, group in part for row in group],
                [_fold_rack(name, group, checks, links) for name, group in part],
            )
            for part in parts
        ]
    few = len(ordered) <= BLOCK_ROWS
    failed = [name for name, group, _ in pieces if few or any(row.attention for row in group)]
    panels = Panel("", ("state",)), Panel("", tuple(checks))
    for name, group, lines in pieces:
        yield Rack(
            name=name,
            summary=f"{_count_nodes(group)}: {count_outcomes(group)}",
            is_open=name in failed[:MAX_OPEN_RACKS],
            blocks=draw_map(panels, [[line] for line in lines]),
        )


def _build_map_row(row: NodeRow, checks: Sequence[str], links: Links) -> MapRow:
    page = _find_page(row, links)
    verdict = STATE_VERDICTS.get(row.state, Verdict.SKIP)
    state = Square(row.state_label, verdict, href=page)
    results = {result.check: _build_square(result, links) for result in row.said}
    panels = (state,), tuple(results.get(check) for check in checks)
    return MapRow(row.node.name, panels, row.attention, page)


def _build_square(result: LastResult, links: Links) -> Square:
    """Make the square of a result; a check in beta can only warn."""
    verdict = cap_verdict(result)
    hint = f", {shorten(result.reason, HINT_CHARACTERS)}" if result.reason else ""
    return Square(f"{ICONS[verdict].word}{hint}", verdict, href=_link_check(result, links))


def _fold_rack(name: str, rows: Sequence[NodeRow], checks: Sequence[str], links: Links) -> MapRow:
    """Fold a rack into one row: the worst of each check, and its count."""
    lines = [_build_map_row(row, checks, links) for row in rows]
    names = [line.name for line in lines]
    panels = tuple(
        tuple(_fold_column(names, column) for column in zip(*panel, strict=True))
        for panel in zip(*(line.panels for line in lines), strict=True)
    )
    return MapRow(f"{name} ({len(rows)})", panels, any(row.attention for row in rows))


def _fold_column(names: Sequence[str], column: Sequence[Square | None]) -> Square | None:
    verdicts = [square.verdict for square in column if square and square.verdict]
    if not verdicts:
        return None
    worst = max(verdicts)
    pairs = zip(names, column, strict=True)
    name, square = next((n, s) for n, s in pairs if s and s.verdict is worst)
    count = f"{ICONS[worst].word} on {verdicts.count(worst)} of {len(verdicts)}"
    return Square(f"{count}, e.g. {name}: {square.text}", worst, href=square.href)


def _list_sections(
    fleet: Overview, faults: Sequence[FaultGroup], links: Links
) -> Iterator[PageSection]:
    """Yield the lists that are not empty, and what the past shows even if that is nothing."""
    if faults:
        yield build_list(
            "attention",
            "Failures and warnings",
            (),
            FAULT_COLUMNS,
            (_build_fault_row(fault, fleet.made, links) for fault in faults[:MAX_FAULTS]),
            count=len(faults),
            shown=MAX_FAULTS,
        )
    lists = [section for section in _build_lists(fleet, faults, links) if section.count]
    if fleet.outlook is None:
        yield from lists
    else:
        pages = {row.node.name: _find_page(row, links) for row in fleet.rows}
        peers, past, due, worth = build_outlook(fleet.outlook, pages)
        month = fleet.month and build_month_section(fleet.month, pages)
        yield from (*([month] if month else []), peers, past, *lists, due, worth)
    if lines := list_drift_lines(fleet.drift, fleet.made):
        title = "Versions and settings"
        rows = [(line.kind, line.hosts or "nodes of the same kind", line.text) for line in lines]
        yield build_list("versions", title, (DRIFT_NOTE,), ("What", "Nodes", title), rows)


def _build_fault_row(fault: FaultGroup, now: float, links: Links) -> TableRow:
    """Build the row of a fault: its first node stands for all of them, which are folded."""
    count = len(fault.sightings)
    hint = (
        f"On {count} of {fault.nodes_checked or count} nodes: look for a common cause first, such "
        "as an image, a driver, a setting, or a limit that is too strict."
    )
    hint = _explain_by_rollouts(fault) or (hint if fault.common else "")
    next_step = REMEDY_SENTENCES[fault.remedy]
    sightings = fault.sightings[:MAX_FAULT_NODES]
    rows = [_build_sighting(sighting, now, links) for sighting in sightings]
    node, state, finding, last_seen = rows[0]
    page = _find_page(sightings[0].row, links)
    checks = ", ".join(fault.checks).strip() or NO_RESULT
    cells = (
        TableCell(f"{checks} {fault.metric}".rstrip(), node.href, ICONS[fault.verdict]),
        TableCell(node.text, page, note=f"and {count - 1} more" if count > 1 else state.text),
        finding,
        TableCell(f"Otherwise: {next_step}" if hint else next_step, lead=hint),
        last_seen,
    )
    if count == 1:
        return TableRow(cells)
    heads = ("Node", "State", "Finding", "Last seen")
    table = build_table(f"Nodes with {fault.name}", heads, list(map(TableRow, rows)), count=count)
    hosts = fold_names(sighting.row.node.name for sighting in fault.sightings)
    return TableRow(cells, RowDetails("Which nodes", hosts, table))


def _explain_by_rollouts(fault: FaultGroup) -> str:
    """Say that all nodes were first seen with the fault as the same rollout reached them."""
    reached = [
        {rollout for result in s.results for rollout in s.row.rollouts.get(result.check, ())}
        for s in fault.sightings
    ]
    shared = sorted(set.intersection(*reached)) if len(reached) > 1 else []
    if not shared:
        return ""
    return f"On {len(reached)} nodes, {describe_company(shared)}: look there first."


def _build_sighting(sighting: Sighting, now: float, links: Links) -> tuple[TableCell, ...]:
    """Build the node with a link to the check, its state, the finding, and when it was seen."""
    row, result = sighting.row, sighting.result
    page = _link_check(result, links) if result else ""
    company = describe_company(row.rollouts.get(result.check, ())) if result else ""
    finding = cut(sighting.reason)
    last_seen = result.started.timestamp() if result else row.node.last_run_at
    return (
        TableCell(row.node.name, page or _find_page(row, links)),
        TableCell(", since ".join(filter(None, (row.state_label, _format_since(row, now))))),
        TableCell(f"{finding} ({company})" if company else finding),
        TableCell(_format_past(last_seen, now)),
    )


def _build_lists(
    fleet: Overview, faults: Sequence[FaultGroup], links: Links
) -> Iterator[PageSection]:
    rows, now = fleet.rows, fleet.made
    build = partial(_build_list, links=links)
    listed: dict[str, list[str]] = {}
    for fault in faults:
        for sighting in fault.sightings:
            if sighting.diagnosis:
                listed.setdefault(sighting.row.node.name, []).append(sighting.diagnosis.reason)

    def explain(row: NodeRow) -> str:
        """Give the reason of a node, unless it is in the list of faults word for word."""
        reasons = listed.get(row.node.name, ())
        return "see Failures and warnings" if row.why in reasons else row.why

    yield build(
        "held",
        "Out of service",
        "Taken out of service by hpcverify, or only marked so, where it observes.",
        [r for r in rows if r.state not in (*IN_SERVICE_STATES, OTHERS_STATE)],
        {
            "State": lambda r: r.state_label,
            "Since": lambda r: _format_since(r, now),
            "Why": explain,
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
            "Last full pass": lambda r: _format_past(r.node.last_pass_at, now),
        },
    )
    yield build(
        "lately",
        f"Failed {FAILURE_WINDOW}",
        "The newest results passed, but the node has had no full pass since the failure.",
        sorted((r for r in rows if r.failures and not r.attention), key=lambda r: -r.failures),
        {
            "Failed runs": lambda r: str(r.failures),
            "Last failure": lambda r: _format_past(r.failed, now),
            "State": lambda r: r.state_label,
        },
    )
    yield build(
        "unverified",
        f"No full pass {_name_overdue_window(fleet)}",
        "A full pass is a run of all checks, started by the controller. Oldest first.",
        sorted((r for r in rows if r.overdue), key=lambda r: r.node.last_pass_at),
        {
            "Last full pass": lambda r: _format_past(r.node.last_pass_at, now),
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


def _build_list(
    name: str,
    title: str,
    summary: str,
    rows: Sequence[NodeRow],
    columns: Mapping[str, Callable[[NodeRow], str]],
    *,
    links: Links,
) -> PageSection:
    writers = columns.values()
    cells: list[Cells] = [
        [TableCell(row.node.name, _find_page(row, links)), *(cut(write(row)) for write in writers)]
        for row in rows
    ]
    return build_list(name, title, (summary,), ("Node", *columns), cells)


def _describe_newest_run(row: NodeRow, now: float) -> str:
    if row.verdict is None and not row.said:
        return "none"
    verdict = row.verdict or row.worst
    began = max((result.started.timestamp() for result in row.said), default=row.node.last_run_at)
    newest = f"{ICONS[verdict].word}, {_format_past(max(began, row.heard), now)}"
    return newest if row.known and row.verdict else f"{newest}, not started by the controller"


def _format_since(row: NodeRow, now: float) -> str:
    return _format_past(row.node.since, now) if row.node.since else ""


def _format_past(when: float, now: float) -> str:
    return f"{format_time(when)} ({format_time_since(when, now)} ago)" if when else NEVER


def _find_page(row: NodeRow, links: Links) -> str:
    """Find the page of a node: of the run that says most about it."""
    for result in choose_page_results(row)[:1]:
        return links.get((result.node, result.suite), "")
    return ""


def _link_check(result: LastResult, links: Links) -> str:
    page = links.get((result.node, result.suite))
    return f"{page}#{make_anchor(result.check)}" if page else ""
