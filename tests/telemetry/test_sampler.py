"""Sampling beside the checks."""

from __future__ import annotations

import threading
import time
import tracemalloc
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from hpcverify.check import Watch
from hpcverify.telemetry.reading import Reading
from hpcverify.telemetry.sampler import MAX_READINGS, Sampler, Track, Window
from tests.waiting import PATIENCE_S

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
        yield Reading("round", float(self.rounds), "", "cpu")
        if self.fails:
            raise OSError("the device went away")
        yield Reading("rest", 0.0, "", "cpu")

    def close(self) -> None:
        self.closed = True


@dataclass
class Stuck:
    """A reader that does not return before it is let go."""

    entered: threading.Event = field(default_factory=threading.Event)
    let_go: threading.Event = field(default_factory=threading.Event)

    def read(self) -> Iterator[Reading]:
        self.entered.set()
        self.let_go.wait(PATIENCE_S)
        yield Reading("late", 1.0, "", "cpu")

    def close(self) -> None:
        """Have nothing to close."""


def test_a_short_window_is_completed_by_a_round_that_is_taken_at_once() -> None:
    reader = Counter()
    sampling = Sampler([reader], period=LONG, timeout=PATIENCE_S)
    sampling.start()
    start = time.monotonic()
    taken = [s.value for s in sampling.read_window(start, start) if s.name == "round"]
    sampling.stop()
    assert taken
    assert reader.closed


def test_a_window_gives_what_was_sampled_within_it_in_order() -> None:
    sampling = Sampler([Counter()], period=0.01, timeout=PATIENCE_S)
    start = time.monotonic()
    sampling.start()
    while len(found := sampling.read_window(start, time.monotonic())) < 6:
        pass  # each look takes a round more
    sampling.stop()
    assert [s.t for s in found] == sorted(s.t for s in found)
    middle = found[3].t
    inner = sampling.read_window(middle, middle)
    assert {s.t for s in inner} == {middle}


def test_a_failing_reader_loses_its_reading_and_not_the_thread() -> None:
    broken, sound = Counter(fails=True), Counter()
    sampling = Sampler([broken, sound], period=LONG, timeout=PATIENCE_S)
    sampling.start()
    for _ in range(3):
        start = time.monotonic()
        names = [s.name for s in sampling.read_window(start, start)]
        assert set(names) == {"round", "rest"}
        assert names.count("round") == 2 * names.count("rest")
    sampling.stop()
    assert broken.rounds == sound.rounds >= 3


def test_a_bug_of_a_reader_is_raised_for_who_wants_its_samples() -> None:
    @dataclass
    class Broken:
        def read(self) -> Iterator[Reading]:
            yield Reading("round", 1.0, "", "cpu")
            raise ZeroDivisionError

        def close(self) -> None:
            """Have nothing to close."""

    sampling = Sampler([Broken()], period=LONG, timeout=PATIENCE_S)
    sampling.start()
    with pytest.raises(ZeroDivisionError):
        sampling.read_window(0, time.monotonic())
    sampling.stop()


def test_a_reader_that_is_stuck_does_not_stick_its_caller() -> None:
    stuck = Stuck()
    sampling = Sampler([stuck], timeout=0.05)
    sampling.start()
    assert stuck.entered.wait(PATIENCE_S)
    assert list(sampling.read_window(0.0, time.monotonic())) == []
    sampling.stop()
    stuck.let_go.set()
    for thread in threading.enumerate():
        if thread.name == "sampler":
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


def test_a_run_of_a_day_keeps_its_ends_and_its_spikes_in_bounded_memory() -> None:
    track = Track()
    day = 86_400
    for second in range(day):
        track.add(float(second), 1e6 if second == 4321 else float(second))
    assert len(track.t) <= MAX_READINGS
    assert track.t[0] == 0
    assert max(track.values) == 1e6
    assert list(track.values[-MAX_READINGS // 2 :]) == [
        float(s) for s in range(day - MAX_READINGS // 2, day)
    ]


def test_what_is_asked_for_by_name_is_what_lies_among_all() -> None:
    tracks = {
        (name, "", part_id): Track(array("d", times), array("d", values))
        for name, part_id, times, values in (
            ("speed", "a", (1, 2, 3), (7, 8, 9)),
            ("speed", "b", (1.5,), (5,)),
            ("heat", "a", (0, 4), (1, 2)),
        )
    }
    window = Window({key: track.copy_between(1, 3) for key, track in tracks.items()})

    assert [(s.t, s.part_id) for s in window] == [(1, "a"), (1.5, "b"), (2, "a"), (3, "a")]
    assert (len(window), window[1].value) == (4, 5)
    for samples in (window, list(window)):
        series = dict(Watch(start=1, end=3, samples=samples).group_by_part("speed"))
        assert {k: [s.value for s in v] for k, v in series.items()} == {"a": [7, 8, 9], "b": [5]}


def test_one_series_of_hundreds_is_had_without_making_the_others() -> None:
    times = array("d", range(2000))
    tracks = {(f"n{i}", "", "a"): Track(times, times) for i in range(200)}
    watch = Watch(start=0, end=2000, samples=Window(tracks))
    tracemalloc.start()
    try:
        (found,) = watch.group_by_part("n7")
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert len(found[1]) == len(times)
    assert most < 2 * 2**20  # all 400,000 would take 40 MB
