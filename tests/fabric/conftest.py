"""Four nodes at two switches for the tests of this folder, fresh for each module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fabric_lab.cluster import Fabric, a_fabric
from tests.fabric_lab.faults import MBIT, SWITCHES
from tests.fabric_lab.network import Network, a_network


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    with a_network(SWITCHES, MBIT) as built:
        yield built


@pytest.fixture(scope="module")
def fabric() -> Iterator[Fabric]:
    with a_fabric(SWITCHES, MBIT) as up:
        yield up
