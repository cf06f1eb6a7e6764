"""``hpcverify history rejudge``: judge stored runs again by today's limits."""

from __future__ import annotations

from datetime import datetime

import click
import msgspec

from hpcverify.commands._controller import record_command
from hpcverify.commands._options import json_option, since_option
from hpcverify.console import echo, print_json, say
from hpcverify.model import Result, Run, Verdict
from hpcverify.plan.catalog import list_check_names
from hpcverify.plan.config import Site, load_site, state_dir
from hpcverify.plan.suite import Step, list_suites, load_suite, make_plan
from hpcverify.records.store import Store
from hpcverify.run.conclude import judge_result
from hpcverify.summary.rounds import group_by_check
from hpcverify.summary.terminal import Console, print_table
from hpcverify.units import format_count


class Change(msgspec.Struct, frozen=True):
    """A verdict that today's limits change."""

    run: str
    node: str
    check: str
    round: int
    was: str
    now: str
    reason: str


@click.command("rejudge")
@since_option("Judge only runs from DATE on (UTC).")
@json_option
@record_command()
def command(since: datetime | None, *, as_json: bool) -> None:
    """
    Judge stored runs by today's limits, and list the verdicts that would change.

    The stored documents are evidence and do not change.

    \b
    Example:
      hpcverify history rejudge --since 2026-11-01
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    site, store = load_site(), Store(state_dir())
    runs = list(store.read_documents(store.list_runs(limit=-1, since=since)))
    for fault in store.warnings:
        say(fault)
    changes = [change for run in runs for change in find_changes(run, site, store)]
    if as_json:
        print_json(changes)
        return
    verdicts = format_count(len(changes), "verdict")
    echo(f"{format_count(len(runs), 'run')} judged again, {verdicts} would change")
    if changes:
        head = ("run", "node", "check", "round", "was", "now", "why")
        rows = [[str(cell) for cell in msgspec.structs.astuple(c)] for c in changes]
        print_table(Console(highlight=False), head, rows)


def find_changes(run: Run, site: Site, store: Store) -> list[Change]:
    """Judge every result of *run* again; return those that come out differently."""
    steps = {step.name: step for step in plan_steps(run, site)}
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
        and (again := rejudge(run, result, steps[result.check], store)).verdict
        is not result.verdict
    ]


def rejudge(run: Run, result: Result, step: Step, store: Store) -> Result:
    """Judge *result* by today's limits, but with the earlier runs that it had then."""
    if result.verdict is Verdict.SKIP:
        return result
    past = store.make_earlier_lookup(run)(result.check)
    check = step.check
    return judge_result(
        result, check.rules, check.finding_rules, run.inventory, past, overrides=step.overrides
    )


def plan_steps(run: Run, site: Site) -> tuple[Step, ...]:
    """Plan the run's checks as its suite, or the quick one if it is gone, would today."""
    suite = run.suite if run.suite in list_suites() else "quick"
    known = set(list_check_names(site.packages))
    only = tuple(check for check in group_by_check(run.results) if check in known)
    if not only:  # a check that is gone has no limits today
        return ()
    return make_plan(load_suite(suite), site, only, node=run.node).steps
