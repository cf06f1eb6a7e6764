"""``hpcverify run``: verify this node, now."""

from __future__ import annotations

import sys

import click


@click.command("run")
@click.option("--suite", default="quick", show_default=True, help="What to run.")
@click.option(
    "--check", "checks", multiple=True, metavar="NAME", help="Only this; repeatable."
)
@click.option("--json", "json_file", metavar="FILE", help="Write the run; - prints it.")
@click.option("--html", "html_file", metavar="FILE", help="Write the report.")
@click.option("--strict", is_flag=True, help="Exit with 1 on a warning.")
@click.option("--force", is_flag=True, help="Run though others use the GPUs.")
@click.option(
    "--accept-parts", is_flag=True, help="Take today's parts as the reference."
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
) -> None:
    """
    Verify this node, now.

    \b
    Examples:
      hpcverify run
      hpcverify run --suite idle --html report.html
      hpcverify run --check sdc --json -
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    from hpcverify import early
    from hpcverify.commands._run import Wish, carry_out

    wish = Wish(
        suite=suite,
        checks=checks,
        json_file=json_file,
        html_file=html_file,
        strict=strict,
        force=force,
        accept_parts=accept_parts,
    )
    sys.exit(carry_out(wish, early.worker()))
