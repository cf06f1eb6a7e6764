"""docs/reference/history.md says what the columns hold, as the code does."""

from __future__ import annotations

import re
from pathlib import Path

from hpcverify.history.columns import COLUMNS, WEEK_COLUMNS

PAGE = Path(__file__).parents[2] / "docs/reference/history.md"


def test_the_page_has_all_columns_of_nights_and_of_weeks() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    assert [row for row in rows if row[0] not in ("night", "week")] == [
        (column.name, column.type, column.meaning)
        for column in (*COLUMNS, *WEEK_COLUMNS[len(COLUMNS) :])
    ]
