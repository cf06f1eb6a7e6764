"""The README is the front door: short, and with an example of the checks as they are."""

from __future__ import annotations

import re

from hpcverify.model import Verdict
from hpcverify.plan.catalog import list_check_names, load_check
from tests.docs.pages import ROOT

PAGE = (ROOT / "README.md").read_text()
MAX_LINES = 200


def list_rows(text: str) -> set[str]:
    """List the checks that have a row in a table of *text*."""
    return {
        name
        for row in re.findall(r"(?m)^\| ((?:`\w+`(?:, )?)+) \|", text)
        for name in re.findall(r"`(\w+)`", row)
    }


def test_it_is_short() -> None:
    assert len(PAGE.splitlines()) <= MAX_LINES


def test_it_says_of_every_check_what_it_finds() -> None:
    assert list_rows(PAGE) == set(list_check_names())


def test_every_check_of_a_run_is_in_the_example() -> None:
    (example,) = re.findall(r"(?s)<!-- example -->(.*?)<!-- /example -->", PAGE)
    verdicts = "|".join(verdict.name for verdict in Verdict)
    shown = set(re.findall(rf"(?m)^(?:{verdicts}) +(\w+)", example))
    skipped = set(re.findall(r"\w+", example.partition("skipped:")[2].partition("\n\n")[0]))
    checks = {name for name in list_check_names() if not load_check(name).only_named}

    assert shown <= checks
    assert checks - shown <= skipped
