"""A reason that a person gives, for whoever comes after."""

from __future__ import annotations

import click


class ReasonType(click.ParamType[str]):
    """What says something."""

    name = "text"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Refuse what says nothing."""
        if not value.strip():
            self.fail("say why, for whoever comes after you", param, ctx)
        return value.strip()


REASON_TYPE = ReasonType()
