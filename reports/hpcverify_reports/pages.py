"""How pages are put together: everything that is filled in comes out as text."""

from __future__ import annotations

from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from hpcverify_reports.words import printable


def _fill_in(value: Any) -> Any:
    # Numbers are ours; what is text may come from a node that lies.
    return printable(value) if type(value) is str else value


@cache
def environment() -> Environment:
    """Load the templates; a name that is not given is an error, never a blank."""
    return Environment(
        loader=PackageLoader("hpcverify_reports"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_fill_in,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def page(template: str, **values: Any) -> str:
    """Fill in *template*."""
    return environment().get_template(template).render(**values)
