"""
Makes the pictures of pages of a fleet and of ranks: ``python -m tests.reports.picture``.

They are sample data of the tests. The picture of a node is a real run: tests/docs/transcript.py.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from hpcverify_reports import collectives, fleet
from tests.reports import fleets
from tests.reports.chromium import chromium
from tests.reports.collective_runs import a_collective_run

PICTURES = Path(__file__).parents[2] / "docs"
WIDTH = 1120
"""Pixels: a window on half of a wide screen."""


@dataclass(frozen=True)
class Picture:
    """What is seen of a page without scrolling, in a window that is *height* pixels high."""

    name: str
    page: str
    height: int


def list_pictures() -> list[Picture]:
    """List the pictures, each of a page as it is rendered today."""
    shown = fleets.judged()
    return [
        Picture("fleet", fleet.render(shown, fleets.links(shown)), 1250),
        Picture("ranks", collectives.render(a_collective_run(late=13)), 560),
    ]


def main() -> None:
    """Make the pictures."""
    for picture in list_pictures():
        window = f"--window-size={WIDTH},{picture.height}"
        file = PICTURES / f"{picture.name}.png"
        with tempfile.TemporaryDirectory(prefix="hvpicture-") as folder:
            shot = f"--screenshot={file}"
            chromium(picture.page, Path(folder), window, "--hide-scrollbars", shot)


if __name__ == "__main__":
    main()
