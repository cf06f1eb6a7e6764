"""``hpcverify suites``: the names that ``run --suite`` takes."""

from __future__ import annotations

import click

from hpcverify.console import print_json
from hpcverify.model import FABRIC_SUITE
from hpcverify.plan.suite import FABRIC_HOW, list_suites, load_suite
from hpcverify.summary.terminal import Console, print_table
from hpcverify.summary.wording import format_duration


@click.command("suites")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(*, as_json: bool) -> None:
    """
    List the suites: when to use each, its time budget and its checks.

    \b
    Example:
      hpcverify suites
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    suites = [load_suite(name) for name in list_suites()]
    if as_json:
        print_json(suites)
        return
    rows = [
        (s.name, format_duration(s.budget), str(s.rounds), s.summary, checks)
        for s in suites
        for checks in [" ".join(e.name for e in s.check)]
    ]
    head = ("suite", "budget", "rounds", "when", "checks")
    console = Console(highlight=False)
    print_table(console, head, rows)
    console.print(f"{FABRIC_SUITE} is the suite between nodes: {FABRIC_HOW}")
