"""``hpcverify checks``: what there is to run."""

from __future__ import annotations

import click
import msgspec

from hpcverify.catalog import list_check_names, load_check
from hpcverify.config import load_site
from hpcverify.view import Console, print_table


@click.command("checks")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(*, as_json: bool) -> None:
    """
    List the checks: what each is for, and what it measures.

    \b
    Example:
      hpcverify checks --json
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    packages = load_site().packages
    found = {name: load_check(name, packages) for name in sorted(set(list_check_names(packages)))}
    if as_json:
        rows = [
            {
                "name": name,
                "summary": check.summary,
                "placement": check.placement.value,
                "maturity": check.maturity.value,
                "timeout": check.timeout,
                "params": msgspec.to_builtins(check.params()),
                "metrics": {n: m.unit for n, m in check.metrics.items()},
                "rules": msgspec.to_builtins(dict(check.rules)),
            }
            for name, check in found.items()
        ]
        click.echo(msgspec.json.format(msgspec.json.encode(rows), indent=1))
        return
    print_table(
        Console(highlight=False),
        ("check", "what it is for"),
        [(name, check.summary) for name, check in found.items()],
    )
