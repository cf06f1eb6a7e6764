"""The next check begins when the memory of a worker that was ended is free again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest
from msgspec.structs import replace

from hpcverify.check import UNOWNED_CODE
from hpcverify.model import Coverage, Finding
from hpcverify.telemetry.gpus import GpuAnswers, NotStartedError, Process, Setup
from hpcverify.telemetry.settling import PERIOD_SECONDS, await_release, measure_unowned
from hpcverify.units import GIB
from tests.doubles import UNTOLD


def setup(used: int | None, *processes: Process, listed: bool = True) -> Setup:
    return replace(UNTOLD, memory_used=used, processes=processes if listed else None)


def unowned(**setups: Setup) -> dict[str, int]:
    return measure_unowned(lambda: GpuAnswers(answers=setups), exists=lambda pid: pid != 13)


def test_what_a_living_process_has_is_owned_and_what_a_dead_one_has_is_not() -> None:
    mine, dead = Process(pid=12, memory=3 * GIB), Process(pid=13, memory=5 * GIB)

    assert unowned(a=setup(9 * GIB, mine, dead), b=setup(4 * GIB)) == {"a": 6 * GIB, "b": 4 * GIB}


def test_a_gpu_that_does_not_tell_is_left_out() -> None:
    assert unowned(a=setup(None), b=setup(GIB, listed=False)) == {}


def test_without_a_driver_nothing_is_known() -> None:
    def ask() -> GpuAnswers[Setup]:
        raise NotStartedError("nvml_failed", "no")

    assert measure_unowned(ask) == {}


def wait_for(
    *looks: Mapping[str, int], before: Mapping[str, int], timeout: float = 30
) -> tuple[list[Coverage | Finding], float]:
    """Wait for GPU "a" while a clock of our own runs, with one of *looks* after the other."""
    now = [0.0]
    told: Iterator[Mapping[str, int]] = iter((*looks, *(looks[-1] for _ in range(1000))))

    def wait(seconds: float) -> None:
        now[0] += seconds

    items = await_release(
        ["a"], before, lambda: next(told), timeout, clock=lambda: now[0], wait=wait
    )
    return list(items), now[0]


def test_the_wait_ends_when_the_memory_is_as_free_as_before() -> None:
    full, free = {"a": 70 * GIB}, {"a": GIB // 2}
    (item,), waited = wait_for(full, full, full, free, before={"a": GIB // 2})

    assert waited == 3 * PERIOD_SECONDS
    assert item == Coverage("a", "its memory was free again 2 s after its worker ended")


def test_memory_that_was_in_use_before_the_run_is_waited_for_by_nobody() -> None:
    (item,), waited = wait_for({"a": 40 * GIB}, before={"a": 40 * GIB})

    assert waited == 0
    assert isinstance(item, Coverage)


def test_memory_that_never_becomes_free_is_found_on_its_gpu_with_the_fix() -> None:
    (item,), waited = wait_for({"a": 70 * GIB}, before={"a": 0}, timeout=30)

    assert waited == 30
    assert isinstance(item, Finding)
    assert (item.code, item.part_id) == (UNOWNED_CODE, "a")
    assert item.text == (
        "70.0 GiB of its memory are still in use, but not owned by a process, 30 s after its "
        "worker ended. Fix: nvidia-smi -r, or reboot the node"
    )


@pytest.mark.parametrize(("before", "now"), [({}, {"a": GIB}), ({}, {})])
def test_of_a_gpu_that_does_not_tell_it_is_said(
    before: Mapping[str, int], now: Mapping[str, int]
) -> None:
    (item,), waited = wait_for(now, before=before)

    assert waited == 0
    assert isinstance(item, Coverage)
    assert item.text.startswith("unknown whether its memory was free")


def test_a_gpu_that_tells_no_more_is_not_called_free() -> None:
    (item,), _ = wait_for({}, before={"a": 0})

    assert isinstance(item, Coverage)
    assert item.text.startswith("unknown")
