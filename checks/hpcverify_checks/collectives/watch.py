"""
The watch of rank 0's launcher over ranks that measure, until all results are on the board.

A message that cannot be read, or that fits no others', is an error of the rank that sent it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from time import monotonic, sleep
from typing import TypeVar

import msgspec

from hpcverify.records.collectives import CollectiveRun, RankPlace
from hpcverify_checks.collectives.combine import (
    REPORT,
    TIMELINE,
    RankReport,
    combine_reports,
    split_misfits,
    times_topic,
)
from hpcverify_checks.collectives.hangs import HEARTBEAT, HangWatch, Heartbeat
from hpcverify_checks.collectives.meeting import CAME, LauncherArrival
from hpcverify_checks.collectives.order import LaunchOrder
from hpcverify_checks.collectives.rank_process import RankProcess
from hpcverify_checks.collectives.stand_in import HEARTBEATS
from hpcverify_checks.collectives.timeline import Timeline, join_transfers
from hpcverify_checks.ranks.board import CROWDED, decode_messages
from hpcverify_checks.ranks.board_server import BoardServer
from hpcverify_checks.ranks.collective import StepTimes
from hpcverify_checks.ranks.process_group import ABORT_SECONDS, ROLL_CALL_SECONDS

WATCH_SECONDS = 0.1
QUIET_SECONDS = 900.0
"""After this time without progress of any rank, the run is over."""
GRACE_SECONDS = 3.0
"""The time in which a rank may still report after another one was lost."""
LEAVE_SECONDS = 5.0
"""The time in which the other launchers may see that all is over."""
DIED = "died"
LEFT = "left"
"""The last message of a launcher."""
REPORTS = msgspec.msgpack.Decoder(RankReport)
TIMES = msgspec.msgpack.Decoder(StepTimes)
TIMELINES = msgspec.msgpack.Decoder(Timeline)
T = TypeVar("T")
Shaped = TypeVar("Shaped", StepTimes, Timeline)


class RankWatch:
    """Looks at the board until nothing more will come."""

    def __init__(self, order: LaunchOrder, server: BoardServer) -> None:
        self.order, self.server = order, server
        self.hangs = HangWatch(monotonic(), order.timeout)
        self.unreadable: dict[int, str] = {}
        """Why a message of these ranks cannot be read."""

    def wait(self, children: Sequence[RankProcess]) -> None:
        """Wait until all ranks have reported, or those that can have."""
        trouble: float | None = None
        while len(self.server.read(REPORT)) < self.order.world:
            for child in children:
                if why := child.describe_end():
                    self._report_lost(child.rank, why)
            now = monotonic()
            self.hangs.look(now)
            self._listen({child.rank: child.read_heartbeat() for child in children}, now)
            reports = self._reports()
            for rank, why in self.hangs.find_missing(now, reports).items():
                self._report_lost(rank, why)
            lost = {
                *self.server.read(DIED),
                *chain.from_iterable(report.lost for report in reports.values()),
            }
            if trouble is None and (lost or any(report.unable for report in reports.values())):
                trouble = now
            is_complete = len({*reports, *lost}) == self.order.world
            grace = GRACE_SECONDS if is_complete else GRACE_SECONDS + 2 * ABORT_SECONDS
            if not is_complete and not self.server.read(DIED):
                grace += ROLL_CALL_SECONDS  # else all ranks know which one is lost
            if trouble is not None and now > trouble + grace:
                return
            if now > self.hangs.moved + QUIET_SECONDS:
                return
            sleep(WATCH_SECONDS)

    def _report_lost(self, rank: int, why: str) -> None:
        self.server.leave(DIED, rank, why.encode())
        self.server.leave("lost", rank, why.encode())

    def _listen(self, own: Mapping[int, Heartbeat], now: float) -> None:
        self.hangs.hear(own, now)
        for first, heartbeats in self._decode(HEARTBEAT, HEARTBEATS.decode).items():
            known = {
                rank: heartbeat
                for rank, heartbeat in heartbeats.items()
                if 0 <= rank < self.order.world
            }
            self.hangs.hear(known, self.server.read_messages(HEARTBEAT)[first].heard)

    def _decode(self, topic: str, decode: Callable[[bytes], T]) -> dict[int, T]:
        """Decode the messages about *topic*, and note those that cannot be read."""
        decoded, unreadable = decode_messages(self.server.read(topic), decode)
        self.unreadable = unreadable | self.unreadable
        return decoded

    def _keep_fitting(self, messages: Mapping[int, Shaped]) -> dict[int, Shaped]:
        """Keep messages of one shape, and note the ranks whose message has another one."""
        fitting, misfits = split_misfits(messages)
        self.unreadable = misfits | self.unreadable
        return fitting

    def _reports(self) -> dict[int, RankReport]:
        """Give the report of each rank; one whose messages cannot be read only says so."""
        reports = self._decode(REPORT, REPORTS.decode)
        for rank, why in self.unreadable.items():
            node = self.order.expected[rank] if self.order.expected else ""
            place = RankPlace(rank, node, "")
            report = reports.get(rank, RankReport(place=place))
            reports[rank] = msgspec.structs.replace(report, unable=report.unable or why)
        return reports

    def conclude(self, never_came: Mapping[int, str], algorithm: str) -> CollectiveRun:
        """Combine all messages into one document."""
        times: list[dict[int, StepTimes]] = []
        while self.server.read(topic := times_topic(len(times))):
            times.append(self._keep_fitting(self._decode(topic, TIMES.decode)))
        arrivals = self._decode(CAME, LauncherArrival.decode)
        came = {rank: arrival.node for rank, arrival in arrivals.items()}
        gone = {r: text.decode(errors="replace") for r, text in self.server.read(DIED).items()}
        gone |= never_came
        timelines = self._keep_fitting(self._decode(TIMELINE, TIMELINES.decode))
        reports = self._reports()
        expected = self.order.expected
        if not expected or any(expected[rank] != node for rank, node in came.items()):
            expected = ("",) * self.order.world
        run = combine_reports(
            # A rank that never came counts as where it was expected.
            [RankPlace(r, came.get(r, node), "") for r, node in enumerate(expected)],
            reports,
            times,
            gone=gone,
            # Those that have not got past meeting the others may wait for them, too.
            waiting=[r for r, b in self.hangs.heartbeats.items() if b.is_waiting or not b.position],
            algorithm=algorithm,
        )
        if run.missing and self.server.is_crowded:
            text = f"{CROWDED} {self.server.address}"
            run = msgspec.structs.replace(run, missing=(), reasons={}, unable=text)
        if len(timelines) < self.order.world:
            return run
        steps = tuple(timelines[rank].steps for rank in sorted(timelines))
        return msgspec.structs.replace(run, steps=steps, transfers=join_transfers(timelines))

    def dismiss(self, lost: Mapping[int, str]) -> None:
        """Post for the launchers that came which ranks did not: so none of them misses rank 0."""
        for rank, why in lost.items():
            self.server.leave("lost", rank, why.encode())
        self.await_leavers()

    def await_leavers(self) -> None:
        """Let the other launchers see that all is over, if they are still there."""
        others = len(self.server.read(CAME)) - len(self.order.ranks)
        deadline = monotonic() + LEAVE_SECONDS
        while len(self.server.read(LEFT)) < others and monotonic() < deadline:
            sleep(WATCH_SECONDS)
