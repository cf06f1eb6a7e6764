"""Sites for the tests of this folder, on a real Slurm or on paper, fresh for each test."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from hpcverify.fleet.ledger import Ledger
from tests.fleet.builders import Room, a_room
from tests.fleet.cluster import Fleet
from tests.slurm_lab.lab import a_cluster


@contextmanager
def a_site() -> Generator[Fleet]:
    """Bring up four nodes, n1 to n4, of a site that acts on every check."""
    # the folder goes last: what still runs on a node writes into it
    with TemporaryDirectory(prefix="hvfleet-", dir="/tmp") as name, a_cluster(4) as up:
        fleet = Fleet(up, Path(name))
        fleet.prepare()
        yield fleet


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    """Give a site that nothing has happened to."""
    with a_site() as made:
        yield made


@pytest.fixture(scope="module")
def asked() -> Iterator[Fleet]:
    """Give a site on which nothing comes of what is asked."""
    with a_site() as fleet:
        yield fleet


@pytest.fixture
def room(tmp_path: Path) -> Room:
    """Give a controller of four nodes on paper that knows nothing yet."""
    return a_room(tmp_path)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """Give a ledger that knows no node yet."""
    return Ledger(tmp_path)
