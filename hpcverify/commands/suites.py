"""``hpcverify suites``: what may be asked of ``run --suite``."""

from __future__ import annotations

import click
import msgspec

from hpcverify.plain import format_duration
from hpcverify.suite import list_suites, load_suite
from hpcverify.view import Console, print_table


@click.command("suites")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(*, as_json: bool) -> None:
    """
    List the suites: what each is for, its budget and its checks.

    \b
    Example:
      hpcverify suites
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    suites = [load_suite(name) for name in list_suites()]
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(suites), indent=1))
        return
    rows = [
        (
            s.name,
            format_duration(s.budget),
            str(s.rounds),
            s.summary,
            " ".join(e.name for e in s.check),
        )
        for s in suites
    ]
    head = ("suite", "budget", "rounds", "when", "checks")
    print_table(Console(highlight=False), head, rows)
