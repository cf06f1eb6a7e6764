"""``hpcverify selftest``: whether the checks find on this node what they must."""

from __future__ import annotations

import sys

import click


@click.command("selftest")
@click.argument("check", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--verbose", is_flag=True, help="Print what the check said of each.")
def command(check: str | None, *, as_json: bool, verbose: bool) -> None:
    """
    Inject faults into CHECK, or else into all that can, and see that they are found.

    The faults are made in our own arithmetic, on the real parts: nothing on the node
    is harmed. Exit status 0 when all came out as they must, 1 when one did not (do
    not trust the check on this node), 3 when it could not be tried.

    \b
    Examples:
      hpcverify selftest
      hpcverify selftest sdc --json
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    from hpcverify.commands._selftest import carry_out

    sys.exit(carry_out(check, as_json=as_json, verbose=verbose))
