"""``hpcverify config check``: find mistakes before a night does."""

from __future__ import annotations

import click

from hpcverify.catalog import names
from hpcverify.config import Site, load_site, state_dir
from hpcverify.errors import UnknownNameError
from hpcverify.suite import load_suite, plan, refuse_endless, suite_names


@click.group("config")
def command() -> None:
    """Check the site's configuration."""


@command.command("check")
def check() -> None:
    """
    Read the site file and every suite, and plan each: exit with 2 on a mistake.

    \b
    Example:
      HPCVERIFY_CONFIG=./site.toml hpcverify config check
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    site = load_site()
    refuse_unknown_checks(site)
    click.echo(f"site: {site.path}")
    click.echo(f"state: {state_dir()}")
    for name in suite_names():
        planned = plan(load_suite(name), site)
        refuse_endless(planned)
        limits = sum(len(step.rules) for step in planned.steps)
        click.echo(f"suite {name}: {len(planned.steps)} checks, {limits} limits: sound")


def refuse_unknown_checks(site: Site) -> None:
    """
    Look up the checks that the quarantine names: one that is not there acts on nobody.

    Raises:
        UnknownNameError: nothing is called so.

    """
    known = {"*", *names(site.packages)}
    policy = site.quarantine
    silenced = (each.check for each in site.suppress)
    for name in (*policy.enforce, *policy.fail_closed, *silenced):
        if name not in known:
            raise UnknownNameError("check", name, known)
