"""Services, names and files: what the site needs, both ways."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from hpcverify.check import Unable, Verdict
from hpcverify.model import Cause
from hpcverify.processes import CompletedTool
from hpcverify.testing import judge_items, list_codes
from hpcverify_checks.host import CHECK
from hpcverify_checks.host.apart import ask_apart
from hpcverify_checks.host.needs import Expectation, FileNeed
from hpcverify_checks.host.services import compare_files, list_servers, report_names
from tests.checks.host.nodes import a_node, look
from tests.telemetry.trees import grow

NEED = Expectation(services=("munge", "sssd.service"))


def systemctl(**states: str) -> Any:
    """Answer as systemctl show does; a state of "" is a unit that is not there."""

    def tool(command: list[str], **_: Any) -> CompletedTool:
        assert command[:2] == ["systemctl", "show"]
        blocks = [
            f"Id={unit}\nLoadState={'loaded' if state else 'not-found'}\n"
            f"ActiveState={state or 'inactive'}\nSubState=dead\n"
            for unit in command[3:]
            for state in [states[unit.partition(".")[0]]]
        ]
        return CompletedTool(0, "\n".join(blocks).encode(), b"")

    return tool


def test_a_daemon_with_processes_in_its_cgroup_runs_and_nobody_is_asked(tmp_path: Path) -> None:
    node = a_node(tmp_path / "r")
    for place in ("sys/fs/cgroup/system.slice/munge", "sys/fs/cgroup/systemd/system.slice/sssd"):
        grow(node.root, {f"{place}.service/cgroup.procs": "17\n18"})
        invoke(node.root, f"{place.rpartition('/')[2]}.service")

    assert list_codes(look(tmp_path, node, NEED)) == []


def invoke(root: Path, unit: str) -> None:
    """Leave what systemd keeps of a unit until it is inactive or failed."""
    link = root / "run/systemd/units" / f"invocation:{unit}"
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to("9b0f")


def test_a_daemon_that_failed_and_left_its_children_behind_is_down(tmp_path: Path) -> None:
    """As containerd does with its shims: KillMode=process."""
    node = a_node(tmp_path / "r", tool=systemctl(containerd="failed"))
    grow(node.root, {"sys/fs/cgroup/system.slice/containerd.service/cgroup.procs": "17"})

    found = look(tmp_path, node, Expectation(services=("containerd",)))

    assert list_codes(found) == ["service_down"]


@pytest.mark.parametrize(
    ("sssd", "codes"),
    [
        ("active", []),
        ("failed", ["service_down"]),
        ("inactive", ["service_down"]),
        ("activating", ["service_down"]),
        ("", ["service_down"]),
    ],
)
def test_others_are_asked_for_in_one_call(tmp_path: Path, sssd: str, codes: list[str]) -> None:
    node = a_node(tmp_path / "r", tool=systemctl(munge="active", sssd=sssd))

    found = look(tmp_path, node, NEED)

    assert list_codes(found) == codes
    assert judge_items(CHECK, found).verdict is (Verdict.ERROR if codes else Verdict.PASS)


def test_without_systemd_nothing_is_guessed(tmp_path: Path) -> None:
    def no_bus(*_: object, **__: object) -> CompletedTool:
        return CompletedTool(1, b"", b"System has not been booted with systemd\n")

    def missing(*_: object, **__: object) -> CompletedTool:
        raise Unable("systemctl is not installed: install it", Cause.MISSING)

    for tool in (no_bus, missing):
        found = look(tmp_path, a_node(tmp_path / "r", tool=tool), NEED)
        assert list_codes(found) == ["service_unknown"]


def test_real_names_are_known_and_invented_ones_are_not(tmp_path: Path) -> None:
    known = Expectation(users=("root",), hosts=("localhost",))
    invented = Expectation(users=("no-such-user",), hosts=("no-such-host.invalid",))

    assert list_codes(look(tmp_path, a_node(tmp_path / "r"), known)) == []
    codes = list_codes(look(tmp_path, a_node(tmp_path / "r"), invented))
    assert set(codes) <= {"name_unknown", "names_hung"}  # a DNS that is away may not answer
    assert "name_unknown" in codes


def test_a_name_service_that_hangs_is_named_and_keeps_nobody() -> None:
    replies = ask_apart({"user of no name": lambda: time.sleep(60)}, 0.3)
    found = list(report_names(replies, "sss"))
    judged = judge_items(CHECK, found)

    assert list_codes(found) == ["names_hung"]
    assert (judged.verdict, judged.cause) == (Verdict.ERROR, Cause.TIMEOUT)
    assert "sss" in judged.reason


@pytest.mark.parametrize(
    ("line", "servers"),
    [
        ("passwd:  files systemd", ""),
        ("passwd: files sss [NOTFOUND=return] ldap # nis", "sss, ldap"),
        ("group: ldap", ""),
    ],
)
def test_only_a_name_service_with_a_server_is_asked(
    tmp_path: Path, line: str, servers: str
) -> None:
    assert list_servers(grow(tmp_path, {"etc/nsswitch.conf": line})) == servers


@pytest.mark.needs("root")
@pytest.mark.parametrize(
    ("need", "codes"),
    [
        ({}, 0),
        ({"type": "file", "mode": "0644", "user": "root", "group": "0", "empty": False}, 0),
        ({"contains": ("root:x:*", "/^dæmon/", "!nobody*")}, 0),
        ({"type": "directory"}, 1),
        ({"mode": "1000"}, 1),
        ({"mode": "0600"}, 0),
        ({"mode": "=0644"}, 0),
        ({"mode": "=0600"}, 1),
        ({"user": "nobody"}, 1),
        ({"group": "12345"}, 1),
        ({"empty": True}, 1),
        ({"contains": ("nobody*", "!root*")}, 2),
    ],
)
def test_files_are_held_to_what_the_site_needs(
    tmp_path: Path, need: dict[str, Any], codes: int
) -> None:
    path = tmp_path / "passwd"
    path.write_text("root:x:0:0\ndæmon:x:1:1\n")
    path.chmod(0o644)

    found = list(compare_files([FileNeed(path=str(path), **need)], 5))

    assert list_codes(found) == ["file_wrong"] * codes


def test_the_type_of_a_file_is_told_and_nobody_sent_to_replace_it(tmp_path: Path) -> None:
    need = FileNeed(path=str(tmp_path), type="file")

    (found,) = compare_files([need], 5)

    assert found.text == (
        "is of type directory, not file: see who made it, or correct params.host.expect"
    )


def test_lines_are_compared_without_the_space_around_them_however_long_the_file(
    tmp_path: Path,
) -> None:
    path = tmp_path / "log"
    path.write_text("x" * 2**20 + "\n  ready \n")

    assert list(compare_files([FileNeed(path=str(path), contains=("ready",))], 5)) == []


def test_what_lies_on_a_mount_that_hangs_is_not_asked(tmp_path: Path) -> None:
    """Else each run would leave another process behind."""
    need = FileNeed(path=str(tmp_path / "none"))

    assert list(compare_files([need], 5, [str(tmp_path)])) == []


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    found = list(compare_files([FileNeed(path=str(tmp_path / "none"))], 5))

    assert [f.part_id for f in found] == [str(tmp_path / "none")]
    assert found[0].text.startswith("No such file")
