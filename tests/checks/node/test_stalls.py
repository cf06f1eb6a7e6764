"""A GPU that stands still shows, and a host that waits for a core does not."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from hpcverify_checks.node import stalls
from hpcverify_checks.node.stalls import StallMeter, read_core_wait


@pytest.mark.parametrize(
    ("times", "waited", "longest"),
    [
        ((0.1, 0.1, 9.1), 0.0, 9.0),
        ((0.1, 0.1, 9.1), 8.5, 0.5),
        ((0.1, 0.1, 9.1), 99.0, 0.0),
        ((3.0, 3.0, 3.1), 0.0, 0.1),
        ((), 0.0, 0.0),
    ],
)
def test_the_longest_step_counts_without_what_the_host_waited(
    times: Sequence[float], waited: float, longest: float
) -> None:
    meter = StallMeter()
    meter.note(times, waited)
    assert [m.value for m in meter.report("GPU-0")] == [pytest.approx(longest)]


def test_the_longest_of_all_kinds_is_reported() -> None:
    meter = StallMeter()
    for longest in (1.0, 7.0, 2.0):
        meter.note((0.0, 0.0, longest))
    assert meter.longest == 7.0


def test_what_the_kernel_does_not_count_is_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read_core_wait() >= 0
    monkeypatch.setattr(stalls, "SCHEDSTAT", tmp_path / "none")
    meter = StallMeter()
    meter.note((0.0, 0.0, 9.0), read_core_wait() - read_core_wait())
    assert math.isnan(meter.longest)
    assert not list(meter.report("GPU-0"))


def test_a_cpu_is_not_measured() -> None:
    meter = StallMeter()
    with meter.time_batches(torch.device("cpu")) as note:
        for number in range(3):
            note(number)
    assert not list(meter.report("cpu"))


def test_a_process_that_was_stopped_says_for_how_long() -> None:
    code = (
        "import os, signal\n"
        "from hpcverify_checks.node.stalls import read_core_wait\n"
        "began = read_core_wait()\n"
        "os.kill(os.getpid(), signal.SIGSTOP)\n"
        "print(read_core_wait() - began)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as child:
        os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
        time.sleep(2)
        child.send_signal(signal.SIGCONT)
        said, _ = child.communicate()
    assert float(said) >= 1.5


def test_a_pulse_that_is_a_little_late_was_not_kept_from_running() -> None:
    moments = iter((0.0, 0.5, 1.9, 61.9, 62.4))
    absence = stalls.Absence(lambda: next(moments))
    assert [absence.read() for _ in range(4)] == [0, 0, 59.5, 59.5]
