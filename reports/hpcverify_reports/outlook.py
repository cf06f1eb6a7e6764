"""What is to come of a fleet: which nodes are verified next and why, and what that is worth."""

from __future__ import annotations

from hpcverify.insight.outlook import DueNode, FleetOutlook
from hpcverify.insight.worth import FleetWorth, introduce_worth, list_worth_facts
from hpcverify.insight.worth_wording import (
    JOB_COLUMNS_NOTE,
    JOB_HEADS,
    describe_assumptions,
    list_job_rows,
)
from hpcverify_reports.listing import ListedRow, Listing, build_listing
from hpcverify_reports.standing import Pages

ORDER_NOTE = (
    "In the order of a sweep, as if all of them were idle: first those with a finding, those that "
    "came back and those that have waited too long, then by risk. One in ten is chosen because "
    "it has waited longest."
)


def build_next(outlook: FleetOutlook, pages: Pages) -> Listing:
    """Build the section on the nodes that are due."""
    intro = [
        ORDER_NOTE,
        f"Risk is that of failing next, in times that of an average node: {outlook.judged_by}.",
    ]
    if not outlook.due:
        intro = ["No node is due: all were verified lately, are being verified or are held."]
    return build_listing(
        "next",
        "Next to be verified",
        intro,
        ("Risk", "Why", "Due"),
        [ListedRow(each.node, pages.get(each.node, ""), _format_due(each)) for each in outlook.due],
        count=outlook.due_count,
        notes=["What a sweep would do now: hpcverify sweep --dry-run --explain"],
    )


def _format_due(each: DueNode) -> tuple[str, ...]:
    return f"{each.risk.score:.1f}x", "; ".join(each.risk.reasons), each.why


def build_worth(worth: FleetWorth) -> Listing:
    """Build the section on what verification is worth to the jobs of the site."""
    first = introduce_worth(worth)
    head, *columns = map(_capitalize, JOB_HEADS)
    rows = [ListedRow(name, "", tuple(cells)) for name, *cells in list_job_rows(worth)]
    return build_listing(
        "worth",
        "What verification is worth",
        [f"{_capitalize(first)}. Intervals are of 95 %." if rows else f"{_capitalize(first)}."],
        tuple(columns),
        rows,
        head=head,
        facts=[(_capitalize(name), figure) for name, figure in list_worth_facts(worth)],
        notes=[JOB_COLUMNS_NOTE, describe_assumptions(worth)] if rows else [],
    )


def _capitalize(text: str) -> str:
    return text[:1].upper() + text[1:]
