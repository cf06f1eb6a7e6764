"""The output of all_reduce_perf is read as its versions print it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcverify_checks.ranks.nccl_tests import BusRow, parse_rows

RECORDED = Path(__file__).parent / "recorded"


@pytest.mark.parametrize(
    ("name", "sizes", "last"),
    [
        ("errors", [4, 8, 128, 512], BusRow(512, 46.42, 0.02, 6e-08)),
        ("counts", [2**15, 2**20, 2**24, 2**25], BusRow(2**25, 195.40, 300.52, 0)),
        ("version_2_20", [2**13, 2**14, 2**15, 2**16], BusRow(2**16, 64.71, 1.01, 0)),
    ],
)
def test_the_in_place_columns_of_each_version_are_read(
    name: str, sizes: list[int], last: BusRow
) -> None:
    rows = parse_rows((RECORDED / f"{name}.txt").read_text())

    assert [row.size for row in rows] == sizes
    assert rows[-1] == last


def test_results_that_were_not_checked_have_no_count() -> None:
    line = "8 2 float sum -1 14.51 0.00 0.00 N/A 14.04 0.00 0.00 N/A"

    assert parse_rows(line) == [BusRow(8, 14.04, 0.0, None)]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# Avg bus bandwidth    : 41.2497",
        "n1: Test NCCL failure common.cu:958 'unhandled cuda error'",
        "8 2 float sum -1 14.51 0.00 0.00 0 14.04 0.00 nan 0",
        "12 34 a log line that begins with two numbers and goes on for long",
        (RECORDED / "prefixed.txt").read_text(),
    ],
)
def test_other_text_has_no_rows(text: str) -> None:
    assert parse_rows(text) == []
