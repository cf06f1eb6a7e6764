"""The packages under a real Slurm of two nodes, booted with systemd."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.packaging.machine import PYTHONS, Machine

pytestmark = pytest.mark.installs

SET_UP = """
ip link set lo up
ip address add 192.0.2.1/32 dev lo  # a name has an address only where there is another than lo's
mkdir /srv/spool
cat >>/etc/hpcverify/site.toml <<END
[fleet]
spool = "/srv/spool"
suite = "prolog"
share = 1
fresh_hours = 0
END
sed 's#^HPCVERIFY_SPOOL=.*#HPCVERIFY_SPOOL=/srv/spool#; s#DEADLINE=.*#DEADLINE=50#' \
    /usr/share/hpcverify/hooks.conf >/etc/hpcverify/hooks.conf
cat >/srv/extra.conf <<END
Prolog=/usr/libexec/hpcverify/prolog
Epilog=/usr/libexec/hpcverify/epilog
HealthCheckProgram=/usr/libexec/hpcverify/healthcheck
HealthCheckInterval=300
PrologFlags=Alloc
END
export LAB_DIR=/srv/lab
LAB_EXTRA_CONF=/srv/extra.conf /hpcverify/tests/slurm_lab/slurm-lab.sh up 2
export SLURM_CONF=/srv/lab/etc/slurm.conf
mkdir -p /etc/systemd/system/hpcverify-sweep.service.d
printf '[Service]\\nEnvironment=SLURM_CONF=%s\\n' "$SLURM_CONF" \
    >/etc/systemd/system/hpcverify-sweep.service.d/site.conf
systemctl daemon-reload
"""
OBSERVE = """
note() { name=$1; shift; "$@" >"/root/notes/$name" || true; }
mkdir /root/notes
note timers systemctl is-enabled hpcverify-sweep.timer hpcverify-bmc.timer
for node in n1 n2; do  # both are this machine, which one run at a time verifies
    until ls /srv/spool/$node/*.json; do
        runuser -u nobody -- srun -w $node true  # jobs of root count as ours
        sleep 5
    done
done
systemctl enable --now hpcverify-sweep.timer
until [ "$(hpcverify nodes --json | grep -c '"verdict": "pass"')" = 2 ]; do
    systemctl start hpcverify-sweep.service  # takes the nodes that are idle just then
done
note sweep systemctl show hpcverify-sweep.service -p Result -p ExecMainStatus
note nodes hpcverify nodes --json
systemctl start hpcverify-bmc.service || true
note bmc systemctl show hpcverify-bmc.service -p ExecMainStatus
"""
UPGRADE = """
systemctl stop hpcverify-sweep.timer hpcverify-sweep.service
cp -r /etc/hpcverify /root/configuration
note data find /var/lib/hpcverify -not -name '*.lock' -not -path '*/work*'
systemctl start hpcverify-sweep.timer
dpkg -i {} {}  # runs what an upgrade runs
note timer systemctl is-enabled hpcverify-sweep.timer
note active systemctl is-active hpcverify-sweep.timer
systemctl stop hpcverify-sweep.timer hpcverify-sweep.service
note configuration diff -r /root/configuration /etc/hpcverify
note nodes-upgraded hpcverify nodes --json
runuser -u nobody -- srun -N2 true
"""
REMOVE = """
dpkg --purge hpcverify-controller
note timer-purged find /etc/systemd -name 'hpcverify*.timer'
note node-alone hpcverify run --suite prolog --wait 60
runuser -u nobody -- srun -N2 true
"""


@pytest.fixture(scope="module", params=PYTHONS)
def controller(request: pytest.FixtureRequest, packages: Path) -> Iterator[Machine]:
    """Boot a Debian with Slurm and go through the life of both packages there."""
    with TemporaryDirectory() as folder:
        machine = Machine(request.param, Path(folder), packages, slurm=True)
        both = [machine.package(name) for name in ("hpcverify", "hpcverify-controller")]
        machine.install(*both)
        machine.boot(SET_UP + OBSERVE + UPGRADE.format(*both) + REMOVE)
        yield machine


def test_timers_are_off_until_they_are_enabled(controller: Machine) -> None:
    assert read(controller, "timers").split() == ["disabled", "disabled"]


def test_hooks_leave_a_run_of_each_node_and_the_hardened_sweep_verifies_both(
    controller: Machine,
) -> None:
    assert read(controller, "sweep").split() == ["Result=success", "ExecMainStatus=0"]
    assert list_verdicts(read(controller, "nodes")) == {"n1": "pass", "n2": "pass"}


def test_the_hardened_bmc_service_starts_and_misses_its_configuration(
    controller: Machine,
) -> None:
    assert read(controller, "bmc") == "ExecMainStatus=2\n"


def test_an_upgrade_keeps_configuration_ledger_and_the_enabled_timer(controller: Machine) -> None:
    assert read(controller, "configuration") == ""
    assert "/var/lib/hpcverify/fleet.sqlite" in read(controller, "data").splitlines()
    assert list_verdicts(read(controller, "nodes-upgraded")) == {"n1": "pass", "n2": "pass"}
    assert read(controller, "timer") == "enabled\n"
    assert read(controller, "active") == "active\n"


def test_a_controller_that_is_purged_stays_a_node(controller: Machine) -> None:
    assert read(controller, "timer-purged") == ""
    assert ": PASS after " in read(controller, "node-alone")


def list_verdicts(nodes: str) -> dict[str, str]:
    return {node["node"]: node["verdict"] for node in json.loads(nodes)["nodes"]}


def read(machine: Machine, name: str) -> str:
    return machine.run("cat", f"/root/notes/{name}")
