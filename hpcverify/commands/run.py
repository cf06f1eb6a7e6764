"""``hpcverify run``: verify this node now."""

from __future__ import annotations

import sys
from typing import Any

import click

from hpcverify.commands._options import (
    CHECK,
    SUITE,
    Duration,
    HookCommand,
    HookOption,
    has_flag,
)
from hpcverify.records.documents import STDOUT_NAME

MAX_GPUS = 1000
"""Far more than a node can have: a larger number is a typing error."""


@click.command("run", cls=HookCommand)
@click.option("--suite", type=SUITE, default="quick", show_default=True, help="Run this suite.")
@click.option(
    "--check", "checks", type=CHECK, multiple=True, help="Run only this check; repeatable."
)
@click.option("--json", "as_json", is_flag=True, help="Print the run document.")
@click.option(
    "-o",
    "--output",
    "outputs",
    multiple=True,
    metavar="FILE",
    help="Write a page, or the run document if FILE ends in .json; repeatable.",
)
@click.option("-v", "--verbose", is_flag=True, help="Print every value with its limit.")
@click.option("--strict", cls=HookOption, is_flag=True, help="Exit with 1 on a warning.")
@click.option("--force", is_flag=True, help="Run even if other processes use the GPUs.")
@click.option("--accept-parts", is_flag=True, help="Accept changed hardware as the new reference.")
@click.option(
    "--expect-gpus",
    type=click.IntRange(min=1, max=MAX_GPUS),
    metavar="N",
    help="Fail if the node does not have N working GPUs.",
)
@click.option(
    "--spool", cls=HookOption, metavar="DIR", help="Write a copy for the controller into DIR."
)
@click.option(
    "--wait",
    cls=HookOption,
    type=Duration(),
    default="0s",
    help="Wait this long for another run on this node.",
)
@click.option(
    "--fail-closed",
    cls=HookOption,
    metavar="CHECKS",
    help="Exit with 1 only on conclusive evidence from these checks, else with 0.",
)
def command(**options: Any) -> None:
    """
    Verify this node.

    \b
    Examples:
      hpcverify run
      hpcverify run --expect-gpus 8
      hpcverify run --suite idle -o report.html
      hpcverify run --check sdc --json
      hpcverify run --suite idle --spool /shared/hpcverify --wait 60s
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    if options["as_json"] and STDOUT_NAME in options["outputs"]:
        raise click.UsageError("--json and -o - both write to standard output")
    from hpcverify.commands._request import RunRequest
    from hpcverify.commands._start import verify_node

    options["verbose"] |= has_flag("verbose")
    sys.exit(verify_node(RunRequest(**options, quiet=has_flag("quiet"))))
