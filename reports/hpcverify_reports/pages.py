"""Render the templates; everything that is filled in comes out as text."""

from __future__ import annotations

import re
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from hpcverify.summary.printable import make_printable
from hpcverify.summary.wording import format_duration

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
    environment.filters |= {"times": keep_times, "duration": format_duration}
    return environment


def render_page(template: str, page: object) -> str:
    """Fill in *template* with the attributes of *page*."""
    return load_environment().get_template(template).render(page=page)
