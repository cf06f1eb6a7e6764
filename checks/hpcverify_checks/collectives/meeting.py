"""
The meeting of launchers on several nodes: its address, its port and its secret.

The launcher of rank 0 opens the board at the one address at which the others reach its node,
and they look for it there.
"""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from ipaddress import AddressValueError, IPv4Address
from time import monotonic, sleep

import msgspec
from msgspec import Struct

import hpcverify.check as hv
from hpcverify_checks.collectives.order import LaunchOrder
from hpcverify_checks.collectives.secret import expect_secret, open_credential
from hpcverify_checks.ranks.board import (
    BoardError,
    SocketBoard,
    connect,
    decode_messages,
    open_board,
)
from hpcverify_checks.ranks.board_server import BoardServer
from hpcverify_checks.ranks.collective import CollectiveJob
from hpcverify_checks.ranks.rendezvous import LOOPBACK, exchange_messages, require_loopback

CAME = "came"
"""The messages of launchers that are there."""
PROBE_SECONDS = 1.0
"""The time in which a board greets, is reached again, and proves that it knows the secret."""
NOTHING = ""
"""A topic without messages."""
SIOCGIFADDR = 0x8915
PORTS = range(20000, 32000)
"""Below those that Linux gives to clients (32768 on)."""
PORT_TRIES = 8
ANY_PORT = 9
"""A port to ask for a route to; nothing is sent to it."""


class LauncherArrival(Struct, frozen=True):
    """Where a rank is, and what its launcher is to measure."""

    node: str
    address: str
    """The address at which the other nodes reach this one."""
    job: CollectiveJob

    @classmethod
    def decode(cls, message: bytes) -> LauncherArrival:
        """Decode it, or raise `MsgspecError`, also for an address that is not one of IPv4."""
        arrival = msgspec.json.decode(message, type=cls)
        try:
            IPv4Address(arrival.address)
        except AddressValueError as exc:
            raise msgspec.ValidationError(f"no address: {exc}") from exc
        return arrival


def list_nodes(arrivals: Sequence[LauncherArrival]) -> list[str]:
    """List the node of each rank."""
    return [arrival.node for arrival in arrivals]


def list_ports(order: LaunchOrder) -> list[int]:
    """List the ports at which the board may be: all ranks find the same ones."""
    if order.port or order.is_alone:
        return [order.port]
    start = sum(byte * 31**place for place, byte in enumerate(order.group.encode()))
    return [PORTS[(start + 101 * number) % len(PORTS)] for number in range(PORT_TRIES)]


def serve_board(order: LaunchOrder, secret: str, credential: bytes) -> BoardServer:
    """Open the board at the first port that is free."""
    own_address = _choose_own_address(order)
    if is_loopback(own_address):
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
    raise hv.Unable(text, hv.Cause.BUSY, hv.Remedy.RERUN)


def _choose_own_address(order: LaunchOrder) -> str:
    """
    Choose the one address at which the others reach this node, that of rank 0.

    That is the one of its name, or, if that is its loopback (Debian's 127.0.1.1), the address
    from which this node reaches another one.
    """
    if order.is_alone:
        return LOOPBACK
    try:
        address = socket.gethostbyname(order.address)
    except OSError as exc:
        text = f"{order.address} has no address at which ranks can meet ({exc}): see --address"
        raise hv.Unable(text, hv.Cause.MISCONFIGURED) from exc
    others = order.nodes[:2] if is_loopback(address) else ()  # one of them is another node
    routes = map(_find_route, others)
    return next((route for route in routes if not is_loopback(route)), address)


def _find_route(node: str) -> str:
    """Find the address of this node from which it would reach *node*; loopback if none is known."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((node, ANY_PORT))  # sends nothing
        except OSError:  # its name means nothing here
            return LOOPBACK
        return str(probe.getsockname()[0])


def meet_launchers(
    order: LaunchOrder, job: CollectiveJob, own_address: str
) -> tuple[list[LauncherArrival], CollectiveJob]:
    """
    Meet the other launchers; give the arrival of each rank, and the job as rank 0 has it.

    Raises:
        LostRanks: a rank never came.

    """
    board = open_board(job.folder)
    own = msgspec.json.encode(LauncherArrival(order.node, own_address, job))
    for rank, _ in order.ranks[1:]:
        board.post(CAME, rank, own)
    answers = exchange_messages(job, order.ranks[0][0], CAME, own)
    arrivals, unreadable = decode_messages(dict(enumerate(answers)), LauncherArrival.decode)
    for rank, why in unreadable.items():
        raise hv.Unable(f"rank {rank} {why}", hv.Cause.MISCONFIGURED)
    common = msgspec.structs.replace(arrivals[0].job, folder=job.folder)
    return list(arrivals.values()), common


def find_board(order: LaunchOrder) -> tuple[SocketBoard, str]:
    """Find the board of rank 0, and this node's own address towards it."""
    deadline = monotonic() + order.timeout
    secret, failure = expect_secret(), ""
    while True:
        for port in list_ports(order):
            try:
                return _probe_board(order, port, secret)
            except (OSError, BoardError) as exc:  # it may have taken seconds: a node is cut off
                failure = str(exc)
        if monotonic() > deadline:
            text = f"rank 0 was not found within {order.timeout:g} s: {failure}"
            text = f"{text}; see --address and --port"
            raise hv.Unable(text, hv.Cause.TIMEOUT, hv.Remedy.RERUN)
        sleep(SocketBoard.pause)


def _probe_board(order: LaunchOrder, port: int, known_secret: str) -> tuple[SocketBoard, str]:
    with connect(order.address, port, PROBE_SECONDS) as line:
        address, own_address = line.socket.getpeername()[0], line.socket.getsockname()[0]
    secret = known_secret or open_credential(line.credential)
    if not secret:
        raise BoardError(f"what listens at port {port} does not know the secret of this job")
    # A short question: a program that has taken our port may trickle an answer without end.
    here = (address, port, order.group, secret)
    SocketBoard(*here, patience=PROBE_SECONDS, transfer=PROBE_SECONDS).read(NOTHING)
    return SocketBoard(*here), str(own_address)


def find_interface(address: str) -> str:
    """Find the name of the interface with an IPv4 *address*; empty if there is none."""
    if is_loopback(address):
        return "lo"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            with suppress(OSError):  # it has no address
                answer = fcntl.ioctl(any_socket.fileno(), SIOCGIFADDR, request)
                if socket.inet_ntoa(answer[20:24]) == address:
                    return name
    return ""


def is_loopback(address: str) -> bool:
    """Whether only this node reaches *address*."""
    return ipaddress.ip_address(address).is_loopback
