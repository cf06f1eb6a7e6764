"""
Who speaks if the node of rank 0 is lost, and the board with it.

The launcher of the first rank on another node keeps a second board, to which all launchers
tell how far their ranks are. If the first board falls silent, the ranks are missing that
are not heard there either. A deputy that hears of fewer than half of all ranks says
nothing of the others: it may be the one that is cut off.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from time import monotonic

import msgspec

from hpcverify.check import Cause, Remedy, Unable
from hpcverify.records.collectives import CollectiveRun, RankPlace
from hpcverify_checks.collectives.arrival import LauncherArrival, list_nodes
from hpcverify_checks.collectives.hangs import BEAT, SILENT_SECONDS, Beat
from hpcverify_checks.common.board import (
    CROWDED,
    UNREADABLE,
    BoardError,
    Port,
    SocketBoard,
    decode_messages,
)
from hpcverify_checks.common.board_server import BoardServer

DEPUTY = "deputy"
OVER = "over"
"""The message that rank 0's launcher has all that there is."""
BEATS = msgspec.msgpack.Decoder(dict[int, Beat])


class Deputy:
    """A launcher's view of the second board; one of the launchers keeps it."""

    def __init__(self, arrivals: Sequence[LauncherArrival], rank: int, board: SocketBoard) -> None:
        """Be the launcher whose first rank is *rank*."""
        self.arrivals, self.rank, self.board = arrivals, rank, board
        self.server: BoardServer | None = None
        self.second: SocketBoard | None = None

    @classmethod
    @contextmanager
    def open(
        cls, arrivals: Sequence[LauncherArrival], rank: int, board: SocketBoard
    ) -> Generator[Deputy]:
        """Keep the second board while the block runs, if it is for this launcher to do."""
        deputy = cls(arrivals, rank, board)
        if rank != find_deputy(list_nodes(arrivals)):
            yield deputy
            return
        address = arrivals[rank].address
        with BoardServer.open(address, 0, board.group, board.secret, world=len(arrivals)) as server:
            deputy.server = server
            deputy.second = SocketBoard(address, server.port, board.group, board.secret)
            with suppress(BoardError):  # rank 0 is lost already: `conclude` hears of few ranks
                board.post(DEPUTY, rank, msgspec.json.encode(server.port))
            yield deputy

    def tell(self, beats: Mapping[int, Beat]) -> None:
        """Tell the second board how far the ranks of this launcher are."""
        with suppress(BoardError):  # then it can do nothing for us
            self.second = self.second or find_second_board(self.board, self.arrivals)
            if self.second:
                self.second.post(BEAT, self.rank, msgspec.msgpack.encode(beats))

    def is_over(self) -> bool:
        """Whether rank 0's launcher said its last word to the deputy."""
        return self.server is not None and bool(self.server.read(OVER))

    def conclude(self) -> CollectiveRun:
        """
        Say who is missing, now that the board of rank 0 does not answer.

        Raises:
            Unable: this is no deputy, or one that hears of too few ranks.

        """
        if self.server is None:
            text = f"the node of rank 0, {self.arrivals[0].node}, does not answer any more"
            raise Unable(text, Cause.TIMEOUT, Remedy.RERUN)
        messages = self.server.read_messages(BEAT)
        told = {
            first: message.content
            for first, message in messages.items()
            if monotonic() - message.heard < SILENT_SECONDS
        }
        beats, _ = decode_messages(told, BEATS.decode)
        here = {*told, *chain.from_iterable(beats.values())}
        world = len(self.arrivals)
        if len(here) < world / 2:
            text = f"{len(here)} of {world} ranks are heard of here: this node may be cut off"
            raise Unable(text, Cause.TIMEOUT, Remedy.RERUN)
        if self.server.is_crowded:
            raise Unable(f"{CROWDED} {self.server.address}", Cause.BUSY, Remedy.RERUN)
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


def find_deputy(nodes: Sequence[str]) -> int:
    """Find the first rank that is not on the node of rank 0; -1 if all are."""
    return next((rank for rank, node in enumerate(nodes) if node != nodes[0]), -1)


def find_second_board(
    board: SocketBoard, arrivals: Sequence[LauncherArrival]
) -> SocketBoard | None:
    """Find the board of the deputy, on the node from which it came; None before it says where."""
    rank = find_deputy(list_nodes(arrivals))
    try:
        port = msgspec.json.decode(board.read(DEPUTY).get(rank, b""), type=Port)
    except UNREADABLE:
        return None
    return SocketBoard(arrivals[rank].address, port, board.group, board.secret)


def tell_deputy(board: SocketBoard, arrivals: Sequence[LauncherArrival]) -> None:
    """Tell the deputy that all is over: then it need not wonder about the silence."""
    with suppress(BoardError):  # it may be lost
        second = find_second_board(board, arrivals)
        if second:
            second.post(OVER, 0)
