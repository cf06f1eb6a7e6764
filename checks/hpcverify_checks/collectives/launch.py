"""
Start ranks, watch them, and gather what they measured.

Each rank has a launcher, a small process without torch, which Slurm starts; on one node
without Slurm one launcher starts them all. Rank 0's launcher keeps the board. It goes on
when a rank hangs, rank 0 too, and so it can always say which ranks are missing.
"""

from __future__ import annotations

import fcntl
import ipaddress
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from time import monotonic, sleep
from typing import IO

import msgspec
from msgspec import Struct

from hpcverify.check import Cause, Remedy, Unable
from hpcverify.records.collectives import CollectiveRun, RankPlace
from hpcverify_checks.collectives.benchmark import CollectiveJob, StepTimes
from hpcverify_checks.collectives.combine import (
    REPORT,
    TIMELINE,
    RankReport,
    combine_reports,
    times_topic,
)
from hpcverify_checks.collectives.rank import CPU_NAME, RankOrder
from hpcverify_checks.collectives.timeline import Timeline, join_transfers
from hpcverify_checks.common.board import BoardError, BoardServer, SocketBoard, open_board
from hpcverify_checks.common.ranks import KILL_TIMEOUT_SECONDS
from hpcverify_checks.common.rendezvous import (
    ABORT_SECONDS,
    ROLL_CALL_SECONDS,
    LostRanks,
    exchange_messages,
)

WATCH_SECONDS = 0.1
QUIET_SECONDS = 900.0
"""Without any message from any rank: then all of them hang."""
LEAVE_SECONDS = 5.0
"""For the other launchers to see that all is over."""
OVER = "over"
DIED = "died"
LEFT = "left"
CAME = "came"
SIOCGIFADDR = 0x8915
PORTS = range(20000, 32000)
"""Below those that Linux gives to clients (32768 on)."""
PORT_TRIES = 8
ALONE = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}
"""Settings of NCCL that leave a node's ranks nothing but its network adapters."""
RING = {"NCCL_ALGO": "Ring", "NCCL_NVLS_ENABLE": "0"}


class LaunchOrder(Struct, frozen=True, kw_only=True):
    """What to measure, and which rank or ranks this process launches."""

    operations: tuple[str, ...]
    sizes: tuple[int, ...]
    seconds: float
    timeout: float
    seed: int
    algorithm: str
    """ring or auto."""
    alone: bool
    node: str
    group: str
    """Tells these ranks from those of other jobs."""
    world: int
    ranks: tuple[tuple[int, int], ...]
    """Rank, and rank on its node, of those to launch here."""
    address: str
    """Of rank 0's node."""
    port: int = 0
    """0: one that follows from *group*; any free one if all ranks are launched here."""


def launch(encoded: bytes) -> bytes:
    """Launch the ranks of a `LaunchOrder`, in JSON; rank 0's launcher gives a `CollectiveRun`."""
    order = msgspec.json.decode(encoded, type=LaunchOrder)
    if order.ranks[0][0] == 0:
        return msgspec.json.encode(_launch_first(order))
    _launch_other(order)
    return b""


def list_ports(order: LaunchOrder) -> list[int]:
    """List the ports at which the board may be: all ranks find the same ones."""
    if order.port or len(order.ranks) == order.world:
        return [order.port]
    start = sum(byte * 31**place for place, byte in enumerate(order.group.encode()))
    return [PORTS[(start + 101 * number) % len(PORTS)] for number in range(PORT_TRIES)]


@dataclass(frozen=True, slots=True)
class _Child:
    rank: int
    process: subprocess.Popen[bytes]
    log: IO[bytes]

    def describe_end(self) -> str:
        """Say how it died; empty if it runs, or ended as it should."""
        status = self.process.poll()
        if not status:
            return ""
        self.log.seek(0)
        lines = self.log.read().decode(errors="replace").strip().splitlines()
        name = signal.Signals(-status).name if status < 0 else f"status {status}"
        return f"died with {name}: {lines[-1] if lines else 'it printed nothing'}"

    def end(self) -> None:
        """Kill it if it still runs."""
        if self.process.poll() is None:
            self.process.kill()
        with suppress(subprocess.TimeoutExpired):  # stuck in the kernel: nothing can end it
            self.process.wait(KILL_TIMEOUT_SECONDS)
        self.log.close()


@contextmanager
def _start_ranks(order: LaunchOrder, job: CollectiveJob, interface: str) -> Generator[list[_Child]]:
    environment = dict(os.environ)
    if interface:
        environment.setdefault("GLOO_SOCKET_IFNAME", interface)
    environment |= ALONE if order.alone else {}
    environment |= RING if order.algorithm == "ring" else {}
    with ExitStack() as stack:
        children: list[_Child] = []
        for rank, local_rank in order.ranks:
            rank_order = RankOrder(job, rank, local_rank, order.node, os.getpid())
            text = msgspec.json.encode(rank_order).decode()
            log = tempfile.TemporaryFile()  # noqa: SIM115 - the child closes it
            process = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-P", "-m", "hpcverify_checks.collectives.rank", text],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
            )
            children.append(_Child(rank, process, log))
            stack.callback(children[-1].end)
        yield children


def _make_job(order: LaunchOrder, board: SocketBoard) -> CollectiveJob:
    return CollectiveJob(
        folder=str(board),
        world=order.world,
        backend="",
        timeout=order.timeout,
        operations=order.operations,
        sizes=order.sizes,
        seconds=order.seconds,
        seed=order.seed,
    )


def _launch_first(order: LaunchOrder) -> CollectiveRun:
    server = _serve(order)
    try:
        board = SocketBoard("127.0.0.1", server.port, order.group)
        job = _make_job(order, board)
        watch = _Watch(order, server)
        try:
            _meet(order, job)
        except LostRanks as exc:
            return watch.conclude(exc.lost)
        interface = find_interface(_find_own_address(server))
        with _start_ranks(order, job, interface) as children:
            watch.wait(children)
            run = watch.conclude({})
            board.post(OVER, 0)
            watch.await_leavers()
        return run
    finally:
        server.shutdown()
        server.server_close()


def _serve(order: LaunchOrder) -> BoardServer:
    """Open the board at the first port that is free."""
    is_local = len(order.ranks) == order.world
    failure: OSError | None = None
    for port in list_ports(order):
        try:
            return BoardServer("127.0.0.1" if is_local else "", port, order.group)
        except OSError as exc:
            failure = exc
    raise Unable(f"no port for the ranks to meet at: {failure}", Cause.BUSY, Remedy.RERUN)


def _meet(order: LaunchOrder, job: CollectiveJob) -> list[str]:
    """Meet the other launchers; give the node of each rank."""
    board = open_board(job.folder)
    for rank, _ in order.ranks[1:]:
        board.post(CAME, rank, order.node.encode())
    answers = exchange_messages(job, order.ranks[0][0], CAME, order.node.encode())
    return [answer.decode() for answer in answers]


def _find_own_address(server: BoardServer) -> str:
    """Find the address at which other nodes reach this one."""
    others = [(count, a) for a, count in server.reached_at.items() if not _is_loopback(a)]
    return max(others)[1] if others else "127.0.0.1"


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback


def find_interface(address: str) -> str:
    """Find the name of the interface with an IPv4 *address*; empty if none says so."""
    if _is_loopback(address):
        return "lo"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            with suppress(OSError):  # it has no address
                answer = fcntl.ioctl(any_socket.fileno(), SIOCGIFADDR, request)
                if socket.inet_ntoa(answer[20:24]) == address:
                    return name
    return ""


def _launch_other(order: LaunchOrder) -> None:
    """Launch ranks whose results go to rank 0's launcher."""
    board, own_address = _find_board(order)
    job = _make_job(order, board)
    try:
        _meet(order, job)
    except LostRanks:
        return  # rank 0's launcher knows as well
    with _start_ranks(order, job, find_interface(own_address)) as children:
        while not board.read(OVER):
            for child in children:
                if why := child.describe_end():
                    board.post(DIED, child.rank, why.encode())
                    board.post("lost", child.rank, why.encode())
            sleep(board.pause)
    for rank, _ in order.ranks:
        board.post(LEFT, rank)


def _find_board(order: LaunchOrder) -> tuple[SocketBoard, str]:
    """
    Find the board of rank 0, and this node's own address towards it.

    Raises:
        Unable: nobody answers there in time.

    """
    deadline = monotonic() + order.timeout
    while True:
        for port in list_ports(order):
            board = SocketBoard(order.address, port, order.group)
            try:
                board.read(CAME)
            except BoardError as exc:
                failure = exc
                continue
            with socket.create_connection((order.address, port)) as connection:
                return board, str(connection.getsockname()[0])
        if monotonic() > deadline:
            text = f"rank 0 was not found within {order.timeout:g} s: {failure}"
            raise Unable(f"{text}; see --address and --port", Cause.TIMEOUT, Remedy.RERUN)
        sleep(board.pause)


class _Watch:
    """Rank 0's launcher looks at the board until there is nothing more to come."""

    def __init__(self, order: LaunchOrder, server: BoardServer) -> None:
        self.order, self.server = order, server
        self.started = monotonic()

    def wait(self, children: Sequence[_Child]) -> None:
        """Wait until all ranks have reported, or those that can have."""
        trouble: float | None = None
        while len(self._read(REPORT)) < self.order.world:
            for child in children:
                if why := child.describe_end():
                    self._post(DIED, child.rank, why)
                    self._post("lost", child.rank, why)
            now = monotonic()
            if trouble is None and ((self._read(REPORT) and self._has_lost()) or self._read(DIED)):
                trouble = now
            if trouble is not None and now > trouble + ROLL_CALL_SECONDS + 2 * ABORT_SECONDS:
                return
            if now > self.server.touched_at + QUIET_SECONDS:
                return
            sleep(WATCH_SECONDS)

    def _has_lost(self) -> bool:
        return any(r.lost or r.unable for r in self._reports().values())

    def _post(self, topic: str, rank: int, text: str) -> None:
        with self.server.changed:
            self.server.topics.setdefault(topic, {}).setdefault(rank, text.encode())

    def _read(self, topic: str) -> Mapping[int, bytes]:
        with self.server.changed:
            return dict(self.server.topics.get(topic, {}))

    def _reports(self) -> dict[int, RankReport]:
        return {
            rank: msgspec.msgpack.decode(message, type=RankReport)
            for rank, message in sorted(self._read(REPORT).items())
        }

    def conclude(self, never_came: Mapping[int, str]) -> CollectiveRun:
        """Put together what there is."""
        times: list[dict[int, StepTimes]] = []
        while found := self._read(times_topic(len(times))):
            times.append(
                {
                    rank: msgspec.msgpack.decode(message, type=StepTimes)
                    for rank, message in sorted(found.items())
                }
            )
        places = {
            rank: RankPlace(rank, node.decode(), CPU_NAME)
            for rank, node in self._read(CAME).items()
        }
        gone = {rank: text.decode() for rank, text in self._read(DIED).items()}
        gone |= never_came
        timelines = {
            rank: msgspec.msgpack.decode(message, type=Timeline)
            for rank, message in self._read(TIMELINE).items()
        }
        run = combine_reports(self.order.world, places, self._reports(), times, gone)
        if len(timelines) < self.order.world:
            return run
        steps = tuple(timelines[rank].steps for rank in sorted(timelines))
        return msgspec.structs.replace(run, steps=steps, transfers=join_transfers(timelines))

    def await_leavers(self) -> None:
        """Let the other launchers see that all is over, if they are still there."""
        others = self.order.world - len(self.order.ranks)
        deadline = monotonic() + LEAVE_SECONDS
        while len(self._read(LEFT)) < others and monotonic() < deadline:
            sleep(WATCH_SECONDS)
