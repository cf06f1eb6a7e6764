"""What others on the node or in the network say changes nothing of what ranks measure."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from itertools import cycle
from pathlib import Path
from threading import Event, Thread
from time import monotonic, sleep
from typing import Any

import msgspec
import pytest
import torch.distributed as dist

from hpcverify.records.collectives import SECRET_VARIABLE
from hpcverify_checks.collectives.combine import REPORT, TIMELINE, split_misfits, times_topic
from hpcverify_checks.collectives.hangs import HEARTBEAT
from hpcverify_checks.collectives.meeting import CAME, LauncherArrival, find_board
from hpcverify_checks.collectives.meeting import list_ports as list_board_ports
from hpcverify_checks.collectives.order import LaunchOrder
from hpcverify_checks.collectives.stand_in import OVER, STAND_IN, find_second_board
from hpcverify_checks.collectives.watch import DIED, LEFT
from hpcverify_checks.ranks.board import (
    CREDENTIAL_LENGTH,
    TRANSFER_SECONDS,
    BoardError,
    SocketBoard,
)
from hpcverify_checks.ranks.board_server import BoardServer
from hpcverify_checks.ranks.collective import CollectiveJob, StepTimes
from hpcverify_checks.ranks.seal import NONCE_BYTES
from tests.checks.collectives.launched import (
    KNOWN,
    PATIENCE,
    SMALL,
    Launcher,
    launch_here,
    launch_nodes,
)

pytestmark = pytest.mark.system

FORGE_SECONDS = 0.01
ARRIVAL_SECONDS = 40.0
"""How long a rank may take to arrive: on a busy machine, Python takes many seconds to start."""
LOOPBACK, GROUP = "127.0.0.1", "test"
JOB = CollectiveJob("", 2, "", 30.0, ("all_reduce",), (), 0.1)
QUICK = {"operations": ("all_reduce",), "timeline": False}
FORGED_TIMES = msgspec.msgpack.encode(
    {
        "operation": "all_reduce",
        "size": 4096,
        "checked": 5,
        "times": [1.0],
        "wrong": {"step": 1, "elements": 1, "index": 0, "found": "0xdead", "expected": "0x0"},
    }
)
ARRIVAL = msgspec.json.encode(LauncherArrival("n1", LOOPBACK, JOB))


def find_group(process: int) -> tuple[str, int, str]:
    """Read the board's address and group from the command line of a rank, as anybody can."""
    told = Path(f"/proc/{process}/cmdline").read_bytes()
    found = re.search(rb"tcp://([0-9.]+):(\d+)/([^\"]+)", told)
    assert found
    return found[1].decode(), int(found[2]), found[3].decode()


@contextmanager
def forging(address: str, port: int, group: str, folder: Path) -> Generator[list[str]]:
    """Say all that could do harm, again and again; give the topics of what was accepted."""
    over = Event()
    accepted: list[str] = []
    forged: dict[str, bytes] = {
        times_topic(0): FORGED_TIMES,
        DIED: b"died with SIGBUS: framed",
        "lost": b"was framed",
        STAND_IN: str(folder).encode(),
        HEARTBEAT: b"\xff",
        REPORT: b"\xff",
        "store": b"1",
        CAME: b"",
        LEFT: b"",
        OVER: b"",
    }

    def act() -> None:
        stranger = SocketBoard(address, port, group, "a" * 64, patience=1.0)
        for topic, message in cycle(forged.items()):
            if over.wait(FORGE_SECONDS):
                return
            with suppress(BoardError):
                stranger.post(topic, 1, message)
                accepted.append(topic)

    threads = [Thread(target=act) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        yield accepted
    finally:
        over.set()
        for thread in threads:
            thread.join()


def list_listeners(process: int) -> set[str]:
    """List the addresses of IPv4 and IPv6 at which a process listens, as the kernel writes them."""
    return {address for address, _ in _list_sockets(process)}


def _list_sockets(process: int) -> set[tuple[str, str]]:
    inodes, listening = set[str](), "0A"
    lines: list[str] = []
    with suppress(OSError):  # it has ended
        for link in Path(f"/proc/{process}/fd").iterdir():
            inodes |= set(re.findall(r"socket:\[(\d+)\]", str(link.readlink())))
        for table in ("tcp", "tcp6"):
            lines += Path(f"/proc/{process}/net/{table}").read_text().splitlines()
    found: set[tuple[str, str]] = set()
    for fields in map(str.split, lines):
        if fields[3] == listening and fields[9] in inodes:
            address, _, port = fields[1].partition(":")
            found.add((address, port))
    return found


def test_strangers_change_nothing_and_no_secret_is_in_a_command_line(tmp_path: Path) -> None:
    """They know the board and the group, and say what would end, frame and lead astray."""
    (tmp_path / "over0").symlink_to(tmp_path / "victim")
    long = {**QUICK, "sizes": (4096,) * 20, "seconds": 6.0}
    with launch_nodes(2, **long) as launchers:
        rank = launchers[1].await_measuring()
        with forging(*find_group(rank), tmp_path) as accepted:
            told = Path(f"/proc/{rank}/cmdline").read_bytes()
            heard = {one.process.pid: list_listeners(one.process.pid) for one in launchers}
            run, fault = launchers[0].read_result()

    assert KNOWN.encode() not in told
    assert not accepted
    assert run, fault
    assert (run.missing, run.wrong, run.unable) == ((), (), "")
    assert len(run.timings) == 20
    assert [path.name for path in tmp_path.iterdir()] == ["over0"]
    assert set().union(*heard.values()) <= {"0100007F"}
    assert heard[launchers[0].process.pid]


def test_ranks_meet_though_somebody_listens_where_their_board_should_be() -> None:
    """One says nothing, and one greets as a board does, with a credential of their own."""
    own: dict[str, Any] = {"world": 2, "node": "n", "ranks": ((0, 0),), "group": "7.0"}
    order = LaunchOrder(**dict[str, Any](SMALL, **own))
    mute, forged, *_ = list_board_ports(order)
    with (
        socket.create_server((LOOPBACK, mute)),
        BoardServer.open(LOOPBACK, forged, "7.0", "a" * 64, world=2),
        launch_nodes(2, **QUICK, group="7.0", port=0) as launchers,
    ):
        run, fault = launchers[0].read_result()

    assert run, fault
    assert (run.missing, run.wrong, run.unable) == ((), (), "")


def test_ranks_and_launchers_listen_at_no_other_address_than_that_of_the_board() -> None:
    endless = {**QUICK, "sizes": (4096,) * 500, "seconds": 500.0}
    with launch_nodes(3, **endless) as launchers:
        ranks = [launcher.await_measuring() for launcher in launchers]
        everyone = [*ranks, *(launcher.process.pid for launcher in launchers)]
        heard = [list_listeners(process) for process in everyone]

    assert set().union(*heard) == {"0100007F"}


def list_ports(process: int) -> set[int]:
    """List the ports at which a process listens."""
    return {int(port, 16) for _, port in _list_sockets(process)}


def delete_keys(process: int, over: Event) -> None:
    """Delete what ranks leave in the store of the one with rank 0, as anybody on its node can."""
    while not over.is_set():
        for port in list_ports(process):
            with suppress(dist.DistError, RuntimeError):
                store: Any = dist.TCPStore(  # type: ignore[attr-defined]
                    LOOPBACK, port, timeout=timedelta(seconds=1), wait_for_workers=False
                )
                while not over.is_set():
                    for key in store.list_keys():
                        store.delete_key(key)


def test_a_store_whose_keys_are_deleted_accuses_nobody() -> None:
    """Ranks may wait in vain for each other then; all of them say so."""
    over = Event()
    with launch_nodes(2, **QUICK, timeout=ARRIVAL_SECONDS) as launchers:
        rank = launchers[0].await_child()
        meddler = Thread(target=delete_keys, args=(rank, over))
        meddler.start()
        try:
            run, fault = launchers[0].read_result()
        finally:
            over.set()
            meddler.join()

    assert run, fault
    assert (run.missing, run.wrong) == ((), ())


def test_the_secret_of_one_node_is_in_the_environment_of_its_ranks_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(SECRET_VARIABLE, raising=False)
    run = launch_here(2, **QUICK)

    assert (run.missing, run.unable) == ((), "")
    assert SECRET_VARIABLE not in os.environ


@contextmanager
def launch_first(timeout: float = 60.0) -> Generator[tuple[Launcher, int]]:
    """Start the launcher of rank 0 of two; also give the port of its board."""
    with socket.create_server((LOOPBACK, 0)) as free:
        port = free.getsockname()[1]
    own: dict[str, Any] = {"world": 2, "node": "n0", "ranks": ((0, 0),), "port": port}
    launcher = Launcher(
        0, LaunchOrder(**dict[str, Any]({**SMALL, **QUICK}, **own, timeout=timeout))
    )
    try:
        yield launcher, port
    finally:
        launcher.end()


def come_for_rank_1(port: int, message: bytes) -> SocketBoard:
    """Say that rank 1 is there, once there is a board; the test knows its secret."""
    board = SocketBoard(LOOPBACK, port, GROUP, KNOWN)
    deadline = monotonic() + PATIENCE
    while True:
        try:
            board.post(CAME, 1, message)
        except BoardError:
            assert monotonic() < deadline
            sleep(0.1)
        else:
            return board


@pytest.mark.parametrize("topic", [HEARTBEAT, REPORT, times_topic(0), TIMELINE])
def test_what_cannot_be_read_is_an_error_of_its_rank_and_accuses_nobody(topic: str) -> None:
    with launch_first(timeout=ARRIVAL_SECONDS) as (launcher, port):
        board = come_for_rank_1(port, ARRIVAL)
        board.post(topic, 1, b"\xff\xff")
        run, fault = launcher.read_result()

    assert run, fault
    assert run.missing == ()
    assert "rank 1: sent what cannot be read" in run.unable
    assert "install the same hpcverify" in run.unable


def test_who_says_nothing_more_is_missing() -> None:
    with launch_first(timeout=ARRIVAL_SECONDS) as (launcher, port):
        come_for_rank_1(port, ARRIVAL)
        run, fault = launcher.read_result()

    assert run, fault
    assert run.missing == (1,)


@pytest.mark.parametrize("garbage", [b"", b"\xff\xff", b"[" * 10**5, b'{"node": 1}'])
def test_who_comes_with_what_cannot_be_read_is_named_in_a_line(garbage: bytes) -> None:
    with launch_first() as (launcher, port):
        come_for_rank_1(port, garbage)
        run, fault = launcher.read_result()

    assert run is None
    assert fault.startswith("unable: rank 1 sent what cannot be read")


def trickle(listener: socket.socket, over: Event) -> None:
    """Greet as a board does, and begin a long answer that goes on a byte at a time."""
    listener.settimeout(0.05)
    with ExitStack() as held:
        connections: list[socket.socket] = []
        while not over.is_set():
            with suppress(OSError):
                connections.append(held.enter_context(listener.accept()[0]))
                connections[-1].sendall(bytes(NONCE_BYTES) + CREDENTIAL_LENGTH.pack(0))
            for connection in connections:
                with suppress(OSError):
                    connection.send(b"\1")


def test_strangers_who_trickle_at_ports_of_ours_keep_no_launcher_from_the_board(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each could hold it for as long as a whole answer may take, and its rank would be missing."""
    monkeypatch.setenv(SECRET_VARIABLE, KNOWN)
    own = {"world": 2, "node": "n1", "ranks": ((1, 0),), "group": "9.0", "timeout": PATIENCE}
    order = LaunchOrder(**dict[str, Any]({**SMALL, **own}))
    *taken, port = list_board_ports(order)[:4]
    assert len(taken) * TRANSFER_SECONDS > PATIENCE
    over = Event()
    with (
        BoardServer.open(LOOPBACK, port, order.group, KNOWN, world=2),
        ExitStack() as listeners,
        ThreadPoolExecutor() as pool,
    ):
        for one in taken:
            listener = listeners.enter_context(socket.create_server((LOOPBACK, one)))
            pool.submit(trickle, listener, over)
        try:
            found, _ = pool.submit(find_board, order).result(PATIENCE)
        finally:
            over.set()
    assert found.port == port


@pytest.mark.parametrize("crowd", [0, 200])
def test_where_strangers_crowd_the_board_silence_accuses_nobody(crowd: int) -> None:
    with launch_first(timeout=ARRIVAL_SECONDS) as (launcher, port):
        came, deadline = 0, monotonic() + PATIENCE
        while came < crowd and monotonic() < deadline:
            with suppress(OSError):
                socket.create_connection((LOOPBACK, port)).close()
                came += 1
        run, fault = launcher.read_result()

    assert run, fault
    assert run.missing == (() if crowd else (1,))
    assert ("crowd" in run.unable) is bool(crowd)


@pytest.mark.parametrize(
    "said", [b"", b'"/tmp/x"', b'"tcp://10.9.0.66:1/test"', b"0", b"65536", b"1e9", b"\xff"]
)
def test_what_is_said_of_the_second_board_is_no_path_and_no_address(said: bytes) -> None:
    come = [LauncherArrival("n0", LOOPBACK, JOB), LauncherArrival("n1", "127.0.0.2", JOB)]
    with BoardServer.open(LOOPBACK, 0, GROUP, KNOWN, world=2) as server:
        board = SocketBoard(LOOPBACK, server.port, GROUP, KNOWN)
        board.post(STAND_IN, 1, said)
        assert find_second_board(board, come) is None
        board.post(STAND_IN, 1, b"20000")
        second = find_second_board(board, come)

    assert second is not None
    assert (second.address, second.port) == ("127.0.0.2", 20000)


def test_only_the_stand_in_says_where_the_second_board_is() -> None:
    come = [LauncherArrival(node, LOOPBACK, JOB) for node in ("n0", "n1", "n2")]
    with BoardServer.open(LOOPBACK, 0, GROUP, KNOWN, world=3) as server:
        board = SocketBoard(LOOPBACK, server.port, GROUP, KNOWN)
        board.post(STAND_IN, 2, b"20000")
        assert find_second_board(board, come) is None


@pytest.mark.parametrize("address", ["", "localhost", "--out=x", "10.9.0", "::1", "1.2.3.4 "])
def test_a_launcher_comes_from_an_address(address: str) -> None:
    with pytest.raises(msgspec.MsgspecError):
        LauncherArrival.decode(msgspec.json.encode(LauncherArrival("n1", address, JOB)))


def test_steps_that_fit_no_others_are_told_from_those_that_do() -> None:
    good = StepTimes("all_reduce", 4096, (1.0, 1.0), 3)
    bad = {
        1: msgspec.structs.replace(good, times=(1.0,)),
        2: msgspec.structs.replace(good, operation="nothing"),
        3: msgspec.structs.replace(good, size=1),
        4: msgspec.structs.replace(good, times=(1.0, 0.0)),
        5: msgspec.structs.replace(good, times=()),
        7: msgspec.structs.replace(good, times=(1.0, float("nan"))),
    }
    alike, misfits = split_misfits({0: good, **bad, 6: good})

    assert sorted(alike) == [0, 6]
    assert sorted(misfits) == sorted(bad)
