"""``hpcverify config``: find mistakes before the next run does, and show what is in force."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from socket import gethostname
from typing import Any

import click
from msgspec import Struct

from hpcverify.commands._options import json_option
from hpcverify.console import echo, print_json, report_mistakes
from hpcverify.errors import ConfigError
from hpcverify.plan.catalog import load_checks
from hpcverify.plan.config import Site, load_site, state_dir
from hpcverify.plan.drop_ins import is_list_of_tables, merge_files
from hpcverify.plan.suite import list_suites, load_suite, make_plan, refuse_endless
from hpcverify.plan.toml import write_key, write_value


class SettingInForce(Struct, frozen=True):
    """One setting of the site, and the file that decides it."""

    setting: str
    """As ``fleet.spool``, or ``suppress[0]`` for the first table of a list."""
    value: Any
    file: str


@click.command("check")
def check() -> None:
    """
    Read the site file and its drop-ins, and plan every suite; exit with 2 on a mistake.

    If the site has a spool, also check in Slurm that verifications, and no other jobs, are
    preempted by users' jobs.

    \b
    Example:
      HPCVERIFY_CONFIG=./site.toml hpcverify config check
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    from hpcverify.fleet.validate import list_notes, refuse_mistakes

    site = load_site()
    refuse_mistakes(site)
    for file in site.files:
        echo(f"site: {file.path}")
    surroundings = _check_surroundings(site) if site.fleet.spool else ()
    for note in chain(list_notes(site, time.time()), surroundings):
        echo(f"note: {note}")
    echo(f"state: {state_dir()}")
    _, mistakes = load_checks(site.packages)
    for name in list_suites():
        try:
            planned = make_plan(load_suite(name), site)
            refuse_endless(planned)
        except ConfigError as exc:
            mistakes.append(str(exc))
            continue
        limits = sum(len(step.rules) for step in planned.steps)
        echo(f"suite {name}: {len(planned.steps)} checks, {limits} limits: ok")
    report_mistakes(mistakes)


@click.command("show")
@json_option
def show(*, as_json: bool) -> None:
    """
    Show the settings of the site file and its drop-ins, as TOML.

    Each value is followed by the file that sets it. Settings that no file sets have their
    defaults.

    \b
    Example:
      hpcverify config show
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    site = load_site()
    if as_json:
        print_json([*list_settings(site)])
        return
    text = "\n".join(write_settings(site)).lstrip("\n")
    echo(text or "# there is no site file: every setting has its default")


def list_settings(site: Site) -> Iterator[SettingInForce]:
    """List what the files of *site* set; each table of a list is one value."""
    for names, table in _list_tables(_merge(site)):
        for key, value in table.items():
            place = write_key(*names, key)
            if not _is_list(value):
                yield SettingInForce(place, value, site.find_file(*names, key))
                continue
            for index, inner in enumerate(value):
                file = site.find_file(*names, key, index)
                yield SettingInForce(f"{place}[{index}]", inner, file)


def write_settings(site: Site) -> Iterator[str]:
    """Write what the files of *site* set as TOML, with the file of each value as a comment."""
    for names, table in _list_tables(_merge(site)):
        single = {key: value for key, value in table.items() if not _is_list(value)}
        if single and names:
            yield f"\n[{write_key(*names)}]"
        for key, value in single.items():
            file = site.find_file(*names, key)
            yield f"{write_key(key)} = {write_value(value)}  # {file}"
        for key in (key for key in table if key not in single):
            for index, inner in enumerate(table[key]):
                yield f"\n[[{write_key(*names, key)}]]  # {site.find_file(*names, key, index)}"
                yield from (f"{write_key(k)} = {write_value(v)}" for k, v in inner.items())


def _merge(site: Site) -> Mapping[str, Any]:
    merged: Mapping[str, Any] = merge_files([source.raw for source in site.sources])
    return merged


def _list_tables(
    table: Mapping[str, Any], names: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    """List *table* and the tables in it by their names, each without those in it."""
    yield names, {key: value for key, value in table.items() if not isinstance(value, Mapping)}
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _list_tables(value, (*names, key))


def _is_list(value: Any) -> bool:
    return bool(value) and is_list_of_tables(value)


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
