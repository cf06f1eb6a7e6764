"""The pictures of the dashboards show the panels that there are."""

from __future__ import annotations

import json
from html import unescape
from pathlib import Path

import pytest

from tests.docs.dashboard_pictures import PICTURES, name_picture, write_pictures
from tests.metrics.promql import MONITORING

BOARDS = sorted(MONITORING.glob("*.json"))


def list_missing_titles(board: Path, folder: Path) -> list[str]:
    """List the panels of *board* that its picture in *folder* does not show."""
    content = json.loads(board.read_text())
    picture = unescape((folder / name_picture(content["uid"])).read_text())
    return [panel["title"] for panel in content["panels"] if f">{panel['title']}<" not in picture]


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: str(board.stem))
def test_the_picture_in_the_book_shows_every_panel(board: Path) -> None:
    assert list_missing_titles(board, PICTURES) == []


def test_prometheus_answers_the_query_of_every_panel(tmp_path: Path) -> None:
    write_pictures(tmp_path)

    for board in BOARDS:
        assert list_missing_titles(board, tmp_path) == []
        # What does not work is the only list that is empty in a fleet that works.
        picture = (tmp_path / name_picture(json.loads(board.read_text())["uid"])).read_text()
        assert picture.count("No data") <= 1
