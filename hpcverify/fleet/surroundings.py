"""What a site file says of nodes, accounts and limits, compared with what Slurm has."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import chain
from math import ceil

from hpcverify.errors import ConfigError, SlurmError, UnknownNameError
from hpcverify.fleet.breaker import MIN_ALLOWANCE, compute_allowance
from hpcverify.plan.config import Fleet, Site
from hpcverify.plan.hostlist import expand, fold
from hpcverify.slurm.client import Slurm


def check_surroundings(site: Site, slurm: Slurm) -> Iterator[str]:
    """Yield a sentence for each setting that fits nothing in Slurm."""
    try:
        hosts = slurm.list_hosts()
        yield from check_nodes(site, hosts.keys())
        ours = site.fleet.partition
        yield from check_switches(site, [n for n, x in hosts.items() if ours in x.partitions])
        yield from check_accounting(site.fleet, slurm)
    except SlurmError as exc:
        yield f"the nodes and accounts of Slurm could not be read: {exc}"


def check_nodes(site: Site, there: Collection[str]) -> Iterator[str]:
    """Yield what names nodes that are not *there*, and limits that none of them reaches."""
    lists = chain(
        (("suppress.nodes", suppression.nodes) for suppression in site.suppress),
        ((f"fabric.switches.{name}", nodes) for name, nodes in site.fabric.switches.items()),
        (("bmc.addresses", nodes) for nodes in site.bmc.addresses),
        ((f"kinds.nodes of {kind.name}", kind.nodes) for kind in site.kinds),
    )
    for place, hostlist in lists:
        try:
            unknown = [name for name in expand(hostlist) if name not in there]
        except ConfigError:  # `refuse_mistakes` has reported it
            continue
        if unknown:
            yield f"{place}: Slurm has no node {fold(unknown)}"
    count, policy, fleet = len(there), site.quarantine, site.fleet
    if count > MIN_ALLOWANCE and min(fleet.at_once, ceil(fleet.share * count)) >= count:
        yield (
            f"fleet.share = {fleet.share:g} and at_once = {fleet.at_once}: all {count} nodes may "
            "be under verification at once"
        )
    if count > MIN_ALLOWANCE and compute_allowance(count, policy) >= count:
        yield (
            f"quarantine.share = {policy.share:g} and cap = {policy.cap}: all {count} nodes may "
            "be drained within the window, so the breaker never trips"
        )


def check_switches(site: Site, verified: Collection[str]) -> Iterator[str]:
    """Yield which of the *verified* nodes are at no switch, if the site names switches."""
    named = chain.from_iterable(map(expand, site.fabric.switches.values()))
    if site.fabric.switches and (left := sorted({*verified} - {*named})):
        yield f"fabric.switches: {fold(left)} is not at a switch, so its uplinks are not tested"


def check_accounting(fleet: Fleet, slurm: Slurm) -> Iterator[str]:
    """Yield what names an account or a QOS that Slurm does not have, if it keeps accounts."""
    for kind, name in (("account", fleet.account), ("qos", fleet.qos)):
        if not name:
            continue
        known = slurm.list_accounting_names(kind)
        if known is None:
            yield f"fleet.{kind} = {name!r}: Slurm does not keep accounts, so it has no effect"
        elif name.lower() not in known:  # slurmdbd keeps lower case
            yield f"fleet.{kind}: {UnknownNameError(kind, name, known)}"
