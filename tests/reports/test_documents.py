"""
Whole documents of nodes and of fleets, as their readers see them.

``documents`` holds the text that is visible on a page, and Markdown and JUnit as written.
After a change that is meant: ``pytest -n0 --inline-snapshot=fix`` on this file, then read the
difference.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from inline_snapshot import external_file

from hpcverify.insight.overview import Overview
from hpcverify.model import Inventory, Run
from hpcverify_reports import fleet, node, qualification
from hpcverify_reports.text import junit, markdown
from tests.reports import fleets, samples
from tests.reports.dom import Dom
from tests.reports.qualifications import a_qualification

FOLDER = Path(__file__).with_name("documents")


def read_fleet_page(make: Callable[[], Overview]) -> str:
    shown = make()
    return Dom(fleet.render(shown, fleets.links(shown))).lines


def read_page(make: Callable[[], Run], *, whole: bool = True) -> str:
    """Return what a page shows, or only what is above the list of all checks."""
    text = Dom(node.render(make(), history=samples.past(), repetitions=samples.OFTEN)).lines
    return text if whole else text.partition("\nAll checks\n")[0]


DOCUMENTS: dict[str, Callable[[], str]] = {
    # The verdict, the reason and the next step come first, then what failed, worst first, with
    # limits and their sources; a line per part; numbers in units that people read.
    "node-sick.txt": partial(read_page, samples.sick_node),
    # Each part is under its own action with its own evidence, its repetitions, and the causes
    # that are ruled out; a card that calls for several things names which for each.
    "node-torn.txt": partial(read_page, samples.torn_node),
    # Of several rounds the worst decides, and all are counted.
    "node-worn.txt": partial(read_page, samples.worn_node, whole=False),
    # No fault, no part on any list, and not a word on rounds.
    "node-well.txt": partial(read_page, samples.well_node),
    # A case for each rule of a page: the comments in `samples.odd_node` name them.
    "node-odd.txt": lambda: Dom(node.render(samples.odd_node())).lines,
    # The numbers of a run that passed are above the fold.
    "node-quick.txt": lambda: Dom(node.render(samples.quick_node())).lines,
    # Nothing is known of an empty run, which is an error.
    "node-empty.txt": lambda: Dom(node.render(samples.run(inventory=Inventory()))).lines,
    # Each step with what it is held against, and what was not reached.
    "qualification.md": lambda: qualification.markdown(a_qualification()),
    # Holds of ours and of others and what is overdue have lists of their own, before the map;
    # no list of versions where none are known.
    "fleet.txt": partial(read_fleet_page, fleets.fleet),
    # A rollout is one line, and nodes that differ together are told once.
    "fleet-drifting.txt": partial(read_fleet_page, fleets.drifting),
    # What the past shows comes between the faults and the map.
    "fleet-judged.txt": partial(read_fleet_page, lambda: fleets.judged(fleets.judge())),
    # Worst first; each part under its action with its numbers; a node that passed names no part.
    "ticket-sick.md": lambda: markdown(samples.sick_node(10)),
    "ticket-torn.md": lambda: markdown(samples.torn_node(), samples.OFTEN),
    "ticket-worn.md": lambda: markdown(samples.worn_node()),
    "ticket-well.md": lambda: markdown(samples.well_node()),
    "ticket-empty.md": lambda: markdown(samples.run()),
    # A case per check, an element per verdict, counts of the cases; a check of several rounds
    # is one case, its worst; each fault names what it calls for where they differ.
    "junit-sick.xml": lambda: junit(samples.sick_node(10)),
    "junit-torn.xml": lambda: junit(samples.torn_node()),
    "junit-worn.xml": lambda: junit(samples.worn_node()),
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_reads_as_kept(name: str) -> None:
    assert DOCUMENTS[name]() == external_file(FOLDER / name, format=".txt")


def test_each_kept_document_is_one_that_is_made() -> None:
    assert {path.name for path in FOLDER.iterdir()} == DOCUMENTS.keys()
