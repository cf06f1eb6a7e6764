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
import secrets
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from io import FileIO
from itertools import chain
from time import monotonic, sleep
from typing import TypeVar

import msgspec
from msgspec import Struct

from hpcverify.check import Cause, Remedy, Unable
from hpcverify.processes import name_signal, read_process_state
from hpcverify.records.collectives import SECRET_VARIABLE, CollectiveRun, RankPlace
from hpcverify.telemetry import pci
from hpcverify_checks.collectives.arrival import Arrival, list_nodes
from hpcverify_checks.collectives.benchmark import CollectiveJob, StepTimes
from hpcverify_checks.collectives.combine import (
    AUTO,
    REPORT,
    RING,
    TIMELINE,
    RankReport,
    combine_reports,
    split_misfits,
    times_topic,
)
from hpcverify_checks.collectives.deputy import BEATS, OVER, Deputy, tell_deputy
from hpcverify_checks.collectives.hangs import (
    BEAT,
    BEAT_SECONDS,
    SILENT_SECONDS,
    Beat,
    HangWatch,
)
from hpcverify_checks.collectives.rank import RankOrder
from hpcverify_checks.collectives.recorder import BUFFER
from hpcverify_checks.collectives.secret import expect_secret, make_secret, open_credential
from hpcverify_checks.collectives.timeline import Timeline, join_transfers
from hpcverify_checks.collectives.wire import collect_answers, pair_nodes, take_part
from hpcverify_checks.common.board import (
    CROWDED,
    BoardError,
    SocketBoard,
    connect,
    decode_messages,
    open_board,
)
from hpcverify_checks.common.board_server import BoardServer
from hpcverify_checks.common.progress import make_file, read_position
from hpcverify_checks.common.ranks import KILL_TIMEOUT_SECONDS
from hpcverify_checks.common.rendezvous import (
    ABORT_SECONDS,
    LOOPBACK,
    MAX_REASON_CHARACTERS,
    ROLL_CALL_SECONDS,
    LostRanks,
    exchange_messages,
    require_loopback,
    set_environment,
)

WATCH_SECONDS = 0.1
QUIET_SECONDS = 900.0
"""Without any rank that moves on: then all of them hang, or none can say why not."""
GRACE_SECONDS = 3.0
"""For a rank that is only late to report after all."""
LEAVE_SECONDS = 5.0
"""For the other launchers to see that all is over."""
PROBE_SECONDS = 1.0
"""For what listens at a port to say whether it is the board."""
DIED = "died"
LEFT = "left"
CAME = "came"
WITH_OPINION = b"with a second opinion"
"""The last word of rank 0's launcher, if pairs of nodes are to say what they measure."""
SIOCGIFADDR = 0x8915
PORTS = range(20000, 32000)
"""Below those that Linux gives to clients (32768 on)."""
PORT_TRIES = 8
ANY_PORT = 9
"""Nothing is sent to it: it only takes a port to ask for a route."""
PROCESSES_ON_CPU = 2
ALONE = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}
"""Settings of NCCL that leave a node's ranks nothing but its network adapters."""
RAS = "NCCL_RAS_ENABLE"
"""NCCL's service for diagnosis, on by default: its threads have ended jobs (NVIDIA/nccl issues
1996 and 2346), and it has said OK of a rank that was stuck (1730). We ask launchers instead."""
RING_SETTINGS = {"NCCL_ALGO": "Ring", "NCCL_NVLS_ENABLE": "0"}

REPORTS = msgspec.msgpack.Decoder(RankReport)
TIMES = msgspec.msgpack.Decoder(StepTimes)
TIMELINES = msgspec.msgpack.Decoder(Timeline)
T = TypeVar("T")
Shaped = TypeVar("Shaped", StepTimes, Timeline)


class LaunchOrder(Struct, frozen=True, kw_only=True):
    """What to measure, and which rank or ranks this process launches."""

    operations: tuple[str, ...]
    sizes: tuple[int, ...]
    seconds: float
    timeout: float
    seed: int
    algorithm: str
    """ring or auto; empty: ring between nodes, auto in one."""
    alone: bool
    timeline: bool
    """Whether equal steps and transfers follow, which tell who is slow."""
    node: str
    group: str
    """Tells these ranks from those of other jobs."""
    world: int
    """0: all ranks are launched here, one for each GPU."""
    ranks: tuple[tuple[int, int], ...]
    """Rank, and rank on its node, of those to launch here."""
    address: str
    """Of rank 0's node."""
    nodes: tuple[str, ...] = ()
    """If there are several, and Slurm names them."""
    expected: tuple[str, ...] = ()
    """The node on which each rank should be, as far as Slurm says."""
    second_opinion: bool = False
    """Whether pairs of nodes are asked what ib_write_bw measures; rank 0's launcher decides."""
    port: int = 0
    """0: one that follows from *group*; any free one if all ranks are launched here."""


def launch(encoded: bytes) -> bytes:
    """
    Launch the ranks of a `LaunchOrder`, in JSON.

    Rank 0's launcher gives a `CollectiveRun`, in JSON; if it is lost, its deputy does.
    """
    order = msgspec.json.decode(encoded, type=LaunchOrder)
    if not order.world:
        world = _count_own_ranks()
        ranks = tuple((rank, rank) for rank in range(world))
        order = msgspec.structs.replace(order, world=world, ranks=ranks)
    try:
        run = _launch_first(order) if order.ranks[0][0] == 0 else _launch_other(order)
    except BoardError as exc:  # as when an interface went down
        raise Unable(f"{exc}: run it again", Cause.TIMEOUT, Remedy.RERUN) from exc
    return msgspec.json.encode(run) if run else b""


def _count_own_ranks() -> int:
    """Count the GPUs of this node that a job here may use; on CPUs take two processes."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = len(pci.list_nvidia_gpus()) or len(pci.list_amd_gpus())
    if gpus and visible is not None:
        gpus = len([one for one in visible.split(",") if one.strip()])
    if gpus == 1:
        text = "there is one GPU here, and nothing to exchange with: run it over nodes, by srun"
        raise Unable(text, Cause.MISCONFIGURED)
    return gpus or PROCESSES_ON_CPU


def list_ports(order: LaunchOrder) -> list[int]:
    """List the ports at which the board may be: all ranks find the same ones."""
    if order.port or _is_alone(order):
        return [order.port]
    start = sum(byte * 31**place for place, byte in enumerate(order.group.encode()))
    return [PORTS[(start + 101 * number) % len(PORTS)] for number in range(PORT_TRIES)]


def _is_alone(order: LaunchOrder) -> bool:
    """Whether all ranks are launched here."""
    return len(order.ranks) == order.world


@dataclass(frozen=True, slots=True)
class _RankProcess:
    rank: int
    process: subprocess.Popen[bytes]
    log: FileIO
    progress: int
    """The descriptor of the file in which it keeps its position."""

    def read_beat(self) -> Beat:
        """Read how far it is, and in which state."""
        return Beat(read_position(self.progress), read_process_state(self.process.pid))

    def describe_end(self) -> str:
        """Say how it died; empty if it runs, or ended as it should."""
        status = self.process.poll()
        if not status:
            return ""
        self.log.seek(0)
        lines = self.log.read().decode(errors="replace").strip().splitlines()
        name = name_signal(-status) if status < 0 else f"status {status}"
        last = lines[-1][:MAX_REASON_CHARACTERS] if lines else "it printed nothing"
        return f"died with {name}: {last}"

    def end(self) -> None:
        """Kill it if it still runs."""
        if self.process.poll() is None:
            self.process.kill()
        with suppress(subprocess.TimeoutExpired):  # stuck in the kernel: nothing can end it
            self.process.wait(KILL_TIMEOUT_SECONDS)
        self.log.close()
        os.close(self.progress)


@contextmanager
def _start_ranks(
    order: LaunchOrder, job: CollectiveJob, settings: Mapping[str, str]
) -> Generator[list[_RankProcess]]:
    environment = {**BUFFER, **os.environ, **settings}
    with ExitStack() as stack:
        children: list[_RankProcess] = []
        for rank, local_rank in order.ranks:
            progress = make_file()
            rank_order = RankOrder(job, rank, local_rank, order.node, os.getpid(), progress)
            text = msgspec.json.encode(rank_order).decode()
            log = FileIO(os.memfd_create("log"), "r+")
            process = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-P", "-m", "hpcverify_checks.collectives.rank", text],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                pass_fds=[progress],
            )
            children.append(_RankProcess(rank, process, log, progress))
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
        timeline=order.timeline,
    )


def _launch_first(order: LaunchOrder) -> CollectiveRun:
    """
    Launch ranks here, keep the board, and put together what all ranks leave.

    Raises:
        Unable: there is no place for the board, or no secret to share.

    """
    if _is_alone(order):
        secret, credential = secrets.token_hex(32), b""
    else:
        secret, credential = make_secret()
    with (
        set_environment({SECRET_VARIABLE: secret}),
        closing(_serve(order, secret, credential)) as server,
    ):
        board = SocketBoard(server.address, server.port, order.group, secret)
        job = _make_job(order, board)
        watch = _Watch(order, server)
        try:
            arrivals, job = _meet(order, job, server.address)
        except LostRanks as exc:
            watch.dismiss(exc.lost)
            return watch.conclude(exc.lost, order.algorithm)
        nodes = list_nodes(arrivals)
        algorithm = _choose_algorithm(order, nodes)
        settings = choose_settings(order, algorithm, server.address)
        with _start_ranks(order, job, settings) as children:
            watch.wait(children)
            run = watch.conclude({}, algorithm)
        is_whole = order.second_opinion and not run.missing
        pairs = pair_nodes(nodes) if is_whole else ()
        board.post(OVER, 0, WITH_OPINION if pairs else b"")
        tell_deputy(board, arrivals)
        if pairs:
            take_part(pairs, 0, board, arrivals)
            opinions = collect_answers(pairs, nodes, board)
            run = msgspec.structs.replace(run, wire_opinions=opinions)
        watch.await_leavers()
        return run


def _serve(order: LaunchOrder, secret: str, credential: bytes) -> BoardServer:
    """Open the board at the first port that is free."""
    own_address = _choose_own_address(order)
    if _is_loopback(own_address):
        require_loopback()
    failure: OSError | None = None
    for port in list_ports(order):
        try:
            return BoardServer(
                own_address,
                port,
                order.group,
                secret,
                world=order.world,
                credential=credential,
            )
        except OSError as exc:
            failure = exc
    text = f"the ranks cannot meet at {own_address}: {failure}; see --address and --port"
    raise Unable(text, Cause.BUSY, Remedy.RERUN)


def _choose_own_address(order: LaunchOrder) -> str:
    """
    Choose the one address at which the others reach this node, that of rank 0.

    That is what its name means, if not its loopback (Debian's 127.0.1.1); then the address
    from which this node reaches another one.
    """
    if _is_alone(order):
        return LOOPBACK
    try:
        address = socket.gethostbyname(order.address)
        routes = map(_find_route, order.nodes if _is_loopback(address) else ())
        return next((route for route in routes if not _is_loopback(route)), address)
    except OSError as exc:
        text = f"{order.address} has no address at which ranks can meet ({exc}): see --address"
        raise Unable(text, Cause.MISCONFIGURED) from exc


def _find_route(node: str) -> str:
    """Find the address of this node from which it would reach *node*."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((node, ANY_PORT))  # sends nothing
        return str(probe.getsockname()[0])


def _meet(
    order: LaunchOrder, job: CollectiveJob, own_address: str
) -> tuple[list[Arrival], CollectiveJob]:
    """
    Meet the other launchers; give what each rank's said, and the job as rank 0 has it.

    Raises:
        LostRanks: a rank never came.
        Unable: what one said cannot be read.

    """
    board = open_board(job.folder)
    own = msgspec.json.encode(Arrival(order.node, own_address, job))
    for rank, _ in order.ranks[1:]:
        board.post(CAME, rank, own)
    answers = exchange_messages(job, order.ranks[0][0], CAME, own)
    arrivals, unreadable = decode_messages(dict(enumerate(answers)), Arrival.decode)
    for rank, why in unreadable.items():
        raise Unable(f"rank {rank} {why}", Cause.MISCONFIGURED)
    common = msgspec.structs.replace(arrivals[0].job, folder=job.folder)
    return list(arrivals.values()), common


def _choose_algorithm(order: LaunchOrder, nodes: Sequence[str]) -> str:
    return order.algorithm or (RING if len(set(nodes)) > 1 else AUTO)


def choose_settings(order: LaunchOrder, algorithm: str, own_address: str) -> dict[str, str]:
    """
    Choose what NCCL and gloo are told, besides what the environment tells them.

    gloo takes the interface that leads to the other nodes: this node's own name may
    resolve to its loopback (Debian's 127.0.1.1). NCCL finds it by itself between nodes.
    """
    interface = find_interface(own_address)
    gloo = {"GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", interface)}
    nccl = (ALONE if order.alone else {}) | (RING_SETTINGS if algorithm == RING else {})
    nccl |= {} if RAS in os.environ else {RAS: "0"}
    return nccl | (gloo if gloo["GLOO_SOCKET_IFNAME"] else {})


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


def _launch_other(order: LaunchOrder) -> CollectiveRun | None:
    """
    Launch ranks whose results go to rank 0's launcher.

    Returns a result only if that one is lost, and this is its deputy.

    Raises:
        LostRanks: a rank never came, so nothing was measured here.

    """
    board, own_address = _find_board(order)
    with set_environment({SECRET_VARIABLE: board.secret}):
        job = _make_job(order, board)
        try:
            arrivals, job = _meet(order, job, own_address)
        except Unable:
            _leave(order, board)
            raise
        return _launch_beside(order, job, board, arrivals)


def _launch_beside(
    order: LaunchOrder, job: CollectiveJob, board: SocketBoard, arrivals: Sequence[Arrival]
) -> CollectiveRun | None:
    """Launch ranks, and tell rank 0's launcher how they do until it has all it wants."""
    rank = order.ranks[0][0]
    nodes = list_nodes(arrivals)
    settings = choose_settings(order, _choose_algorithm(order, nodes), arrivals[rank].address)
    with (
        Deputy.open(arrivals, rank, board) as deputy,
        _start_ranks(order, job, settings) as children,
    ):
        contact = monotonic()
        while not deputy.is_over():
            try:
                if board.read(OVER, enough=1):  # waits a moment for it
                    break
                _tell(board, children)
                contact = monotonic()
            except BoardError:
                if monotonic() > contact + SILENT_SECONDS + BEAT_SECONDS:
                    return deputy.conclude()
                sleep(board.pause)
            deputy.tell({child.rank: child.read_beat() for child in children})
    with suppress(BoardError):  # it has the results, and need not wait
        if board.read(OVER).get(0) == WITH_OPINION:
            take_part(pair_nodes(nodes), rank, board, arrivals)
    _leave(order, board)
    return None


def _leave(order: LaunchOrder, board: SocketBoard) -> None:
    """Let rank 0's launcher wait no longer for this one, if it is still there."""
    with suppress(BoardError):
        for rank, _ in order.ranks:
            board.post(LEFT, rank)


def _tell(board: SocketBoard, children: Sequence[_RankProcess]) -> None:
    """Tell how far the ranks launched here are, and which of them died."""
    beats = {child.rank: child.read_beat() for child in children}
    board.post(BEAT, children[0].rank, msgspec.msgpack.encode(beats))
    for child in children:
        if why := child.describe_end():
            board.post(DIED, child.rank, why.encode())
            board.post("lost", child.rank, why.encode())


def _find_board(order: LaunchOrder) -> tuple[SocketBoard, str]:
    """
    Find the board of rank 0, and this node's own address towards it.

    Raises:
        Unable: nobody answers there in time, or there is no secret to share.

    """
    deadline = monotonic() + order.timeout
    given, failure = expect_secret(), ""
    while True:
        for port in list_ports(order):
            try:
                found = _probe_board(order, port, given)
            except (OSError, BoardError) as exc:  # it may have taken seconds: a node is cut off
                failure = str(exc)
            else:
                return found
        if monotonic() > deadline:
            text = f"rank 0 was not found within {order.timeout:g} s: {failure}"
            text = f"{text}; see --address and --port"
            raise Unable(text, Cause.TIMEOUT, Remedy.RERUN)
        sleep(SocketBoard.pause)


def _probe_board(order: LaunchOrder, port: int, given: str) -> tuple[SocketBoard, str]:
    with connect(order.address, port, PROBE_SECONDS) as line:
        address, own_address = line.socket.getpeername()[0], line.socket.getsockname()[0]
    secret = given or open_credential(line.credential)
    if not secret:
        raise BoardError(f"what listens at port {port} does not know the secret of this job")
    SocketBoard(address, port, order.group, secret, PROBE_SECONDS).read(CAME)
    return SocketBoard(address, port, order.group, secret), str(own_address)


class _Watch:
    """Rank 0's launcher looks at the board until there is nothing more to come."""

    def __init__(self, order: LaunchOrder, server: BoardServer) -> None:
        self.order, self.server = order, server
        self.hangs = HangWatch(monotonic(), order.timeout)
        self.unreadable: dict[int, str] = {}
        """Ranks that sent what cannot be read, and why."""

    def wait(self, children: Sequence[_RankProcess]) -> None:
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
        came = {rank: one.node for rank, one in self._decode(CAME, Arrival.decode).items()}
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
