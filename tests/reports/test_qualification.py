"""The page of a qualification says what each step came to, beside what it is held against."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from hpcverify.records.qualification import GpuFacts, Qualification, format_line
from hpcverify_reports.qualification import markdown, render
from tests.reports.dom import Dom
from tests.reports.qualifications import LINE, MODEL, a_qualification
from tests.reports.samples import HOSTILE

FORMS = pytest.mark.parametrize("write", [render, markdown])


def test_the_page_has_no_scripts_and_loads_nothing() -> None:
    page = Dom(render(a_qualification()))

    assert not {"script", "img", "link", "iframe"} & set(page.tags())


@pytest.mark.parametrize(
    "text",
    [
        "8 x NVIDIA H100 80GB HBM3",
        "3 steps in 17 min: 1 pass, 1 error, 1 fail; it was interrupted.",
        "sdc: GPU 3 (…4f21): a product was wrong",
        "706 TFLOP/s",
        "690 TFLOP/s (GPU 2 (…b3d8)) to 720 TFLOP/s",
        "99.4 % of bare loop 710 TFLOP/s; 71.4 % of data sheet 989 TFLOP/s",
        "2,000,000",
        "more than 1 in 666,667",
        "too few to say",
        "interrupted before it began",
        "p2p: it did not pass",
        format_line(LINE),
    ],
)
def test_the_page_and_the_markdown_say(text: str) -> None:
    written = markdown(a_qualification()).replace("\\", "")

    assert text in Dom(render(a_qualification())).text
    assert text in written


@FORMS
def test_the_wiring_keeps_its_columns(write: Callable[[Qualification], str]) -> None:
    assert "\nGPU0     X      NV18\nGPU1    NV18     X" in write(a_qualification())


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
