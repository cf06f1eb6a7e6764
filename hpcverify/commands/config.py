"""``hpcverify config check``: find mistakes before a night does."""

from __future__ import annotations

import time

import click

from hpcverify.config import load_site, state_dir
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
    from hpcverify.fleet.mistakes import notes, refuse_mistakes

    site = load_site()
    refuse_mistakes(site)
    click.echo(f"site: {site.path}")
    for note in notes(site, time.time()):
        click.echo(f"note: {note}")
    click.echo(f"state: {state_dir()}")
    for name in suite_names():
        planned = plan(load_suite(name), site)
        refuse_endless(planned)
        limits = sum(len(step.rules) for step in planned.steps)
        click.echo(f"suite {name}: {len(planned.steps)} checks, {limits} limits: sound")
