"""
Samples all readers from a thread of its own while checks load the node.

One thread, so that a slow reader delays the others rather than piling up. Memory is
bounded for a run of any length: each series keeps its newest readings as they came,
and of older ones the extremes, ever more thinly.
"""

from __future__ import annotations

import threading
import time
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import overload

from hpcverify.check import Sample, Samples
from hpcverify.telemetry.reading import Reader, Reading
from hpcverify.telemetry.thinning import thin

MAX_READINGS = 4096
"""Readings of one series that are kept: over half an hour unthinned at 1 Hz."""

ROUND_TIMEOUT_SECONDS = 15.0
"""Seconds to wait for a round to end: longer than the readers wait for a device."""


def _make_double_array() -> array[float]:
    return array("d")


@dataclass(slots=True)
class Track:
    """One series, in 16 bytes a reading."""

    t: array[float] = field(default_factory=_make_double_array)
    values: array[float] = field(default_factory=_make_double_array)

    def add(self, t: float, value: float) -> None:
        """Keep one reading more, and thin out the older half when there are many."""
        self.t.append(t)
        self.values.append(value)
        if len(self.t) > MAX_READINGS:
            old = MAX_READINGS // 2
            times, values = thin(self.t[:old], self.values[:old], old // 2)
            self.t[:old] = array("d", times)
            self.values[:old] = array("d", values)

    def copy_between(self, start: float, end: float) -> Track:
        """Copy the readings from *start* to *end*."""
        span = slice(bisect_left(self.t, start), bisect_right(self.t, end))
        return Track(self.t[span], self.values[span])


class Window(Samples):
    """What was sampled in a span, in 16 bytes a reading until somebody asks for it."""

    def __init__(self, tracks: Mapping[tuple[str, str, str], Track]) -> None:
        self._tracks = tracks

    def __len__(self) -> int:
        """Count the samples."""
        return sum(len(track.t) for track in self._tracks.values())

    @overload
    def __getitem__(self, index: int) -> Sample: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Sample]: ...
    def __getitem__(self, index: int | slice) -> Sample | Sequence[Sample]:
        """Give one or some, in order of time."""
        return list(self)[index]

    def __iter__(self) -> Iterator[Sample]:
        """Give all, in order of time."""
        names = dict.fromkeys(name for name, _, _ in self._tracks)
        every = (s for name in names for s in self.select_by_name(name))
        return iter(sorted(every, key=lambda sample: sample.t))

    def select_by_name(self, name: str) -> Iterator[Sample]:
        """Give those called *name*, part by part."""
        for (series, unit, part_id), track in self._tracks.items():
            if series == name:
                for t, value in zip(track.t, track.values, strict=True):
                    yield Sample(name, value, unit, part_id, t)


class Sampler:
    """Keeps what the readers say, once each *period* seconds."""

    def __init__(
        self,
        readers: Sequence[Reader],
        period: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
        timeout: float = ROUND_TIMEOUT_SECONDS,
    ) -> None:
        """Take over *readers*: `stop` closes them."""
        self._timeout = timeout
        self._readers = tuple(readers)
        self._period = period
        self._clock = clock
        self._tracks: dict[tuple[str, str, str], Track] = {}
        self._round = threading.Condition()
        self._newest = float("-inf")
        self._nudge = threading.Event()
        self._stopping = threading.Event()
        self._bug: Exception | None = None
        self._thread = threading.Thread(target=self._sample_until_bug, name="sampler", daemon=True)

    def start(self) -> None:
        """Begin to sample; the first round is on its way when this returns."""
        self._thread.start()

    def stop(self) -> None:
        """End within `ROUND_TIMEOUT_SECONDS`, and close the readers unless one hangs."""
        self._stopping.set()
        self._nudge.set()
        if self._thread.ident is not None:
            self._thread.join(self._timeout)
        if not self._thread.is_alive():
            for reader in self._readers:
                reader.close()

    def read_window(self, start: float, end: float) -> Window:
        """Read the samples from *start* to *end*; a window up to now gets another round."""
        now = self._clock()
        if self._thread.is_alive() and end > now - self._period:
            self._await_round_after(min(end, now))
            end = max(end, self._newest)
        if self._bug:  # without it, parts would seem to have no sensors
            raise self._bug
        with self._round:
            return Window({k: t.copy_between(start, end) for k, t in self._tracks.items()})

    def list_first_and_last(self, name: str) -> list[tuple[str, tuple[float, float]]]:
        """Give the first and the newest reading of *name*, for each part."""
        with self._round:
            return [
                (part_id, (track.values[0], track.values[-1]))
                for (series, _, part_id), track in self._tracks.items()
                if series == name
            ]

    def reaches(self, end: float) -> bool:
        """Whether samples were taken up to *end*, or can still be."""
        if self._thread.is_alive():
            self._await_round_after(min(end, self._clock()))
        return self._newest >= end - self._period

    def _await_round_after(self, t: float) -> None:
        with self._round:
            self._nudge.set()
            self._round.wait_for(lambda: self._newest >= t, self._timeout)

    def _sample_until_bug(self) -> None:
        try:
            self._sample_rounds()
        except Exception as exc:  # noqa: BLE001 - the boundary of a thread
            with self._round:
                self._bug = exc
                self._newest = float("inf")  # nobody need wait for another round
                self._round.notify_all()

    def _sample_rounds(self) -> None:
        while not self._stopping.is_set():
            self._nudge.clear()
            t = self._clock()
            readings: list[Reading] = []
            for reader in self._readers:
                with suppress(OSError):  # what fails gives the rest in the next round
                    readings.extend(reader.read())
            with self._round:
                for reading in readings:
                    key = (reading.name, reading.unit, reading.part_id)
                    self._tracks.setdefault(key, Track()).add(t, reading.value)
                self._newest = t
                self._round.notify_all()
            self._nudge.wait(max(0.0, t + self._period - self._clock()))
