"""How commands print JSON."""

from __future__ import annotations

import click
import msgspec


def print_json(value: object) -> None:
    """Print *value* as JSON that a person can read too; a number that is not finite is null."""
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=1))
