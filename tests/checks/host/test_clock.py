"""The clock: in step, far off, or with no time to follow, by a real chronyd and by doubles."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hpcverify.check import CheckItem, Unable, Verdict
from hpcverify.model import Cause
from hpcverify.processes import CompletedTool, run_tool
from hpcverify.testing import find_value, judge_items, list_codes
from hpcverify_checks.host import CHECK
from hpcverify_checks.host.clock import KernelClock, measure_clock, read_kernel_clock
from hpcverify_checks.host.needs import Expectation
from tests.checks.host.nodes import in_step, list_unmet, never_run


def ask(
    *names: str,
    kernel: KernelClock | None = None,
    tool: Callable[..., CompletedTool] = never_run,
    wanted: float = 0.0,
) -> list[CheckItem]:
    return list(measure_clock(names, lambda: kernel or in_step(), tool, wanted, 5))


UNSYNCHRONIZED = KernelClock(in_step=False, estimated_error=16.0)


def printed(text: str, returncode: int = 0) -> Callable[..., CompletedTool]:
    def tool(_command: object, **_: Any) -> CompletedTool:
        return CompletedTool(returncode, text.encode(), b"")

    return tool


def tracking(offset: float, leap: str = "Normal") -> Callable[..., CompletedTool]:
    """Answer as chronyc 4.3 does; the fields are those of its manual page."""
    return printed(
        f"C0A80101,ntp1,3,1763806000.1,{offset},-0.00001,0.00002,-12.3,0.0,0.02,0.03,0.001,64.2,{leap}\n"
    )


def test_a_clock_in_step_starts_no_program() -> None:
    found = ask("chronyd")

    assert list_codes(found) == []
    assert find_value(found, "clock.offset") == pytest.approx(0.0001)
    assert judge_items(CHECK, found).verdict is Verdict.PASS


def test_a_node_without_a_time_daemon_is_not_judged() -> None:
    assert list_codes(ask("sshd", kernel=UNSYNCHRONIZED)) == []
    assert list_codes(ask("sshd", wanted=1)) == ["clock_unsynchronized"]


def test_a_daemon_that_is_minutes_off_is_an_error() -> None:
    found = ask("chronyd", kernel=UNSYNCHRONIZED, tool=tracking(-412.5))
    judged = judge_items(CHECK, found)

    assert find_value(found, "clock.offset") == 412.5
    assert (judged.verdict, judged.cause) == (Verdict.ERROR, Cause.MISCONFIGURED)


def test_a_daemon_with_no_source_is_listed_and_is_an_error_only_if_the_site_says_so() -> None:
    nothing = tracking(0, "Not synchronised")
    quiet = ask("chronyd", kernel=UNSYNCHRONIZED, tool=nothing)
    asked = ask("chronyd", kernel=UNSYNCHRONIZED, tool=nothing, wanted=0.5)

    assert list_codes(quiet) == ["clock_free"]
    assert judge_items(CHECK, quiet).verdict is Verdict.PASS
    assert list_codes(asked) == ["clock_unsynchronized"]
    assert judge_items(CHECK, asked).verdict is Verdict.ERROR


@pytest.mark.parametrize(("offset", "unmet"), [(0.3, []), (-0.7, [("clock.offset", "node")])])
def test_the_offset_is_held_to_what_the_site_needs(
    offset: float, unmet: list[tuple[str, str]]
) -> None:
    found = ask("chronyd", tool=tracking(offset), wanted=0.5)

    assert list_codes(found) == []
    assert list_unmet(found, Expectation(clock_offset=0.5)) == unmet


@pytest.mark.parametrize(
    ("said", "codes"),
    [
        ("\tmaster_offset   -180\n\tgmPresent  true\n", []),
        ("\tmaster_offset   -1800000000\n\tgmPresent  true\n", ["clock.offset"]),
        ("\tmaster_offset   0\n\tgmPresent  false\n", ["clock_unsynchronized"]),
        ("sending: GET TIME_STATUS_NP\n", ["clock_unsynchronized"]),
    ],
)
def test_ptp_is_asked_by_pmc(said: str, codes: list[str]) -> None:
    """phc2sys tells the kernel nothing, which is no fault."""
    found = ask("ptp4l", "phc2sys", kernel=UNSYNCHRONIZED, tool=printed(said), wanted=1)

    unmet = [name for name, _ in list_unmet(found, Expectation(clock_offset=1))]
    assert list_codes(found) + unmet == codes


def test_a_program_that_is_missing_leaves_the_kernels_word() -> None:
    def missing(*_: object, **__: object) -> CompletedTool:
        raise Unable("chronyc is not installed", Cause.MISSING)

    assert list_codes(ask("chronyd", tool=missing, wanted=1)) == []
    found = ask("chronyd", tool=missing, kernel=UNSYNCHRONIZED)
    assert list_codes(found) == ["clock_free"]


def test_the_kernel_of_this_machine_answers() -> None:
    state = read_kernel_clock()

    assert state is not None
    assert 0 <= state.estimated_error < 3600


@contextmanager
def chronyd(folder: Path, *lines: str) -> Generator[Callable[..., CompletedTool]]:
    """Run a chronyd that leaves the clock alone, and yield what asks it."""
    folder.chmod(0o770)
    socket = folder / "chronyd.sock"
    conf = folder / "chrony.conf"
    conf.write_text(
        "\n".join(
            ["port 0", "cmdport 0", f"bindcmdaddress {socket}", f"pidfile {folder}/pid", *lines]
        )
    )
    daemon = subprocess.Popen(
        ["/usr/sbin/chronyd", "-x", "-d", "-u", "root", "-f", conf],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def tool(command: list[str], **options: Any) -> CompletedTool:
        return run_tool([command[0], "-h", str(socket), *command[1:]], **options)

    try:
        while not socket.exists():
            assert daemon.poll() is None, "chronyd ended"
            time.sleep(0.02)
        yield tool
    finally:
        daemon.terminate()
        daemon.wait()


@pytest.mark.needs("chronyd")
@pytest.mark.parametrize(
    ("line", "codes"),
    [("local stratum 8", []), ("", ["clock_unsynchronized"])],
    ids=["with a reference", "without one"],
)
def test_a_real_chronyd_is_understood(short_folder: Path, line: str, codes: list[str]) -> None:
    with chronyd(short_folder, line) as tool:
        found = ask("chronyd", kernel=UNSYNCHRONIZED, tool=tool, wanted=1)

    assert list_codes(found) == codes
    if not codes:
        assert find_value(found, "clock.offset") == pytest.approx(0, abs=0.5)


@pytest.fixture
def short_folder(tmp_path: Path) -> Path:
    """Of few characters, as the path of a socket must be."""
    assert len(os.fspath(tmp_path)) < 90
    return tmp_path
