"""The packages of this checkout, and machines to install them on."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.packaging.machine import PYTHONS, ROOT, Machine


@pytest.fixture(scope="session")
def packages() -> Path:
    """Build the packages for each Debian into dist/, once for all tests."""
    if any((ROOT / "dist").glob("*.deb")):
        return ROOT / "dist"
    command = ["make", "packages", f"PYTHONS={' '.join(PYTHONS.values())}"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return ROOT / "dist"


@pytest.fixture(scope="module", params=PYTHONS)
def installed(request: pytest.FixtureRequest) -> Iterator[Machine]:
    """Install the node's package on a fresh Debian."""
    with TemporaryDirectory() as folder:
        machine = Machine(request.param, Path(folder), packages)
        machine.install(machine.package("hpcverify"))
        yield machine


@pytest.fixture
def machine(installed: Machine, packages: Path) -> Iterator[Machine]:
    """Give a copy of that Debian."""
    with TemporaryDirectory() as folder:
        subprocess.run(["cp", "-a", installed.layer / "upper", folder], check=True)
        yield Machine(installed.suite, Path(folder), packages)
