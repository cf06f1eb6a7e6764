"""Each check of NHC is turned, or it is said why not; what is turned means the same."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hpcverify.plan.config import Site, convert_config
from hpcverify.plan.nhc.checks import REASONS, TURNERS, import_nhc
from hpcverify.plan.nhc.syntax import Line, Unturned, read_lines
from hpcverify.plan.suite import load_suite, make_plan
from hpcverify_checks.host.needs import Expectation, HostParams, names_node
from tests.plan.nhc.files import CLOUD, SAMPLE, UNIVERSITY
from tests.tables import read_table

HERE = Path(__file__).parent
BUILT_IN = {*(HERE / "built_in.txt").read_text().split()}
"""Every function check_* under scripts/ of mej/nhc."""


@dataclass(frozen=True)
class Turned:
    """A row of ``turned.csv``: a check of NHC, and what it becomes, as JSON."""

    check: str
    key: str
    piece: str


@dataclass(frozen=True)
class NotTurned:
    """A row of ``not_turned.csv``: a line, and words of why it is not turned."""

    line: str
    reason: str


def turn(*lines: str) -> dict[str, Any]:
    """Turn lines that must all be turned whole, and return the one expectation."""
    imported = import_nhc("\n".join(lines))
    assert not imported.unturned, imported.unturned
    (expectation,) = imported.site["params"]["host"]["expect"]
    msgspec.convert(expectation, Expectation)
    assert expectation.pop("nodes") == "*"
    return dict(expectation)


def reason(line: str) -> str:
    """Say why *line* was not turned, or what of it is lost."""
    (unturned,) = import_nhc(line).unturned
    assert (unturned.number, unturned.text) == (1, line)
    return unturned.reason


def test_every_check_of_nhc_is_turned_or_has_a_reason() -> None:
    assert TURNERS.keys() | REASONS.keys() == BUILT_IN
    assert not TURNERS.keys() & REASONS.keys()


@pytest.mark.parametrize("name", sorted(REASONS))
def test_a_check_without_a_counterpart_says_why(name: str) -> None:
    assert reason(f"* || {name} 1") == REASONS[name]


@pytest.mark.parametrize("row", read_table(HERE / "turned.csv", Turned), ids=lambda r: r.check)
def test_a_check_becomes_what_means_the_same(row: Turned) -> None:
    assert turn(f"* || {row.check}") == {row.key: [json.loads(row.piece)]}


@pytest.mark.parametrize(
    ("check", "bounds"),
    [
        ("check_hw_cpuinfo 2 64", {"sockets": (2, 2), "cores": (64, 64)}),
        ("check_hw_physmem 128gb 128gb", {"memory.total": (128, 128)}),
        ("check_hw_physmem 128gb 128gb 25%", {"memory.total": (102.4, 170.666667)}),
        ("check_hw_physmem 128gb 128gb 2gb", {"memory.total": (126, 130)}),
        ("check_hw_swap 0kB 0kB 3%", {"swap.total": (0, 0)}),
        ("check_hw_physmem_free 1gb", {"memory.available": (1, None)}),
        ("check_hw_swap_free 1048576", {"swap.free": (1, None)}),
        ("check_ps_loadavg 24 20", {"load.1m": (None, 24), "load.5m": (None, 20)}),
    ],
)
def test_a_number_becomes_a_bound(check: str, bounds: dict[str, tuple[Any, Any]]) -> None:
    found = turn(f"* || {check}")["bounds"]
    assert {n: (b.get("low"), b.get("high")) for n, b in found.items()} == bounds


def test_a_port_of_infiniband_becomes_its_files() -> None:
    files = turn("* || check_hw_ib 200 mlx5_ib0:1")["files"]

    folder = "/sys/class/infiniband/mlx5_ib0/ports/1"
    assert files == [
        {"path": f"{folder}/state", "contains": ["*ACTIVE"]},
        {"path": f"{folder}/phys_state", "contains": ["*LinkUp"]},
        {"path": f"{folder}/rate", "contains": ["200 *"]},
    ]


@pytest.mark.parametrize(
    "row", read_table(HERE / "not_turned.csv", NotTurned), ids=lambda r: r.line
)
def test_what_is_not_turned_is_told_with_its_reason(row: NotTurned) -> None:
    assert import_nhc(row.line).site == {}
    assert row.reason in reason(row.line)


@pytest.mark.parametrize("action", ["-s", "-k", "-E 'service x stop'", "-s -S"])
def test_a_service_that_nhc_stops_must_not_run(action: str) -> None:
    imported = import_nhc(f"* || check_ps_service {action} -u root ntpd")
    (expectation,) = imported.site["params"]["host"]["expect"]
    assert expectation["processes"] == [{"name": "ntpd", "user": "root", "running": False}]
    assert "does not repair" in imported.unturned[0].reason


def test_two_lines_about_one_number_must_both_hold() -> None:
    turned = turn("* || check_hw_physmem 64gb 128gb", "* || check_hw_physmem 32gb 96gb")
    assert turn("* || check_ps_loadavg 9", "* || check_ps_loadavg 8") == {
        "bounds": {"load.1m": {"high": 8}}
    }
    assert turned["bounds"]["memory.total"] == {"low": 64, "high": 96}


def test_a_line_goes_on_after_a_backslash() -> None:
    (line,) = read_lines("* || check_fs_mount_rw \\\n   -f /home")
    assert isinstance(line, Line)
    assert (line.number, line.words) == (1, ("check_fs_mount_rw", "-f", "/home"))


@pytest.mark.parametrize("target", ["x*.cluster.example.org", "n1.x", "!n1.x"])
def test_a_target_with_a_domain_is_turned_and_told(target: str) -> None:
    imported = import_nhc(f"{target} || check_fs_mount_rw /")
    assert imported.turned == 1
    assert "full domain name" in imported.unturned[0].reason
    assert not import_nhc("{n[1-4]} || check_fs_mount_rw /").unturned


def test_what_is_lost_of_a_line_that_is_turned_is_told_too() -> None:
    imported = import_nhc("* || check_ps_service -u root -S sshd")
    assert imported.turned == 1
    assert "does not repair" in imported.unturned[0].reason


@pytest.mark.parametrize(
    ("target", "names", "others"),
    [
        ("*", ["n1"], []),
        ("gpu*", ["gpu1"], ["n1"]),
        ("!gpu*", ["n1"], ["gpu1"]),
        ("/^s(has|gpu)/", ["shas1"], ["ssky1"]),
        ("{n[01-64],login1}", ["n01", "n64", "login1"], ["n65", "n1", "login2"]),
        ("!{n[01-64]}", ["n65"], ["n64"]),
        ("n[0-3]", ["n0", "n3"], ["n4", "n12"]),  # a glob: one character
        ("n0[1-3]*", ["n01", "n033"], ["n04"]),
        ("n?", ["n1"], ["n12"]),
    ],
)
def test_a_target_names_the_same_nodes(target: str, names: list[str], others: list[str]) -> None:
    (line,) = read_lines(f"{target} || check_fs_mount_rw /")
    assert isinstance(line, Line)
    assert [n for n in (*names, *others) if names_node(line.target, n)] == names


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{n[5-1]} || check_hw_eth eth0", "'5-1' is not a range"),
        ("* || check_file_test -f etc/passwd", "path"),
        ("* || check_fs_free /tmp 110%", "(10 % is 0.1), not 1.1"),
        ("* || check_file_stat -m 0100644 /etc/passwd", "mode"),
    ],
)
def test_a_line_that_host_would_refuse_spoils_no_other(line: str, why: str) -> None:
    imported = import_nhc(f"{line}\n* || check_hw_eth eth1\n")

    assert imported.turned == 1
    (unturned,) = imported.unturned
    assert unturned.number == 1
    assert unturned.reason.startswith("the check host refuses it: ")
    assert why in unturned.reason


def test_lines_of_one_target_are_one_expectation() -> None:
    text = "a* || check_fs_mount_rw /\nb* || check_hw_eth e0\na* || check_hw_cpuinfo 1 2 4"
    assert [e["nodes"] for e in import_nhc(text).site["params"]["host"]["expect"]] == ["a*", "b*"]


def test_comments_and_empty_lines_say_nothing() -> None:
    lines = list(read_lines("\n  # x || y\n* || check_fs_mount_rw / # trailing\n"))
    assert [line.words for line in lines if isinstance(line, Line)] == [("check_fs_mount_rw", "/")]
    assert not [line for line in lines if isinstance(line, Unturned)]


@pytest.mark.parametrize(
    ("text", "turned", "left"),
    [(SAMPLE, 14, 6), (UNIVERSITY, 8, 8), (CLOUD, 5, 2)],
    ids=["sample", "university", "cloud"],
)
def test_files_of_sites_become_sound_site_files(
    tmp_path: Path, text: str, turned: int, left: int
) -> None:
    imported = import_nhc(text)
    plan = make_plan(load_suite("prolog"), convert_config(imported.site, Site, str(tmp_path)))
    (params,) = (step.params for step in plan.steps if step.name == "host")

    assert isinstance(params, HostParams)
    assert params.expect
    assert (imported.turned, len(imported.unturned)) == (turned, left)
