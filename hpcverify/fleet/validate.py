"""
Finds mistakes in the fleet part of a site file.

Each would silently do something else than was meant: a misspelt check enforces nothing,
a host list that matches no node suppresses nothing. Commands that act on the fleet
refuse to start with one; `config check` names them.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path

from hpcverify.errors import ConfigError, UnknownNameError
from hpcverify.fleet.bmc_access import NODE_PLACE, find_addresses, read_logins, refuse_bad_ca
from hpcverify.fleet.evidence import ALL_CHECKS, is_enforced
from hpcverify.fleet.orders import look_up_uid
from hpcverify.model import BMC_SUITE, JOBS_SUITE, PEERS_SUITE
from hpcverify.plan.catalog import list_check_names
from hpcverify.plan.config import Bmcs, Fleet, Quarantine, Site, Suppression, suites_dir
from hpcverify.plan.suite import load_suite
from hpcverify.slurm.hostlist import expand
from hpcverify.slurm.submit import check_option


def refuse_mistakes(site: Site) -> None:
    """
    Refuse a site file with a mistake in it.

    Raises:
        ConfigError: the first mistake, with the file and the place.

    """
    known = set(list_check_names(site.packages))
    for mistake in chain(
        _check_quarantine(site.quarantine, known),
        _check_fleet(site.fleet),
        _check_bmc(site),
        _check_suppressions(site.suppress, known),
    ):
        raise ConfigError(f"{site.path}: {mistake}")


def list_notes(site: Site, now: float) -> Iterator[str]:
    """Yield what is not a mistake but may surprise."""
    fleet = site.fleet
    if fleet.spool and not os.path.isdir(fleet.spool):  # noqa: PTH112 - Path's raises where it may not look
        yield f"fleet.spool: {fleet.spool} is not a directory on this machine"
    try:
        look_up_uid(fleet.user)
    except ConfigError as exc:
        yield str(exc)
    program = site.quarantine.on_transition
    if program and not os.access(program, os.X_OK):
        yield f"quarantine.on_transition: {program} is not a program on this machine"
    for check in site.quarantine.fail_closed:
        if not is_enforced([check], site):
            yield f"fail_closed: {check} is not in enforce, so it refuses no job"
    if site.bmc.address and not site.bmc.verify:
        yield "bmc.verify = false: whoever answers at the address of a BMC gets its password"
    yield from _list_bmc_notes(site.bmc)
    today = datetime.fromtimestamp(now, UTC).date()
    for each in site.suppress:
        if each.until < today:
            yield f"suppress: {each.check} on {each.nodes} ended on {each.until}"


def _list_bmc_notes(bmc: Bmcs) -> Iterator[str]:
    # No mistakes: nodes have the same site file, and must not have the passwords.
    for name in ("credentials", "ca"):
        path = getattr(bmc, name)
        if path and not os.path.exists(path):  # noqa: PTH110 - Path's raises where it may not look
            yield f"bmc.{name}: {path} is not on this machine; only hpcverify bmc needs it"
            return
    try:
        if bmc.ca:
            refuse_bad_ca(bmc.ca)
        if bmc.credentials:
            for login in read_logins(Path(bmc.credentials)).login:
                expand(login.nodes)
    except ConfigError as exc:
        yield f"bmc: {exc}"


def _check_quarantine(policy: Quarantine, known: Collection[str]) -> Iterator[str]:
    yield from _find_unknown_checks("quarantine.enforce", policy.enforce, {ALL_CHECKS, *known})
    yield from _find_unknown_checks("quarantine.fail_closed", policy.fail_closed, known)
    if policy.backend == "command" and not Path(policy.command).is_absolute():
        yield 'quarantine.command: backend = "command" needs the path of a program'
    if policy.on_transition and not Path(policy.on_transition).is_absolute():
        yield f"quarantine.on_transition: {policy.on_transition!r} is not an absolute path"


def _check_fleet(fleet: Fleet) -> Iterator[str]:
    try:
        load_suite(fleet.suite)
    except ConfigError as exc:
        yield f"fleet.suite: {exc}"
    if fleet.spool and not Path(fleet.spool).is_absolute():
        yield f"fleet.spool: {fleet.spool!r} is not an absolute path"
    for option in fleet.sbatch_options:
        if why := check_option(option):
            yield f"fleet.sbatch_options: {option!r}: {why}"


def _check_bmc(site: Site) -> Iterator[str]:
    bmc = site.bmc
    if bmc.address and NODE_PLACE not in bmc.address:
        yield f"bmc.address: {bmc.address!r} is one BMC for all nodes: put {NODE_PLACE} into it"
    for name in ("credentials", "ca"):
        path = getattr(bmc, name)
        if path and not Path(path).is_absolute():
            yield f"bmc.{name}: {path!r} is not an absolute path"
    if bmc.ca and not bmc.verify:
        yield "bmc.ca: verify = false, so it is not used: take one of them out"
    for suite in (BMC_SUITE, JOBS_SUITE, PEERS_SUITE):
        if (suites_dir() / f"{suite}.toml").exists():
            yield f"the suite {suite} has the name of runs that the controller makes: rename it"
    try:
        find_addresses((), bmc, site.path)
        # Of the pattern for all, any name shows whether it makes addresses.
        named = [name for hostlist in bmc.addresses for name in expand(hostlist)]
        find_addresses(named or ["n1"], bmc, site.path)
    except ConfigError as exc:
        yield str(exc).removeprefix(f"{site.path}: ")


def _check_suppressions(suppressed: Iterable[Suppression], known: Collection[str]) -> Iterator[str]:
    for each in suppressed:
        yield from _find_unknown_checks("suppress.check", [each.check], known)
        try:
            expand(each.nodes)
        except ConfigError as exc:
            yield f"suppress.nodes: {exc}"
        for name in ("reason", "by"):
            if not getattr(each, name).strip():
                yield f"suppress.{name} of {each.check} must not be empty"


def _find_unknown_checks(place: str, given: Iterable[str], known: Collection[str]) -> Iterator[str]:
    for name in given:
        if name not in known:
            yield f"{place}: {UnknownNameError('check', name, known)}"
