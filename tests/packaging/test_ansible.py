"""The Ansible role, on new Debians: a node and the controller of a cluster."""

from __future__ import annotations

import json
import os
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from subprocess import CalledProcessError, run
from typing import Any

import msgspec
import pytest

from hpcverify.plan.config import Site
from tests.packaging.machine import PYTHONS, ROOT, find_package
from tests.packaging.root import Root, find_debian, make_root, run_with
from tests.packaging.wheels import download_wheels

pytestmark = pytest.mark.installs

ROLE = ROOT / "packaging/ansible"
BIN = Path(sys.executable).parent
SPOOL = "/shared/hpcverify/spool"
DROP_IN = "etc/hpcverify/site.d/50-ansible.toml"
SLURM_CONF = "etc/slurm/hpcverify.conf"


@dataclass(frozen=True)
class Play:
    """What a run of the role came to, by host."""

    failures: Mapping[str, str]
    changes: Mapping[str, frozenset[str]]
    """The tasks that changed something, or would."""


@dataclass(frozen=True)
class Cluster:
    """A node and a controller, and what their site sets for the role."""

    folder: Path
    settings: dict[str, Any]
    packages: tuple[Path, ...] = ()
    """That of a node, and what the controller has beside it."""

    @property
    def node(self) -> Root:
        return Root(self.folder / "node")

    @property
    def controller(self) -> Root:
        return Root(self.folder / "controller")

    def play(self, *options: str) -> Play:
        """Run the role on both."""
        hosts = {
            root.folder.name: {
                "ansible_connection": "community.general.chroot",
                "ansible_host": str(root.merged),
                "ansible_python_interpreter": "/usr/bin/python3",
            }
            for root in (self.node, self.controller)
        }
        groups: dict[str, Any] = {
            f"hpcverify_{part}": {
                "hosts": {host: {}},
                "vars": {"hpcverify_package_files": [str(file) for file in files]},
            }
            for part, host, files in (
                ("nodes", "node", self.packages[:1]),
                ("controller", "controller", self.packages),
            )
        }
        inventory = {"all": {"hosts": hosts, "children": groups, "vars": self.settings}}
        return play(self.folder, inventory, *options, roots=(self.node, self.controller))

    def copy(self, folder: Path) -> Cluster:
        """Make another one that is as this one is now."""
        for root in (self.node, self.controller):
            root.copy(folder / root.folder.name)
        return replace(self, folder=folder)


def play(
    folder: Path,
    inventory: Mapping[str, Any],
    *options: str,
    playbook: Path = ROLE / "site.yml",
    roots: tuple[Root, ...] = (),
) -> Play:
    """Run a playbook, and read what Ansible prints as JSON."""
    (folder / "inventory.json").write_text(json.dumps(inventory))
    (folder / "ansible.cfg").write_text(
        f"[defaults]\nhome={folder}/ansible\nroles_path={ROLE}/roles\n"
        "stdout_callback=ansible.posix.json\ndeprecation_warnings=False\n"
    )
    program = (BIN / "ansible-playbook", "-i", folder / "inventory.json")
    environment = os.environ | {"ANSIBLE_CONFIG": str(folder / "ansible.cfg")}
    try:
        output = run_with(roots, *program, *options, playbook, environment=environment).stdout
    except CalledProcessError as failed:
        output = failed.stdout
        if "{" not in output:
            raise AssertionError(output + failed.stderr) from failed
    document = json.loads(output[output.index("{") :])
    answers = [
        (host, task["task"]["name"].removeprefix("hpcverify : "), answer)
        for part in document["plays"]
        for task in part["tasks"]
        for host, answer in task["hosts"].items()
    ]
    return Play(
        failures={
            host: f"{task}: {json.dumps(answer)}"
            for host, task, answer in answers
            if answer.get("failed")
        },
        changes={
            name: frozenset(
                task for host, task, answer in answers if host == name and answer.get("changed")
            )
            for name in document["stats"]
        },
    )


@pytest.fixture(scope="module", params=PYTHONS)
def suite(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def debian(suite: str) -> Path:
    return find_debian(suite)


@pytest.fixture(scope="module")
def debs(suite: str, packages: Path) -> tuple[Path, ...]:
    """Return the packages of the node and of the controller, in the order of their needs."""
    names = ("hpcverify", "hpcverify-controller")
    return tuple(find_package(packages, suite, name) for name in names)


def make_cluster(
    debian: Path, folder: Path, packages: tuple[Path, ...] = (), **settings: Any
) -> Cluster:
    for name in ("node", "controller"):
        root = make_root(debian, folder / name)
        (root.upper / "etc/slurm").mkdir(parents=True)
    return Cluster(folder, {"hpcverify_spool": SPOOL, **settings}, packages)


@pytest.fixture(scope="module")
def installed(
    debian: Path, debs: tuple[Path, ...], tmp_path_factory: pytest.TempPathFactory
) -> Cluster:
    """Run the role once, with packages from files."""
    cluster = make_cluster(
        debian,
        tmp_path_factory.mktemp("cluster"),
        hpcverify_source="file",
        packages=debs,
        hpcverify_slurm_conf_directory="/etc/slurm",
    )
    assert not cluster.play().failures
    return cluster


def read_drop_in(root: Root) -> Any:
    return tomllib.loads((root.upper / DROP_IN).read_text())


def test_check_mode_on_new_hosts_shows_each_change_and_makes_none(
    debian: Path, debs: tuple[Path, ...], tmp_path: Path
) -> None:
    cluster = make_cluster(
        debian,
        tmp_path,
        hpcverify_source="file",
        packages=debs,
        hpcverify_slurm_conf_directory="/etc/slurm",
    )
    shown = cluster.play("--check", "--diff")
    assert not shown.failures
    for root in (cluster.node, cluster.controller):
        assert {path for path in root.list_files() if not path.startswith("/tmp/")} == set()  # noqa: S108 - in the root
    both = {
        "Copy the packages",
        "Say which packages would be installed",
        "Write the settings of the site",
        "Write the lines of slurm.conf that call the hooks",
    }
    assert shown.changes["node"] >= both | {"Write the settings of the hooks"}
    assert shown.changes["controller"] >= both | {
        "Make the spool",
        "Say which timers would be enabled",
    }


def test_a_second_run_changes_nothing(installed: Cluster) -> None:
    again = installed.play()
    assert not again.failures
    assert again.changes == {"node": frozenset(), "controller": frozenset()}


def test_by_default_the_settings_enforce_no_check(installed: Cluster) -> None:
    for root in (installed.node, installed.controller):
        site = msgspec.convert(read_drop_in(root), Site)
        assert (site.fleet.spool, site.fleet.partition) == (SPOOL, "verify")
        assert site.quarantine.enforce == ()


def test_hpcverify_takes_the_settings(installed: Cluster) -> None:
    for root in (installed.node, installed.controller):
        path = f"HPCVERIFY_CONFIG=/{DROP_IN}"
        shown = root.run("env", path, "/opt/hpcverify/bin/hpcverify", "config", "check")
        assert f"site: /{DROP_IN}" in shown


def test_only_root_can_write_what_the_role_writes(installed: Cluster) -> None:
    for path in (DROP_IN, "etc/hpcverify/hooks.conf", SLURM_CONF):
        status = (installed.node.upper / path).stat()
        assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (0, 0, 0o644)


def test_the_hooks_use_the_spool_of_the_role(installed: Cluster) -> None:
    lines = (installed.node.upper / "etc/hpcverify/hooks.conf").read_text().splitlines()
    assert f"HPCVERIFY_SPOOL={SPOOL}" in lines


def test_slurm_observes_with_hooks_that_are_there_and_calls_no_prolog(installed: Cluster) -> None:
    lines = (installed.node.upper / SLURM_CONF).read_text().splitlines()
    settings = dict(line.split("=", 1) for line in lines if "=" in line)
    assert settings.keys() >= {"HealthCheckProgram", "Epilog"}
    assert "Prolog" not in settings
    for program in (value for value in settings.values() if value.startswith("/")):
        installed.node.run("test", "-x", program)


def test_only_the_controller_runs_timers_and_has_the_spool(installed: Cluster) -> None:
    timer = "hpcverify-sweep.timer"
    assert installed.controller.run("systemctl", "is-enabled", timer).strip() == "enabled"
    assert not (installed.node.upper / "etc/systemd/system/timers.target.wants" / timer).exists()
    assert (installed.controller.upper / SPOOL.lstrip("/")).stat().st_mode & 0o777 == 0o755
    assert not (installed.node.upper / SPOOL.lstrip("/")).exists()


def test_a_wrong_setting_is_refused_and_the_last_ones_stay(
    installed: Cluster, tmp_path: Path
) -> None:
    cluster = installed.copy(tmp_path)
    before = read_drop_in(cluster.node)
    wrong = cluster.settings | {"hpcverify_settings": {"fleet": {"at_onze": 3}}}
    assert "did you mean at_once?" in replace(cluster, settings=wrong).play().failures["node"]
    assert read_drop_in(cluster.node) == before


def test_removal_keeps_what_a_person_wrote_and_what_was_found(
    installed: Cluster, tmp_path: Path
) -> None:
    cluster = installed.copy(tmp_path)
    kept = {"/etc/hpcverify/site.d/90-local.toml", "/var/lib/hpcverify/fleet.sqlite"}
    for path in kept:
        file = cluster.controller.upper / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    absent = replace(cluster, settings=cluster.settings | {"hpcverify_state": "absent"})
    assert not absent.play().failures
    for root in (cluster.node, cluster.controller):
        files = root.list_files()
        assert not [path for path in files if path.startswith(("/opt/hpcverify", "/usr/libexec"))]
        assert not [path for path in files if "50-ansible" in path or path.endswith(".timer")]
        # Slurm does not start if a file that it includes is missing.
        assert "=" not in (root.upper / SLURM_CONF).read_text()
    assert kept <= cluster.controller.list_files()
    again = absent.play()
    assert not again.failures
    assert again.changes == {"node": frozenset(), "controller": frozenset()}


def test_nothing_is_removed_while_slurm_calls_the_hooks(installed: Cluster, tmp_path: Path) -> None:
    cluster = installed.copy(tmp_path)
    scontrol = cluster.node.upper / "usr/local/bin/scontrol"
    scontrol.parent.mkdir(parents=True, exist_ok=True)
    scontrol.write_text("#!/bin/sh\necho 'Prolog[0] = /usr/libexec/hpcverify/prolog'\n")
    scontrol.chmod(0o755)
    absent = cluster.settings | {"hpcverify_state": "absent"}
    assert "Slurm calls the hooks" in replace(cluster, settings=absent).play().failures["node"]
    cluster.node.run("test", "-x", "/usr/libexec/hpcverify/prolog")


@pytest.fixture(scope="module")
def from_wheels(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """Run the role once on hosts without a package index, from a wheelhouse with torch."""
    folder = tmp_path_factory.mktemp("offline")
    torch = f"torch=={version('torch')}"
    (wheel,) = packages.glob("*.whl")
    wheelhouse = download_wheels(folder / "wheels", f"{wheel}[cluster]", torch)
    cluster = make_cluster(
        find_debian("bookworm"),
        folder / "cluster",
        hpcverify_source="wheelhouse",
        hpcverify_wheelhouse="/srv/wheels",
        hpcverify_wheels=["hpcverify[cluster]"],
        hpcverify_torch=torch,
    )
    for root in (cluster.node, cluster.controller):
        (root.upper / "srv").mkdir()
        run(["cp", "-al", wheelhouse, root.upper / "srv/wheels"], check=True)
        (root.upper / "etc/pip.conf").write_text("[global]\nno-index = yes\n")
    assert not cluster.play("--check", "--diff").failures
    assert not cluster.play().failures
    return cluster


def test_hosts_without_a_package_index_install_from_a_wheelhouse(from_wheels: Cluster) -> None:
    node, controller = from_wheels.node, from_wheels.controller
    node.run("test", "-x", "/usr/libexec/hpcverify/healthcheck")
    node.run("/opt/hpcverify/bin/python", "-c", "import torch")
    assert controller.run("systemctl", "is-enabled", "hpcverify-sweep.timer").strip() == "enabled"


def test_a_second_run_from_a_wheelhouse_changes_nothing(from_wheels: Cluster) -> None:
    again = from_wheels.play()
    assert not again.failures
    assert again.changes == {"node": frozenset(), "controller": frozenset()}


def test_what_came_from_a_wheelhouse_is_removed(from_wheels: Cluster) -> None:
    """Last, because it takes away what the tests before it look at."""
    absent = replace(from_wheels, settings=from_wheels.settings | {"hpcverify_state": "absent"})
    assert not absent.play().failures
    left = from_wheels.node.list_files() | from_wheels.controller.list_files()
    ours = ("/opt/hpcverify", "/usr/libexec", "/etc/systemd/system/hpcverify")
    assert not [path for path in left if path.startswith(ours)]


def render(folder: Path, template: str, **settings: Any) -> str:
    """Render a template of the role by itself, on this machine."""
    role = ROLE / "roles/hpcverify"
    target = folder / "rendered"
    files = {"src": str(role / "templates" / template), "dest": str(target), "mode": "0644"}
    part = {
        "hosts": "all",
        "gather_facts": False,
        "vars_files": [str(role / "defaults/main.yml"), str(role / "vars/main.yml")],
        "tasks": [{"name": "Render", "ansible.builtin.template": files}],
    }
    playbook = folder / "render.yml"
    playbook.write_text(json.dumps([part]))
    here = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    inventory = {"all": {"hosts": {"here": here}}}
    chosen = json.dumps({"hpcverify_spool": SPOOL, **settings})
    assert not play(folder, inventory, "--extra-vars", chosen, playbook=playbook).failures
    return target.read_text()


def test_settings_of_every_kind_arrive_as_they_are(tmp_path: Path) -> None:
    settings = {
        "scratch": 'C:\\ "tmp" ü',
        "check_packages": ["acme_checks", "b"],
        "limits": {"gemm": {"bf16.sustained": {"low": 1.5, "unit": "TFLOP/s"}, "x": [{"low": 1}]}},
        "params": {"sdc": {"seconds": 20, "on": True}},
        "suppress": [{"check": "pcie", "nodes": "n[1-2]", "until": "2027-03-31"}],
        "quarantine": {"enforce": ["xid"]},
    }
    written = tomllib.loads(render(tmp_path, "50-ansible.toml.j2", hpcverify_settings=settings))
    fleet = {"spool": SPOOL, "user": "root", "partition": "verify"}
    assert written == settings | {"fleet": fleet}


@pytest.mark.parametrize("prolog", [False, True])
def test_slurm_calls_the_prolog_only_where_a_site_asks_for_it(
    tmp_path: Path, *, prolog: bool
) -> None:
    lines = render(tmp_path, "hpcverify.conf.j2", hpcverify_prolog=prolog).splitlines()
    assert ("Prolog=/usr/libexec/hpcverify/prolog" in lines) is prolog
    # Slurm waits for a prolog without limit unless it has one.
    assert any(line.startswith("PrologEpilogTimeout=") for line in lines) is prolog


def test_ansible_lint_and_yamllint_find_nothing(tmp_path: Path) -> None:
    environment = os.environ | {
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "ANSIBLE_HOME": str(tmp_path),
    }
    for command in (("ansible-lint", "--offline", "--strict"), ("yamllint", "--strict", ".")):
        done = run(command, cwd=ROLE, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
