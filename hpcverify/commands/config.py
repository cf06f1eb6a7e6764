"""``hpcverify config check``: find mistakes before the next run does."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from socket import gethostname

import click

from hpcverify.console import report_mistakes
from hpcverify.errors import ConfigError
from hpcverify.plan.catalog import load_checks
from hpcverify.plan.config import Site, load_site, state_dir
from hpcverify.plan.suite import list_suites, load_suite, make_plan, refuse_endless


@click.group("config")
def command() -> None:
    """Check the site's configuration."""


@command.command("check")
def check() -> None:
    """
    Read the site file and plan every suite; exit with 2 on a mistake.

    If the site has a spool, check in Slurm too that verifications give way to users'
    jobs, and that no other jobs do.

    \b
    Example:
      HPCVERIFY_CONFIG=./site.toml hpcverify config check
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    from hpcverify.fleet.validate import list_notes, refuse_mistakes

    site = load_site()
    refuse_mistakes(site)
    click.echo(f"site: {site.path}")
    surroundings = _check_surroundings(site) if site.fleet.spool else ()
    for note in chain(list_notes(site, time.time()), surroundings):
        click.echo(f"note: {note}")
    click.echo(f"state: {state_dir()}")
    _, mistakes = load_checks(site.packages)
    for name in list_suites():
        try:
            planned = make_plan(load_suite(name), site)
            refuse_endless(planned)
        except ConfigError as exc:
            mistakes.append(str(exc))
            continue
        limits = sum(len(step.rules) for step in planned.steps)
        click.echo(f"suite {name}: {len(planned.steps)} checks, {limits} limits: ok")
    report_mistakes(mistakes)


def _check_surroundings(site: Site) -> Iterator[str]:
    """Yield notes on Slurm and on the spool."""
    from hpcverify.errors import HpcverifyError
    from hpcverify.fleet.claim import check_claim
    from hpcverify.fleet.ledger import LEDGER_FILE_NAME, Ledger
    from hpcverify.fleet.surroundings import check_surroundings
    from hpcverify.slurm.client import Slurm
    from hpcverify.slurm.partitions import check_slurm

    slurm = Slurm(user=site.fleet.user)
    yield from check_slurm(site.fleet, slurm)
    yield from check_surroundings(site, slurm)
    if (state_dir() / LEDGER_FILE_NAME).exists():  # this host is or was the controller
        try:
            check_claim(Path(site.fleet.spool), Ledger(state_dir()), gethostname())
        except HpcverifyError as exc:
            yield str(exc)
