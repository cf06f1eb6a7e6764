"""The units of the controller: right for systemd, and kept from what they do not need."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.needs("systemd-analyze")

ROOT = Path(__file__).parents[2]
SLURM = ROOT / "slurm"
UNITS = sorted(path.name for path in SLURM.glob("hpcverify-*"))
SERVICES = [name for name in UNITS if name.endswith(".service")]
EXPOSURE = 3.2
"""By `systemd-analyze security` of systemd 252, from 0 (best) to 10."""


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """Put the units where each program that they start is there."""
    for name in UNITS:
        text = (SLURM / name).read_text()
        (tmp_path / name).write_text(text.replace("/opt/hpcverify/bin/hpcverify", "/bin/true"))
    return tmp_path


@pytest.mark.parametrize("name", UNITS)
def test_systemd_finds_no_mistake_in_a_unit(installed: Path, name: str) -> None:
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", installed / name],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    ours = [line for line in verified.stdout.splitlines() if "hpcverify" in line]
    assert (verified.returncode, ours) == (0, [])


@pytest.fixture
def freshness() -> str:
    """Read the drop-in of the page that has a run in the list within two minutes."""
    page = (ROOT / "docs/how-to/daily-operation.md").read_text()
    (drop_in,) = re.finditer(r"(?ms)^```ini\n(.*?)^```$", page)
    return drop_in[1]


def test_systemd_takes_the_drop_in_for_newer_answers(installed: Path, freshness: str) -> None:
    folder = installed / "hpcverify-sweep.timer.d"
    folder.mkdir()
    (folder / "override.conf").write_text(freshness)

    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", installed / "hpcverify-sweep.timer"],
        capture_output=True,
        text=True,
        check=False,
    )
    ours = [line for line in verified.stderr.splitlines() if "hpcverify" in line]

    assert (verified.returncode, ours) == (0, [])


def test_the_drop_in_leaves_half_a_minute_of_two_to_a_cycle(freshness: str) -> None:
    wait = re.compile(r"^(?:OnUnitInactive|RandomizedDelay|Accuracy)Sec=(\d+)s?$", re.MULTILINE)
    waits = wait.findall(freshness)
    assert len(waits) == 3
    assert sum(map(int, waits)) <= 120 - 29


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_no_more_exposed_than_the_docs_say(installed: Path, name: str) -> None:
    shown = subprocess.run(
        ["systemd-analyze", "security", "--no-pager", "--offline=true", installed / name],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    level = re.search(r"Overall exposure level for \S+: ([\d.]+)", shown)
    assert level is not None, shown
    assert float(level[1]) <= EXPOSURE


@pytest.mark.parametrize("name", SERVICES)
def test_no_service_removes_the_locks_of_the_hooks_when_it_ends(name: str) -> None:
    assert "RuntimeDirectory=" not in (SLURM / name).read_text()
