"""The time until a killed process's memory is free is measured, and the wait has an end."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from time import perf_counter

import pytest

from hpcverify.check import Cause, Unable
from hpcverify_checks.qualification.memory_release import wait_for_ready, wait_until


def test_the_wait_ends_when_the_memory_is_free() -> None:
    looks: Iterator[bool] = iter([False, False, True])
    began = perf_counter()

    assert 0 < wait_until(lambda: next(looks), began, 60) <= perf_counter() - began


def test_memory_that_stays_in_use_is_told_with_the_fix() -> None:
    with pytest.raises(Unable, match="end the processes that nvidia-smi lists") as unable:
        wait_until(lambda: False, perf_counter(), 0.0)

    assert unable.value.cause is Cause.TIMEOUT


@pytest.mark.parametrize("code", ["", "print('Traceback')"])
def test_a_process_that_did_not_take_the_memory_is_an_error(code: str) -> None:
    command = [sys.executable, "-c", code]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE) as holder,
        pytest.raises(Unable, match="did not") as unable,
    ):
        wait_for_ready(holder, 60)

    assert unable.value.cause is Cause.CRASHED
