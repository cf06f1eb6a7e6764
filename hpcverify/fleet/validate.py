"""
Finds mistakes in the fleet part of a site file.

Each would silently do something else than was meant: a misspelt check enforces nothing,
a host list that matches no node suppresses nothing. Commands that act on the fleet
refuse to start with one; `config check` names them.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from itertools import chain
from math import inf
from pathlib import Path

from msgspec import Struct

from hpcverify.errors import ConfigError, UnknownNameError
from hpcverify.fleet.breaker import MIN_ALLOWANCE
from hpcverify.fleet.evidence import ALL_CHECKS, OUTER_SOURCES, is_enforced
from hpcverify.fleet.states import DAY_S, HOUR_S
from hpcverify.model import Source, Verdict
from hpcverify.peers.floors import PeerFloor
from hpcverify.plan.catalog import list_check_names, load_check
from hpcverify.plan.config import (
    Bmcs,
    Fabric,
    Fleet,
    NodeKind,
    Quarantine,
    Site,
    Suppression,
    TextFiles,
    look_up_uid,
    suites_dir,
)
from hpcverify.plan.hostlist import expand
from hpcverify.plan.suite import load_suite, make_plan
from hpcverify.slurm.submit import check_option
from hpcverify.telemetry.redfish.access import (
    NODE_PLACE,
    find_addresses,
    read_logins,
    refuse_bad_ca,
)
from hpcverify.trust import refuse_if_others_can_change

MONTH_HOURS = 30 * 24.0
MAX_SUPPRESSION = timedelta(days=366)
PROLOG_SUITE = "prolog"
PEER_VERDICTS = (Verdict.WARN, Verdict.FAIL)

Mistake = tuple[tuple[str | int, ...], str]
"""Where it is in the configuration, by which its file is found, and what is wrong."""


class OddNumber(Struct, frozen=True):
    """A setting that is valid below *least* and above *most*, and hardly meant; 0 is "never"."""

    table: str
    name: str
    least: float
    most: float
    effect: str
    """What it then does."""


ODD_NUMBERS = (
    # A collect every ten minutes writes gate files, and a health check every five fetches them.
    OddNumber("fleet", "gate_hours", 0.5, inf, "a gate file expires before nodes fetch the next"),
    OddNumber("fleet", "gate_hours", 0, MONTH_HOURS, "nodes refuse jobs without a controller"),
    OddNumber(
        "fleet", "fresh_hours", 0, MONTH_HOURS, "a node that passed waits longer than a month"
    ),
    OddNumber("fleet", "deadline_hours", 0.05, inf, "Slurm may not start a job so soon"),
    OddNumber("fleet", "deadline_hours", 0, 48, "a sweep waits for nodes past the next night"),
    OddNumber("fleet", "keep_runs", 7, inf, "that is less than a week of nights"),
    OddNumber("quarantine", "window_hours", 6, inf, "the breaker forgets a failure in a night"),
    OddNumber(
        "quarantine", "window_hours", 0, MONTH_HOURS, "the breaker counts nodes of months ago"
    ),
    OddNumber("quarantine", "cap", MIN_ALLOWANCE, inf, f"{MIN_ALLOWANCE} are always allowed"),
    OddNumber("quarantine", "check_share", 0, 0.99, "a check is believed though it fails on all"),
    OddNumber("quarantine", "repeat_quarantines", 2, inf, "the first makes a repeat offender"),
    OddNumber("quarantine", "repeat_days", 1, inf, "failures of two nights never add up"),
    OddNumber("fabric", "period_days", 0.5, inf, "every sweep tries all links again"),
    OddNumber("history", "keep_nights", 90, inf, "trends look at 90 nights"),
    OddNumber("events", "max_mib", 1, inf, "a file holds a few thousand events"),
    OddNumber("bmc", "seconds", 10, inf, "many BMCs take longer to answer"),
)


def refuse_mistakes(site: Site) -> None:
    """
    Refuse a site file with a mistake in it.

    Raises:
        ConfigError: the first mistake, with the file and the place.

    """
    known = set(list_check_names(site.packages))
    for place, mistake in chain(
        _check_quarantine(site.quarantine, known),
        _check_fleet(site.fleet),
        _check_bmc(site),
        _check_suppressions(site.suppress, known),
        _check_switches(site.fabric),
        _check_peers(site.peers, known),
        _check_kinds(site.kinds),
        _check_text_files(site.metrics),
    ):
        raise ConfigError(f"{site.find_file(*place)}: {mistake}")


def list_notes(site: Site, now: float) -> Iterator[str]:
    """Yield what is not a mistake but may surprise."""
    fleet = site.fleet
    yield from _list_spool_notes(fleet.spool)
    yield from _list_number_notes(site)
    try:
        look_up_uid(fleet.user)
    except ConfigError as exc:
        yield str(exc)
    yield from _list_program_notes(site.quarantine)
    yield from _list_suite_notes(site)
    yield from _list_switch_notes(site.fabric)
    yield from _list_peer_notes(site)
    if site.bmc.address and not site.bmc.verify:
        yield "bmc.verify = false: any host at the address of a BMC receives its password"
    yield from _list_bmc_notes(site.bmc)
    if site.scratch and not os.path.isabs(site.scratch):  # noqa: PTH117 - as above
        yield f"scratch = {site.scratch!r}: it must begin with /, or each run has another"
    folder = site.metrics.directory
    if folder and not os.path.isdir(folder):  # noqa: PTH112 - as above
        yield f"metrics.directory: {folder} is not a directory on this machine"
    today = datetime.fromtimestamp(now, UTC).date()
    for entry in site.suppress:
        if entry.until < today:
            yield f"suppress: {entry.check} on {entry.nodes} ended on {entry.until}"
        elif entry.until > today + MAX_SUPPRESSION:
            yield f"suppress: {entry.check} on {entry.nodes} lasts until {entry.until}"


def _check_text_files(metrics: TextFiles) -> Iterator[Mistake]:
    folder = metrics.directory
    if folder and not os.path.isabs(folder):  # noqa: PTH117 - as below
        yield ("metrics", "directory"), f"metrics.directory = {folder!r} must begin with /"


def _list_spool_notes(spool: str) -> Iterator[str]:
    if not spool:
        return
    if not os.path.isdir(spool):  # noqa: PTH112 - Path's raises where it may not look
        yield f"fleet.spool: {spool} is not a directory on this machine"
    elif os.stat(spool).st_mode & stat.S_IWOTH:  # noqa: PTH116 - as above
        yield f"fleet.spool: all users can write to {spool}: chmod o-w {spool}"


def _list_number_notes(site: Site) -> Iterator[str]:
    for odd in ODD_NUMBERS:
        value = getattr(getattr(site, odd.table), odd.name)
        if value and not odd.least <= value <= odd.most:
            yield f"{odd.table}.{odd.name} = {value:g}: {odd.effect}"
    fleet = site.fleet
    if 0 < fleet.overdue_days * DAY_S < fleet.fresh_hours * HOUR_S:
        yield (
            f"fleet.overdue_days = {fleet.overdue_days:g} is less than fresh_hours = "
            f"{fleet.fresh_hours:g}: every node is reserved before a sweep would take it"
        )


def _list_program_notes(policy: Quarantine) -> Iterator[str]:
    programs = {"on_transition": policy.on_transition}
    if policy.backend == "command":
        programs["command"] = policy.command
    elif policy.command:
        text = f'backend is {policy.backend}, so it is never run: set backend = "command"'
        yield f"quarantine.command: {text}, or remove it"
    for name, program in programs.items():
        if program and not os.access(program, os.X_OK):
            yield f"quarantine.{name}: {program} is not a program on this machine"
        elif program:
            try:
                refuse_if_others_can_change(Path(program))
            except ConfigError as exc:
                yield f"quarantine.{name}: {exc}"


def _list_suite_notes(site: Site) -> Iterator[str]:
    for check in site.quarantine.fail_closed:
        if not is_enforced([check], site):
            yield f"fail_closed: {check} is not in enforce, so it does not refuse jobs"
    in_prolog = {step.name for step in make_plan(load_suite(PROLOG_SUITE), site).steps}
    for check in site.quarantine.fail_closed:
        if check not in in_prolog:
            missing = f"is not in the suite {PROLOG_SUITE}"
            yield f"fail_closed: {check} {missing}, so it does not refuse jobs"
    if not any(step.is_active for step in make_plan(load_suite(site.fleet.suite), site).steps):
        yield (
            f"fleet.suite: {site.fleet.suite} has only passive checks: passing it is not a full "
            "pass, and does not make a node healthy"
        )


def _list_switch_notes(fabric: Fabric) -> Iterator[str]:
    switches: dict[str, list[str]] = {}
    for name, nodes in fabric.switches.items():
        for node in expand(nodes):
            switches.setdefault(node, []).append(name)
    for node, names in switches.items():
        if len(names) > 1:
            yield f"fabric.switches: {node} is at {' and '.join(names)}; {names[0]} counts"
            return


def _list_peer_notes(site: Site) -> Iterator[str]:
    """Say which metrics no check has; either side may have wildcards."""
    for rule in site.peers:
        fitting = [n for n in list_check_names(site.packages) if fnmatchcase(n, rule.check)]
        known = set(chain.from_iterable(load_check(n, site.packages).metrics for n in fitting))
        if not any(fnmatchcase(m, rule.metric) or fnmatchcase(rule.metric, m) for m in known):
            yield f"peers.metric: no check {rule.check} measures {rule.metric!r}"


def _list_bmc_notes(bmc: Bmcs) -> Iterator[str]:
    if (bmc.address or bmc.addresses) and not bmc.credentials:
        yield "bmc: addresses without credentials: hpcverify fleet bmc does not query a BMC"
    # No mistakes: nodes have the same site file, and must not have the passwords.
    for name in ("credentials", "ca"):
        path = getattr(bmc, name)
        if path and not os.path.exists(path):  # noqa: PTH110 - Path's raises where it may not look
            yield f"bmc.{name}: {path} is not on this machine; only hpcverify fleet bmc needs it"
            return
    try:
        if bmc.ca:
            refuse_bad_ca(bmc.ca)
        if bmc.credentials:
            for login in read_logins(Path(bmc.credentials)).login:
                expand(login.nodes)
    except ConfigError as exc:
        yield f"bmc: {exc}"


def _check_quarantine(policy: Quarantine, known: Collection[str]) -> Iterator[Mistake]:
    for name, checks, allowed in (
        ("enforce", policy.enforce, {ALL_CHECKS, *known}),
        ("fail_closed", policy.fail_closed, known),
    ):
        for unknown in _find_unknown_checks(f"quarantine.{name}", checks, allowed):
            yield ("quarantine", name), unknown
    if policy.backend == "command" and not Path(policy.command).is_absolute():
        place = ("quarantine", "backend")
        yield place, 'quarantine.command: backend = "command" needs the path of a program'
    if policy.on_transition and not Path(policy.on_transition).is_absolute():
        name = "on_transition"
        text = f"quarantine.{name}: {policy.on_transition!r} is not an absolute path"
        yield ("quarantine", name), text


def _check_fleet(fleet: Fleet) -> Iterator[Mistake]:
    try:
        load_suite(fleet.suite)
    except ConfigError as exc:
        yield ("fleet", "suite"), f"fleet.suite: {exc}"
    if fleet.spool and not Path(fleet.spool).is_absolute():
        yield ("fleet", "spool"), f"fleet.spool: {fleet.spool!r} is not an absolute path"
    if "/" in fleet.program and not Path(fleet.program).is_absolute():
        yield ("fleet", "program"), f"fleet.program: {fleet.program!r} is not an absolute path"
    for word in fleet.planned_reasons:
        if not word.strip("* _"):
            text = f"fleet.planned_reasons: {word!r} fits every reason, so drains would not count"
            yield ("fleet", "planned_reasons"), text
    for option in fleet.sbatch_options:
        if why := check_option(option):
            yield ("fleet", "sbatch_options"), f"fleet.sbatch_options: {option!r}: {why}"


def _check_switches(fabric: Fabric) -> Iterator[Mistake]:
    for name, nodes in fabric.switches.items():
        try:
            expand(nodes)
        except ConfigError as exc:
            yield ("fabric", "switches", name), f"fabric.switches.{name}: {exc}"


def _check_peers(floors: Iterable[PeerFloor], known: Collection[str]) -> Iterator[Mistake]:
    for index, floor in enumerate(floors):
        place = ("peers", index)
        if not any(fnmatchcase(check, floor.check) for check in known):
            yield place, f"peers.check: {UnknownNameError('check', floor.check, known)}"
        if floor.otherwise not in PEER_VERDICTS:
            wrong = f'"{floor.otherwise.value}" must be warn or fail'
            yield place, f"peers.otherwise of {floor.check}: {wrong}"


def _check_kinds(kinds: Iterable[NodeKind]) -> Iterator[Mistake]:
    kind_of: dict[str, str] = {}
    for index, kind in enumerate(kinds):
        place = ("kinds", index)
        if not kind.name.strip():
            yield place, f"kinds.name of {kind.nodes} must not be empty"
        try:
            nodes = expand(kind.nodes)
        except ConfigError as exc:
            yield place, f"kinds.nodes of {kind.name}: {exc}"
            continue
        if both := [node for node in nodes if node in kind_of]:
            name = kind_of[both[0]]
            yield place, f"kinds: {both[0]} is of {name} and of {kind.name}: take it out of one"
        kind_of |= dict.fromkeys(nodes, kind.name)


def _check_bmc(site: Site) -> Iterator[Mistake]:
    bmc = site.bmc
    if bmc.address and NODE_PLACE not in bmc.address:
        text = f"bmc.address: {bmc.address!r} is one BMC for all nodes: put {NODE_PLACE} into it"
        yield ("bmc", "address"), text
    for name in ("credentials", "ca"):
        path = getattr(bmc, name)
        if path and not Path(path).is_absolute():
            yield ("bmc", name), f"bmc.{name}: {path!r} is not an absolute path"
    if bmc.ca and not bmc.verify:
        text = "bmc.ca: verify = false, so it is not used: take one of them out"
        yield ("bmc", "verify"), text
    for source in sorted(OUTER_SOURCES | {Source.BMC}):
        if (suites_dir() / f"{source}.toml").exists():
            yield (), f"the suite {source} has a name that hpcverify reserves: rename it"
    # Of the pattern for all, any name shows whether it makes addresses.
    find_addresses(["n1"], Bmcs(address=bmc.address), site.find_file("bmc", "address"))
    for hostlist, addresses in bmc.addresses.items():
        file = site.find_file("bmc", "addresses", hostlist)
        entry = Bmcs(addresses={hostlist: addresses})
        find_addresses((), entry, file)  # is the host list one?
        find_addresses(expand(hostlist), entry, file)


def _check_suppressions(
    suppressed: Iterable[Suppression], known: Collection[str]
) -> Iterator[Mistake]:
    for index, suppression in enumerate(suppressed):
        place = ("suppress", index)
        for unknown in _find_unknown_checks("suppress.check", [suppression.check], known):
            yield place, unknown
        try:
            expand(suppression.nodes)
        except ConfigError as exc:
            yield place, f"suppress.nodes: {exc}"
        for name in ("reason", "by"):
            if not getattr(suppression, name).strip():
                yield place, f"suppress.{name} of {suppression.check} must not be empty"


def _find_unknown_checks(place: str, given: Iterable[str], known: Collection[str]) -> Iterator[str]:
    for name in given:
        if name not in known:
            yield f"{place}: {UnknownNameError('check', name, known)}"
