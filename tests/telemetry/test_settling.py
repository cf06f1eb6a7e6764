"""One check's load is over before the next begins, or the wait for it is."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager

import pytest

from hpcverify.telemetry.reading import Reading
from hpcverify.telemetry.sampler import Sampler
from hpcverify.telemetry.settling import PERIOD_SECONDS, settle


class Script:
    """A reader that tells one reading after the other, and the last one for ever."""

    def __init__(self, *values: tuple[float, float]) -> None:
        self._values = list(values)

    def read(self) -> Iterator[Reading]:
        temperature, utilization = self._values[0]
        self._values = self._values[1:] or self._values
        yield Reading("temperature", temperature, "°C", "gpu")
        yield Reading("utilization", utilization, "ratio", "gpu")

    def close(self) -> None:
        """Let go of nothing."""


@contextmanager
def sampled(*values: tuple[float, float]) -> Generator[Sampler]:
    sampler = Sampler([Script(*values)], period=0.001)
    sampler.start()
    assert sampler.reaches(float("-inf"))
    while len(sampler.read_window(float("-inf"), float("inf"))) < 2 * len(values):
        pass
    yield sampler
    sampler.stop()


@pytest.mark.parametrize(
    ("now", "late"), [((30, 0), []), ((41, 0), ["gpu"]), ((39, 0.04), []), ((39, 0.5), ["gpu"])]
)
def test_a_part_is_settled_when_it_is_cool_and_idle(
    now: tuple[float, float], late: list[str]
) -> None:
    with sampled((30, 0), now) as sampler:
        assert settle(sampler, 0)[1] == late


def test_the_wait_ends_when_all_parts_are_settled() -> None:
    waits: list[float] = []
    with sampled((30, 0), (80, 1.0), (31, 0)) as sampler:
        seconds, late = settle(sampler, 60, clock=lambda: 0.0, wait=waits.append)
    assert (seconds, late, waits) == (0.0, [], [])


def test_the_wait_has_an_end_and_names_who_is_late() -> None:
    time = [0.0]

    def wait(seconds: float) -> None:
        time[0] += seconds

    with sampled((30, 0), (80, 1.0)) as sampler:
        seconds, late = settle(sampler, 5, clock=lambda: time[0], wait=wait)
    assert (seconds, late) == (5.0, ["gpu"])
    assert time[0] <= 5 + PERIOD_SECONDS


def test_a_machine_without_such_sensors_is_always_settled() -> None:
    assert settle(Sampler([]), 60, wait=lambda _s: None)[1] == []
