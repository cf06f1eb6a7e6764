"""``hpcverify config`` shows what is in force, and names the file of each mistake."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from tests.cli import Cli

LIMIT = "'fp32.sustained' = {low = 1, unit = 'GFLOP/s'}"
SILENT = 'check = "pcie"\nnodes = "n1"\nuntil = 2031-01-31\nreason = "a \\"b\\""\nby = "jane"'


def drop_in(cli: Cli, name: str, text: str) -> Path:
    path = cli.config.with_name("site.d") / f"{name}.toml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def test_each_value_is_shown_with_the_file_that_decides_it(cli: Cli) -> None:
    cli.site(f"[fleet]\nat_once = 3\nshare = 0.25\n[limits.gemm]\n{LIMIT}")
    strong = str(drop_in(cli, "50", f"[fleet]\nat_once = 5\n[[suppress]]\n{SILENT}"))

    shown = json.loads(cli("config", "show", "--json").stdout)
    assert {item["setting"]: (item["value"], item["file"]) for item in shown} == {
        "check_packages": (["acme_checks"], str(cli.config)),
        "fleet.at_once": (5, strong),
        "fleet.share": (0.25, str(cli.config)),
        'limits.gemm."fp32.sustained"[0]': ({"low": 1, "unit": "GFLOP/s"}, str(cli.config)),
        "suppress[0]": (
            {
                "check": "pcie",
                "nodes": "n1",
                "until": "2031-01-31",
                "reason": 'a "b"',
                "by": "jane",
            },
            strong,
        ),
    }


def test_what_is_shown_is_a_site_file_that_says_the_same(cli: Cli) -> None:
    expect = "[[params.host.expect]]\nfiles = [{ path = '/etc/motd', contains = ['a # b'] }]"
    cli.site(f"[fleet]\nshare = 0.25\n[limits.gemm]\n{LIMIT}\n[[suppress]]\n{SILENT}\n{expect}")
    drop_in(cli, "50", "[fabric.switches]\n'rack 1' = 'n[1-3]'\n[params.storage]\nseconds = 3")

    shown = cli("config", "show").stdout
    before = cli("config", "show", "--json").stdout
    assert tomllib.loads(shown)["fabric"]["switches"] == {"rack 1": "n[1-3]"}
    (cli.config.with_name("site.d") / "50.toml").unlink()
    cli.config.write_text(shown)
    after = json.loads(cli("config", "show", "--json").stdout)
    assert [i | {"file": ""} for i in after] == [i | {"file": ""} for i in json.loads(before)]


def test_without_a_file_there_is_nothing_to_show(cli: Cli) -> None:
    cli.config.write_text("")
    assert json.loads(cli("config", "show", "--json").stdout) == []
    assert tomllib.loads(cli("config", "show").stdout) == {}


def test_check_lists_every_file(cli: Cli) -> None:
    path = drop_in(cli, "50", "[fleet]\nat_once = 5\n")
    done = cli("config", "check")
    assert done.returncode == 0
    assert done.stdout.splitlines()[:2] == [f"site: {cli.config}", f"site: {path}"]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("at_once = ", "not TOML"),
        ("[fleet]\nsuite = 'idel'", "fleet.suite: "),
        ("[quarantine]\nenforce = ['xdi']", "quarantine.enforce: "),
        ("[quarantine]\nbackend = 'command'", "quarantine.command: "),
        ("[fabric.switches]\nleaf0 = 'n[1-'", "fabric.switches.leaf0: "),
        ("[bmc]\naddress = 'https://{node}'", "bmc: 'https://n1'"),
        ("[bmc.addresses]\n'n[1-2]' = 'b1'", "bmc.addresses: "),
        ("[bmc]\ncredentials = 'x'", "bmc.credentials: "),
        (f"[[suppress]]\n{SILENT.replace('pcie', 'pice')}", "suppress.check: "),
        ("[[peers]]\ncheck = 'gem'\nfloor = 0.1", "peers.check: "),
        ("[[kinds]]\nname = 'air'\nnodes = ''", "kinds.nodes of air: "),
        ("[[kinds]]\nname = 'air'\nnode = 'n1'", "Object contains unknown field `node`"),
    ],
)
def test_each_mistake_is_named_with_its_file(cli: Cli, text: str, fault: str) -> None:
    """The site file has the same list, and other settings of the same table."""
    cli.site(
        "[fleet]\nat_once = 3\n[quarantine]\nshare = 0.2\n[fabric]\nperiod_days = 1\n"
        f"[bmc]\nseconds = 60\n[[suppress]]\n{SILENT}\n[[peers]]\nfloor = 0.2"
    )
    path = drop_in(cli, "50", text)
    drop_in(cli, "60", "[fleet]\nfresh_hours = 1\n")

    done = cli("config", "check")
    assert done.returncode == 2
    assert done.stderr.startswith(f"hpcverify: {path}: {fault}")
    assert done.stderr.count("\n") == 1


def test_a_run_of_a_hook_refuses_a_damaged_drop_in_as_it_does_a_site_file(cli: Cli) -> None:
    cli.suite("tiny", "[[check]]\nname = 'steady'\n")
    path = drop_in(cli, "50", "at_once = ")
    done = cli("run", "--suite", "tiny")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"hpcverify: {path}: not TOML")
