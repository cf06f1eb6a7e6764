"""A run on a node with something that hangs names it, ends in time, and tells the rest."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli import Cli
from tests.fuse import silent_file_system
from tests.nvml_lab.nvmllab import ROOT, Lab


def test_a_hung_mount_is_named_by_the_prolog_and_keeps_nothing_else(
    cli: Cli, tmp_path: Path
) -> None:
    folder = tmp_path / "home"
    folder.mkdir()
    cli.config.parent.mkdir(exist_ok=True)
    cli.config.write_text(
        "[params.host]\ndeadline = 0.5\n"
        f'[[params.host.expect]]\nnodes = "n1"\nmounts = [{{ path = "{folder}" }}]\n'
        '[[params.host.expect]]\nnodes = "n2"\nmounts = [{ path = "/none" }]\n'
    )
    with silent_file_system(folder):
        runs = [json.loads(cli("run", "--suite", "prolog", "--json").stdout) for _ in "ab"]
    results = [{r["check"]: r for r in run["results"]} for run in runs]

    for each in results:
        assert (each["host"]["verdict"], each["host"]["cause"]) == ("error", "hung")
        assert f"{folder}: fuse of silent has not answered" in each["host"]["reason"]
        assert each["inventory"]["verdict"] == "pass"
    assert "since an earlier run" in results[1]["host"]["reason"]
    assert all("/none" not in each["host"]["reason"] for each in results)


HURRIED = (
    sys.executable,
    "-c",
    "from tests.nvml_lab import hurry; hurry.install(); from hpcverify.entry import main; main()",
)
BIND = 'mount --bind "$1" /etc/nsswitch.conf; mount --bind "$2" /etc/resolv.conf; shift 2'
ISOLATED = ("unshare", "--mount", "sh", "-ec", f'{BIND}; exec "$@"', "sh")
"""Runs a command that sees two other files of the name service."""


@contextmanager
def silent_name_server(cli: Cli, folder: Path) -> Generator[None]:
    """Have *cli* look names up at a server that takes each question and answers none."""
    switch, resolver = folder / "nsswitch.conf", folder / "resolv.conf"
    switch.write_text("passwd: files\ngroup: files\nhosts: dns\n")
    resolver.write_text("nameserver 127.0.0.53\noptions timeout:30 attempts:5\n")
    cli.command = (*ISOLATED, str(switch), str(resolver), *cli.command)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.53", 53))
        yield


@pytest.mark.system
@pytest.mark.parametrize("suite", ["prolog", "epilog"])
def test_mounts_names_and_gpus_that_hang_are_named_within_the_budget_and_the_rest_is_kept(
    cli: Cli, lab: Lab, tmp_path: Path, suite: str
) -> None:
    home, data = tmp_path / "home", tmp_path / "data"
    for folder in (home, data):
        folder.mkdir()
    cli.config.write_text(
        '[[params.host.expect]]\nusers = ["root"]\n'
        'hosts = ["filer.example.org", "login.example.org"]\n'
        f'mounts = [{{ path = "{home}" }}, {{ path = "{data}" }}]\n'
    )
    cli.environment["LD_LIBRARY_PATH"] = str(lab.library.parent)
    cli.environment["NVML_LAB_SCENARIO"] = str(lab.scenario)
    lab.write("fault = nvmlInit hang=forever")
    cli.command = HURRIED
    cli.environment["PYTHONPATH"] += f":{ROOT}"

    with silent_file_system(home), silent_file_system(data), silent_name_server(cli, tmp_path):
        run = json.loads(cli("run", "--suite", suite, "--json").stdout)

    results = {r["check"]: r for r in run["results"]}
    host = results["host"]
    assert (host["verdict"], host["cause"]) == ("error", "hung")
    hung = {(f["code"], f["part_id"]) for f in host["findings"]}
    assert {("mount_hung", str(home)), ("mount_hung", str(data))} <= hung
    names = [f["text"] for f in host["findings"] if f["code"] == "names_hung"]
    assert ["filer" in names[0], "login" in names[1]] == [True, True]
    measured = {m["name"] for m in host["measurements"]}
    assert {"cores", "memory.total", "space.size"} <= measured
    assert "nvmlInit did not return" in results["inventory"]["reason"]
    assert results["nic"]["verdict"] != "error"
    assert run["complete"]
