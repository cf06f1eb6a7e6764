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
from time import monotonic

import msgspec

from hpcverify.check import Cause, Remedy, Unable
from hpcverify.records.collectives import CollectiveRun, RankPlace
from hpcverify_checks.collectives.hangs import BEAT, SILENT_SECONDS, Beat
from hpcverify_checks.common.board import (
    BoardError,
    BoardServer,
    FolderBoard,
    SocketBoard,
    open_board,
)

DEPUTY = "deputy"
OVER = "over"
"""The message that rank 0's launcher has all that there is."""


class Deputy:
    """A launcher's view of the second board; one of the launchers keeps it."""

    def __init__(self, board: SocketBoard, nodes: Sequence[str], rank: int) -> None:
        """Be the launcher whose first rank is *rank*; *nodes* has the node of each rank."""
        self.board, self.nodes, self.rank = board, nodes, rank
        self.server: BoardServer | None = None
        self.second: FolderBoard | SocketBoard | None = None

    @classmethod
    @contextmanager
    def open(
        cls, group: str, nodes: Sequence[str], rank: int, board: SocketBoard, own_address: str
    ) -> Generator[Deputy]:
        """Keep the second board while the block runs, if it is for this launcher to do."""
        deputy = cls(board, nodes, rank)
        if rank != find_deputy(nodes):
            yield deputy
            return
        deputy.server = BoardServer("", 0, group)
        deputy.second = SocketBoard("127.0.0.1", deputy.server.port, group)
        try:
            where = SocketBoard(own_address, deputy.server.port, group)
            with suppress(BoardError):  # rank 0 is lost already: `conclude` hears of few ranks
                board.post(DEPUTY, rank, str(where).encode())
            yield deputy
        finally:
            deputy.server.shutdown()
            deputy.server.server_close()

    def tell(self, beats: Mapping[int, Beat]) -> None:
        """Tell the second board how far the ranks of this launcher are."""
        with suppress(BoardError):  # then it can do nothing for us
            self.second = self.second or find_second_board(self.board)
            if self.second:
                self.second.post(BEAT, self.rank, msgspec.msgpack.encode(beats))

    def is_over(self) -> bool:
        """Whether rank 0's launcher said its last word to the deputy."""
        return self.server is not None and OVER in self.server.topics

    def conclude(self) -> CollectiveRun:
        """
        Say who is missing, now that the board of rank 0 does not answer.

        Raises:
            Unable: this is no deputy, or one that hears of too few ranks.

        """
        if self.server is None:
            text = f"the node of rank 0, {self.nodes[0]}, does not answer any more"
            raise Unable(text, Cause.TIMEOUT, Remedy.RERUN)
        with self.server.changed:
            heard, told = dict(self.server.heard_at), dict(self.server.topics.get(BEAT, {}))
        here = {
            rank
            for first, message in told.items()
            if monotonic() - heard[BEAT, first] < SILENT_SECONDS
            for rank in msgspec.msgpack.decode(message, type=dict[int, Beat])
        }
        world = len(self.nodes)
        if len(here) < world / 2:
            text = f"{len(here)} of {world} ranks are heard of here: this node may be cut off"
            raise Unable(text, Cause.TIMEOUT, Remedy.RERUN)
        missing = tuple(rank for rank in range(world) if rank not in here)
        return CollectiveRun(
            id="",
            started="",
            ended="",
            version="",
            ranks=tuple(RankPlace(rank, node, "") for rank, node in enumerate(self.nodes)),
            missing=missing,
            reasons=dict.fromkeys(missing, "does not answer, nor its node"),
        )


def find_deputy(nodes: Sequence[str]) -> int:
    """Find the first rank that is not on the node of rank 0; -1 if all are."""
    return next((rank for rank, node in enumerate(nodes) if node != nodes[0]), -1)


def find_second_board(board: SocketBoard) -> FolderBoard | SocketBoard | None:
    """Find the deputy's board; None before it has told where it is."""
    told = list(board.read(DEPUTY).values())
    return open_board(told[0].decode()) if told else None


def tell_deputy(board: SocketBoard) -> None:
    """Tell the deputy that all is over: then it need not wonder about the silence."""
    with suppress(BoardError):  # it may be lost
        second = find_second_board(board)
        if second:
            second.post(OVER, 0)
