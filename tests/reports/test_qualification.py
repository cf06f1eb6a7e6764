"""What is written of a qualification stands beside what it is held against."""

from __future__ import annotations

import msgspec

from hpcverify_reports.qualification import markdown
from tests.reports.qualifications import MODEL, a_qualification
from tests.reports.samples import HOSTILE


def test_gpus_that_are_alike_to_four_digits_have_no_range() -> None:
    report = a_qualification()
    first, *others = report.steps
    (figure,) = first.figures
    alike = msgspec.structs.replace(figure, lowest=figure.median, highest=figure.median)
    steps = (msgspec.structs.replace(first, figures=(alike,)), *others)
    text = markdown(msgspec.structs.replace(report, steps=steps))

    assert "all alike" in text
    assert "to 706" not in text


def test_models_are_named_in_each_row_only_where_they_differ() -> None:
    report = a_qualification()
    mixed = msgspec.structs.replace(report, gpus=(*report.gpus, "NVIDIA L40S"))

    assert "8 x GPU" in markdown(report)
    assert f"| 8 x {MODEL} |" in markdown(mixed)


def test_text_from_outside_comes_out_as_text() -> None:
    report = a_qualification()
    steps = tuple(
        msgspec.structs.replace(step, reason=HOSTILE, notes=(HOSTILE,)) for step in report.steps
    )
    text = markdown(msgspec.structs.replace(report, steps=steps, not_reached=(HOSTILE,)))

    assert "<script" not in text.replace("\\<", "")
    assert "\x1b" not in text
    assert "\u202e" not in text
