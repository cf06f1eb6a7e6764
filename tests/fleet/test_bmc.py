"""From a power supply that a BMC shows over the network to the node's state, on a real Slurm."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcverify.fleet.states import State
from tests.fleet.cluster import Fleet
from tests.redfish_lab.resources import CHASSIS, make_new_tree, make_old_tree
from tests.redfish_lab.server import PASSWORD, USER, FakeBmc, make_certificate, serve

pytestmark = pytest.mark.needs("openssl")

SECOND_BAY = f"{CHASSIS}/PowerSubsystem/PowerSupplies/Bay2"


def configure(fleet: Fleet, *bmcs: FakeBmc) -> None:
    """Tell the controller where the BMCs of n1, n2, … answer."""
    secret = fleet.folder / "bmc.toml"
    secret.write_text(f'user = "{USER}"\npassword = "{PASSWORD}"\n')
    secret.chmod(0o600)
    places = [f'n{number} = "{bmc.address}"' for number, bmc in enumerate(bmcs, 1)]
    table = f'[bmc]\ncredentials = "{secret}"\nca = "{bmcs[0].certificate}"\npause = 0\n'
    fleet.prepare("\n".join(['enforce = ["*"]', table, "[bmc.addresses]", *places]))


def test_what_a_bmc_shows_makes_a_suspect_and_does_nothing_more(
    fleet: Fleet, tmp_path: Path
) -> None:
    bad = make_new_tree()
    bad[SECOND_BAY]["Status"] = {"State": "Enabled", "Health": "Critical"}
    certificate = make_certificate(tmp_path)
    bmcs = [
        FakeBmc(tmp_path / "bmcs" / name, certificate, tree)
        for name, tree in (("n1", bad), ("n2", make_old_tree()))
    ]
    with serve(*bmcs):
        configure(fleet, *bmcs)
        fleet("fleet", "collect")

        done = fleet("fleet", "bmc")

    assert (done.returncode, done.stdout) == (1, "2 BMCs read: 1 pass, 1 fail\n")
    assert fleet("fleet", "collect").stdout.startswith("runs taken in: 2; ")
    suspect, well = fleet.node("n1"), fleet.node("n2")
    assert (suspect.state, suspect.enforced, suspect.checks) == (State.SUSPECT, False, ("chassis",))
    assert fleet.drained() == set()
    assert (well.state, well.last_pass_at, well.last_run_at) == (State.UNVERIFIED, 0, 0)
    assert "chassis: PSU 2: failed" in suspect.reason

    page = tmp_path / "fleet.html"
    assert fleet("report", "--fleet", "-o", str(page)).returncode == 0
    assert "PSU 2" in page.read_text()
    shown = fleet("nodes").stdout
    assert "PSU 2: failed" in shown
    assert PASSWORD not in page.read_text() + shown

    assert fleet("fleet", "sweep").returncode == 0
    suspect = fleet.node("n1")
    assert fleet.states() == {"n1": "suspect", **dict.fromkeys(("n2", "n3", "n4"), "healthy")}
    assert (suspect.verdict, suspect.enforced) == ("pass", False)
    assert "PSU 2: failed" in fleet.shown("n1")[1]

    bad[SECOND_BAY]["Status"] = {"State": "Enabled", "Health": "OK"}
    with serve(*bmcs):
        configure(fleet, *bmcs)
        assert fleet("fleet", "bmc").returncode == 0
    fleet("fleet", "collect")
    assert fleet.node("n1").state is State.HEALTHY
