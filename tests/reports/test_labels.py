"""The closed vocabulary is closed, and what is printed can be printed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from hpcverify.model import Cause, Remedy, Verdict, effective_verdict
from hpcverify.summary.printable import make_printable
from hpcverify.summary.verdict import REMEDY_SENTENCES, REMEDY_STEPS
from hpcverify.summary.wording import format_duration
from hpcverify_reports.labels import (
    CAUSE_SENTENCES,
    ICONS,
    format_names,
    format_time,
    make_anchor,
)
from tests.reports import samples


def test_every_verdict_cause_and_remedy_has_words() -> None:
    assert set(ICONS) == set(Verdict)
    assert set(REMEDY_SENTENCES) == set(REMEDY_STEPS) == set(Remedy)
    assert set(CAUSE_SENTENCES) == set(Cause)


def test_verdicts_differ_in_shape_in_glyph_and_in_word() -> None:
    for trait in ("shape", "glyph", "word", "fill"):
        assert len({getattr(mark, trait) for mark in ICONS.values()}) == len(Verdict)


@given(st.text())
def test_printable_text_holds_no_control_and_fits_utf_8(text: str) -> None:
    shown = make_printable(text)

    assert len(shown) == len(text)
    assert not any(ord(c) < 32 and c not in "\t\n" for c in shown)
    shown.encode()


def test_a_control_is_shown_as_its_picture() -> None:
    assert make_printable("a\x1b[31m\x00\x7f\u202e\ud800") == "a␛[31m␀␡��"


@given(st.text(min_size=1), st.text(min_size=1))
def test_an_anchor_has_no_space_and_keeps_names_apart(one: str, two: str) -> None:
    assert not set(make_anchor(one)) & set(" \t\n\r\f\"'<>#")
    assert (make_anchor(one) == make_anchor(two)) == (make_printable(one) == make_printable(two))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 ms"),
        (0.2, "200 ms"),
        (1.44, "1.4 s"),
        (59.4, "59 s"),
        (59.9, "1 min"),
        (161.3, "2 min 41 s"),
        (7260.0, "2 h 1 min"),
        (90000.0, "1 d 1 h"),
    ],
)
def test_a_duration_is_printed_in_the_units_that_matter(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_a_time_is_printed_in_utc() -> None:
    east = timezone(timedelta(hours=5))

    assert format_time(datetime(2026, 1, 1, 3, 0, tzinfo=east)) == "2025-12-31 22:00 UTC"
    assert format_time(datetime(2026, 1, 1, tzinfo=UTC).replace(tzinfo=None)) == (
        "2026-01-01 00:00 UTC"
    )


@pytest.mark.parametrize(
    ("moment", "text"),
    [
        (1_767_225_600.0, "2026-01-01 00:00 UTC"),
        ("2026-01-01T03:00:00+03:00", "2026-01-01 00:00 UTC"),
        ("yesterday", "yesterday"),
    ],
)
def test_seconds_and_texts_are_times_too(moment: float | str, text: str) -> None:
    assert format_time(moment) == text


def test_a_long_list_of_names_is_cut_and_the_others_counted() -> None:
    assert format_names(["n1", "n2"], 2) == "n1, n2"
    assert format_names(["n1", "n2", "n3"], 1) == "n1 and 2 more"
    assert format_names(["n1", "n2", "n3"], 2, "; ") == "n1; n2; and 1 more"


def test_the_skip_of_a_required_check_counts_as_error() -> None:
    skipped = samples.edac()

    assert effective_verdict(skipped) is Verdict.SKIP
    assert effective_verdict(replace(skipped, required=True)) is Verdict.ERROR
