"""``hpcverify setup nhc`` writes a site file that the next command accepts."""

from __future__ import annotations

import importlib
import tomllib
from pathlib import Path

import pytest

from hpcverify.plan.nhc.checks import Imported
from tests.cli import Cli
from tests.plan.nhc.files import SAMPLE


def test_an_nhc_conf_becomes_a_site_file(cli: Cli, tmp_path: Path) -> None:
    conf, site = tmp_path / "nhc.conf", tmp_path / "site.toml"
    conf.write_text(SAMPLE)

    printed = cli("setup", "nhc", str(conf))
    written = cli("setup", "nhc", str(conf), "-o", str(site))
    cli.environment["HPCVERIFY_CONFIG"] = str(site)
    checked = cli("config", "check")

    assert (printed.returncode, written.returncode, checked.returncode) == (0, 0, 0)
    assert printed.stdout == site.read_text()
    assert "[[params.host.expect]]" in printed.stdout
    assert "# line 8: * || check_hw_ib 40\n#   names no device" in printed.stdout
    assert "line 8: * || check_hw_ib 40: names no device" in printed.stderr


def test_a_byte_order_mark_is_not_part_of_the_first_line(cli: Cli, tmp_path: Path) -> None:
    conf = tmp_path / "nhc.conf"
    conf.write_text("* || check_hw_cpuinfo 2 64 64\r\n", encoding="utf-8-sig", newline="")

    printed = cli("setup", "nhc", str(conf))

    assert "sockets = { low = 2, high = 2 }" in printed.stdout
    assert printed.stderr == ""


def test_a_site_file_that_is_there_is_not_overwritten(cli: Cli, tmp_path: Path) -> None:
    conf, site = tmp_path / "nhc.conf", tmp_path / "site.toml"
    conf.write_text(SAMPLE)
    site.write_text('scratch = "/scratch"\n')

    done = cli("setup", "nhc", str(conf), "-o", str(site))

    assert done.returncode == 2
    assert "is there already, and is not overwritten" in done.stderr
    assert done.stderr.count("\n") == 1
    assert site.read_text() == 'scratch = "/scratch"\n'


def test_what_is_no_nhc_conf_is_told_in_one_line(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("[site]\nkey = 1\n")

    for file, says in (("x", "no line as NHC writes them"), ("none", "No such file")):
        done = cli("setup", "nhc", str(tmp_path / file))
        assert done.returncode == 2
        assert says in done.stderr
        assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (
            (
                "* || check_hw_cpuinfo 2 128 128",
                "* || check_fs_mount /x",
                "* || check_hw_cpuinfo 1 2 2",
            ),
            "line 3 (* || check_hw_cpuinfo 1 2 2) contradicts line 1 (* || check_hw_cpuinfo 2 128",
        ),
        (
            ("n1 || check_hw_physmem 200G", "n1 || check_hw_physmem 10G 100G"),
            "check_hw_physmem 200G): memory.total would be at least 200 and at most 100. Fix: give",
        ),
    ],
)
def test_lines_that_no_node_can_meet_together_are_named_with_their_file(
    cli: Cli, tmp_path: Path, lines: tuple[str, ...], says: str
) -> None:
    (tmp_path / "nhc.conf").write_text("\n".join(lines))

    done = cli("setup", "nhc", str(tmp_path / "nhc.conf"))

    assert done.returncode == 2
    assert f"{tmp_path / 'nhc.conf'}: line " in done.stderr
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_size_with_a_decimal_comma_is_left_out_and_named(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "nhc.conf").write_text("* || check_fs_free /tmp 1,5G\n")
    done = cli("setup", "nhc", str(tmp_path / "nhc.conf"))
    assert (
        "line 1: * || check_fs_free /tmp 1,5G: '1,5' is not a size: write a decimal" in done.stderr
    )


EVIL = "\x1b]0;x\x07\x1b[2J\x7f\x9b1m\u2028\u202e"
"""What a terminal acts on, and what no TOML holds as it is."""


def test_nothing_of_an_nhc_conf_reaches_the_terminal_or_the_file_but_as_text(
    cli: Cli, tmp_path: Path
) -> None:
    conf = tmp_path / 'nhc\ncheck_packages = ["evil"]\n#.conf'
    site = tmp_path / "site.toml"
    lines = (f"* || check_{EVIL} 1", f"* || check_fs_mount_rw -f '/mnt/{EVIL}'", SAMPLE)
    conf.write_text("\n".join(lines))

    printed = cli("setup", "nhc", str(conf))
    written = cli("setup", "nhc", str(conf), "-o", str(site))

    assert (printed.returncode, written.returncode) == (0, 0)
    for text in (printed.stdout, printed.stderr, written.stderr, site.read_text()):
        assert all(line.isprintable() for line in text.split("\n"))
    assert tomllib.loads(site.read_text()).keys() == {"params"}
    cli.environment["HPCVERIFY_CONFIG"] = str(site)
    assert cli("config", "check").returncode == 0


@pytest.mark.parametrize("text", [EVIL, 'a"b\\c', "a b", "", "\r\n", "é"])
def test_a_text_comes_back_from_the_site_file_as_it_was(text: str) -> None:
    module = importlib.import_module("hpcverify.commands.nhc")
    expectation = {"path": text, "values": {text: text}}
    site = {"params": {"host": {"expect": [expectation]}}}
    assert tomllib.loads("\n".join(module._write_site(Imported(site, 1, ())))) == site
