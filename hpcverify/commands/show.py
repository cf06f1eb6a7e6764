"""``hpcverify show``: one run, what was found and measured against what."""

from __future__ import annotations

import click
import msgspec

from hpcverify.check import applies, quantity
from hpcverify.config import state_dir
from hpcverify.model import Measurement, Result, Run
from hpcverify.plain import bounds, worst_first
from hpcverify.store import Store
from hpcverify.view import Console, conclusion, headline, plain_table, results_table


@click.command("show")
@click.argument("run", default="last")
@click.option("--json", "as_json", is_flag=True, help="Print the run document.")
def command(run: str, *, as_json: bool) -> None:
    """
    Show RUN: its id, the start of it, or "last".

    \b
    Examples:
      hpcverify show
      hpcverify show 20261121-034500-a1b2c3 --json
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    found = Store(state_dir()).load(run)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=1))
        return
    console = Console(highlight=False)
    console.print(results_table(found, console.width))
    for result in worst_first(found.results):
        console.print()
        console.print(headline(result))
        show_details(result, found, console)
    console.print()
    console.print(conclusion(found))


def show_details(result: Result, run: Run, console: Console) -> None:
    """Print what was covered, every fact and every measurement with its limit."""
    for covered in result.coverage:
        label = run.inventory.label(covered.where)
        console.print(f"  {label}: {covered.text}", markup=False)
    for finding in result.findings:
        label = run.inventory.label(finding.where)
        console.print(f"  {label}: {finding.text} [{finding.code}]", markup=False)
    rows = [row(item, result, run) for item in result.measurements]
    if rows:
        head = ("measurement", "part", "value", "limit", "source")
        plain_table(console, head, rows)


def row(item: Measurement, result: Result, run: Run) -> tuple[str, ...]:
    """Print a measurement beside the limits that it was held against."""
    limits = [limit for limit in result.limits if applies(limit, item)]
    return (
        item.name,
        run.inventory.label(item.where),
        quantity(item.value, item.unit),
        "; ".join(bounds(limit) or "too noisy" for limit in limits),
        "; ".join(limit.source for limit in limits),
    )
