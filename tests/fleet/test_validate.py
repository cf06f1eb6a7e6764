"""What a site file means to say and does not is named before anybody acts on it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from hpcverify.errors import ConfigError
from hpcverify.fleet.surroundings import check_accounting, check_nodes
from hpcverify.fleet.validate import list_notes, refuse_mistakes
from hpcverify.model import Verdict
from hpcverify.peers.floors import PeerFloor
from hpcverify.plan.config import Bmcs, Fabric, Fleet, Quarantine, Site, Suppression, TextFiles
from hpcverify.slurm.client import Slurm

NOW = 1_800_000_000.0
"""In January 2027."""


def a_site(**tables: Any) -> Site:
    return Site(path="site.toml", **tables)


def silent(**changes: Any) -> Site:
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
            a_site(metrics=TextFiles(directory="textfiles")),
            "metrics.directory = 'textfiles' must begin with /",
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
        (a_site(fabric=Fabric(switches={"leaf0": "n[1-"})), "fabric.switches.leaf0: 'n.1-' is not"),
        (a_site(fabric=Fabric(switches={"leaf0": ""})), "fabric.switches.leaf0: .*no node"),
        (a_site(peers=(PeerFloor(check="gem", floor=0.1),)), "peers.check: .*did you mean gemm"),
        (
            a_site(peers=(PeerFloor(check="gemm", floor=0.1, otherwise=Verdict.PASS),)),
            'peers.otherwise of gemm: "pass" must be warn or fail',
        ),
        (
            a_site(peers=(PeerFloor(floor=0.1, otherwise=Verdict.ERROR),)),
            'peers.otherwise of .: "error" must be warn or fail',
        ),
        (a_site(fleet=Fleet(planned_reasons=("course", "*"))), "planned_reasons: '.' fits every"),
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
            a_site(bmc=Bmcs(address="{node}-bmc", verify=False, credentials="/no/such.toml")),
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
        (a_site(fleet=Fleet(suite="prolog")), "fleet.suite: prolog has only passive checks"),
        (a_site(fleet=Fleet(gate_hours=0.01)), "gate_hours = 0.01: a gate file expires before"),
        (
            a_site(fleet=Fleet(fresh_hours=9000)),
            "fresh_hours = 9000: a node that passed waits for 375",
        ),
        (
            a_site(fleet=Fleet(fresh_hours=48, overdue_days=1)),
            "overdue_days = 1 is less than fresh_hours = 48",
        ),
        (
            a_site(quarantine=Quarantine(enforce=("*",), fail_closed=("gemm",))),
            "fail_closed: gemm is not in the suite prolog, so it refuses no job",
        ),
        (
            a_site(quarantine=Quarantine(backend="command", command="/no/such")),
            "quarantine.command: /no/such is not a program on this machine",
        ),
        (a_site(bmc=Bmcs(address="{node}-bmc")), "bmc: there are addresses and no credentials"),
        (
            a_site(fabric=Fabric(switches={"a": "n[1-4]", "b": "n[4-8]"})),
            "fabric.switches: n4 is at a and b; a counts",
        ),
        (
            a_site(peers=(PeerFloor(check="gemm", metric="bandwith", floor=0.1),)),
            "peers.metric: no check gemm measures 'bandwith'",
        ),
    ],
)
def test_what_may_surprise_is_told_and_not_refused(site: Site, told: str) -> None:
    refuse_mistakes(site)
    notes = [*list_notes(site, NOW)]
    assert [note for note in notes if told in note], notes


@pytest.mark.parametrize("mode", [0o777, 0o1777])
def test_a_spool_that_all_can_write_to_is_told(tmp_path: Path, mode: int) -> None:
    site = a_site(fleet=Fleet(spool=str(tmp_path)))
    assert [*list_notes(site, NOW)] == []
    tmp_path.chmod(mode)
    (note,) = list_notes(site, NOW)
    assert f"chmod o-w {tmp_path}" in note


@pytest.mark.needs("root")
@pytest.mark.parametrize("name", ["on_transition", "command"])
def test_a_program_that_all_can_write_to_is_told(tmp_path: Path, name: str) -> None:
    program = tmp_path / "told"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o777)
    site = a_site(quarantine=Quarantine(backend="command", command=str(program)))
    if name == "on_transition":
        site = a_site(quarantine=Quarantine(on_transition=str(program)))

    (note,) = list_notes(site, NOW)
    assert note.startswith(f"quarantine.{name}: {program} can be changed by other users")
    program.chmod(0o755)
    assert [*list_notes(site, NOW)] == []


THERE = [f"n{number}" for number in range(1, 65)]


@pytest.mark.parametrize(
    ("site", "told"),
    [
        (silent(nodes="n[60-66]"), "suppress.nodes: Slurm has no node n[65-66]"),
        (a_site(fabric=Fabric(switches={"a": "m1"})), "fabric.switches.a: Slurm has no node m1"),
        (a_site(bmc=Bmcs(addresses={"m1": "b1"})), "bmc.addresses: Slurm has no node m1"),
        (
            a_site(quarantine=Quarantine(share=1, cap=10000)),
            "quarantine.share = 1 and cap = 10000: all 64 nodes may be drained",
        ),
    ],
)
def test_what_fits_no_node_of_slurm_is_told(site: Site, told: str) -> None:
    refuse_mistakes(site)
    (note,) = check_nodes(site, THERE)
    assert told in note


def test_limits_and_names_that_fit_the_cluster_are_told_nothing() -> None:
    assert [*check_nodes(silent(nodes="n[1-64]"), THERE)] == []
    assert [*check_nodes(a_site(), THERE[:2])] == []


def answer(command: Sequence[str]) -> str:
    """Answer as a Slurm that keeps accounts."""
    if command[0] == "sacctmgr":
        return "root\nhpc\n" if "account" in command else "normal\nverify\n"
    return "AccountingStorageType = accounting_storage/slurmdbd\n"


@pytest.mark.parametrize(
    ("fleet", "told"),
    [
        (Fleet(account="hcp"), ["fleet.account: no account is called 'hcp'; did you mean hpc?"]),
        (Fleet(qos="verfy"), ["fleet.qos: no qos is called 'verfy'; did you mean verify?"]),
        (Fleet(account="hpc", qos="verify"), []),
        (Fleet(), []),
    ],
)
def test_an_account_or_a_qos_of_none_is_told(fleet: Fleet, told: list[str]) -> None:
    assert [*check_accounting(fleet, Slurm(run=answer))] == told


def test_without_accounting_no_account_is_looked_for() -> None:
    slurm = Slurm(run=lambda _: "AccountingStorageType = (null)\n")
    assert [*check_accounting(Fleet(account="any"), slurm)] == []


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
