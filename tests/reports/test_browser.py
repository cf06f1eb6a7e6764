"""The page in a real Chromium, and what the browser makes of it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import zlib
from pathlib import Path
from typing import Any

import pytest

from hpcverify_reports import collectives, fleet, qualification
from hpcverify_reports.node import render
from tests.reports import fleets, samples
from tests.reports.collective_runs import a_collective_run
from tests.reports.dom import Dom
from tests.reports.qualifications import a_qualification

pytestmark = pytest.mark.browser

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
    pages = [fleet.render(made, {}) for made in (fleets.fleet(), fleets.rotten(64, 10**6))]

    for page, picture in zip(pages, pictures, strict=True):
        size = ("--window-size=1280,1600", f"--screenshot={picture}")
        chromium(page, tmp_path, *size)

    # A blank page of this size is compressed to under 10 kB.
    assert all(picture.stat().st_size > 40_000 for picture in pictures)
    assert pictures[0].read_bytes() != pictures[1].read_bytes()


WIDTHS = (360, 768, 1200, 1920)
"""Of a window, in pixels: a phone, a tablet, a laptop and a wall."""
NARROW = 60
"""Pixels in which a few characters have room; what is shorter than that needs less."""
TARGET = 24
"""Pixels of what can be hit with a finger (WCAG 2.2, 2.5.8)."""
LEGIBLE = 12
"""Pixels of the smallest letters of a map."""
TALL = {
    "node": 9_500,
    "fleet": 5_500,
    "rotten": 9_000,
    "qualification": 3_500,
    "collectives": 3_500,
}
"""Pixels that a page of a sample may be tall in a window 1,200 wide, as it opens."""
MEASURE = """
const results = [];
const text = e => e.innerText === undefined ? e.textContent : e.innerText;
const shown = e => { const b = e.getBoundingClientRect(); return b.width || b.height; };
const all = (d, which) => [...d.querySelectorAll(which)];
for (const [name, page] of Object.entries(PAGES)) for (const width of WIDTHS) {
  const frame = document.createElement("iframe");
  frame.width = width; frame.height = 800; frame.srcdoc = page;
  frame.onload = () => {
    const d = frame.contentDocument, root = d.documentElement;
    const tall = root.scrollHeight;
    all(d, "details").forEach(e => e.open = true);
    const boxes = all(d, "dd, dt, td, th, li, p, h1, h2, h3, h4").filter(shown);
    const thin = boxes.filter(e => {
      const needed = 5 * text(e).trim().length;
      return e.getBoundingClientRect().width < Math.min(NARROW, needed);
    });
    const small = all(d, ".heat a, summary, .chips a").filter(shown).filter(e => {
      const b = e.getBoundingClientRect();
      return Math.min(b.width, b.height) < TARGET - 0.1;
    });
    const tiny = all(d, ".heat text").filter(
      e => parseFloat(getComputedStyle(e).fontSize) < LEGIBLE);
    const cut = all(d, ".card .scroll").filter(e => e.scrollWidth > e.clientWidth + 1);
    const tell = some => some.slice(0, 3).map(e => e.outerHTML.slice(0, 90));
    const least = d.body.clientWidth - all(d, "main")[0].clientWidth;
    results.push({name, width, tall, wide: root.scrollWidth, unused: least,
      thin: tell(thin), cut: tell(cut), small: tell(small), tiny: tell(tiny)});
    if (results.length === Object.keys(PAGES).length * WIDTHS.length)
      document.body.textContent = "results" + JSON.stringify(results) + "results";
  };
  document.body.append(frame);
}
"""


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], Any]:
    """Lay out all samples in windows of all widths, and measure what came of them."""
    some, rotten = fleets.fleet(400), fleets.rotten(3000, 21)
    values = {
        "PAGES": {
            "node": render(samples.sick_node(60), history=samples.past()),
            "fleet": fleet.render(some, fleets.links(some)),
            "rotten": fleet.render(rotten, fleets.links(rotten)),
            "qualification": qualification.render(a_qualification()),
            "collectives": collectives.render(
                [a_collective_run(64, 8, late=301), a_collective_run(8, 8)]
            ),
        },
        "WIDTHS": WIDTHS,
        "NARROW": NARROW,
        "TARGET": TARGET,
        "LEGIBLE": LEGIBLE,
    }
    names = "".join(f"const {name} = {_script(v)};" for name, v in values.items())
    page = f"<!doctype html><body><script>{names}{MEASURE}</script></body>"
    folder = tmp_path_factory.mktemp("layout")
    read = chromium(page, folder, "--virtual-time-budget=60000", "--dump-dom")
    results = re.search("results(.*)results", Dom(read).text)
    assert results is not None, read[-2000:]
    return {(one["name"], one["width"]): one for one in json.loads(results[1])}


def _script(value: object) -> str:
    """Write *value* for use in a script."""
    return json.dumps(value).replace("<", "\\u003c")


SAMPLES = [(name, width) for name in TALL for width in WIDTHS]


@pytest.mark.parametrize("sample", SAMPLES)
def test_no_page_is_wider_than_its_window(
    layout: dict[tuple[str, int], Any], sample: tuple[str, int]
) -> None:
    assert layout[sample]["wide"] <= sample[1]


@pytest.mark.parametrize("sample", SAMPLES)
def test_no_text_is_pressed_into_a_column_of_letters(
    layout: dict[tuple[str, int], Any], sample: tuple[str, int]
) -> None:
    assert layout[sample]["thin"] == []


@pytest.mark.parametrize("sample", SAMPLES)
def test_what_failed_is_not_cut_off(
    layout: dict[tuple[str, int], Any], sample: tuple[str, int]
) -> None:
    assert layout[sample]["cut"] == []


@pytest.mark.parametrize("sample", SAMPLES)
def test_what_can_be_hit_is_large_enough_and_what_is_written_can_be_read(
    layout: dict[tuple[str, int], Any], sample: tuple[str, int]
) -> None:
    assert (layout[sample]["small"], layout[sample]["tiny"]) == ([], [])


@pytest.mark.parametrize("name", TALL)
def test_a_page_fills_its_window_and_is_no_taller_than_one_reads(
    layout: dict[tuple[str, int], Any], name: str
) -> None:
    assert layout[name, 1200]["tall"] < TALL[name]
    assert layout[name, 1200]["unused"] < 100
    assert layout[name, 1920]["unused"] <= 420


@pytest.mark.parametrize("name", ["node", "fleet"])
def test_no_sheet_of_paper_is_empty(tmp_path: Path, name: str) -> None:
    made = fleets.fleet(400)
    page = (
        render(samples.sick_node(60), history=samples.past())
        if name == "node"
        else fleet.render(made, fleets.links(made))
    )
    paper = tmp_path / "page.pdf"
    chromium(page, tmp_path, "--no-pdf-header-footer", f"--print-to-pdf={paper}")
    sheets = letters_on_sheets(paper.read_bytes())

    assert 2 < len(sheets) <= 12
    assert min(sheets) > 0


def letters_on_sheets(pdf: bytes) -> list[int]:
    """Count on each sheet of *pdf* how often something is written."""
    objects = dict(re.findall(rb"(\d+) 0 obj\n(.*?)\nendobj", pdf, re.DOTALL))
    sheets = [o for o in objects.values() if re.search(rb"/Type /Page\b", o)]
    contents = [re.search(rb"/Contents (\d+) 0 R", sheet) for sheet in sheets]
    streams = [objects[found[1]] for found in contents if found]
    packed = [re.search(rb"stream\n(.*)\nendstream", o, re.DOTALL) for o in streams]
    return [len(re.findall(rb"T[jJ]\b", zlib.decompress(p[1]))) for p in packed if p]
