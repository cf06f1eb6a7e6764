"""Messages stay on a board, whoever reads them; strangers neither leave nor change any."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Thread, active_count

import msgspec
import pytest

from hpcverify.records.collectives import SECRET_VARIABLE
from hpcverify_checks.ranks import board as board_client
from hpcverify_checks.ranks import board_server
from hpcverify_checks.ranks.board import (
    CREDENTIAL_LENGTH,
    MAX_MESSAGE_BYTES,
    Board,
    BoardError,
    BoardLine,
    BoardRequest,
    FolderBoard,
    SocketBoard,
    connect,
    open_board,
)
from hpcverify_checks.ranks.board_server import BoardServer
from hpcverify_checks.ranks.seal import (
    ANSWER,
    MAC_BYTES,
    NONCE_BYTES,
    PROOF,
    REQUEST,
    Seal,
)
from tests.waiting import PATIENCE_S

KNOWN = "what only the user of this job knows"
GUESSED = "what somebody else hopes that it is"
LOOPBACK, GROUP, WORLD = "127.0.0.1", "job.1", 16


@pytest.fixture
def server() -> Iterator[BoardServer]:
    with BoardServer.open(LOOPBACK, 0, GROUP, KNOWN, world=WORLD) as one:
        yield one


def ask(server: BoardServer, secret: str = KNOWN, group: str = GROUP) -> SocketBoard:
    """Be a client that knows *secret*, and does not try for long."""
    return SocketBoard(LOOPBACK, server.port, group, secret, patience=2.0)


@pytest.fixture(params=["folder", "socket"])
def board(
    request: pytest.FixtureRequest,
    server: BoardServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Board:
    monkeypatch.setenv(SECRET_VARIABLE, KNOWN)
    return open_board(str(ask(server)) if request.param == "socket" else str(tmp_path))


def test_the_last_message_of_each_rank_stays(board: Board) -> None:
    assert board.read("here") == {}
    board.post("here", 0, b"first")
    board.post("here", 0, b"last")
    board.post("here", 11)
    board.post("here.2.", 5, b"another topic")

    assert board.read("here") == {0: b"last", 11: b""}
    assert board.read("here", 2) == {0: b"last", 11: b""}


def test_who_waits_for_enough_messages_is_told_at_once(server: BoardServer) -> None:
    board = ask(server)
    board.WAIT_SECONDS = 60.0  # the longest that a server lets anybody wait
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(board.read, "here", 2)
        board.post("here", 0)
        server.leave("here", 1, b"")
        assert waiting.result(50) == {0: b"", 1: b""}


def test_the_clock_of_the_node_of_the_board_can_be_read(server: BoardServer) -> None:
    trips = ask(server).make_round_trips(5)

    assert len(trips) == 5
    assert all(trip.sent <= trip.read <= trip.received for trip in trips)


@pytest.mark.parametrize(("secret", "group"), [(GUESSED, GROUP), (KNOWN, "job.2")])
def test_who_does_not_know_the_secret_of_the_job_leaves_nothing_and_reads_nothing(
    server: BoardServer, secret: str, group: str
) -> None:
    stranger = ask(server, secret, group)
    for act in (lambda: stranger.post("died", 1, b"framed"), lambda: stranger.read("here")):
        with pytest.raises(BoardError, match="does not answer"):
            act()
    assert server.read("died") == {}


def test_a_board_that_does_not_know_the_secret_is_not_believed() -> None:
    with BoardServer.open(LOOPBACK, 0, GROUP, GUESSED, world=WORLD) as forged:
        forged.leave("over", 0, b"")
        with pytest.raises(BoardError, match="does not answer"):
            ask(forged).read("over")


@contextmanager
def meet(server: BoardServer) -> Generator[tuple[BoardLine, Seal, bytes]]:
    """Connect; also give what the connection is signed with, and what proves to know it."""
    with connect(LOOPBACK, server.port, PATIENCE_S) as line:
        nonce = os.urandom(NONCE_BYTES)
        seal = Seal.make(KNOWN, GROUP, line.challenge, nonce)
        yield line, seal, nonce + seal.sign(PROOF)


def test_an_answer_of_somebody_between_is_not_believed() -> None:
    forged = Seal(b"guessed").pack(ANSWER, msgspec.msgpack.encode({0: b"forged"}))
    with socket.create_server((LOOPBACK, 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(bytes(NONCE_BYTES) + CREDENTIAL_LENGTH.pack(0))
                connection.recv(2**16)
                connection.sendall(forged)
                connection.recv(1)

        between = Thread(target=answer)
        between.start()
        board = SocketBoard(LOOPBACK, listener.getsockname()[1], GROUP, KNOWN)
        with pytest.raises(BoardError, match="does not know the secret"):
            board.read("here")
        between.join()


def test_what_was_recorded_of_one_connection_is_refused_on_another(server: BoardServer) -> None:
    data = msgspec.msgpack.encode(BoardRequest("died", 1, b"an old word"))
    with meet(server) as (line, seal, proof):
        recorded = proof + seal.pack(REQUEST, data)
        line.socket.sendall(recorded)
        assert line.receive(1)  # it was right the first time
    ask(server).post("died", 1, b"a new word")
    with connect(LOOPBACK, server.port, PATIENCE_S) as line:
        line.socket.sendall(recorded)
        with pytest.raises(ConnectionError):
            line.receive(1)
    assert server.read("died") == {1: b"a new word"}


def test_a_message_that_was_changed_on_its_way_is_refused(server: BoardServer) -> None:
    data = msgspec.msgpack.encode(BoardRequest("died", 1, b"rank 1 runs"))
    with meet(server) as (line, seal, proof):
        line.socket.sendall(proof + seal.pack(REQUEST, data).replace(b"runs", b"died"))
        with pytest.raises(ConnectionError):
            line.receive(1)
    assert server.read("died") == {}


NOISE = (
    b"GET / HTTP/1.1\r\n\r\n",
    b"\0" * 8,
    b"\0" * (NONCE_BYTES + MAC_BYTES),
    b"\xff" * 2**16,
    b"",
)


def test_what_is_not_a_message_of_ours_does_no_harm(server: BoardServer) -> None:
    for noise in NOISE:
        with socket.create_connection((LOOPBACK, server.port)) as connection:
            connection.sendall(noise)
    ask(server).post("here", 3)
    assert server.read("here") == {3: b""}


@pytest.mark.parametrize(
    "asked",
    [
        {"topic": "t" * 65, "rank": 1},
        {"topic": "here", "rank": WORLD},
        {"topic": "here", "rank": -2},
        {"topic": "here", "enough": 10**9},
        {"topic": "here", "seconds": 1e6},
        {"topic": "", "round_trips": 10**9},
        {"topic": "here", "rank": 1, "message": bytes(MAX_MESSAGE_BYTES + 1)},
        {"topic": 5},
        ["here"],
    ],
)
def test_what_is_asked_has_bounds_even_for_who_knows_the_secret(
    server: BoardServer, asked: object
) -> None:
    with meet(server) as (line, seal, proof):
        with suppress(ConnectionError):  # it may not even wait for the end
            line.socket.sendall(proof + seal.pack(REQUEST, msgspec.msgpack.encode(asked)))
        with pytest.raises(ConnectionError):
            line.receive(1)
    assert server.read("here") == {}


def test_the_messages_of_a_rank_take_a_bounded_memory(server: BoardServer) -> None:
    board, message = ask(server), bytes(MAX_MESSAGE_BYTES)
    fit = board_server.MAX_RANK_BYTES // MAX_MESSAGE_BYTES
    for number in range(fit):
        board.post(f"times.{number}.", 1, message)
    with pytest.raises(BoardError):
        board.post("times.more.", 1, message)
    board.post("times.0.", 1, message)  # in place of the last one
    board.post("times.0.", 2, message)

    assert server.read("times.more.") == {}


def test_a_crowd_of_strangers_takes_no_thread_little_memory_and_no_place_for_good(
    server: BoardServer,
) -> None:
    """They open many connections, say as much as they can, and stay."""
    threads = active_count()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    crowd = board_server.MIN_STRANGERS + board_server.STRANGERS_FOR_RANK * WORLD + 100
    with ExitStack() as held:
        for _ in range(crowd):
            connection = socket.create_connection((LOOPBACK, server.port))
            held.enter_context(connection)
            with suppress(ConnectionError):  # it is one of those that had to go
                connection.send(bytes(NONCE_BYTES))
        patient = SocketBoard(LOOPBACK, server.port, GROUP, KNOWN, patience=PATIENCE_S)
        patient.post("here", 1, b"rank 1")

        assert patient.read("here") == {1: b"rank 1"}
        assert active_count() == threads
        # ru_maxrss is in KiB. The other side of each connection is in this process too.
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 2**10


FLOODED = """
import os, resource, sys, time
from hpcverify_checks.ranks.board_server import BoardServer
address, group, secret, world = sys.argv[1:]
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
with BoardServer.open(address, 0, group, secret, world=int(world)) as server:
    print(server.port, flush=True)
    while len(server.read("here")) < int(world):
        for descriptor in [os.open(os.devnull, os.O_RDONLY) for _ in range(32)]:
            os.close(descriptor)
        time.sleep(0.01)
    print(sorted(server.read("here").values()))
"""
"""Keep a board while the process itself goes on to open files, until all ranks were there."""
CROWD = """
import resource, socket, sys
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
held = []
for _ in range(3000):
    held.append(socket.socket())
    held[-1].setblocking(False)
    held[-1].connect_ex((sys.argv[1], int(sys.argv[2])))
print(len(held), flush=True)
sys.stdin.read()
"""
"""Open connections, and hold them until there is no more to read."""


@contextmanager
def run_program(text: str, *arguments: str) -> Generator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", text, *arguments]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_crowd_that_comes_at_once_leaves_the_process_of_the_board_its_files() -> None:
    """Strangers wait to be accepted, thousands of them, before the ranks come as well."""
    with run_program(FLOODED, LOOPBACK, GROUP, KNOWN, str(WORLD)) as flooded:
        assert flooded.stdout
        port = int(flooded.stdout.readline())
        flooded.send_signal(signal.SIGSTOP)
        with run_program(CROWD, LOOPBACK, str(port)) as crowd, ThreadPoolExecutor(WORLD) as ranks:
            assert crowd.stdout
            assert crowd.stdout.readline() == "3000\n"
            flooded.send_signal(signal.SIGCONT)
            board = SocketBoard(LOOPBACK, port, GROUP, KNOWN, patience=PATIENCE_S)
            for rank in range(WORLD):
                ranks.submit(board.post, "here", rank, b"%02d" % rank)
            out, fault = flooded.communicate(timeout=2 * PATIENCE_S)
    assert (out, fault) == (f"{[b'%02d' % rank for rank in range(WORLD)]}\n", "")


def test_of_too_many_strangers_one_from_the_busiest_address_goes(server: BoardServer) -> None:
    """127.0.0.2 is another node, as far as the board knows."""
    crowd = board_server.MIN_STRANGERS + board_server.STRANGERS_FOR_RANK * WORLD
    with (
        socket.create_connection((LOOPBACK, server.port), source_address=("127.0.0.2", 0)) as good,
        ExitStack() as held,
    ):
        good.settimeout(PATIENCE_S)
        greeting = good.recv(NONCE_BYTES, socket.MSG_WAITALL)
        good.recv(CREDENTIAL_LENGTH.size, socket.MSG_WAITALL)
        for _ in range(crowd):
            held.enter_context(socket.create_connection((LOOPBACK, server.port)))
        nonce = os.urandom(NONCE_BYTES)
        seal = Seal.make(KNOWN, GROUP, greeting, nonce)
        data = msgspec.msgpack.encode(BoardRequest("here", 1, b"from afar"))
        good.sendall(nonce + seal.sign(PROOF) + seal.pack(REQUEST, data))
        assert good.recv(1)

    assert server.read("here") == {1: b"from afar"}


def test_a_stranger_who_says_nothing_is_let_go(
    server: BoardServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(board_server, "STRANGER_SECONDS", 0.1)
    with connect(LOOPBACK, server.port, PATIENCE_S) as line, pytest.raises(ConnectionError):
        line.receive(1)


def test_a_board_listens_at_one_address(server: BoardServer) -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", server.port))


def test_a_board_that_accepts_and_says_nothing_is_given_up() -> None:
    with socket.create_server((LOOPBACK, 0)) as mute:
        board = SocketBoard(LOOPBACK, mute.getsockname()[1], GROUP, KNOWN, patience=0.2)
        began = time.monotonic()
        with pytest.raises(BoardError, match="does not answer"):
            board.read("here")
        assert time.monotonic() - began < 600


def test_a_board_that_is_slow_to_greet_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board_client, "CONNECT_SECONDS", 0.2)
    with ThreadPoolExecutor() as pool, socket.create_server((LOOPBACK, 0)) as slow:
        slow.settimeout(PATIENCE_S)
        board = SocketBoard(LOOPBACK, slow.getsockname()[1], GROUP, KNOWN, patience=PATIENCE_S)
        asked = pool.submit(board.read, "here")
        with slow.accept()[0], slow.accept()[0]:
            assert not asked.done()
    with pytest.raises(BoardError, match="does not answer"):
        asked.result()


def test_no_reader_sees_half_a_file(tmp_path: Path) -> None:
    board = FolderBoard(tmp_path)
    (tmp_path / ".half").write_bytes(b"half")
    assert board.read("here") == {}


def test_a_folder_that_others_can_write_to_is_not_a_board(tmp_path: Path) -> None:
    for mode in (0o720, 0o702, 0o1777):
        tmp_path.chmod(mode)
        with pytest.raises(BoardError, match="only this user"):
            FolderBoard(tmp_path)
    tmp_path.chmod(0o700)
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    with pytest.raises(BoardError, match="only this user"):
        FolderBoard(link)


@pytest.mark.needs("root")
def test_a_folder_of_another_user_is_not_a_board(tmp_path: Path) -> None:
    os.chown(tmp_path, 65534, -1)
    with pytest.raises(BoardError, match="only this user"):
        FolderBoard(tmp_path)


def test_a_message_in_a_folder_is_written_and_read_through_no_link(tmp_path: Path) -> None:
    folder, victim = tmp_path / "board", tmp_path / "victim"
    folder.mkdir(mode=0o700)
    victim.write_bytes(b"precious")
    for name in ("over0", "over0.new"):
        (folder / name).symlink_to(victim)
    board = FolderBoard(folder)
    with pytest.raises(OSError, match="symbolic link"):
        board.read("over")
    board.post("over", 0, b"mine")

    assert victim.read_bytes() == b"precious"
    assert board.read("over") == {0: b"mine"}
