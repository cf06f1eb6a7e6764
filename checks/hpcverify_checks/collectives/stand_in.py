"""
The launcher that writes the result if the node of rank 0 is lost, and the board with it.

The launcher of the first rank on another node keeps a second board, to which all launchers
post how far their ranks are. If the first board falls silent, the ranks are missing that
are not heard there either. A stand-in that hears of fewer than half of all ranks says
nothing of the others: it may be the one that is cut off.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from time import monotonic

import msgspec

import hpcverify.check as hv
from hpcverify.records.collectives import CollectiveRun, RankPlace
from hpcverify_checks.collectives.hangs import HEARTBEAT, SILENT_SECONDS, Heartbeat
from hpcverify_checks.collectives.meeting import LauncherArrival, list_nodes
from hpcverify_checks.ranks.board import (
    CROWDED,
    UNREADABLE,
    BoardError,
    Port,
    SocketBoard,
    decode_messages,
)
from hpcverify_checks.ranks.board_server import BoardServer

STAND_IN = "stand_in"
OVER = "over"
"""The message that rank 0's launcher has all results."""
HEARTBEATS = msgspec.msgpack.Decoder(dict[int, Heartbeat])


class StandIn:
    """A launcher's view of the second board, which one of the launchers keeps."""

    def __init__(self, arrivals: Sequence[LauncherArrival], rank: int, board: SocketBoard) -> None:
        self.arrivals, self.rank, self.board = arrivals, rank, board
        self.server: BoardServer | None = None
        self.second: SocketBoard | None = None

    @classmethod
    @contextmanager
    def open(
        cls, arrivals: Sequence[LauncherArrival], rank: int, board: SocketBoard
    ) -> Generator[StandIn]:
        """Keep the second board while the block runs, if this launcher is the stand-in."""
        stand_in = cls(arrivals, rank, board)
        if rank != find_stand_in(list_nodes(arrivals)):
            yield stand_in
            return
        address = arrivals[rank].address
        with BoardServer.open(address, 0, board.group, board.secret, world=len(arrivals)) as server:
            stand_in.server = server
            stand_in.second = SocketBoard(address, server.port, board.group, board.secret)
            with suppress(BoardError):  # rank 0 is lost already: `conclude` hears of few ranks
                board.post(STAND_IN, rank, msgspec.json.encode(server.port))
            yield stand_in

    def post(self, heartbeats: Mapping[int, Heartbeat]) -> None:
        """Post on the second board how far the ranks of this launcher are."""
        with suppress(BoardError):  # then nobody stands in
            self.second = self.second or find_second_board(self.board, self.arrivals)
            if self.second:
                self.second.post(HEARTBEAT, self.rank, msgspec.msgpack.encode(heartbeats))

    def is_over(self) -> bool:
        """Whether rank 0's launcher said its last word to the stand-in."""
        return self.server is not None and bool(self.server.read(OVER))

    def conclude(self) -> CollectiveRun:
        """Say which ranks are missing, now that the board of rank 0 does not answer."""
        if self.server is None:
            text = f"the node of rank 0, {self.arrivals[0].node}, does not answer any more"
            raise hv.Unable(text, hv.Cause.TIMEOUT, hv.Remedy.RERUN)
        messages = self.server.read_messages(HEARTBEAT)
        recent = {
            first: message.content
            for first, message in messages.items()
            if monotonic() - message.heard < SILENT_SECONDS
        }
        heartbeats, _ = decode_messages(recent, HEARTBEATS.decode)
        here = {*recent, *chain.from_iterable(heartbeats.values())}
        world = len(self.arrivals)
        if len(here) < world / 2:
            text = f"{len(here)} of {world} ranks are heard of here: this node may be cut off"
            raise hv.Unable(text, hv.Cause.TIMEOUT, hv.Remedy.RERUN)
        if self.server.is_crowded:
            raise hv.Unable(f"{CROWDED} {self.server.address}", hv.Cause.BUSY, hv.Remedy.RERUN)
        missing = tuple(rank for rank in range(world) if rank not in here)
        return CollectiveRun(
            id="",
            started="",
            ended="",
            version="",
            ranks=tuple(
                RankPlace(rank, node, "") for rank, node in enumerate(list_nodes(self.arrivals))
            ),
            missing=missing,
            reasons=dict.fromkeys(missing, "does not answer, nor its node"),
        )


def find_stand_in(nodes: Sequence[str]) -> int:
    """Find the first rank that is not on the node of rank 0; -1 if all are."""
    return next((rank for rank, node in enumerate(nodes) if node != nodes[0]), -1)


def find_second_board(
    board: SocketBoard, arrivals: Sequence[LauncherArrival]
) -> SocketBoard | None:
    """Find the board of the stand-in, on the node that it came from; None before it has a port."""
    rank = find_stand_in(list_nodes(arrivals))
    try:
        port = msgspec.json.decode(board.read(STAND_IN).get(rank, b""), type=Port)
    except UNREADABLE:
        return None
    return SocketBoard(arrivals[rank].address, port, board.group, board.secret)


def notify_stand_in(board: SocketBoard, arrivals: Sequence[LauncherArrival]) -> None:
    """Notify the stand-in that all is over: it then takes the silence for the end."""
    with suppress(BoardError):  # it may be lost
        second = find_second_board(board, arrivals)
        if second:
            second.post(OVER, 0)
