"""Who follows the tutorial sees what it shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.transcript import PAGE, list_page_commands, write_page


@pytest.mark.needs("cc", "fio", "chromium")
def test_every_command_of_the_tutorial_prints_what_the_page_shows(tmp_path: Path) -> None:
    page = PAGE.read_text()
    assert len(list_page_commands(page)) >= 10
    assert write_page(page, tmp_path) == page, "make tutorial"
