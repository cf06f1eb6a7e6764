"""The README is the front door: short, and with an example of the checks as they are."""

from __future__ import annotations

import re

from hpcverify.plan.catalog import list_check_names
from tests.docs.pages import ROOT

PAGE = (ROOT / "README.md").read_text()
MAX_WORDS = 900


def list_rows(text: str) -> set[str]:
    """List the checks that have a row in a table of *text*."""
    return {
        name
        for row in re.findall(r"(?m)^\| ((?:`\w+`(?:, )?)+) \|", text)
        for name in re.findall(r"`(\w+)`", row)
    }


def test_it_is_short() -> None:
    assert len(PAGE.split()) <= MAX_WORDS


def test_it_says_of_every_check_what_it_finds() -> None:
    assert list_rows(PAGE) == set(list_check_names())


def test_its_example_is_output_of_the_tutorial() -> None:
    """The tutorial's own test runs these commands."""
    tutorial = (ROOT / "docs/tutorial/first-sick-node.md").read_text().splitlines()
    (example,) = re.findall(r"(?s)```console\n(.*?)```", PAGE)
    lines = [line for line in example.splitlines() if line not in ("", "…")]
    assert [line for line in lines if line not in tutorial] == []
