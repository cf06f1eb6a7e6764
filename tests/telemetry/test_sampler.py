"""Sampling beside the checks."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from hpcverify.telemetry.reading import Reading
from hpcverify.telemetry.sampler import KEPT, Sampler, Track

LONG = 3600.0


@dataclass
class Counter:
    """A reader that counts how often it was read."""

    rounds: int = 0
    closed: bool = False
    fails: bool = False

    def read(self) -> Iterator[Reading]:
        """Yield the number of this round, and then fail if told to."""
        self.rounds += 1
        yield Reading("round", "", "cpu", float(self.rounds))
        if self.fails:
            raise OSError("the device went away")
        yield Reading("rest", "", "cpu", 0.0)

    def close(self) -> None:
        """Remember it."""
        self.closed = True


@dataclass
class Stuck:
    """A reader that does not return before it is let go."""

    entered: threading.Event = field(default_factory=threading.Event)
    let_go: threading.Event = field(default_factory=threading.Event)

    def read(self) -> Iterator[Reading]:
        """Hang."""
        self.entered.set()
        self.let_go.wait(30)
        yield Reading("late", "", "cpu", 1.0)

    def close(self) -> None:
        """Have nothing to close."""


def test_a_short_window_is_completed_by_a_round_that_is_taken_at_once() -> None:
    reader = Counter()
    sampling = Sampler([reader], period=LONG)
    sampling.start()
    start = time.monotonic()
    taken = [s.value for s in sampling.window(start, start) if s.name == "round"]
    sampling.stop()
    assert taken
    assert reader.closed


def test_a_window_gives_what_was_sampled_within_it_in_order() -> None:
    sampling = Sampler([Counter()], period=0.01)
    start = time.monotonic()
    sampling.start()
    while len(found := sampling.window(start, time.monotonic())) < 6:
        time.sleep(0.01)
    sampling.stop()
    assert [s.t for s in found] == sorted(s.t for s in found)
    middle = found[3].t
    inner = sampling.window(middle, middle)
    assert {s.t for s in inner} == {middle}


def test_a_failing_reader_loses_its_reading_and_not_the_thread() -> None:
    broken, sound = Counter(fails=True), Counter()
    sampling = Sampler([broken, sound], period=LONG)
    sampling.start()
    for _ in range(3):
        start = time.monotonic()
        names = [s.name for s in sampling.window(start, start)]
        assert set(names) == {"round", "rest"}
        assert names.count("round") == 2 * names.count("rest")
    sampling.stop()
    assert broken.rounds == sound.rounds >= 3


def test_a_reader_that_is_stuck_does_not_stick_its_caller() -> None:
    stuck = Stuck()
    sampling = Sampler([stuck], patience=0.05)
    sampling.start()
    assert stuck.entered.wait(10)
    assert sampling.window(0.0, time.monotonic()) == []
    sampling.stop()
    stuck.let_go.set()
    for thread in threading.enumerate():
        if thread.name == "sampler":
            thread.join(10)
            assert not thread.is_alive()


def test_a_run_of_a_day_keeps_its_ends_and_its_spikes_in_bounded_memory() -> None:
    track = Track()
    day = 86_400
    for second in range(day):
        track.add(float(second), 1e6 if second == 4321 else float(second))
    assert len(track.t) <= KEPT
    assert track.t[0] == 0
    assert max(track.values) == 1e6
    assert list(track.values[-KEPT // 2 :]) == [
        float(s) for s in range(day - KEPT // 2, day)
    ]
