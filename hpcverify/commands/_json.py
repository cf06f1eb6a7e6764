"""How commands print JSON."""

from __future__ import annotations

import click

from hpcverify.summary.printable import escape_json, format_json


def print_json(value: object) -> None:
    """Print *value* as JSON that a person can read too."""
    print_json_text(format_json(value))


def print_json_text(text: bytes) -> None:
    """Print *text*, which is JSON, as UTF-8, whatever the terminal can show."""
    click.echo(escape_json(text))  # noqa: TID251 - bytes
