"""``hpcverify config check``: find mistakes before a night does."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from socket import gethostname

import click

from hpcverify.config import Site, load_site, state_dir
from hpcverify.suite import list_suites, load_suite, make_plan, refuse_endless


@click.group("config")
def command() -> None:
    """Check the site's configuration."""


@command.command("check")
def check() -> None:
    """
    Read the site file and every suite, and plan each: exit with 2 on a mistake.

    Of a site with a spool it looks at what Slurm has as well: whether verifications
    give way to users' jobs, and whether nobody else's jobs do.

    \b
    Example:
      HPCVERIFY_CONFIG=./site.toml hpcverify config check
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    from hpcverify.fleet.mistakes import list_notes, refuse_mistakes

    site = load_site()
    refuse_mistakes(site)
    click.echo(f"site: {site.path}")
    surroundings = _check_surroundings(site) if site.fleet.spool else ()
    for note in chain(list_notes(site, time.time()), surroundings):
        click.echo(f"note: {note}")
    click.echo(f"state: {state_dir()}")
    for name in list_suites():
        planned = make_plan(load_suite(name), site)
        refuse_endless(planned)
        limits = sum(len(step.rules) for step in planned.steps)
        click.echo(f"suite {name}: {len(planned.steps)} checks, {limits} limits: sound")


def _check_surroundings(site: Site) -> Iterator[str]:
    """Yield what may surprise in Slurm and in the spool."""
    from hpcverify.errors import HpcverifyError
    from hpcverify.fleet.claim import check_claim
    from hpcverify.fleet.partitions import check_slurm
    from hpcverify.quarantine.ledger import LEDGER_FILE_NAME, Ledger
    from hpcverify.slurm.client import Slurm

    yield from check_slurm(site.fleet, Slurm(user=site.fleet.user))
    if (state_dir() / LEDGER_FILE_NAME).exists():  # this is a controller, or was one
        try:
            check_claim(Path(site.fleet.spool), Ledger(state_dir()), gethostname())
        except HpcverifyError as exc:
            yield str(exc)
