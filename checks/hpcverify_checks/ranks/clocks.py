"""
Compare the monotonic clocks of two nodes by round trips, and bound what stays unknown.

The other node reads its clock at some time between a question and its answer, so the
middle of the two is wrong by half the round trip at most, however unequal the ways are
(Cristian 1989; the offset of RFC 5905, section 8). Of many round trips the shortest says
most (its clock filter, section 10). Two comparisons, before and after a measurement, give
the drift: between them the offset is interpolated. What two quartz clocks may stray from a
straight line is bounded by the frequency tolerance of RFC 5905, PHI.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

TOLERANCE = 15e-6
"""PHI of RFC 5905: seconds a second."""


class RoundTrip(Struct, frozen=True):
    """One question: when it was sent, what the other clock said, when that came; in seconds."""

    sent: float
    read: float
    received: float


class ClockReading(Struct, frozen=True):
    """What the other clock shows more than this one, at some time of this one."""

    at: float
    offset: float
    error: float
    """The true offset is at most so far away."""

    @classmethod
    def choose(cls, trips: Sequence[RoundTrip]) -> ClockReading:
        """Take the shortest of some round *trips*."""
        best = min(trips, key=lambda trip: trip.received - trip.sent)
        middle = (best.sent + best.received) / 2
        return cls(middle, best.read - middle, (best.received - best.sent) / 2)


class ClockComparison(Struct, frozen=True):
    """Two readings of another clock, one before and one after what was measured."""

    before: ClockReading
    after: ClockReading

    def convert(self, at: float) -> float:
        """Convert a time of this clock to the other's."""
        span = self.after.at - self.before.at
        share = (at - self.before.at) / span if span else 0.0
        return at + self.before.offset + share * (self.after.offset - self.before.offset)

    def bound_error(self) -> float:
        """Bound what any converted time between the readings may be wrong by."""
        halfway = (self.after.at - self.before.at) / 2
        return max(self.before.error, self.after.error) + TOLERANCE * halfway


SAME_CLOCK = ClockComparison(ClockReading(0.0, 0.0, 0.0), ClockReading(0.0, 0.0, 0.0))
"""The comparison of a rank with itself, and with those of its node."""
