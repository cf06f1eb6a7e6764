"""The packages of this checkout, and machines to install them on."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.packaging.machine import PYTHONS, ROOT, Machine


@pytest.fixture(scope="session", autouse=True)
def own_node() -> None:
    """Keep the network of this machine: a fresh Debian installs packages over it."""


@pytest.fixture(scope="session")
def packages() -> Path:
    """Return the folder of the packages, which `make packages` builds first."""
    folder = ROOT / "dist"
    for python in PYTHONS.values():
        assert len([*folder.glob(f"*+py{python}[_-]*")]) == 4, "make packages first"
    return folder


@pytest.fixture(scope="module", params=PYTHONS)
def installed(request: pytest.FixtureRequest, packages: Path) -> Iterator[Machine]:
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
