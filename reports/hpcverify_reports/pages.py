"""How pages are put together: everything that is filled in comes out as text."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from hpcverify.summary.printable import make_printable
from hpcverify.summary.wording import format_duration
from hpcverify_reports.labels import format_time

_TIME = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d UTC|\(\d+ \w+ ago\))")
"""A time, or how long ago it was."""


def keep_times(text: str) -> Markup:
    """Let no line end within a time of *text*."""
    kept = Markup('<span class="nowrap">{}</span>')
    pieces = enumerate(_TIME.split(make_printable(text)))
    return Markup("").join(kept.format(piece) if place % 2 else piece for place, piece in pieces)


def _fill_in(value: Any) -> Any:
    # Numbers are ours; what is text may come from a node that is broken or hostile.
    return make_printable(value) if type(value) is str else value


@cache
def load_environment() -> Environment:
    """Load the templates; a name that is not given is an error, never a blank."""
    made = Environment(
        loader=PackageLoader("hpcverify_reports"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_fill_in,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"times": keep_times, "time": format_time, "duration": format_duration}
    return made


def render_page(template: str, page: object) -> str:
    """Fill in *template* with the attributes of *page*."""
    return load_environment().get_template(template).render(page=page)
