"""What tests of several rooms share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli import Cli, make_cli
from tests.nvml_lab.nvmllab import ADDRESSES, Lab, build


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the NVML double, once for all tests."""
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def lab(tmp_path: Path, nvml_library: Path) -> Lab:
    """Make a node with eight idle, healthy H100 on its PCI bus."""
    lab = Lab(tmp_path, nvml_library)
    lab.write()
    lab.plug(*ADDRESSES)
    return lab


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """Make a command line with a state, a site and a node of its own."""
    return make_cli(tmp_path)
