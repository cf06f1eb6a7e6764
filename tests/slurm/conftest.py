"""A real Slurm for the tests of this folder, fresh for each module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.slurm_lab.lab import Cluster, a_cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Bring up four nodes, n1 to n4, with two GPUs each."""
    with a_cluster(4, gpus=2) as up:
        yield up
