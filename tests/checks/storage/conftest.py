"""A disk, and fio on it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcverify_checks.storage import fio_runner
from hpcverify_checks.storage.fio_runner import Fio
from tests.checks.storage.disks import CountedFio, formatted, mounted


@pytest.fixture
def image(tmp_path: Path) -> Path:
    return formatted(tmp_path)


@pytest.fixture
def disk(image: Path, tmp_path: Path) -> Iterator[Path]:
    with mounted("-o", "loop", image, tmp_path / "disk") as point:
        yield point


@pytest.fixture
def fio(disk: Path) -> Fio:
    return CountedFio(folder=disk, engine=fio_runner.find_engine(), direct=True)


@pytest.fixture
def rng() -> random.Random:
    return random.Random(7)  # noqa: S311 - data to write, no secret
