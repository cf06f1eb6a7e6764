"""Render the templates; everything that is filled in comes out as text."""

from __future__ import annotations

import re
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from hpcverify.summary.printable import make_printable
from hpcverify.summary.wording import format_duration
from hpcverify_reports.grid import format_range
from hpcverify_reports.labels import (
    CAUSE_SENTENCES,
    ICONS,
    format_unit,
    format_with_unit,
    label_fact,
    make_anchor,
)

EXCERPT_CHARACTERS = 4096
"""Characters of one piece of evidence; the run document has the rest."""
_UNBROKEN = re.compile(
    r"(\d{4}-\d\d-\d\d(?: \d\d:\d\d UTC)?|\((?:under )?\d+ \w+ ago\)"
    r"|\d[\d.,]* (?:%|°C|MHz|W|ms|[GT]B/s|TFLOP/s|GPU-hours)(?!\w))"
)
"""Dates, ages, and numbers with their unit."""


def keep_times(text: str) -> Markup:
    """Let no line break within a time, an age or a number with its unit of *text*."""
    kept = Markup('<span class="nowrap">{}</span>')
    pieces = enumerate(_UNBROKEN.split(make_printable(text)))
    return Markup("").join(kept.format(piece) if place % 2 else piece for place, piece in pieces)


def group_digits(text: str) -> str:
    """Separate the thousands of the numbers of *text*."""
    return re.sub(r"\b(?<!\.)\d{4,}", lambda found: f"{int(found[0]):,}", text)


def cut_excerpt(text: str) -> str:
    """Cut the rest of a *text* that is long."""
    left = len(text) - EXCERPT_CHARACTERS
    if left <= 0:
        return text
    return f"{text[:EXCERPT_CHARACTERS]} … ({left} more characters in the run's JSON document)"


def _fill_in(value: object) -> object:
    # Numbers are ours; text may come from a node that is broken or hostile.
    return make_printable(value) if type(value) is str else value


@cache
def load_environment() -> Environment:
    """Load the templates; an undefined name is an error, never a blank."""
    environment = Environment(
        loader=PackageLoader("hpcverify_reports"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_fill_in,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "anchor": make_anchor,
        "cause": CAUSE_SENTENCES.__getitem__,
        "duration": format_duration,
        "excerpt": cut_excerpt,
        "fact": label_fact,
        "grouped": group_digits,
        "icon": ICONS.__getitem__,
        "range": format_range,
        "times": keep_times,
        "unit": format_unit,
        "with_unit": format_with_unit,
    }
    return environment


def render_page(template: str, page: object) -> str:
    """Fill in *template* with the attributes of *page*."""
    return load_environment().get_template(template).render(page=page)
