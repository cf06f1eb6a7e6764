"""A fresh Debian: one command to install, one to a verdict, and nothing left behind."""

from __future__ import annotations

import json
import re

import pytest

from tests.packaging.machine import ROOT, Machine

pytestmark = pytest.mark.installs

LIMIT_MIB = 60
HOOKS = ("prolog", "epilog", "healthcheck", "hooks.sh")
KEPT = {"/etc/hpcverify", "/var/lib/hpcverify"}
"""What an administrator made, or may need again."""


def test_one_command_gives_a_verdict_with_plain_python(machine: Machine) -> None:
    machine.run("hpcverify", "run", "--suite", "prolog", "-o", "/root/run.json")
    run = json.loads(machine.run("cat", "/root/run.json"))
    passed = {result["check"] for result in run["results"] if result["verdict"] == "pass"}
    assert passed >= {"inventory", "host", "kernel_log"}
    assert run["verdict"] == "pass"


def test_doctor_misses_torch_and_the_tools_that_the_package_recommends(machine: Machine) -> None:
    doctor = machine.enter("hpcverify", "doctor").stdout
    missing = set(re.findall(r"^fix (\w+): missing", doctor, re.MULTILINE))
    assert missing == {"fio", "smartctl", "torch"}, doctor


def test_the_environment_of_a_node_is_small(machine: Machine) -> None:
    assert int(machine.run("du", "-sk", "/opt/hpcverify").split()[0]) <= LIMIT_MIB * 1024


def test_everything_is_compiled_so_that_commands_start_fast(machine: Machine) -> None:
    compiled = machine.shell("ls /opt/hpcverify/lib/*/site-packages/hpcverify/__pycache__")
    assert "entry.cpython-" in compiled


def test_a_shell_completes_commands(machine: Machine) -> None:
    completed = machine.run(
        *("bash", "-c"),
        "source /usr/share/bash-completion/completions/hpcverify\n"
        "COMP_WORDS=(hpcverify re) COMP_CWORD=1\n"
        "_hpcverify_completion hpcverify re hpcverify\n"
        'echo "${COMPREPLY[@]}"',
    )
    assert set(completed.split()) >= {"report"}


def test_hooks_are_those_of_the_checkout(machine: Machine) -> None:
    for name in HOOKS:
        assert machine.run("cat", f"/usr/libexec/hpcverify/{name}") == read_hook(name)


def test_libraries_of_the_package_are_not_replaced_by_pip(machine: Machine) -> None:
    command = ("/opt/hpcverify/bin/pip", "uninstall", "--yes", "click")
    assert "Cannot uninstall click" in machine.enter(*command).stdout
    assert machine.run("hpcverify", "--help")


def test_an_upgrade_keeps_what_the_site_made_and_nothing_of_the_old_version(
    machine: Machine,
) -> None:
    package = machine.package("hpcverify")
    older = machine.make_older(
        package,
        "echo 'exit 0' >usr/libexec/hpcverify/prolog\n"
        'touch "$(echo opt/hpcverify/lib/*/site-packages/hpcverify)/gone_since.py"',
    )
    machine.shell("apt-get purge -y -qq hpcverify")
    machine.run("dpkg", "-i", older)
    machine.shell(
        "hpcverify run --suite prolog\n"
        "echo 'scratch = \"/tmp\"' >>/etc/hpcverify/site.toml\n"
        "echo '[fleet]' >/etc/hpcverify/site.d/50-site.toml"
    )
    site = machine.run("cat", "/etc/hpcverify/site.toml")
    runs = machine.list_files("/var/lib/hpcverify")
    assert machine.list_files("gone_since")
    machine.run("dpkg", "-i", package)

    assert machine.run("cat", "/etc/hpcverify/site.toml") == site
    assert machine.run("cat", "/etc/hpcverify/site.d/50-site.toml") == "[fleet]\n"
    assert machine.list_files("/var/lib/hpcverify") == runs
    assert any(path.endswith(".json") for path in runs)
    assert machine.run("cat", "/usr/libexec/hpcverify/prolog") == read_hook("prolog")
    assert not machine.list_files("gone_since")


def test_removal_leaves_configuration_and_data_and_purge_leaves_nothing(machine: Machine) -> None:
    machine.shell(
        "mkdir -p /opt/hpcverify/lib/torch /var/lib/hpcverify; touch /opt/hpcverify/lib/torch/x"
    )
    machine.shell("apt-get remove -y -qq hpcverify")
    left = machine.list_files()
    assert {path for path in left if not any(path.startswith(kept) for kept in KEPT)} == set()
    assert left >= KEPT | {"/etc/hpcverify/site.toml"}

    machine.shell("apt-get purge -y -qq hpcverify")
    assert machine.list_files() == set()


def test_an_environment_that_somebody_made_is_not_overwritten(machine: Machine) -> None:
    machine.shell("apt-get purge -y -qq hpcverify; mkdir -p /opt/hpcverify/bin")
    machine.shell("touch /opt/hpcverify/bin/own")
    refused = machine.enter("dpkg", "-i", machine.package("hpcverify"))

    assert refused.returncode != 0
    assert "/opt/hpcverify exists and belongs to no package: move it away" in refused.stdout
    assert machine.run("find", "/opt/hpcverify", "-type", "f") == "/opt/hpcverify/bin/own\n"


def test_the_rpm_compiles_upgrades_and_leaves_configuration_and_data(machine: Machine) -> None:
    machine.shell("apt-get purge -y -qq hpcverify")
    machine.run("apt-get", "install", "-y", "-qq", "rpm", network=True)
    rpm = machine.package("hpcverify", "rpm")
    machine.run("rpm", "-i", "--nodeps", rpm)  # dpkg has what it needs
    assert machine.list_files("hpcverify/__pycache__")
    machine.run("hpcverify", "run", "--suite", "prolog")
    machine.shell("echo 'scratch = \"/tmp\"' >>/etc/hpcverify/site.toml")
    machine.run("rpm", "-U", "--force", "--nodeps", rpm)
    assert machine.run("tail", "-n1", "/etc/hpcverify/site.toml") == 'scratch = "/tmp"\n'
    assert machine.list_files("hpcverify/__pycache__")

    machine.run("rpm", "-e", "hpcverify")
    left = machine.list_files() - {rpm}
    assert {path for path in left if not any(path.startswith(kept) for kept in KEPT)} == set()
    assert "/var/lib/hpcverify/store.sqlite" in left


def read_hook(name: str) -> str:
    return (ROOT / "slurm" / name).read_text()
