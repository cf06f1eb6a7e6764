"""JUnit that counts right, Markdown that is only text."""

from __future__ import annotations

from datetime import UTC, datetime
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from msgspec.structs import replace

from hpcverify.model import Cause, Limit, Measurement, Result, Run, Verdict
from hpcverify.summary.diagnosis import diagnose
from hpcverify.summary.exclusions import Repetition
from hpcverify_reports.text import escape, junit, markdown
from tests.reports import samples
from tests.reports.dom import Dom


def suite_of(run: Run) -> ET.Element:
    suite = ET.fromstring(junit(run)).find("testsuite")  # noqa: S314 - our own text
    assert suite is not None
    return suite


def rendered(text: str) -> Dom:
    return Dom(MarkdownIt("commonmark").enable("table").render(text))


def test_each_check_is_a_case_and_each_verdict_its_element() -> None:
    suite = suite_of(samples.sick_node(10))

    kinds = {case.get("name"): [e.tag for e in case] for case in suite.iter("testcase")}
    assert kinds == {
        "inventory": [],
        "gemm": ["failure"],
        "sdc": ["failure"],
        "thermal": ["system-out"],
        "ecc": [],
        "allreduce": ["error"],
        "storage": ["system-out"],
        "edac": ["skipped"],
    }


def test_the_counts_are_those_of_the_cases() -> None:
    suite = suite_of(samples.sick_node(10))

    names = ("tests", "failures", "errors", "skipped")
    assert [suite.get(name) for name in names] == ["8", "2", "1", "1"]


def test_a_failure_tells_the_part_the_limit_and_the_next_step() -> None:
    case = suite_of(samples.run(samples.gemm())).find("testcase/failure")

    assert case is not None
    assert "bf16.sustained 612 TFLOP/s" in (case.get("message") or "")
    assert samples.SICK in (case.text or "")
    assert "replace it" in (case.text or "")


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


def test_markdown_lists_the_worst_first() -> None:
    lines = markdown(samples.sick_node(10)).splitlines()
    rows = [line.split("|")[2].strip() for line in lines if line.startswith("| ")]

    diagnoses = diagnose(samples.sick_node(10))
    assert rows[1:] == [*(d.checks[0] for d in diagnoses), "inventory", "ecc", "edac"]
    assert rows[1] == "sdc"


def test_markdown_of_an_empty_run_says_that_nothing_is_known() -> None:
    text = markdown(samples.run())

    assert "n17: ERROR" in text
    assert "nothing is known" in text
    assert "|" not in text


def test_text_is_the_same_twice() -> None:
    assert junit(samples.sick_node(10)) == junit(samples.sick_node(10))
    assert markdown(samples.sick_node(10)) == markdown(samples.sick_node(10))


def test_a_check_of_several_rounds_is_one_case_its_worst() -> None:
    suite = suite_of(samples.worn_node())

    kinds = {case.get("name"): [e.tag for e in case] for case in suite.iter("testcase")}
    assert kinds["gemm"] == ["failure"]
    assert (suite.get("tests"), suite.get("failures")) == ("4", "1")
    failure = suite.find("testcase[@name='gemm']/failure")
    assert failure is not None
    assert (failure.text or "").startswith("3 rounds: 1 fail (round 3), 2 pass\n")
    properties = {p.get("name"): p.get("value") for p in suite.iter("property")}
    assert (properties["rounds"], properties["left_out"]) == ("3 of 12 rounds", "round 3 failed")


def test_markdown_counts_the_rounds_of_a_check() -> None:
    text = markdown(samples.worn_node())

    assert "| gemm | 3 rounds: 1 fail (round 3), 2 pass. GPU 3" in text
    assert "9 rounds left out: round 3 failed." in text
    assert "Suite burnin, 3 of 12 rounds, " in text
    assert text.count("| gemm |") == 1


IDENTITY = (
    "GPU 5 (…e19f), NVIDIA H100 80GB HBM3, id "
    f"{samples.GPUS[5].id}, PCI address 0000:ab:00.0, serial number 1654322051187, "
    "part number 692-2G520-0200-000, VBIOS 96.00.A5.00.01, driver 565.57.01"
)
OFTEN = {
    samples.GPUS[5].id: Repetition(
        failed=11,
        runs=31,
        since=datetime(2026, 10, 11, 2, tzinfo=UTC),
        first=datetime(2026, 11, 11, 2, tzinfo=UTC),
    )
}


def test_a_ticket_has_each_part_under_its_action_with_its_numbers() -> None:
    shown = rendered(markdown(samples.torn_node(), OFTEN)).text
    replace_it, rest = shown.split("Next: Drain the node and reset the GPU. GPU 2")
    reset_it, seen = rest.split("Other observations (no part below failed).")

    assert "Next: Drain the node. Take the part out of service and replace it. GPU 5" in replace_it
    assert IDENTITY in replace_it
    assert "ecc: remap.failed 1 > 0 (NVIDIA)" in replace_it
    assert "ecc: rate 9 1/s > 1 (hpcverify default) (warning)" in replace_it
    assert "failed in 11 of 31 runs since 2026-10-11 02:00 UTC" in replace_it
    assert "first failed 2026-11-11 02:00 UTC" in replace_it
    assert "not ruled out: the rest of the node (6 of 7 other GPUs passed)" in replace_it
    assert "recovery: the driver asks to reset it" in reset_it
    assert "1654322051187" not in reset_it
    assert "Inspect the part: seating, cabling, cooling, logs. GPU 1" in seen
    assert "Machine: Dell Inc. PowerEdge XE9680, serial number J90J6Y3." in seen


def test_a_part_that_no_longer_answers_is_named_by_its_earlier_facts() -> None:
    torn, lost = samples.torn_node(), samples.GPUS[5].id
    parts = tuple(replace(p, facts={}) if p.id == lost else p for p in torn.inventory.parts)
    mute = replace(torn, inventory=replace(torn.inventory, parts=parts))
    past = {lost: replace(OFTEN[lost], facts={"serial": "1654322051187"})}

    assert f"id {lost}, serial number 1654322051187, first" in markdown(mute, past)


def test_junit_has_each_part_under_its_action_with_its_numbers() -> None:
    properties = {
        p.get("name"): p.get("value") or "" for p in suite_of(samples.torn_node()).iter("property")
    }

    assert properties["machine"] == "Dell Inc. PowerEdge XE9680, serial number J90J6Y3"
    replaced = properties["fail: Drain the node. Take the part out of service and replace it."]
    assert replaced.startswith(IDENTITY)
    assert "; ecc: remap.failed 1 > 0 (NVIDIA); " in replaced
    assert "GPU 2" in properties["fail: Drain the node and reset the GPU."]
    assert "GPU 1" in properties["warning: Inspect the part: seating, cabling, cooling, logs."]


def test_junit_says_of_each_complaint_what_it_calls_for_where_they_differ() -> None:
    """A part that only warns does not go back because another one does."""
    details = suite_of(samples.torn_node()).findtext("testcase[@name='ecc']/failure", "")
    by_part = {line.partition(":")[0]: line for line in details.splitlines()}

    assert "Next" not in by_part
    assert by_part[samples.GPUS[1].id].endswith(
        "(warning): Inspect the part: seating, cabling, cooling, logs."
    )
    assert "remap.failed 1 > 0 (NVIDIA): Take the part out of service and replace it." in details


def test_a_ticket_of_a_node_that_passed_names_no_part() -> None:
    text = markdown(samples.well_node())

    assert "**Next: Nothing to do.**" in text
    assert not any(gpu.id in text for gpu in samples.GPUS)


def test_many_failures_are_one_clause_and_a_count() -> None:
    slow = [Measurement("rate", float(i), "1/s", f"cpu{i}") for i in range(24)]
    limit = Limit(name="rate", low=100.0, source="site.toml")
    text = markdown(samples.run(samples.result("cores", slow, [limit])))
    (row,) = (line for line in text.splitlines() if "| cores |" in line)

    assert "cpu0, cpu1, cpu2 (+21 more): at worst rate 0 1/s" in row
