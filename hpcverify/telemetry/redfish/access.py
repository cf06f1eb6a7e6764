"""
Where the BMCs of a fleet answer, and the file that has their passwords.

A password comes from a file that only its owner can read, and goes to the worker that logs
in with it: never into a document, a log, a command line or an environment.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Collection
from pathlib import Path

from msgspec import Struct

from hpcverify.errors import ConfigError
from hpcverify.plan.bmc import BmcAccess
from hpcverify.plan.config import Bmcs, Site, convert_config
from hpcverify.plan.hostlist import expand
from hpcverify.trust import refuse_if_others_can_change, refuse_if_others_can_read

NODE_PLACE = "{node}"
ADDRESS_PATTERN = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")
"""A host name, or an IP address (one of IPv6 in brackets), and a port if any."""


class BmcLogin(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A user of some BMCs: secret, so it never shows its password."""

    user: str
    password: str
    nodes: str

    def __repr__(self) -> str:
        """Leave out the password."""
        return f"BmcLogin(user={self.user!r}, nodes={self.nodes!r})"


class BmcLogins(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file of ``[bmc] credentials``: secret too."""

    user: str = ""
    """The user of every BMC that is not in *login*."""
    password: str = ""
    login: tuple[BmcLogin, ...] = ()
    """Logins of some nodes; the first that covers a node counts."""

    def __repr__(self) -> str:
        """Leave out the passwords."""
        return f"BmcLogins(user={self.user!r}, login={self.login!r})"


def read_logins(path: Path) -> BmcLogins:
    """Read the file of credentials *path*; errors do not quote its content."""
    refuse_if_others_can_change(path)
    try:
        with path.open("rb") as file:
            refuse_if_others_can_read(path, os.fstat(file.fileno()))
            raw = tomllib.load(file)
    except FileNotFoundError:
        raise ConfigError(
            f"{path} does not exist. Fix: write user and password to it, and chmod 600 {path}"
        ) from None
    except OSError as exc:
        raise ConfigError(f"{path} cannot be read: {exc.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        raise ConfigError(f'{path} is not TOML. Fix: write user = "…" and password = "…"') from None
    logins = convert_config(raw, BmcLogins, str(path))
    if not (logins.user and logins.password) and not logins.login:
        raise ConfigError(
            f"{path} has no user and password. Fix: add them, or [[login]] for some nodes"
        )
    return logins


def refuse_bad_ca(path: str) -> None:
    """Refuse a file of ``[bmc] ca`` that cannot be read or has no certificate."""
    import ssl  # noqa: PLC0415 - only who asks BMCs needs it

    try:
        ssl.create_default_context(cafile=path)
    except ssl.SSLError:
        fix = "convert it to PEM (-----BEGIN CERTIFICATE-----)"
        raise ConfigError(f"{path}, the ca of [bmc], has no certificate. Fix: {fix}") from None
    except OSError as exc:
        raise ConfigError(f"{path}, the ca of [bmc], cannot be read: {exc.strerror}") from None


def find_addresses(nodes: Collection[str], bmc: Bmcs, path: str) -> dict[str, str]:
    """Find the BMC address of each of *nodes* that has one; *path* is the site file."""
    addresses = {node: bmc.address.replace(NODE_PLACE, node) for node in nodes if bmc.address}
    for hostlist, template in bmc.addresses.items():
        try:
            names = expand(hostlist)
            if NODE_PLACE in template:
                there = [template.replace(NODE_PLACE, name) for name in names]
            else:
                there = [template] if len(names) == 1 else _expand_addresses(template)
        except ConfigError as exc:
            raise ConfigError(f"{path}: bmc.addresses: {exc}") from exc
        if len(there) != len(names):
            raise ConfigError(
                f"{path}: bmc.addresses: {hostlist!r} is {len(names)} nodes, but {template!r} is "
                f"{len(there)} addresses. Fix: write as many, or a template with {NODE_PLACE}"
            )
        addresses |= {name: at for name, at in zip(names, there, strict=True) if name in nodes}
    for node, address in addresses.items():
        if not ADDRESS_PATTERN.fullmatch(address):
            raise ConfigError(
                f"{path}: bmc: {address!r}, for node {node}, is not an address. Fix: write a name "
                "or "
                "an IP address, with :port if it is not 443, and no scheme or path"
            )
    return addresses


def _expand_addresses(given: str) -> list[str]:
    """Expand a host list of addresses, after which may come a port for all of them."""
    hosts, colon, port = given.rpartition(":")
    if colon and port.isdigit():
        return [f"{host}:{port}" for host in expand(hosts)]
    return expand(given)


def list_accesses(site: Site, nodes: Collection[str]) -> dict[str, BmcAccess]:
    """List how to reach the BMC of each of *nodes*; those without an address are left out."""
    bmc = site.bmc
    if not (bmc.address or bmc.addresses) or not bmc.credentials:
        raise ConfigError(
            f'{site.path}: [bmc] is incomplete. Fix: set address, as "{NODE_PLACE}-bmc", and '
            "credentials, the path of a file with user and password"
        )
    if bmc.ca:
        refuse_bad_ca(bmc.ca)
    file = site.find_file("bmc", "addresses" if bmc.addresses else "address")
    logins = read_logins(Path(bmc.credentials))
    by_node: dict[str, tuple[str, str]] = {}
    for login in reversed(logins.login):
        by_node |= dict.fromkeys(expand(login.nodes), (login.user, login.password))
    accesses: dict[str, BmcAccess] = {}
    for node, address in sorted(find_addresses(nodes, bmc, file).items()):
        user, password = by_node.get(node, (logins.user, logins.password))
        if not (user and password):
            raise ConfigError(f"{bmc.credentials} has no user and password for the BMC of {node}")
        accesses[node] = BmcAccess(
            address=address,
            user=user,
            password=password,
            ca=bmc.ca,
            verify=bmc.verify,
            seconds=bmc.seconds,
        )
    return accesses
