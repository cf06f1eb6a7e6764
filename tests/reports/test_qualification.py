"""The page of a qualification says what each step came to, beside what it is held against."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from hpcverify.records.qualification import GpuFacts, Qualification
from hpcverify_reports.qualification import markdown, render
from tests.reports.dom import Dom
from tests.reports.qualifications import MODEL, a_qualification
from tests.reports.samples import HOSTILE

FORMS = pytest.mark.parametrize("write", [render, markdown])


def test_the_page_has_no_scripts_and_loads_nothing() -> None:
    page = Dom(render(a_qualification()))

    assert not {"script", "img", "link", "iframe"} & set(page.tags())


@FORMS
def test_the_same_qualification_gives_the_same_bytes(
    write: Callable[[Qualification], str],
) -> None:
    assert write(a_qualification()) == write(a_qualification())


def test_gpus_that_are_alike_to_four_digits_have_no_range() -> None:
    report = a_qualification()
    first, *others = report.steps
    (figure,) = first.figures
    alike = msgspec.structs.replace(figure, lowest=figure.median, highest=figure.median)
    steps = (msgspec.structs.replace(first, figures=(alike,)), *others)
    page = Dom(render(msgspec.structs.replace(report, steps=steps))).text

    assert "all alike" in page
    assert "to 706" not in page


def test_models_are_named_in_each_row_only_where_they_differ() -> None:
    report = a_qualification()
    mixed = msgspec.structs.replace(
        report, gpus=(*report.gpus, GpuFacts(label="GPU 8", name="NVIDIA L40S"))
    )

    assert "8 x GPU" in Dom(render(report)).text
    assert f"8 x {MODEL}" in markdown(mixed)


def test_text_from_outside_comes_out_as_text() -> None:
    report = a_qualification()
    steps = tuple(
        msgspec.structs.replace(step, reason=HOSTILE, notes=(HOSTILE,)) for step in report.steps
    )
    page = render(
        msgspec.structs.replace(report, steps=steps, not_reached=(HOSTILE,), topology=HOSTILE)
    )

    assert "script" not in Dom(page).tags()
    assert "\x1b" not in page
    assert "\u202e" not in page
