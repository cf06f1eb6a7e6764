"""``hpcverify run``: verify this node, now."""

from __future__ import annotations

import sys

import click


@click.command("run")
@click.option("--suite", default="quick", show_default=True, help="What to run.")
@click.option("--check", "checks", multiple=True, metavar="NAME", help="Only this; repeatable.")
@click.option("--json", "json_file", metavar="FILE", help="Write the run; - prints it.")
@click.option("--html", "html_file", metavar="FILE", help="Write the report.")
@click.option("--strict", is_flag=True, help="Exit with 1 on a warning.")
@click.option("--force", is_flag=True, help="Run though others use the GPUs.")
@click.option("--accept-parts", is_flag=True, help="Take today's parts as the reference.")
@click.option("--spool", metavar="DIR", help="Leave a copy for the controller.")
@click.option(
    "--wait",
    type=click.FloatRange(min=0),
    default=0,
    metavar="SECONDS",
    help="For how long another run may hold the node.",
)
@click.option(
    "--fail-closed",
    metavar="NAMES",
    help="Exit with 1 on hard evidence from these checks alone, else with 0.",
)
def command(
    suite: str,
    checks: tuple[str, ...],
    json_file: str | None,
    html_file: str | None,
    *,
    strict: bool,
    force: bool,
    accept_parts: bool,
    spool: str | None,
    wait: float,
    fail_closed: str | None,
) -> None:
    """
    Verify this node, now.

    \b
    Examples:
      hpcverify run
      hpcverify run --suite idle --html report.html
      hpcverify run --check sdc --json -
      hpcverify run --suite idle --spool /shared/hpcverify --wait 60
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    from hpcverify import early
    from hpcverify.commands._run import RunRequest, carry_out

    wish = RunRequest(
        suite=suite,
        checks=checks,
        json_file=json_file,
        html_file=html_file,
        strict=strict,
        force=force,
        accept_parts=accept_parts,
        spool=spool,
        wait=wait,
        fail_closed=None if fail_closed is None else tuple(fail_closed.split()),
    )
    sys.exit(carry_out(wish, early.take_worker()))
