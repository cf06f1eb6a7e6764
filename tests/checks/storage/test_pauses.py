"""A check that did not run for a while does not blame the disk for that time."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from hpcverify.check import Unable
from hpcverify.model import Cause, CheckItem, Remedy
from hpcverify.units import MIB
from hpcverify_checks.node.stalls import PULSE_SECONDS, Absence
from hpcverify_checks.storage.fio_runner import Fio, has_stopped_process
from hpcverify_checks.storage.params import StorageParams
from hpcverify_checks.storage.phases import require_presence, run_blocks
from tests.checks.storage.disks import site


@dataclass
class World:
    """A clock, and whether a signal has stopped a process of ours."""

    now: float = 100.0
    is_stopped: bool = False

    def look(self, pauses: Absence, times: int, every: float = PULSE_SECONDS) -> None:
        """Look several times, after so many seconds *every* time."""
        for _ in range(times):
            self.now += every
            pauses.read()


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def pauses(world: World) -> Absence:
    return Absence(lambda: world.now, lambda: world.is_stopped)


def test_looks_that_come_in_time_see_no_pause(world: World, pauses: Absence) -> None:
    world.look(pauses, 100)
    world.look(pauses, 10, every=2 * PULSE_SECONDS)

    assert pauses.longest == 0
    require_presence(pauses, 33.0)


def test_a_slow_access_is_doubted_if_we_did_not_run_ourselves(
    world: World, pauses: Absence
) -> None:
    world.look(pauses, 3)
    world.look(pauses, 1, every=33.0)
    world.look(pauses, 3)

    with pytest.raises(Unable, match="for 33 s the check did not run") as caught:
        require_presence(pauses, 34.0)
    assert (caught.value.cause, caught.value.remedy) == (Cause.TIMEOUT, Remedy.RERUN)


def test_a_slow_access_is_doubted_if_only_fio_was_stopped(world: World, pauses: Absence) -> None:
    world.is_stopped = True
    world.look(pauses, 80)
    world.is_stopped = False
    world.look(pauses, 5)

    with pytest.raises(Unable, match="for 40 s the check did not run"):
        require_presence(pauses, 41.0)


@pytest.mark.parametrize(("pause", "access"), [(3.0, 33.0), (33.0, 1.0)])
def test_an_access_that_a_pause_does_not_explain_is_not_doubted(
    world: World, pauses: Absence, pause: float, access: float
) -> None:
    world.look(pauses, 1, every=pause)

    require_presence(pauses, access)


def test_a_process_that_a_signal_stopped_is_seen() -> None:
    child = subprocess.Popen(["sleep", "600"])
    try:
        os.kill(child.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
        assert has_stopped_process()
    finally:
        child.kill()
        child.wait()


def test_no_stall_is_reported_of_a_time_in_which_we_did_not_run(
    world: World,
    pauses: Absence,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    rng: random.Random,
) -> None:
    slow = {"io_bytes": MIB, "runtime": 33000, "total_ios": 1, "lat_ns": {"max": 33 * 10**9}}
    idle = {"io_bytes": 0, "runtime": 0, "total_ios": 0, "lat_ns": {"max": 0}}
    report = json.dumps({"jobs": [{"write": slow, "read": idle, "sync": idle, "error": 0}]})
    (tmp_path / "fio").write_text(f"#!/bin/sh\nprintf '{{\\n'; echo '{report[1:]}'\n")
    (tmp_path / "fio").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    fio = Fio(folder=tmp_path, engine="", direct=False, absence=pauses)
    params = StorageParams(size_mib=1, streams=1)
    world.look(pauses, 1, every=32.0)
    found: list[CheckItem] = []

    with pytest.raises(Unable, match="an access took 33 s, but for 32 s"):
        found.extend(run_blocks(site(tmp_path), fio, params, rng))

    assert not any(getattr(item, "name", "") == "seq_write.longest" for item in found)
