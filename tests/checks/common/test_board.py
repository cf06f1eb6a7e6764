"""Messages stay on a board, whoever reads them, and a board that is gone is told."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hpcverify_checks.common.board import (
    Board,
    BoardError,
    BoardServer,
    FolderBoard,
    SocketBoard,
    open_board,
)


@pytest.fixture
def server() -> Iterator[BoardServer]:
    one = BoardServer("127.0.0.1", 0, "job.1")
    yield one
    one.shutdown()
    one.server_close()


@pytest.fixture(params=["folder", "socket"])
def board(request: pytest.FixtureRequest, server: BoardServer, tmp_path: Path) -> Board:
    own = SocketBoard("127.0.0.1", server.port, "job.1")
    return open_board(str(own) if request.param == "socket" else str(tmp_path))


def test_the_last_message_of_each_rank_stays(board: Board) -> None:
    assert board.read("here") == {}
    board.post("here", 0, b"first")
    board.post("here", 0, b"last")
    board.post("here", 11)
    board.post("here.2.", 5, b"another topic")

    assert board.read("here") == {0: b"last", 11: b""}
    assert board.read("here", 2) == {0: b"last", 11: b""}


def test_who_waits_for_enough_messages_is_told_at_once(server: BoardServer) -> None:
    board = SocketBoard("127.0.0.1", server.port, "job.1")
    board.WAIT_SECONDS = 60.0
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(board.read, "here", 2)
        board.post("here", 0)
        board.post("here", 1)
        assert waiting.result(30) == {0: b"", 1: b""}


def test_ranks_of_another_job_get_no_answer(server: BoardServer) -> None:
    stranger = SocketBoard("127.0.0.1", server.port, "job.2")
    with pytest.raises(BoardError, match="does not answer"):
        stranger.post("here", 0)
    assert server.topics == {}


def test_what_is_no_message_of_ours_does_no_harm(server: BoardServer) -> None:
    for noise in (b"GET / HTTP/1.1\r\n\r\n", b"\0" * 8, b"\0\0\0\0\0\0\0\3abc", b""):
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(noise)
    board = SocketBoard("127.0.0.1", server.port, "job.1")
    board.post("here", 3)
    assert board.read("here") == {3: b""}


def test_a_board_that_accepts_and_says_nothing_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        board = SocketBoard("127.0.0.1", mute.getsockname()[1], "job.1")
        began = time.monotonic()
        with pytest.raises(BoardError, match="does not answer"):
            board.read("here")
        assert time.monotonic() - began < 60


def test_no_reader_sees_half_a_file(tmp_path: Path) -> None:
    board = FolderBoard(tmp_path)
    (tmp_path / "here1.new").write_bytes(b"half")
    assert board.read("here") == {}
