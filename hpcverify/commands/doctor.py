"""``hpcverify doctor``: what prevents a full verification of this node."""

from __future__ import annotations

import shutil
import sys
import textwrap

import click

from hpcverify.commands._options import json_option
from hpcverify.console import echo, print_json
from hpcverify.insight.inspections import FLOOR_PREFIX, INSPECTIONS
from hpcverify.units import format_count

UNVERIFIED_STATUS = 3


@click.command("doctor")
@click.option("--floors", is_flag=True, help="List the minimum speeds of each kind of GPU.")
@json_option
def command(*, floors: bool, as_json: bool) -> None:
    """
    Show what prevents a full verification of this node, each with its fix.

    Imports torch and starts one GPU. Problems come last. Exit status 3 if there is a problem.

    \b
    Example:
      hpcverify doctor
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    advice = [item for look in INSPECTIONS for item in look()]
    fixes = [item for item in advice if item.fix]
    if as_json:
        print_json(advice)
    else:
        for item in advice:
            if not item.fix and (floors or not item.subject.startswith(FLOOR_PREFIX)):
                echo(_fold(f"ok  {item.subject}: {item.state}"))
        for item in fixes:
            echo(_fold(f"fix {item.subject}: {item.state}: {item.fix}"))
        echo(f"{format_count(len(fixes), 'thing')} to fix" if fixes else "nothing to fix")
    sys.exit(UNVERIFIED_STATUS if fixes else 0)


def _fold(line: str) -> str:
    """Fold a long *line* on a terminal, and indent what follows; a log gets it whole."""
    if not sys.stdout.isatty():
        return line
    return textwrap.fill(
        line,
        shutil.get_terminal_size().columns,
        subsequent_indent=" " * len("ok  "),
        break_long_words=False,
        break_on_hyphens=False,
    )
