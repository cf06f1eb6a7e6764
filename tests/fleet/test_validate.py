"""What a site file means to say and does not is named before anybody acts on it."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pytest

from hpcverify.errors import ConfigError
from hpcverify.fleet.validate import list_notes, refuse_mistakes
from hpcverify.plan.config import Bmcs, Fleet, Quarantine, Site, Suppression

NOW = 1_800_000_000.0
"""In January 2027."""


def a_site(**tables: Any) -> Site:
    """Make a site with these tables."""
    return Site(path="site.toml", **tables)


def silent(**changes: Any) -> Site:
    """Make a site that suppresses a check."""
    usual: dict[str, Any] = {
        "check": "pcie",
        "nodes": "n[1-3]",
        "until": date(2027, 3, 31),
        "reason": "risers are on order",
        "by": "jane",
    }
    return a_site(suppress=(Suppression(**{**usual, **changes}),))


@pytest.mark.parametrize(
    ("site", "told"),
    [
        (
            a_site(quarantine=Quarantine(enforce=("nvlnik",))),
            "quarantine.enforce: no check is called 'nvlnik'; did you mean nvlink?",
        ),
        (
            a_site(quarantine=Quarantine(fail_closed=("xdi",))),
            "quarantine.fail_closed: no check is called 'xdi'; did you mean xid?",
        ),
        (
            a_site(quarantine=Quarantine(backend="command")),
            'quarantine.command: backend = "command" needs the path',
        ),
        (a_site(fleet=Fleet(suite="idel")), "fleet.suite: .*did you mean idle"),
        (a_site(fleet=Fleet(spool="spool")), "'spool' is not an absolute path"),
        (
            a_site(fleet=Fleet(sbatch_options=("--comment=x", "--array=1-9"))),
            "fleet.sbatch_options: '--array=1-9': --array would break a verification",
        ),
        (
            a_site(quarantine=Quarantine(on_transition="bin/told")),
            "quarantine.on_transition: 'bin/told' is not an absolute path",
        ),
        (a_site(bmc=Bmcs(address="bmc.example.com")), "bmc.address: .*put {node} into it"),
        (a_site(bmc=Bmcs(credentials="bmc.toml")), "bmc.credentials: .*not an absolute path"),
        (a_site(bmc=Bmcs(ca="/etc/ca.pem", verify=False)), "bmc.ca: verify = false"),
        (a_site(bmc=Bmcs(addresses={"n[1-3]": "b[1-2]"})), "bmc.addresses: 'n.1-3.' are 3"),
        (a_site(bmc=Bmcs(addresses={"n[1-": "b1"})), "bmc.addresses: 'n.1-' is not a list"),
        (a_site(bmc=Bmcs(address="https://{node}")), "'https://n1', .*write a name or an IP"),
        (a_site(bmc=Bmcs(addresses={"n[7-8]": "{node}/"})), "'n7/', for node n7, is not"),
        (silent(check="pice"), "suppress.check: .*did you mean pcie"),
        (silent(nodes="n[1-3"), "suppress.nodes: .*is not a list of nodes"),
        (silent(nodes=""), "suppress.nodes: .*names no node"),
        (silent(reason=" "), "suppress.reason of pcie must not be empty"),
        (silent(by=""), "suppress.by of pcie must not be empty"),
    ],
)
def test_a_mistake_is_refused_with_the_file_and_the_place(site: Site, told: str) -> None:
    with pytest.raises(ConfigError, match=f"^site.toml: .*{told}"):
        refuse_mistakes(site)


@pytest.mark.parametrize(
    ("site", "told"),
    [
        (
            a_site(quarantine=Quarantine(enforce=("ecc",), fail_closed=("xid",))),
            "fail_closed: xid is not in enforce, so it refuses no job",
        ),
        (
            a_site(bmc=Bmcs(address="{node}-bmc", verify=False)),
            "bmc.verify = false: whoever answers at the address of a BMC gets its password",
        ),
        (
            a_site(bmc=Bmcs(credentials="/no/such.toml")),
            "bmc.credentials: /no/such.toml is not on this machine; only hpcverify bmc needs it",
        ),
        (a_site(bmc=Bmcs(ca="/no/such.pem")), "bmc.ca: /no/such.pem is not on this machine"),
        (a_site(bmc=Bmcs(ca="/etc/passwd")), "bmc: /etc/passwd, the ca of [bmc], has no cert"),
        (silent(until=date(2026, 3, 31)), "suppress: pcie on n[1-3] ended on 2026-03-31"),
        (a_site(fleet=Fleet(spool="/nowhere")), "fleet.spool: /nowhere is not a directory"),
        (
            a_site(quarantine=Quarantine(on_transition="/no/such")),
            "quarantine.on_transition: /no/such is not a program on this machine",
        ),
        (a_site(fleet=Fleet(user="nobdy")), "there is no user 'nobdy'"),
    ],
)
def test_what_may_surprise_is_told_and_not_refused(site: Site, told: str) -> None:
    refuse_mistakes(site)

    (note,) = list_notes(site, NOW)
    assert told in note


@pytest.mark.parametrize(
    ("text", "mode", "told"),
    [
        ('user = "a"\npassword = "s3cret"\n', 0o644, "can be read by other users"),
        ('user = "a"\npasword = "s3cret"\n', 0o600, "did you mean password?"),
        ('[[login]]\nnodes = "n[1-"\nuser = "a"\npassword = "s3cret"\n', 0o600, "not a list"),
    ],
)
def test_a_wrong_file_of_passwords_is_told_by_day(
    tmp_path: Path, text: str, mode: int, told: str
) -> None:
    """Else the round of the night finds it; but a sweep goes on without it."""
    path = tmp_path / "bmc.toml"
    path.write_text(text)
    path.chmod(mode)
    site = a_site(bmc=Bmcs(credentials=str(path)))
    refuse_mistakes(site)

    (note,) = list_notes(site, NOW)
    assert told in note
    assert "s3cret" not in note


def test_a_site_that_means_what_it_says_is_told_nothing(tmp_path: Path) -> None:
    site = a_site(
        fleet=Fleet(spool=str(tmp_path)),
        quarantine=Quarantine(enforce=("*",), fail_closed=("xid",)),
        suppress=silent().suppress,
    )

    refuse_mistakes(site)
    assert [*list_notes(site, NOW)] == []
