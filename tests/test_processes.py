"""An external program gives all that it wrote, or is ended, or is named as hung."""

from __future__ import annotations

import gc
import itertools
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hpcverify import processes
from hpcverify.check import Unable
from hpcverify.errors import write_install_command
from hpcverify.model import Cause, Remedy
from hpcverify.processes import (
    KernelWait,
    list_session_members,
    name_signal,
    read_queue_seconds,
    read_wait_channel,
    run_tool,
    signal_sessions,
)
from tests.cli import gone
from tests.fuse import silent_file_system
from tests.shortage import few_files
from tests.waiting import PATIENCE_S, wait_until


def shell(script: str, *arguments: object) -> list[str]:
    return ["bash", "-c", script, "bash", *map(str, arguments)]


def pid_in(file: Path) -> int:
    wait_until(lambda: file.exists() and file.read_text().endswith("\n"))
    return int(file.read_text())


def test_what_a_program_writes_and_returns_is_given() -> None:
    done = run_tool(shell("echo out; echo err >&2; exit 3"), timeout=PATIENCE_S)

    assert (done.returncode, done.stdout, done.stderr) == (3, b"out\n", b"err\n")


def test_more_output_than_a_pipe_holds_stops_nobody() -> None:
    done = run_tool(shell("head -c 5000000 /dev/zero"), timeout=PATIENCE_S)

    assert done.stdout == bytes(5_000_000)


def test_a_program_that_signals_its_whole_group_harms_only_itself() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    try:
        done = run_tool(shell("kill -TERM 0; sleep 60"), timeout=PATIENCE_S)
    finally:
        signal.signal(signal.SIGTERM, before)

    assert done.returncode == -signal.SIGTERM
    assert heard == []


def test_a_program_stays_in_the_session_that_the_engine_ends() -> None:
    asking = "import os; print(os.getsid(0))"

    done = run_tool([sys.executable, "-c", asking], timeout=PATIENCE_S)

    assert int(done.stdout) == os.getsid(0)


def test_a_session_is_ended_with_all_of_its_groups(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    code = (
        "import sys; from hpcverify.processes import run_tool; run_tool(sys.argv[1:], timeout=300)"
    )
    grandchild = shell('sleep 60 & echo $! > "$1"; wait', file)
    command = [sys.executable, "-c", code, *grandchild]
    with subprocess.Popen(command, start_new_session=True) as leader:
        pid = pid_in(file)
        among = set(list_session_members([leader.pid]))
        signal_sessions([leader.pid], signal.SIGKILL)

    assert {pid, leader.pid} <= among
    assert os.getpid() not in among
    wait_until(lambda: gone(pid))


@pytest.mark.system
def test_the_children_of_a_program_that_overruns_end_with_it(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    script = "trap '' TERM; sleep 60 & echo $! > \"$1\"; wait"

    with pytest.raises(Unable, match=r"did not end"):
        run_tool(shell(script, file), timeout=2)

    wait_until(lambda: gone(pid_in(file)))


def test_a_program_that_somebody_stopped_is_no_riddle_for_the_kernel_log() -> None:
    with pytest.raises(Unable, match=r"stopped by a signal \(SIGSTOP\)") as caught:
        run_tool(shell("kill -STOP $$"), timeout=2)

    assert (caught.value.cause, caught.value.remedy) == (Cause.TIMEOUT, Remedy.RERUN)


def test_a_node_that_can_start_no_program_is_told_as_that() -> None:
    # Two for what it writes, and none for what it is started with.
    with few_files(2), pytest.raises(Unable, match=r"true .* ulimit -n") as caught:
        run_tool(["true"], timeout=PATIENCE_S)

    assert caught.value.cause is Cause.NO_RESOURCES


@pytest.mark.parametrize(
    ("package", "fix"), [("chrony", "apt-get install chrony"), ("", "install it")]
)
def test_a_program_that_is_not_installed_is_missing_and_the_fix_is_named(
    package: str, fix: str
) -> None:
    with pytest.raises(Unable, match=f"^chronyc is not installed: {fix}$") as caught:
        run_tool(["chronyc"], timeout=PATIENCE_S, env={"PATH": ""}, package=package)

    assert caught.value.cause is Cause.MISSING


def test_a_directory_that_is_not_there_is_not_taken_for_a_missing_program(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        run_tool(["true"], timeout=PATIENCE_S, cwd=tmp_path / "none")


@pytest.mark.parametrize("manners", [":", "trap '' TERM"], ids=["polite", "deaf"])
def test_a_program_that_overruns_is_ended_and_its_deadline_is_named(
    tmp_path: Path, manners: str
) -> None:
    file = tmp_path / "pid"
    script = manners + '; echo $$ > "$1"; while :; do read -t 60 <> <(:); done'

    with pytest.raises(Unable, match=r"bash did not end within 2 s") as caught:
        run_tool(shell(script, file), timeout=2)

    assert caught.value.cause is Cause.TIMEOUT
    assert gone(pid_in(file))


def test_a_program_that_only_needs_a_core_to_die_on_is_not_hung(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(processes, "TOOL_GRACE_SECONDS", 1e-6)
    monkeypatch.setattr(processes, "LOOK_SECONDS", 1e-6)
    monkeypatch.setattr(KernelWait, "_list_waits", lambda _: ())
    with pytest.raises(Unable, match=r"and was ended") as caught:
        run_tool(["sleep", "60"], timeout=0.1)

    assert caught.value.cause is Cause.TIMEOUT


def test_a_process_that_dies_may_wait_for_several_things_in_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    switches = map(str, itertools.count())
    monkeypatch.setattr(KernelWait, "_list_waits", lambda _: [("7", next(switches))])
    wait = KernelWait(7)
    assert [wait.find_seconds() for _ in range(3)] == [0, 0, 0]

    monkeypatch.setattr(KernelWait, "_list_waits", lambda _: [("7", "4")])
    wait_until(lambda: wait.find_seconds() > 0)


@pytest.mark.system
@pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")
def test_a_program_that_cannot_be_ended_is_hung_and_what_it_waits_in_is_named(
    tmp_path: Path,
) -> None:
    with (
        silent_file_system(tmp_path) as silent,
        pytest.raises(Unable, match=r"waits in request_wait_answer") as caught,
    ):
        run_tool(["cat", str(silent / "file")], timeout=2)

    assert (caught.value.cause, caught.value.remedy) == (Cause.HUNG, Remedy.REBOOT)
    pid = int(re.findall(r"pid (\d+)", str(caught.value))[0])
    wait_until(lambda: os.waitpid(pid, os.WNOHANG)[0] == pid)
    del caught
    gc.collect()  # of the child that was given up, while its warning is expected


def test_a_program_does_not_outlive_whoever_started_it(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    code = (
        "import sys; from hpcverify.processes import run_tool; run_tool(sys.argv[1:], timeout=300)"
    )
    waiting = shell('echo $$ > "$1"; exec sleep 60', file)
    with subprocess.Popen([sys.executable, "-c", code, *waiting]) as parent:
        pid = pid_in(file)
        parent.kill()

    wait_until(lambda: gone(pid))


def test_a_program_does_not_outlive_an_interruption(tmp_path: Path) -> None:
    file = tmp_path / "pid"

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        # Not before it has been started for good, and is being waited for.
        script = f'echo $$ > "$1"; sleep 1; kill -USR1 {os.getpid()}; exec sleep 60'
        with pytest.raises(KeyboardInterrupt):
            run_tool(shell(script, file), timeout=PATIENCE_S)
    finally:
        signal.signal(signal.SIGUSR1, before)

    assert gone(pid_in(file))


@pytest.mark.parametrize(("number", "name"), [(9, "SIGKILL"), (40, "signal 40")])
def test_every_signal_has_a_name(number: int, name: str) -> None:
    assert name_signal(number) == name


def test_all_threads_are_asked_what_they_wait_in(tmp_path: Path) -> None:
    for task, channel in (("7", "0"), ("8", "io_schedule"), ("9", "")):
        (tmp_path / "7" / "task" / task).mkdir(parents=True)
        (tmp_path / "7" / "task" / task / "wchan").write_text(channel)

    assert read_wait_channel(7, tmp_path) == "io_schedule"
    assert read_wait_channel(8, tmp_path) == "an unknown place in the kernel"


@pytest.mark.parametrize(
    ("package", "command"),
    [("clustershell", "pip install 'clustershell>="), ("frob", "pip install frob")],
)
def test_a_package_is_installed_by_its_own_name_into_the_python_that_runs_this(
    package: str, command: str
) -> None:
    told = write_install_command(package)

    python, pip = told.split(" -m ")
    assert python == sys.executable
    assert pip.startswith(command)
    assert "hpcverify" not in pip


def test_how_long_a_process_waited_for_a_core_is_read_from_the_kernel(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7/schedstat").write_text("9000000000 2500000000 33\n")

    assert read_queue_seconds(7, tmp_path) == 2.5
    assert read_queue_seconds(8, tmp_path) == 0
    assert read_queue_seconds(os.getpid()) >= 0
