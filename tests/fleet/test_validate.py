"""What a site file means to say and does not is named before anybody acts on it."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hpcverify.errors import ConfigError
from hpcverify.fleet.surroundings import check_accounting, check_nodes, check_switches
from hpcverify.fleet.validate import list_notes, refuse_mistakes
from hpcverify.plan.config import Bmcs, Fabric, Fleet, NodeKind, Quarantine, Site, Suppression
from hpcverify.slurm.client import Slurm
from tests.tables import read_table

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


@dataclass(frozen=True)
class Row:
    """A row of a table: settings of a site file, and what is reported of them."""

    site: str
    told: str

    def read_site(self) -> Site:
        settings = tomllib.loads(self.site.replace("; ", "\n"))
        return msgspec.convert({"path": "site.toml", **settings}, Site)


HERE = Path(__file__).parent


@pytest.mark.parametrize("row", read_table(HERE / "site_mistakes.csv", Row), ids=lambda r: r.site)
def test_a_mistake_is_refused_with_the_file_and_the_place(row: Row) -> None:
    with pytest.raises(ConfigError, match=f"^site.toml: .*{row.told}"):
        refuse_mistakes(row.read_site())


@pytest.mark.parametrize("row", read_table(HERE / "site_surprises.csv", Row), ids=lambda r: r.site)
def test_what_may_surprise_is_told_and_not_refused(row: Row) -> None:
    refuse_mistakes(row.read_site())
    notes = [*list_notes(row.read_site(), NOW)]
    assert [note for note in notes if row.told in note], notes


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
            a_site(kinds=(NodeKind(name="air", nodes="n[60-66]"),)),
            "kinds.nodes of air: Slurm has no node n[65-66]",
        ),
        (
            a_site(quarantine=Quarantine(share=1, cap=10000)),
            "quarantine.share = 1 and cap = 10000: all 64 nodes may be drained",
        ),
        (
            a_site(fleet=Fleet(share=1, at_once=100_000)),
            "fleet.share = 1 and at_once = 100000: all 64 nodes may be under verification",
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
    assert [*list_notes(a_site(), NOW)] == []


def test_a_node_at_no_switch_is_told() -> None:
    site = a_site(fabric=Fabric(switches={"a": "n[1-30]", "b": "n[31-62]"}))
    (note,) = check_switches(site, THERE)
    assert "fabric.switches: n[63-64] is not at a switch" in note
    assert [*check_switches(site, THERE[:62])] == []
    assert [*check_switches(a_site(), THERE)] == []


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


def test_without_accounting_an_account_means_nothing() -> None:
    slurm = Slurm(run=lambda _: "AccountingStorageType = (null)\n")
    (note,) = check_accounting(Fleet(account="any"), slurm)
    assert note == "fleet.account = 'any': Slurm does not keep accounts, so it has no effect"
    assert [*check_accounting(Fleet(), slurm)] == []


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


@pytest.mark.parametrize("name", ["bmc", "fabric", "jobs", "past", "peers"])
def test_no_suite_has_the_name_of_another_source_of_faults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("HPCVERIFY_CONFIG", str(tmp_path / "site.toml"))
    (tmp_path / "suites").mkdir()
    (tmp_path / "suites" / f"{name}.toml").touch()

    with pytest.raises(ConfigError, match=f"the suite {name} has a name that hpcverify reserves"):
        refuse_mistakes(a_site())
