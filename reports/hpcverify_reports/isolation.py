"""
The result of an isolation: faulty nodes with the evidence, cleared nodes, what is not known.

The matrix shows which node was slow to which: a bad row is a sender, a column a receiver, a
single square a link.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace

from hpcverify.insight.node_names import fold_names, make_natural_key
from hpcverify.isolation.answer import (
    FaultyNode,
    IsolationAnswer,
    SendRecord,
    describe_rest,
)
from hpcverify.isolation.group_tests import GroupOutcome
from hpcverify.model import Verdict
from hpcverify_reports.labels import ICONS, format_names, format_number
from hpcverify_reports.pages import render_page
from hpcverify_reports.squares import Block, MapRow, Panel, Square, draw_map
from hpcverify_reports.tables import PageSection, build_list

EVIDENCE_HEADS = ("Round", "With", "Result", "Measured")
OUTCOME_WORDS = {
    GroupOutcome.FAILED: "failed",
    GroupOutcome.PASSED: "passed",
    GroupOutcome.UNKNOWN: "no end",
}


def render(answer: IsolationAnswer) -> str:
    """Render *answer* as one HTML page."""
    icon = ICONS[_judge(answer)]
    page = SimpleNamespace(
        icons=tuple(ICONS.values()),
        icon=icon,
        headline=_write_headline(answer),
        id=answer.id,
        facts=tuple(_list_facts(answer)),
        sections=tuple(_build_section(i, node) for i, node in enumerate(answer.faulty, 1)),
        lines=tuple(describe_rest(answer)),
        cleared=fold_names(answer.passed_nodes),
        matrix=_draw_matrix(answer.sent),
    )
    return render_page("isolation.html.j2", page)


def _judge(answer: IsolationAnswer) -> Verdict:
    if answer.faulty:
        return Verdict.FAIL
    return Verdict.PASS if answer.is_certain and not answer.has_cause else Verdict.WARN


def _write_headline(answer: IsolationAnswer) -> str:
    """Write the worst that is known."""
    if answer.faulty:
        spoil = "spoils" if len(answer.faulty) == 1 else "spoil"
        return f"{format_names([node.node for node in answer.faulty])} {spoil} collectives"
    if answer.switches:
        return f"A switch spoils collectives: {format_names(answer.switches)}"
    if answer.links:
        return f"A link is slow: {' to '.join(answer.links[0])}"
    return "No fault found" if answer.is_certain else "No fault found for certain"


def _list_facts(answer: IsolationAnswer) -> Iterator[tuple[str, str]]:
    yield "Passed", f"{answer.passed:,} nodes"
    yield "Tests", f"{answer.tests:,}"
    yield "Rounds", str(answer.rounds)
    yield "Node-minutes", format_number(answer.node_minutes)


def _build_section(place: int, faulty: FaultyNode) -> PageSection:
    records = [
        *((GroupOutcome.FAILED, record) for record in faulty.failed),
        *((GroupOutcome.PASSED, record) for record in faulty.passed),
    ]
    rows = [
        (
            str(record.round),
            fold_names(record.partners) or "alone",
            OUTCOME_WORDS[outcome],
            record.reason,
        )
        for outcome, record in sorted(records, key=lambda pair: pair[1].round)
    ]
    intro = (f"It {faulty.summary}",)
    anchor, shown = f"faulty-{place}", len(rows)
    return build_list(anchor, faulty.node, intro, EVIDENCE_HEADS, rows, shown=shown)


def _draw_matrix(sent: Sequence[SendRecord]) -> tuple[Block, ...]:
    """Draw which node is slow to which; a cell that was tested more than once by its share."""
    cells: dict[tuple[str, str], list[SendRecord]] = {}
    for record in sent:
        if record.outcome is not GroupOutcome.UNKNOWN:
            cells.setdefault((record.sender, record.receiver), []).append(record)
    nodes = sorted({name for cell in cells for name in cell}, key=make_natural_key)
    rows = [
        [MapRow(sender, (tuple(_build_square(cells.get((sender, name))) for name in nodes),))]
        for sender in nodes
    ]
    return draw_map([Panel("to", tuple(nodes))], rows)


def _build_square(records: Sequence[SendRecord] | None) -> Square | None:
    if not records:
        return None
    failed = [record for record in records if record.outcome is GroupOutcome.FAILED]
    text = f"{len(failed)} of {len(records)} tests failed: {(failed or records)[-1].reason}"
    return Square(text, share=len(failed) / len(records))
