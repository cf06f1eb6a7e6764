"""
What an isolation found: the faulty nodes with their evidence, those that passed, what is not known.

The matrix shows who was slow to whom: a bad row is a sender, a column a receiver, a single
square a link.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace

from hpcverify.insight.node_names import fold_names, make_natural_key
from hpcverify.isolation.answer import (
    FaultyNode,
    IsolationAnswer,
    SendRecord,
    TestRecord,
    describe_rest,
)
from hpcverify.isolation.group_tests import GroupOutcome, name_members
from hpcverify.model import Verdict
from hpcverify_reports.labels import ICONS, format_number
from hpcverify_reports.pages import render_page
from hpcverify_reports.ranks import Lag, LagBlock, LagPanel, LagRow, draw_blocks

EVIDENCE_HEADS = ("Round", "With", "Result", "Measured")
OUTCOME_WORDS = {
    GroupOutcome.FAILED: "failed",
    GroupOutcome.PASSED: "passed",
    GroupOutcome.UNKNOWN: "no end",
}
Row = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FaultySection:
    """A faulty node, ready to print."""

    id: str
    node: str
    summary: str
    rows: tuple[Row, ...]


def render(answer: IsolationAnswer) -> str:
    """Render *answer* as one HTML page."""
    icon = ICONS[_judge(answer)]
    page = SimpleNamespace(
        icons=tuple(ICONS.values()),
        icon=icon,
        headline=_write_headline(answer),
        id=answer.id,
        facts=tuple(_list_facts(answer)),
        evidence_heads=EVIDENCE_HEADS,
        accused=tuple(_build_section(place, one) for place, one in enumerate(answer.faulty, 1)),
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
        names = [faulty.node for faulty in answer.faulty]
        return f"{name_members(names)} {'spoils' if len(names) == 1 else 'spoil'} collectives"
    if answer.switches:
        return f"A switch spoils collectives: {name_members(answer.switches)}"
    if answer.links:
        return f"A link is slow: {' to '.join(answer.links[0])}"
    return "No fault found" if answer.is_certain else "No fault found for certain"


def _list_facts(answer: IsolationAnswer) -> Iterator[tuple[str, str]]:
    yield "Passed", f"{answer.passed:,} nodes"
    yield "Tests", f"{answer.tests:,}"
    yield "Rounds", str(answer.rounds)
    yield "Node-minutes", format_number(answer.node_minutes)


def _build_section(place: int, one: FaultyNode) -> FaultySection:
    records = [
        *((GroupOutcome.FAILED, record) for record in one.failed),
        *((GroupOutcome.PASSED, record) for record in one.passed),
    ]
    rows = sorted(records, key=lambda pair: pair[1].round)
    return FaultySection(
        id=f"accused-{place}",
        node=one.node,
        summary=one.summary,
        rows=tuple(_format_record(outcome, record) for outcome, record in rows),
    )


def _format_record(outcome: GroupOutcome, record: TestRecord) -> Row:
    partners = fold_names(record.partners) or "alone"
    return str(record.round), partners, OUTCOME_WORDS[outcome], record.reason


def _draw_matrix(sent: Sequence[SendRecord]) -> tuple[LagBlock, ...]:
    """Draw who was slow to whom; a cell that was tested more than once by its share."""
    cells: dict[tuple[str, str], list[SendRecord]] = {}
    for one in sent:
        if one.outcome is not GroupOutcome.UNKNOWN:
            cells.setdefault((one.sender, one.receiver), []).append(one)
    nodes = sorted({name for cell in cells for name in cell}, key=make_natural_key)
    rows = [
        [
            LagRow(
                sender,
                is_flagged=False,
                panels=(tuple(_build_cell(cells.get((sender, name))) for name in nodes),),
            )
        ]
        for sender in nodes
    ]
    return tuple(draw_blocks([LagPanel("to", tuple(nodes))], rows)) if nodes else ()


def _build_cell(records: Sequence[SendRecord] | None) -> Lag | None:
    if not records:
        return None
    failed = [one for one in records if one.outcome is GroupOutcome.FAILED]
    told = f"{len(failed)} of {len(records)} tests failed: {(failed or records)[-1].reason}"
    return Lag(len(failed) / len(records), told)
