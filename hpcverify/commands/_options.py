"""Options of several commands: ``--reason``, ``--since``, and finite numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import click

SINCE_TYPE = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M"])


class FiniteRange(click.FloatRange):
    """A finite number in a range: click takes nan for one in any."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Read *value*, or fail in one line."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number


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
