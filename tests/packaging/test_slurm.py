"""The packages under a real Slurm of two nodes, booted with systemd."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.packaging.machine import PYTHONS, Machine

pytestmark = pytest.mark.packages

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
sed 's#^HPCVERIFY_SPOOL=.*#HPCVERIFY_SPOOL=/srv/spool#' /usr/share/hpcverify/hooks.conf \
    >/etc/hpcverify/hooks.conf
cat >/srv/extra.conf <<END
Prolog=/usr/libexec/hpcverify/prolog
Epilog=/usr/libexec/hpcverify/epilog
HealthCheckProgram=/usr/libexec/hpcverify/healthcheck
HealthCheckInterval=300
PrologFlags=Alloc
END
until_true() { until "$@"; do sleep 0.2; done; }
export LAB_DIR=/srv/lab
LAB_EXTRA_CONF=/srv/extra.conf /hpcverify/tests/slurm_lab/slurm-lab.sh up 2
export SLURM_CONF=/srv/lab/etc/slurm.conf
mkdir -p /etc/systemd/system/hpcverify-sweep.service.d
printf '[Service]\\nEnvironment=SLURM_CONF=%s\\n' "$SLURM_CONF" \
    >/etc/systemd/system/hpcverify-sweep.service.d/site.conf
systemctl daemon-reload
"""
OBSERVE = """
systemctl is-enabled hpcverify-sweep.timer hpcverify-bmc.timer >/root/enabled || true
srun -N2 true
until_true sh -c 'ls /srv/spool/n1/*.json* /srv/spool/n2/*.json* >/root/spool'
systemctl enable --now hpcverify-sweep.timer
systemctl start hpcverify-sweep.service || true
systemctl show hpcverify-sweep.service -p Result -p ExecMainStatus >/root/sweep
journalctl -u hpcverify-sweep.service --no-pager
hpcverify nodes --json >/root/nodes.json
systemctl is-enabled hpcverify-sweep.timer >/root/enabled-by-hand
cp -r /etc/hpcverify /root/before
ls -R /var/lib/hpcverify >/root/data-before
dpkg -i /root/new/*.deb
systemctl is-active hpcverify-sweep.timer >/root/active-after-upgrade
ls -R /var/lib/hpcverify >/root/data-after
diff -r /root/before /etc/hpcverify
hpcverify nodes --json >/root/nodes-after.json
systemctl disable --now hpcverify-sweep.timer
apt-get purge -y -qq hpcverify-controller
hpcverify run --suite prolog || true
apt-get purge -y -qq hpcverify
"""


@pytest.fixture(scope="module", params=PYTHONS)
def controller(request: pytest.FixtureRequest, packages: None) -> Iterator[Machine]:
    """Boot a Debian with Slurm and both packages, and go through their life there."""
    with TemporaryDirectory() as folder:
        machine = Machine(request.param, Path(folder), slurm=True)
        both = [machine.package(name) for name in ("hpcverify", "hpcverify-controller")]
        machine.install(*both)
        machine.shell("mkdir /root/new")
        for package in both:
            machine.shell(make_newer(package))
        machine.boot(SET_UP + OBSERVE)
        yield machine


def read(machine: Machine, name: str) -> str:
    return machine.run("cat", f"/root/{name}")
