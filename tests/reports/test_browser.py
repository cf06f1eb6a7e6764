"""The page in a real Chromium, and what the browser makes of it."""

from __future__ import annotations

import json
import re
import zlib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from hpcverify_reports import collectives, fleet, isolation
from hpcverify_reports.labels import ICONS, Icon
from hpcverify_reports.node import render
from tests.reports import fleets, samples
from tests.reports.chromium import chromium
from tests.reports.collective_runs import a_collective_run, an_isolation
from tests.reports.dom import Dom

pytestmark = pytest.mark.needs("chromium")


@cache
def make_pages() -> dict[str, str]:
    """Render a sample of each page, and fleets of several sizes."""
    judged, rotten = fleets.judged_in_all_ways(400), fleets.rotten(3000, 21)
    return {
        "node": render(samples.sick_node(60), history=samples.past()),
        "fleet": fleet.render(judged, fleets.links(judged)),
        "bare": fleet.render(fleets.bare(), {}),
        "rotten": fleet.render(rotten, fleets.links(rotten)),
        "collectives": collectives.render(a_collective_run(64, 8, late=301)),
        "isolation": isolation.render(an_isolation()),
    }


TALL = {
    "node": 9_500,
    "fleet": 9_000,
    "bare": 3_000,
    "rotten": 9_000,
    "collectives": 3_500,
    "isolation": 2_500,
}
"""Pixels that a page of a sample may be tall in a window 1,200 wide, as it opens."""


@pytest.mark.parametrize("name", ["node", "fleet", "collectives", "isolation"])
def test_a_browser_reads_a_page_as_it_was_written(name: str, tmp_path: Path) -> None:
    page = make_pages()[name]

    read = Dom(chromium(page, tmp_path, "--dump-dom"))

    written = Dom(page)
    assert read.text == written.text
    # A browser adds what is left out, as tbody; all else must be where it was.
    assert read.tags() == written.tags()
    assert len(read.elements) == len(written.elements)


@pytest.mark.parametrize("name", ["node", "collectives"])
def test_a_browser_paints_a_page(name: str, tmp_path: Path) -> None:
    picture = tmp_path / "page.png"

    size = ("--window-size=1280,1600", f"--screenshot={picture}")
    chromium(make_pages()[name], tmp_path, *size)

    assert picture.read_bytes().startswith(b"\x89PNG")
    # A blank page of this size is compressed to under 10 kB.
    assert picture.stat().st_size > 60_000


def test_a_browser_paints_the_map_of_a_fleet(tmp_path: Path) -> None:
    pictures = [tmp_path / "with.png", tmp_path / "without.png"]
    pages = [fleet.render(made, {}) for made in (fleets.fleet(), fleets.rotten(64, 10**6))]

    for page, picture in zip(pages, pictures, strict=True):
        size = ("--window-size=1280,1600", f"--screenshot={picture}")
        chromium(page, tmp_path, *size)

    # A blank page of this size is compressed to under 10 kB.
    assert all(picture.stat().st_size > 40_000 for picture in pictures)
    assert pictures[0].read_bytes() != pictures[1].read_bytes()


SCREENS = (360, 768, 1200, 1920)
"""Widths of a window, in pixels: a phone, a tablet, a laptop and a wall."""
PAPER, SCROLLBAR = 695, 15
"""Pixels of a sheet (A4) between its margins, and of what a window has beside its page."""
NARROW, NARROW_ON_PAPER = 60, 36
"""Pixels in which a few characters have room; what is shorter than that needs less."""
TARGET = 24
"""Pixels of what can be hit with a finger (WCAG 2.2, 2.5.8)."""
LEGIBLE = {"map": 12, "chart": 10}
"""Pixels of the smallest letters of a picture, after it was scaled."""
FIRST_SCREEN = 800
"""Pixels of a window's height: what is above is seen without scrolling."""
CONTRAST = 4.5
"""Of letters against what is behind them (WCAG 2.2, 1.4.3)."""
MEASURE = """
const results = [];
const text = e => e.innerText === undefined ? e.textContent : e.innerText;
const shown = e => { const b = e.getBoundingClientRect(); return b.width || b.height; };
const all = (d, which) => [...d.querySelectorAll(which)];
const tell = some => some.slice(0, 3).map(e => e.outerHTML.slice(0, 160));
const rgb = color => color.match(/[0-9.]+/g).map(Number);
const light = color => {
  const part = c => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const [r, g, b] = rgb(color);
  return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
};
const behind = e => {
  for (; e; e = e.parentElement) {
    const color = e.ownerDocument.defaultView.getComputedStyle(e).backgroundColor;
    if ((rgb(color)[3] ?? 1) > 0.5) return color;
  }
  return "rgb(255, 255, 255)";
};
const contrast = e => {
  const [a, b] = [getComputedStyle(e).color, behind(e)].map(light);
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
};
const named = e => {
  const by = (e.getAttribute("aria-labelledby") || "").split(" ").filter(Boolean);
  const told = by.map(id => e.ownerDocument.getElementById(id)?.textContent || "").join("");
  const title = e.querySelector("title")?.textContent;
  return (e.getAttribute("aria-label") || told || title || "").trim();
};
const BOXES = "dd, dt, td, th, li, p, h1, h2, h3, h4, figcaption, summary";
const hides = e => !["visible", "auto"].includes(getComputedStyle(e).overflowX);
const letterSize = e => {
  const scale = e.getScreenCTM();
  return parseFloat(getComputedStyle(e).fontSize) * Math.hypot(scale.a, scale.b);
};
const inView = e => {
  const b = e.getBoundingClientRect(), s = e.ownerSVGElement.getBoundingClientRect();
  return b.left >= s.left - 1 && b.right <= s.right + 1 && b.bottom <= s.bottom + 1;
};
for (const [name, page] of Object.entries(PAGES)) for (const view of VIEWS) {
  const frame = document.createElement("iframe");
  frame.width = view.width; frame.height = 800; frame.style.colorScheme = view.scheme;
  frame.srcdoc = view.print
    ? page.replaceAll("@media print", "@media all").replaceAll("@media screen", "@media not all")
    : page;
  frame.onload = () => {
    const d = frame.contentDocument, root = d.documentElement;
    const tall = root.scrollHeight;
    const after = all(d, ".afterwards code").map(e => e.getBoundingClientRect().bottom);
    if (!view.print) all(d, "details").forEach(e => e.open = true);
    const boxes = all(d, BOXES).filter(shown);
    const thin = boxes.filter(e => {
      const needed = 5 * text(e).trim().length;
      return e.getBoundingClientRect().width < Math.min(view.narrow, needed);
    });
    const small = all(d, ".heat a, summary, .chips a").filter(shown).filter(e => {
      const b = e.getBoundingClientRect();
      return Math.min(b.width, b.height) < TARGET - 0.1;
    });
    const letters = all(d, "main svg text").filter(shown);
    const tiny = letters.filter(
      e => letterSize(e) < (e.closest(".heat") ? LEGIBLE.map : LEGIBLE.chart) - 0.05);
    const clipped = [
      ...letters.filter(e => hides(e.ownerSVGElement) && !inView(e)),
      ...boxes.filter(e => hides(e) && e.scrollWidth > e.clientWidth + 1)];
    const cut = all(d, ".card .scroll").filter(e => e.scrollWidth > e.clientWidth + 1);
    const faint = view.contrast ? boxes.filter(e => text(e).trim() && contrast(e) < CONTRAST) : [];
    const unheaded = all(d, "main section").filter(e => !d.getElementById(
      e.getAttribute("aria-labelledby"))?.matches("h1, h2, h3"));
    const nameless = all(d, "main svg").filter(
      e => e.getAttribute("aria-hidden") !== "true" && !named(e));
    const wordless = all(d, "main use").filter(e => !e.closest("symbol")).filter(e => {
      const word = e.getAttribute("href").replace(/^#[a-z]+-/, "");
      const near = e.closest("svg:not(.mark) :is(a, g), tr, li, p, section, summary") || e;
      const told = [near, e.closest(".card")].map(one => one?.textContent.toLowerCase() || "");
      return !WORDS[word].some(one => told.some(text => text.includes(one)));
    });
    const least = d.body.clientWidth - all(d, "main")[0].clientWidth;
    results.push({name, view: view.name, tall, after, wide: root.scrollWidth, unused: least,
      dark: frame.contentWindow.matchMedia("(prefers-color-scheme: dark)").matches,
      thin: tell(thin), cut: tell(cut), small: tell(small), tiny: tell(tiny),
      clipped: tell(clipped), faint: tell(faint), unheaded: tell(unheaded),
      nameless: tell(nameless), wordless: tell(wordless)});
    if (results.length === Object.keys(PAGES).length * VIEWS.length)
      document.body.textContent = "results" + JSON.stringify(results) + "results";
  };
  document.body.append(frame);
}
"""
VIEWS = [
    *(
        {"name": str(width), "width": width, "scheme": "light", "contrast": width == 1200}
        for width in SCREENS
    ),
    {"name": "dark", "width": 1200, "scheme": "dark", "contrast": True},
    {"name": "paper", "width": PAPER + SCROLLBAR, "scheme": "light", "print": True},
]
"""How the samples are laid out: on screens, by night, and as they are printed."""
WIDTHS = {str(view["name"]): int(str(view["width"])) for view in VIEWS} | {"paper": PAPER}


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Any]:
    """Lay out all samples in windows of all widths and on paper, and measure what came of them."""
    values = {
        "PAGES": make_pages(),
        "VIEWS": [
            {**view, "narrow": NARROW_ON_PAPER if "print" in view else NARROW} for view in VIEWS
        ],
        "WORDS": {icon.key: list_words(icon) for icon in ICONS.values()},
        "TARGET": TARGET,
        "LEGIBLE": LEGIBLE,
        "CONTRAST": CONTRAST,
    }
    names = "".join(f"const {name} = {_script(v)};" for name, v in values.items())
    page = f"<!doctype html><body><script>{names}{MEASURE}</script></body>"
    folder = tmp_path_factory.mktemp("layout")
    read = chromium(page, folder, "--virtual-time-budget=60000", "--dump-dom")
    results = re.search("results(.*)results", Dom(read).text)
    assert results is not None, read[-2000:]
    return {(one["name"], one["view"]): one for one in json.loads(results[1])}


def list_words(icon: Icon) -> list[str]:
    """List what says the same as a symbol, in words."""
    return [icon.word.lower(), *SAID_OTHERWISE.get(icon.key, ())]


SAID_OTHERWISE = {
    "fail": ("failed", "spoils", "too low", "too high", "quarantined", "repeat offender"),
    "error": ("could not be judged",),
    "warn": ("warned", "too low", "too high", "suspect", "holds up"),
    "skip": ("no node is verified", "held", "verifying", "unverified"),
    "pass": ("passed",),
}
"""How a sentence says what a symbol beside it shows."""


def _script(value: object) -> str:
    """Write *value* for use in a script."""
    return json.dumps(value).replace("<", "\\u003c")


SAMPLES = [(name, view) for name in TALL for view in WIDTHS]
Layout = dict[tuple[str, str], Any]


@pytest.mark.parametrize("sample", SAMPLES)
def test_no_page_is_wider_than_its_window_or_its_sheet(
    layout: Layout, sample: tuple[str, str]
) -> None:
    assert layout[sample]["wide"] <= WIDTHS[sample[1]]


@pytest.mark.parametrize("sample", SAMPLES)
def test_no_text_is_pressed_into_a_column_of_letters_or_clipped(
    layout: Layout, sample: tuple[str, str]
) -> None:
    assert (layout[sample]["thin"], layout[sample]["clipped"]) == ([], [])


@pytest.mark.parametrize("sample", SAMPLES)
def test_what_failed_is_not_cut_off(layout: Layout, sample: tuple[str, str]) -> None:
    assert layout[sample]["cut"] == []


@pytest.mark.parametrize("sample", [sample for sample in SAMPLES if sample[1] != "paper"])
def test_what_can_be_hit_is_large_enough_and_what_is_written_can_be_read(
    layout: Layout, sample: tuple[str, str]
) -> None:
    assert (layout[sample]["small"], layout[sample]["tiny"]) == ([], [])


@pytest.mark.parametrize("name", TALL)
def test_letters_stand_out_from_what_is_behind_them_by_day_and_by_night(
    layout: Layout, name: str
) -> None:
    assert (layout[name, "1200"]["dark"], layout[name, "dark"]["dark"]) == (False, True)
    assert (layout[name, "1200"]["faint"], layout[name, "dark"]["faint"]) == ([], [])


@pytest.mark.parametrize("name", TALL)
def test_every_section_has_a_heading_and_every_picture_a_name(layout: Layout, name: str) -> None:
    assert (layout[name, "1200"]["unheaded"], layout[name, "1200"]["nameless"]) == ([], [])


@pytest.mark.parametrize("name", TALL)
def test_no_symbol_stands_without_a_word(layout: Layout, name: str) -> None:
    assert layout[name, "1200"]["wordless"] == []


def test_the_command_of_the_next_step_is_on_the_first_screen(layout: Layout) -> None:
    (bottom,) = layout["node", "1200"]["after"]
    assert bottom <= FIRST_SCREEN


@pytest.mark.parametrize("name", TALL)
def test_a_page_fills_its_window_and_is_no_taller_than_one_reads(layout: Layout, name: str) -> None:
    assert layout[name, "1200"]["tall"] < TALL[name]
    assert layout[name, "1200"]["unused"] < 100
    assert layout[name, "1920"]["unused"] <= 420


SHEETS = {"healthy": (2, 3), "node": (3, 6), "full": (9, 20), "fleet": (3, 12)}
"""The fewest and the most sheets (A4) of a page."""


@pytest.mark.parametrize("name", SHEETS)
def test_a_page_needs_few_sheets_of_paper_and_none_is_empty(tmp_path: Path, name: str) -> None:
    paper = tmp_path / "page.pdf"
    pages = make_pages() | {
        "healthy": render(samples.healthy_node(), history=samples.past()),
        "full": render(samples.sick_node(60), history=samples.past(), full=True),
    }
    chromium(pages[name], tmp_path, "--no-pdf-header-footer", f"--print-to-pdf={paper}")
    sheets = letters_on_sheets(paper.read_bytes())

    least, most = SHEETS[name]
    assert least <= len(sheets) <= most
    assert min(sheets) > 0


def letters_on_sheets(pdf: bytes) -> list[int]:
    """Count on each sheet of *pdf* how often something is written."""
    objects = dict(re.findall(rb"(\d+) 0 obj\n(.*?)\nendobj", pdf, re.DOTALL))
    sheets = [o for o in objects.values() if re.search(rb"/Type /Page\b", o)]
    contents = [re.search(rb"/Contents (\d+) 0 R", sheet) for sheet in sheets]
    streams = [objects[found[1]] for found in contents if found]
    packed = [re.search(rb"stream\n(.*)\nendstream", o, re.DOTALL) for o in streams]
    return [len(re.findall(rb"T[jJ]\b", zlib.decompress(p[1]))) for p in packed if p]
