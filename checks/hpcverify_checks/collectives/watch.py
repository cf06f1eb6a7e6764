"""
What rank 0's launcher does while ranks measure: it looks at the board until all is there.

What cannot be read, or fits no others', is an error of the rank that sent it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from time import monotonic, sleep
from typing import TypeVar

import msgspec

from hpcverify.records.collectives import CollectiveRun, RankPlace
from hpcverify_checks.collectives.arrival import LauncherArrival
from hpcverify_checks.collectives.combine import (
    REPORT,
    TIMELINE,
    RankReport,
    combine_reports,
    split_misfits,
    times_topic,
)
from hpcverify_checks.collectives.deputy import BEATS
from hpcverify_checks.collectives.hangs import BEAT, Beat, HangWatch
from hpcverify_checks.collectives.meeting import CAME
from hpcverify_checks.collectives.order import LaunchOrder
from hpcverify_checks.collectives.rank_process import RankProcess
from hpcverify_checks.collectives.timeline import Timeline, join_transfers
from hpcverify_checks.common.board import CROWDED, decode_messages
from hpcverify_checks.common.board_server import BoardServer
from hpcverify_checks.common.collective import StepTimes
from hpcverify_checks.common.rendezvous import ABORT_SECONDS, ROLL_CALL_SECONDS

WATCH_SECONDS = 0.1
QUIET_SECONDS = 900.0
"""Without any rank that moves on: then all of them hang, or none can say why not."""
GRACE_SECONDS = 3.0
"""For a rank that is only late to report after all."""
LEAVE_SECONDS = 5.0
"""For the other launchers to see that all is over."""
DIED = "died"
LEFT = "left"
"""The last message of a launcher."""
REPORTS = msgspec.msgpack.Decoder(RankReport)
TIMES = msgspec.msgpack.Decoder(StepTimes)
TIMELINES = msgspec.msgpack.Decoder(Timeline)
T = TypeVar("T")
Shaped = TypeVar("Shaped", StepTimes, Timeline)


class RankWatch:
    """Rank 0's launcher looks at the board until there is nothing more to come."""

    def __init__(self, order: LaunchOrder, server: BoardServer) -> None:
        """Watch the ranks of *order* at the board of *server*."""
        self.order, self.server = order, server
        self.hangs = HangWatch(monotonic(), order.timeout)
        self.unreadable: dict[int, str] = {}
        """Ranks that sent what cannot be read, and why."""

    def wait(self, children: Sequence[RankProcess]) -> None:
        """Wait until all ranks have reported, or those that can have."""
        trouble: float | None = None
        while len(self.server.read(REPORT)) < self.order.world:
            for child in children:
                if why := child.describe_end():
                    self._accuse(child.rank, why)
            now = monotonic()
            self.hangs.look(now)
            self._listen({child.rank: child.read_beat() for child in children}, now)
            reports = self._reports()
            for rank, why in self.hangs.find_missing(now, reports).items():
                self._accuse(rank, why)
            accused = {
                *self.server.read(DIED),
                *chain.from_iterable(r.lost for r in reports.values()),
            }
            if trouble is None and (accused or any(one.unable for one in reports.values())):
                trouble = now
            is_complete = len({*reports, *accused}) == self.order.world
            grace = GRACE_SECONDS if is_complete else GRACE_SECONDS + 2 * ABORT_SECONDS
            if not is_complete and not self.server.read(DIED):
                grace += ROLL_CALL_SECONDS  # else all ranks were told who is lost
            if trouble is not None and now > trouble + grace:
                return
            if now > self.hangs.moved + QUIET_SECONDS:
                return
            sleep(WATCH_SECONDS)

    def _accuse(self, rank: int, why: str) -> None:
        """Tell all ranks that one is lost."""
        self._post(DIED, rank, why)
        self._post("lost", rank, why)

    def _listen(self, own: Mapping[int, Beat], now: float) -> None:
        """Take the beats of all launchers."""
        self.hangs.hear(own, now)
        for first, beats in self._decode(BEAT, BEATS.decode).items():
            known = {rank: beat for rank, beat in beats.items() if 0 <= rank < self.order.world}
            self.hangs.hear(known, self.server.read_messages(BEAT)[first].heard)

    def _post(self, topic: str, rank: int, text: str) -> None:
        self.server.leave(topic, rank, text.encode())

    def _decode(self, topic: str, decode: Callable[[bytes], T]) -> dict[int, T]:
        """Decode what ranks left about *topic*, and note whose cannot be read."""
        read, unreadable = decode_messages(self.server.read(topic), decode)
        self.unreadable = unreadable | self.unreadable
        return read

    def _keep_alike(self, found: Mapping[int, Shaped]) -> dict[int, Shaped]:
        """Keep what is of one shape, and note the ranks whose is not."""
        alike, misfits = split_misfits(found)
        self.unreadable = misfits | self.unreadable
        return alike

    def _reports(self) -> dict[int, RankReport]:
        """Give the report of each rank; one that sent what cannot be read accuses nobody."""
        reports = self._decode(REPORT, REPORTS.decode)
        for rank, why in self.unreadable.items():
            place = RankPlace(rank, self._find_node(rank), "")
            said = reports.get(rank, RankReport(place=place))
            reports[rank] = msgspec.structs.replace(said, unable=said.unable or why)
        return reports

    def conclude(self, never_came: Mapping[int, str], algorithm: str) -> CollectiveRun:
        """Put together what there is."""
        times: list[dict[int, StepTimes]] = []
        while self.server.read(topic := times_topic(len(times))):
            times.append(self._keep_alike(self._decode(topic, TIMES.decode)))
        came = {rank: one.node for rank, one in self._decode(CAME, LauncherArrival.decode).items()}
        gone = {r: text.decode(errors="replace") for r, text in self.server.read(DIED).items()}
        gone |= never_came
        timelines = self._keep_alike(self._decode(TIMELINE, TIMELINES.decode))
        reports = self._reports()
        run = combine_reports(
            self._list_places(came), reports, times, gone=gone, algorithm=algorithm
        )
        if run.missing and self.server.is_crowded:
            text = f"{CROWDED} {self.server.address}"
            run = msgspec.structs.replace(run, missing=(), reasons={}, unable=text)
        if len(timelines) < self.order.world:
            return run
        steps = tuple(timelines[rank].steps for rank in sorted(timelines))
        return msgspec.structs.replace(run, steps=steps, transfers=join_transfers(timelines))

    def _find_node(self, rank: int) -> str:
        return self.order.expected[rank] if self.order.expected else ""

    def _list_places(self, came: Mapping[int, str]) -> list[RankPlace]:
        """List where the ranks are; one that never came is where it should have been."""
        expected = self.order.expected
        if not expected or any(expected[rank] != node for rank, node in came.items()):
            expected = ("",) * self.order.world
        return [RankPlace(r, came.get(r, node), "") for r, node in enumerate(expected)]

    def dismiss(self, lost: Mapping[int, str]) -> None:
        """Tell the launchers that came which ranks did not, so that none misses rank 0."""
        for rank, why in lost.items():
            self._post("lost", rank, why)
        self.await_leavers()

    def await_leavers(self) -> None:
        """Let the other launchers see that all is over, if they are still there."""
        others = len(self.server.read(CAME)) - len(self.order.ranks)
        deadline = monotonic() + LEAVE_SECONDS
        while len(self.server.read(LEFT)) < others and monotonic() < deadline:
            sleep(WATCH_SECONDS)
