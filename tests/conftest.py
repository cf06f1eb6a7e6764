"""What all tests share: what they need, how long they may take, and a node of their own."""

from __future__ import annotations

import gc
import os
import shutil
import signal
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from fcntl import LOCK_EX, flock
from pathlib import Path
from types import FrameType

import pytest
from hypothesis import HealthCheck, settings

from tests.cli import Cli, make_cli
from tests.nvml_lab.nvmllab import ADDRESSES, Lab, build
from tests.own_node import separate_node

LIMIT_SECONDS = 600
"""For each step of a test: ten times what the longest takes beside other work."""
TEST_CPU_SECONDS = 20
FILE_CPU_SECONDS = 120
"""
The most CPU time of a test, and of a file of tests, that is not marked `system`.

Four times the 5 s and 30 s that they should take: CPU time depends on the machine, but
not on other work there.
"""
SLURM = ("root", "slurmctld", "munged")
FAST = {"root", "apt-get", "cc", "fio", "mkfs.ext4", "openssl"}
"""What a test of `make test` may need: a test that needs more is marked `system`."""
NEEDED_BY_FIXTURE = {
    "nvml_library": ("cc",),
    "certificate": ("openssl",),
    "simulator": ("ipmi_sim",),
    "own": ("ipmi_sim",),
    "munge": ("munged",),
    "image": ("root", "mkfs.ext4"),
    "cluster": SLURM,
    "fleet": SLURM,
    "fabric": SLURM,
    "asked": SLURM,
    "rebooting": SLURM,
    "network": ("root", "ip", "nft"),
    "disk": ("root", "mkfs.ext4"),
}
SHARED_IN_MODULE = {"asked", "cluster", "fabric", "network", "layout"}
"""Fixtures of a module that are slow to make: one worker runs all tests that use one."""
UNPACKED = (Path(__file__).parents[1] / ".debian/tools").glob("*/usr/bin")
TOOLS = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin", *map(str, UNPACKED)))
"""Where programs are: not every user's PATH names the folder of daemons."""
MISSING = "missing: "

for profile, examples in {"default": 20, "ci": 100}.items():
    settings.register_profile(
        profile,
        max_examples=examples,
        deadline=None,  # an example may take long on a busy machine
        suppress_health_check=[HealthCheck.too_slow],
    )
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def pytest_configure() -> None:
    """
    Start programs with the default action for each signal, as `nohup` or a shell's `&` do not.

    A program inherits that a signal is ignored, and no handler. So a handler that does
    nothing takes the place of ignoring it: the tests themselves survive a hangup as before.
    """
    for number in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}:  # as Python itself
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


def pytest_xdist_auto_num_workers() -> int:
    """Run two workers per core: half of the tests wait for another process."""
    return 2 * len(os.sched_getaffinity(0))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what each test needs, its tier, and the worker that it shares with others."""
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        for fixture in fixtures & NEEDED_BY_FIXTURE.keys():
            item.add_marker(pytest.mark.needs(*NEEDED_BY_FIXTURE[fixture]))
        if list_needs(item) - FAST:
            item.add_marker("system")
        if not item.get_closest_marker("system") or fixtures & SHARED_IN_MODULE:
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))


def pytest_collection_finish() -> None:
    """Keep what collection made out of each later garbage collection: it stays anyway."""
    gc.collect()
    gc.freeze()


def list_needs(item: pytest.Item) -> set[str]:
    """List the programs that the marks `needs` of *item* name, and "root"."""
    return {name for mark in item.iter_markers("needs") for name in mark.args}


def is_missing(name: str) -> bool:
    """Whether this machine does not have the program *name*, or we are not "root"."""
    return bool(os.geteuid() if name == "root" else not shutil.which(name, path=TOOLS))


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
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    if missing := sorted(filter(is_missing, list_needs(item))):
        pytest.skip(MISSING + ", ".join(missing))
    with bounded(LIMIT_SECONDS):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Fail a test of `make test` that takes too much CPU time, or whose file does."""
    before = _read_cpu_seconds()
    with bounded(LIMIT_SECONDS):
        result = yield
    if item.get_closest_marker("system"):
        return result
    took = _read_cpu_seconds() - before
    in_file = cpu_seconds_by_file[item.path] = cpu_seconds_by_file.get(item.path, 0) + took
    advice = "shorten it, or mark it `system`"
    assert took <= TEST_CPU_SECONDS, (
        f"{took:.0f} s of CPU time, at most {TEST_CPU_SECONDS}: {advice}"
    )
    assert in_file <= FILE_CPU_SECONDS, (
        f"{in_file:.0f} s of CPU time for {item.path}, at most {FILE_CPU_SECONDS}: {advice}"
    )
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None]:
    with bounded(LIMIT_SECONDS):
        return (yield)


cpu_seconds_by_file: dict[Path, float] = {}


def _read_cpu_seconds() -> float:
    """Return the seconds of this process and of the children that it has waited for."""
    return sum(os.times()[:4])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List in one line what this machine lacks, and how many tests did not run for it."""
    reasons = (
        report.longrepr[2].removeprefix("Skipped: ")
        for report in terminalreporter.stats.get("skipped", [])
        if isinstance(report.longrepr, tuple)
    )
    missing = Counter(reason for reason in reasons if reason.startswith(MISSING))
    if missing:
        counts = (
            f"{reason.removeprefix(MISSING)} ({count})" for reason, count in missing.most_common()
        )
        terminalreporter.write_line(f"not run, for what is missing here: {', '.join(counts)}")


@pytest.fixture(scope="session", autouse=True)
def own_node() -> None:
    """Give this worker a node lock, mounts and a kernel log of its own, as root."""
    if not os.geteuid():
        separate_node()


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the NVML double, once for all tests of a worker."""
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def lab(tmp_path: Path, nvml_library: Path) -> Lab:
    """Make a node with eight idle, healthy H100 on its PCI bus."""
    lab = Lab(tmp_path, nvml_library)
    lab.write()
    lab.plug(*ADDRESSES)
    return lab


@pytest.fixture
def one_at_a_time(tmp_path_factory: pytest.TempPathFactory) -> Generator[None]:
    """Hold off the other workers of an ordinary user: they share one network and node lock."""
    if not os.geteuid():
        yield
        return
    with (tmp_path_factory.getbasetemp().parent / "node.lock").open("w") as file:
        flock(file, LOCK_EX)
        yield


@pytest.fixture
def cli(tmp_path: Path, one_at_a_time: None) -> Cli:  # noqa: ARG001 - held while the test runs
    """Make a command line with a state, a site and a node of its own."""
    return make_cli(tmp_path)
