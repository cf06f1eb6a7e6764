"""``hpcverify show``: one run, what was found and measured against what."""

from __future__ import annotations

from collections.abc import Sequence

import click
import msgspec
from rich.text import Text

from hpcverify.check import applies, format_quantity
from hpcverify.errors import ConfigError
from hpcverify.model import Measurement, Result, Run
from hpcverify.plan.config import state_dir
from hpcverify.plan.suite import MAX_SUITE_ROUNDS
from hpcverify.records.store import Store
from hpcverify.summary.rounds import (
    count_rounds,
    format_tally,
    group_by_check,
)
from hpcverify.summary.terminal import (
    Console,
    print_table,
    render_conclusion,
    render_headline,
    show_results,
)
from hpcverify.summary.verdict import rank_checks
from hpcverify.summary.wording import format_bounds


@click.command("show")
@click.argument("run", default="last")
@click.option(
    "--round",
    "number",
    type=click.IntRange(1, MAX_SUITE_ROUNDS),
    help="Only this round; the worst of each check when left out.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the run document.")
def command(run: str, number: int | None, *, as_json: bool) -> None:
    """
    Show RUN: its id, the start of it, or "last".

    \b
    Examples:
      hpcverify show
      hpcverify show last --round 3
      hpcverify show 20261121-034500-a1b2c3 --json
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    store = Store(state_dir())
    found = store.load(run)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=1))
        return
    shown = found if number is None else keep_round(found, number)
    rounds = group_by_check(shown.results)
    console = Console(highlight=False)
    show_results(shown, store.make_earlier_lookup(found), console)
    for result in rank_checks(shown):
        console.print()
        console.print(render_headline(result))
        if len(rounds[result.check]) > 1:
            console.print(describe_round(result, rounds[result.check]))
        show_details(result, found, console)
    console.print()
    console.print(render_conclusion(found))


def keep_round(run: Run, number: int) -> Run:
    """
    Leave of *run* the results of round *number*.

    Raises:
        ConfigError: there is none.

    """
    results = tuple(r for r in run.results if r.round == number)
    if not results:
        raise ConfigError(f"run {run.id} has {count_rounds(run)} rounds, and no {number}")
    return msgspec.structs.replace(run, results=results)


def describe_round(result: Result, rounds: Sequence[Result]) -> Text:
    """Say which of *rounds* is shown, what came of all, and how to see another."""
    return Text(
        f"  round {result.round}, the first of the worst; {len(rounds)} rounds in all: "
        f"{format_tally(rounds)}; another one: --round N"
    )


def show_details(result: Result, run: Run, console: Console) -> None:
    """Print what was covered, every fact and every measurement with its limit."""
    for covered in result.coverage:
        label = run.inventory.find_label(covered.where)
        console.print(f"  {label}: {covered.text}", markup=False)
    for finding in result.findings:
        label = run.inventory.find_label(finding.where)
        console.print(f"  {label}: {finding.text} [{finding.code}]", markup=False)
    rows = [format_row(item, result, run) for item in result.measurements]
    if rows:
        head = ("measurement", "part", "value", "limit", "source")
        print_table(console, head, rows)


def format_row(item: Measurement, result: Result, run: Run) -> tuple[str, ...]:
    """Print a measurement beside the limits that it was held against."""
    limits = [limit for limit in result.limits if applies(limit, item)]
    return (
        item.name,
        run.inventory.find_label(item.where),
        format_quantity(item.value, item.unit),
        "; ".join(format_bounds(limit) or "too noisy" for limit in limits),
        "; ".join(limit.source for limit in limits),
    )
