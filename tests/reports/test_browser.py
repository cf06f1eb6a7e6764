"""The page in a real Chromium, and what the browser makes of it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from hpcverify_reports import fleet
from hpcverify_reports.node import render
from tests.reports import fleets, samples
from tests.reports.dom import Dom

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def chromium(page: str, tmp_path: Path, *arguments: str) -> str:
    """Open *page* and return what Chromium prints."""
    file = tmp_path / "node.html"
    file.write_text(page, encoding="utf-8")
    program = shutil.which("chromium")
    assert program, "chromium is not installed: apt-get install chromium"
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    done = subprocess.run(
        [program, *FLAGS, profile, *arguments, file.as_uri()],
        check=True,
        capture_output=True,
        timeout=120,
    )
    return done.stdout.decode()


def test_a_browser_reads_the_page_as_it_was_written(tmp_path: Path) -> None:
    page = render(samples.sick_node(), history=samples.past())

    read = Dom(chromium(page, tmp_path, "--dump-dom"))

    written = Dom(page)
    assert read.text == written.text
    # A browser adds what is left out, as tbody; all else must be where it was.
    assert read.tags() == written.tags()
    assert len(read.elements) == len(written.elements)


def test_a_browser_paints_the_page(tmp_path: Path) -> None:
    picture = tmp_path / "node.png"

    size = ("--window-size=1280,1600", f"--screenshot={picture}")
    chromium(render(samples.sick_node(60)), tmp_path, *size)

    assert picture.read_bytes().startswith(b"\x89PNG")
    # A blank page of this size is compressed to under 10 kB.
    assert picture.stat().st_size > 60_000


def test_a_browser_reads_the_page_of_a_fleet_as_it_was_written(tmp_path: Path) -> None:
    shown = fleets.fleet()
    page = fleet.render(shown, fleets.links(shown))

    read = Dom(chromium(page, tmp_path, "--dump-dom"))

    written = Dom(page)
    assert read.text == written.text
    assert len(read.elements) == len(written.elements)


def test_a_browser_paints_the_map_of_a_fleet(tmp_path: Path) -> None:
    pictures = [tmp_path / "with.png", tmp_path / "without.png"]
    pages = [
        fleet.render(made, {}) for made in (fleets.fleet(), fleets.rotten(64, 10**6))
    ]

    for page, picture in zip(pages, pictures, strict=True):
        size = ("--window-size=1280,1600", f"--screenshot={picture}")
        chromium(page, tmp_path, *size)

    # A blank page of this size is compressed to under 10 kB.
    assert all(picture.stat().st_size > 40_000 for picture in pictures)
    assert pictures[0].read_bytes() != pictures[1].read_bytes()
