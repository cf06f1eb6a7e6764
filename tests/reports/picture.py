"""
Makes docs/report.png, the picture of a page in the README: ``python -m tests.reports.picture``.

The node is that of the tests, with a GPU that has failed; nobody has measured it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from hpcverify_reports.node import render
from tests.reports import samples
from tests.reports.chromium import chromium

PICTURE = Path(__file__).parents[2] / "docs/report.png"
WIDTH, HEIGHT = 1120, 1250
"""Pixels: what is seen of the page without scrolling on a tall screen."""


def main() -> None:
    """Make the picture."""
    page = render(samples.sick_node(), history=samples.past())
    window = f"--window-size={WIDTH},{HEIGHT}"
    with tempfile.TemporaryDirectory(prefix="hvpicture-") as folder:
        chromium(page, Path(folder), window, "--hide-scrollbars", f"--screenshot={PICTURE}")


if __name__ == "__main__":
    main()
