"""What tests of several rooms share."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest
from hypothesis import HealthCheck, settings

from tests.cli import Cli, make_cli
from tests.nvml_lab.nvmllab import ADDRESSES, Lab, build

LIMIT_SECONDS = 600
"""For each step of a test: ten times what the longest takes beside other work."""

MARKER_OF_FIXTURE = {
    "nvml_library": "lab",
    "cluster": "slurm",
    "fleet": "slurm",
    "fabric": "slurm",
    "asked": "slurm",
}

# How long an example takes says something of the machine, and nothing of the code.
for profile, examples in {"dev": 20, "ci": 100}.items():
    settings.register_profile(
        profile,
        max_examples=examples,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))


@contextmanager
def bounded(seconds: float) -> Generator[None]:
    """End what hangs in good order: fixtures still tidy up, and other tests go on."""

    def expire(_number: int, _frame: FrameType | None) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        pytest.fail(f"not over within {seconds:g} s")  # no code under test catches it

    before = signal.signal(signal.SIGALRM, expire)
    # Again each second: a signal that comes just before a wait begins does not end it.
    left, _ = signal.setitimer(signal.ITIMER_REAL, seconds, 1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, left, 1 if left else 0)
        signal.signal(signal.SIGALRM, before)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None]:
    with bounded(LIMIT_SECONDS):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None]:
    with bounded(LIMIT_SECONDS):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None]:
    with bounded(LIMIT_SECONDS):
        return (yield)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test by what its fixtures need of this machine."""
    for item in items:
        needed = getattr(item, "fixturenames", ())
        for fixture, marker in MARKER_OF_FIXTURE.items():
            if fixture in needed:
                item.add_marker(marker)


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
