"""Which reasons of drains are planned work."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from hpcverify.fleet.reasons import is_planned, read_reason_words
from tests.tables import read_table


@dataclass(frozen=True)
class Row:
    """A row of ``planned_reasons.csv``: the reason of a drain, and whether it is planned work."""

    reason: str = ""
    is_planned: bool = False


ROWS = read_table(Path(__file__).with_name("planned_reasons.csv"), Row)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.reason or "empty")
def test_planned_work_is_planned_and_a_fault_and_what_cannot_be_read_are_not(row: Row) -> None:
    assert is_planned(row.reason) is row.is_planned


def test_a_word_of_the_site_goes_before_all_others() -> None:
    assert is_planned("replace fans, Aktion 7", ("aktion",))
    assert not is_planned("reaktion", ("aktion",))
    assert is_planned("broken window week_7", ("week_7",))


def test_no_word_means_both() -> None:
    words = read_reason_words()
    assert set(words) == {"planned", "fault"}
    assert not set(words["planned"]) & set(words["fault"])
