"""The ``--reason`` that a person gives for a decision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click


def reason_option(text: str, default: str | None = None) -> Callable[..., Any]:
    """Declare ``--reason``, required unless it has a *default*; *text* is its help."""
    # An explicit default of None counts as a value for click 8.3 and later.
    attributes: dict[str, Any] = {"default": default, "show_default": True}
    if default is None:
        attributes = {"required": True}
    return click.option("--reason", callback=_require_text, help=text, **attributes)


def _require_text(_ctx: click.Context, _param: click.Parameter, value: str) -> str:
    if not value.strip():
        raise click.BadParameter("say why, for whoever comes after you")
    return value.strip()
