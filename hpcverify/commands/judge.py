"""``hpcverify judge``: stored runs, judged again by today's limits."""

from __future__ import annotations

from datetime import datetime

import click
import msgspec

from hpcverify.catalog import names
from hpcverify.cli import say
from hpcverify.commands._since import DAY, began_by
from hpcverify.conclusion import judge_again
from hpcverify.config import Site, load_site, state_dir
from hpcverify.model import Result, Run
from hpcverify.rounds import by_check
from hpcverify.store import Store
from hpcverify.suite import Step, load_suite, plan, suite_names
from hpcverify.view import Console, plain_table


class Change(msgspec.Struct, frozen=True):
    """A verdict that today's limits turn into another."""

    run: str
    node: str
    check: str
    round: int
    was: str
    now: str
    reason: str


@click.command("judge")
@click.option("--since", type=DAY, help="From then on (UTC).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(since: datetime | None, *, as_json: bool) -> None:
    """
    Judge stored runs again by today's limits, and list what would change.

    The documents stay as they are: they are evidence.

    \b
    Example:
      hpcverify judge --since 2026-11-01
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    site, store = load_site(), Store(state_dir())
    entries = [e for e in store.runs(limit=-1) if began_by(e, since)]
    runs = list(store.readable(entries))
    for complaint in store.broken:
        say(complaint)
    changes = [change for run in runs for change in changed(run, site, store)]
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(changes), indent=1))
        return
    click.echo(f"{len(runs)} runs judged again, {len(changes)} verdicts change")
    if changes:
        head = ("run", "node", "check", "round", "was", "now", "why")
        rows = [[str(cell) for cell in msgspec.structs.astuple(c)] for c in changes]
        plain_table(Console(highlight=False), head, rows)


def changed(run: Run, site: Site, store: Store) -> list[Change]:
    """Judge every result of *run* again; return those that come out differently."""
    steps = {step.name: step for step in steps_of(run, site)}
    return [
        Change(
            run=run.id,
            node=run.node,
            check=result.check,
            round=result.round,
            was=result.verdict.value,
            now=again.verdict.value,
            reason=again.reason,
        )
        for result in run.results
        if result.check in steps
        and (again := rejudged(run, result, steps[result.check], store)).verdict
        is not result.verdict
    ]


def rejudged(run: Run, result: Result, step: Step, store: Store) -> Result:
    """Judge *result* by what holds today, but by the past as it was then."""
    before = run.started.isoformat()
    past = store.past(run.node, run.suite, result.check, before=before)
    rulings = step.check.rulings
    return judge_again(result, step.rules, rulings, run.inventory, past)


def steps_of(run: Run, site: Site) -> tuple[Step, ...]:
    """Plan the run's checks as its suite, or else the default one, would today."""
    suite = run.suite if run.suite in suite_names() else "quick"
    known = set(names(site.packages))
    only = tuple(check for check in by_check(run.results) if check in known)
    if not only:  # checks that are gone cannot be judged by today's limits
        return ()
    return plan(load_suite(suite), site, only).steps
