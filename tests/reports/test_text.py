"""JUnit that counts right, Markdown that is only text."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from msgspec.structs import replace

from hpcverify.model import Cause, Limit, Measurement, Result, Run, Verdict
from hpcverify_reports.text import escape, junit, markdown
from tests.reports import samples
from tests.reports.dom import Dom


def suite_of(run: Run) -> ET.Element:
    suite = ET.fromstring(junit(run)).find("testsuite")  # noqa: S314 - our own text
    assert suite is not None
    return suite


def rendered(text: str) -> Dom:
    return Dom(MarkdownIt("commonmark").enable("table").render(text))


def test_a_required_skip_is_an_error() -> None:
    run = samples.run(replace(samples.edac(), required=True))

    assert suite_of(run).get("errors") == "1"


@pytest.mark.parametrize("results", [(), (samples.inventory(),)])
def test_an_unfinished_run_is_never_green(results: tuple[Result, ...]) -> None:
    run = samples.run(*results, verdict=Verdict.ERROR, complete=False)

    error = suite_of(run).find("testcase[@name='the run']/error")
    assert error is not None
    assert error.get("type") == Cause.INTERRUPTED.value


@given(st.text())
def test_whatever_a_node_says_is_sound_xml(text: str) -> None:
    run = samples.run(samples.result(text, reason=text, verdict=Verdict.FAIL), node=text)

    suite = suite_of(run)
    assert suite.get("failures") == "1"
    junit(run).encode()


@given(st.text())
def test_whatever_a_node_says_is_one_line_of_markdown_text(text: str) -> None:
    shown = rendered(f"| a |\n|---|\n| x{escape(text)}x |\n")

    assert shown.tags() == {"table", "thead", "tbody", "tr", "th", "td"}
    assert len(shown.every("td")) == 1


def test_markdown_shows_hostile_text_as_it_is() -> None:
    hostile = samples.result(
        "a|b", verdict=Verdict.FAIL, reason=samples.HOSTILE + "[x](http://x) `c`"
    )

    page = rendered(markdown(samples.run(hostile, node="<img src=x>")))

    assert not {"script", "img", "a", "b", "code"} & page.tags()
    assert '<script>alert("x")</script> | a b' in page.text
    assert "[x](http://x) `c`" in page.text
    assert "<img src=x>: FAIL" in page.text


def test_a_part_that_no_longer_answers_is_named_by_its_earlier_facts() -> None:
    torn, lost = samples.torn_node(), samples.GPUS[5].id
    parts = tuple(replace(p, facts={}) if p.id == lost else p for p in torn.inventory.parts)
    mute = replace(torn, inventory=replace(torn.inventory, parts=parts))
    past = {lost: replace(samples.OFTEN[lost], facts={"serial": "1654322051187"})}

    assert f"id {lost}, serial number 1654322051187, first" in markdown(mute, past)


def test_many_failures_are_one_clause_and_a_count() -> None:
    slow = [Measurement("rate", float(i), "1/s", f"cpu{i}") for i in range(24)]
    limit = Limit(name="rate", low=100.0, source="site.toml")
    text = markdown(samples.run(samples.result("cores", slow, [limit])))
    (row,) = (line for line in text.splitlines() if "| cores |" in line)

    assert "cpu0, cpu1, cpu2 (+21 more): at worst rate 0 1/s" in row
