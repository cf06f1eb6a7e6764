"""``hpcverify sweep``: verify idle nodes through the scheduler."""

from __future__ import annotations

import sys

import click


@click.command("sweep")
@click.option("--suite", help="What to run; as the site says when left out.")
@click.option("--nodes", "hostlist", metavar="HOSTLIST", help="Only these, if idle.")
@click.option("--limit", type=click.IntRange(1), help="Verify no more than so many at once.")
@click.option("--dry-run", is_flag=True, help="Print the plan, and do nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
def command(
    suite: str | None, hostlist: str | None, limit: int | None, *, dry_run: bool, as_json: bool
) -> None:
    """
    Verify idle nodes through the scheduler.

    Nodes that failed or came back go first, then those never verified, then those
    verified longest ago. Each gets a job that gives way to anybody. To end the sweep
    does not end the jobs: `hpcverify collect` takes in what they find. Exit status 4
    while the breaker is tripped or a check is doubted.

    \b
    Examples:
      hpcverify sweep --dry-run
      hpcverify sweep --nodes n[1-64] --limit 8
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    from hpcverify.commands._sweep import SweepRequest, carry_out

    wish = SweepRequest(suite=suite or "", hostlist=hostlist or "", limit=limit)
    if dry_run:
        from hpcverify.commands._sweep import show_plan

        show_plan(wish, as_json=as_json)
    else:
        sys.exit(carry_out(wish))
