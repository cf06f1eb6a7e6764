"""The packages on a real Slurm of two nodes, booted with systemd, by the commands of the book."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from hpcverify.slurm.requirements import Place, Stage
from tests.docs.blocks import list_blocks
from tests.docs.pages import ROOT
from tests.packaging.machine import PYTHONS, Booted, Machine, connect
from tests.slurm.plan import edit_conf, read_plan
from tests.waiting import wait_until

pytestmark = pytest.mark.installs

INSTALL, SLURM = (ROOT / "docs/how-to" / name for name in ("install.md", "slurm.md"))
OBSERVED_BY = "hpcverify nodes"
"""The last command of the first stage."""
RELOAD = "scontrol reconfigure"
EVERYWHERE = "each node"
"""What a comment says of a command that is run on both machines."""
MAX_COMMANDS = 9
PACKAGES = ("hpcverify", "hpcverify-controller")
SWEEP = "hpcverify-sweep"
TIMERS = (f"{SWEEP}.timer", "hpcverify-bmc.timer")
USERS_JOB = "runuser -u nobody -- srun --nodes=2 true"
SPOOL = Path("hpcverify/spool")
"""Within the file system that is shared."""
APT = 'APT::Get::Assume-Yes "true"; APT::Install-Recommends "false";\n'
"""The tools that are recommended are on a mirror, and the machines have no network."""
SITES_CHOICE = '[fleet]\nsuite = "prolog"\nshare = 1\nfresh_hours = 0\n'
"""Without torch no other suite passes."""
SLURM_CONF = """\
ClusterName=site
SlurmctldHost=n1
SlurmUser=slurm
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmdSpoolDir=/var/lib/slurm/slurmd
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
NodeName=n[1-2] CPUs=4
PartitionName=batch Nodes=ALL Default=YES
"""
"""A Slurm that knows nothing of hpcverify; a container lets it use no cgroups."""
CGROUP_CONF = {"bookworm": "# empty\n", "trixie": "CgroupPlugin=disabled\n"}


@dataclass
class Site:
    """Two machines with a Slurm: n1 is the host of the controller, and both are nodes."""

    machines: Sequence[Booted]
    shared: Path
    """The file system that both have, seen from here."""
    python: str
    notes: dict[str, str] = field(default_factory=dict)
    """What was printed on the way."""
    commands: list[str] = field(default_factory=list)
    """What a person typed, once for each machine."""

    @property
    def controller(self) -> Booted:
        return self.machines[0]

    def follow(self, printed: str, *stages: Stage) -> None:
        """Add and run the lines of *stages* that `setup slurm` has *printed*."""
        plan = [line for line in read_plan(printed) if line.stage in stages]
        conf = self.shared / "slurm/slurm.conf"
        conf.write_text(edit_conf(conf.read_text(), plan))
        for line in plan:
            if line.place in {Place.NODES, Place.ONCE}:
                targets = self.machines if line.place == Place.NODES else self.machines[:1]
                for machine in targets:
                    machine.run(line.text)

    def type(self, line: str) -> None:
        """Run a line of a page where its comment says, and note what it prints."""
        command, _, comment = line.partition("#")
        command = command.strip().replace("+py3.11", f"+py{self.python}")
        for machine in self.machines if EVERYWHERE in comment else self.machines[:1]:
            self.commands.append(command)
            done = machine.enter(command)
            assert done.returncode == 0 or "doctor" in command, f"{command}: {done.stdout}"
            self.notes[command] = done.stdout

    def wait_until_idle(self) -> None:
        states = "sinfo --noheader --format=%T"
        wait_until(lambda: self.controller.enter(states).stdout.split() == ["idle"])

    def list_suites(self) -> dict[str, set[str]]:
        """List the suites of the runs that each node has left in the spool."""
        return {
            machine.name: {
                json.loads(path.read_bytes())["suite"]
                for path in (self.shared / SPOOL / machine.name).glob("*.json")
            }
            for machine in self.machines
        }


def list_page_commands() -> list[str]:
    """List the commands of both pages, from the packages to hooks that observe."""
    install = next(block for block in list_blocks() if block.page == INSTALL)
    slurm = [block for block in list_blocks() if block.page == SLURM and block.language == "sh"]
    lines = [line for block in (install, *slurm) for line in block.text.splitlines()]
    return lines[: lines.index(OBSERVED_BY) + 1]


@pytest.fixture(scope="module", params=PYTHONS)
def site(request: pytest.FixtureRequest, packages: Path) -> Iterator[Site]:
    """Go through the life of both packages: observe, verify, upgrade, remove."""
    suite: str = request.param
    with TemporaryDirectory() as folder, ExitStack() as running:
        shared = Path(folder, "shared")
        for name in ("slurm", SPOOL.parent):
            (shared / name).mkdir(parents=True)
        binds = {shared: "/shared", shared / "slurm": "/etc/slurm"}
        nodes = {
            name: Machine(request.param, Path(folder, name), packages) for name in ("n1", "n2")
        }
        machines = [running.enter_context(node.boot(name, binds)) for name, node in nodes.items()]
        site = Site(machines, shared, PYTHONS[suite])
        start_slurm(site, CGROUP_CONF[suite])
        observe(site)
        verify(site)
        upgrade(site, [nodes["n1"].package(name) for name in PACKAGES])
        remove(site)
        yield site


def start_slurm(site: Site, cgroup_conf: str) -> None:
    """Have the two machines, and a Slurm, before there is any hpcverify."""
    connect(site.machines)
    (site.shared / "slurm/slurm.conf").write_text(SLURM_CONF)
    (site.shared / "slurm/cgroup.conf").write_text(cgroup_conf)
    site.controller.run("systemctl restart munge slurmctld")
    for machine in site.machines:
        machine.run(f"echo '{APT}' >/etc/apt/apt.conf.d/90-site")
        machine.run("systemctl restart munge slurmd")
    site.wait_until_idle()


def observe(site: Site) -> None:
    """Follow the pages to the letter, until the hooks observe."""
    for line in list_page_commands():
        if line == RELOAD:
            (plan,) = (text for command, text in site.notes.items() if "--write" in command)
            site.follow(plan, Stage.OBSERVE)
        site.type(line)
        if "srun" in line:
            wait_until(lambda: has_epilogs(site))
    site.notes["nodes"] = site.controller.run("hpcverify nodes --json")


def has_epilogs(site: Site) -> bool:
    """Say whether both nodes have left a run after a job; on a busy machine that takes several."""
    site.controller.run(USERS_JOB)
    return all("epilog" in suites for suites in site.list_suites().values())


def verify(site: Site) -> None:
    """Go on with the stages that follow, as far as a node without torch allows."""
    n1 = site.controller
    site.notes["timers"] = n1.enter(f"systemctl is-enabled {' '.join(TIMERS)}").stdout
    n1.run(f"printf '{SITES_CHOICE}' >>/etc/hpcverify/site.toml")
    site.follow(n1.run("hpcverify setup slurm"), Stage.VERIFY, Stage.REFUSE)
    n1.run(RELOAD)
    wait_until(lambda: has_verified(site))
    site.notes["sweep"] = n1.run(f"systemctl show {SWEEP}.service -p Result -p ExecMainStatus")
    site.notes["left"] = n1.run("hpcverify setup slurm")
    n1.enter("systemctl start hpcverify-bmc.service")
    site.notes["bmc"] = n1.run("systemctl show hpcverify-bmc.service -p ExecMainStatus")


def has_verified(site: Site) -> bool:
    """Sweep the nodes that are idle just now, and say whether all have passed."""
    site.controller.run(f"systemctl start {SWEEP}.service")
    return set(list_verdicts(site.controller.run("hpcverify nodes --json")).values()) == {"pass"}


def upgrade(site: Site, packages: Sequence[str]) -> None:
    n1 = site.controller
    n1.run(f"systemctl stop {SWEEP}.timer {SWEEP}.service")
    n1.run("cp -r /etc/hpcverify /root/configuration")
    data = "find /var/lib/hpcverify -not -name '*.lock' -not -path '*/work*'"
    site.notes["data"] = n1.run(data)
    n1.run(f"systemctl start {SWEEP}.timer")
    n1.run(f"dpkg -i {' '.join(packages)}")  # runs what an upgrade runs
    site.notes["timer"] = n1.run(f"systemctl is-enabled {SWEEP}.timer")
    site.notes["active"] = n1.run(f"systemctl is-active {SWEEP}.timer")
    n1.run(f"systemctl stop {SWEEP}.timer {SWEEP}.service")
    site.notes["configuration"] = n1.enter("diff -r /root/configuration /etc/hpcverify").stdout
    site.notes["nodes-upgraded"] = n1.run("hpcverify nodes --json")
    n1.run(USERS_JOB)


def remove(site: Site) -> None:
    n1 = site.controller
    n1.run("dpkg --purge hpcverify-controller")
    site.notes["timer-purged"] = n1.run("find /etc/systemd -name 'hpcverify*.timer'")
    site.notes["node-alone"] = n1.run("hpcverify run --suite prolog --wait 60s")
    n1.run(USERS_JOB)


def test_under_ten_commands_lead_from_the_packages_to_hooks_that_observe(site: Site) -> None:
    typed = site.commands[: site.commands.index(RELOAD) + 1]
    assert len(typed) <= MAX_COMMANDS, typed
    nodes = json.loads(site.notes["nodes"])["nodes"]
    assert {node["node"] for node in nodes if node["last_run_at"]} == {"n1", "n2"}


def test_timers_are_off_until_they_are_enabled(site: Site) -> None:
    assert site.notes["timers"].split() == ["disabled", "disabled"]


def test_the_hardened_sweep_verifies_both_nodes_and_nothing_is_missing(site: Site) -> None:
    assert site.notes["sweep"].split() == ["Result=success", "ExecMainStatus=0"]
    assert site.notes["left"].splitlines()[-1] == "nothing is missing"


def test_the_hardened_bmc_service_starts_and_misses_its_configuration(site: Site) -> None:
    assert site.notes["bmc"] == "ExecMainStatus=2\n"


def test_an_upgrade_keeps_configuration_ledger_and_the_enabled_timer(site: Site) -> None:
    assert site.notes["configuration"] == ""
    assert "/var/lib/hpcverify/fleet.sqlite" in site.notes["data"].splitlines()
    assert list_verdicts(site.notes["nodes-upgraded"]) == {"n1": "pass", "n2": "pass"}
    assert (site.notes["timer"], site.notes["active"]) == ("enabled\n", "active\n")


def test_a_controller_that_is_purged_stays_a_node(site: Site) -> None:
    assert site.notes["timer-purged"] == ""
    assert re.search(r"(?m)^PASS  ", site.notes["node-alone"])


def list_verdicts(nodes: str) -> dict[str, str]:
    return {node["node"]: node["verdict"] for node in json.loads(nodes)["nodes"]}
