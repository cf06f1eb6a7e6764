"""
Where ranks leave messages for each other before, beside and after their process group.

Ranks of one node meet in a folder. Ranks of several nodes, which need not share one, meet
at a small TCP server on the node of rank 0. It runs in a process without torch, so that it
goes on when rank 0 is stuck.
"""

from __future__ import annotations

import socket
import socketserver
import struct
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from threading import Condition, Thread
from time import monotonic, perf_counter
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from hpcverify_checks.common.clocks import RoundTrip

SCHEME = "tcp://"
HEADER_BYTES = 8
MAX_REQUEST_BYTES = 64 * 2**20
"""Of one message: the times of a rank are far fewer."""
CONNECT_SECONDS = 5.0
"""For one request, besides what it is told to wait."""
QUESTION = b"?"
TIME = struct.Struct("!d")
"""The answer to it, in seconds."""


class BoardError(Exception):
    """The board does not answer."""


class Board(Protocol):
    """Messages by topic and rank. A message stays, and replaces the last of its rank."""

    pause: float
    """Seconds between two looks at it."""

    def post(self, topic: str, rank: int, message: bytes = b"") -> None:
        """Leave the *message* of *rank* about *topic*."""
        ...

    def read(self, topic: str, enough: int = 0) -> dict[int, bytes]:
        """Read what ranks left about *topic*; may wait a moment for *enough* of them."""
        ...

    def make_round_trips(self, count: int) -> list[RoundTrip]:
        """Ask for the time of its node; no answer if that is this one."""
        ...


class FolderBoard:
    """A board of files that all ranks can see."""

    pause = 0.02

    def __init__(self, folder: Path) -> None:
        """Use *folder*, which belongs to someone else."""
        self.folder = folder

    def post(self, topic: str, rank: int, message: bytes = b"") -> None:
        """Write the file, so that no reader sees half of it."""
        new = self.folder / f"{topic}{rank}.new"
        new.write_bytes(message)
        new.replace(self.folder / f"{topic}{rank}")

    def read(self, topic: str, enough: int = 0) -> dict[int, bytes]:  # noqa: ARG002 - never waits
        """Read the files that are there."""
        found = {path.name.removeprefix(topic): path for path in self.folder.glob(f"{topic}[0-9]*")}
        return {
            int(rank): path.read_bytes() for rank, path in sorted(found.items()) if rank.isdigit()
        }

    def make_round_trips(self, count: int) -> list[RoundTrip]:  # noqa: ARG002 - one node, one clock
        """Make none."""
        return []


class _Request(Struct, omit_defaults=True):
    group: str
    topic: str
    rank: int = -1
    """-1: a question."""
    message: bytes = b""
    enough: int = 0
    seconds: float = 0.0
    round_trips: int = 0
    """Instead of a message: ask so often for the time."""


class SocketBoard:
    """A board on another node, or on this one. Each request has a connection of its own."""

    pause = 0.25
    WAIT_SECONDS = 1.0

    def __init__(self, address: str, port: int, group: str) -> None:
        """Ask the server at *address* about *group*."""
        self.address, self.port, self.group = address, port, group

    def post(self, topic: str, rank: int, message: bytes = b"") -> None:
        """Send the message."""
        self._ask(_Request(self.group, topic, rank, message))

    def read(self, topic: str, enough: int = 0) -> dict[int, bytes]:
        """Ask for the messages; the server waits up to `WAIT_SECONDS` for *enough*."""
        wait = self.WAIT_SECONDS if enough else 0.0
        answer = self._ask(_Request(self.group, topic, enough=enough, seconds=wait))
        return msgspec.msgpack.decode(answer, type=dict[int, bytes])

    def make_round_trips(self, count: int) -> list[RoundTrip]:
        """Ask *count* times for the time of the server's node, over one connection."""
        trips = []
        with self._connect(CONNECT_SECONDS) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _send(connection, msgspec.msgpack.encode(_Request(self.group, "", round_trips=count)))
            for _ in range(count):
                sent = perf_counter()
                connection.sendall(QUESTION)
                answer = _receive_exactly(connection, TIME.size)
                trips.append(RoundTrip(sent, TIME.unpack(answer)[0], perf_counter()))
        return trips

    def _ask(self, request: _Request) -> bytes:
        with self._connect(CONNECT_SECONDS + request.seconds) as connection:
            _send(connection, msgspec.msgpack.encode(request))
            return _receive(connection)

    @contextmanager
    def _connect(self, patience: float) -> Generator[socket.socket]:
        try:
            with socket.create_connection((self.address, self.port), patience) as connection:
                connection.settimeout(patience)
                yield connection
        except OSError as exc:
            text = f"the board at {self.address} port {self.port} does not answer: {exc}"
            raise BoardError(text) from exc

    def __str__(self) -> str:
        """Give what `open_board` opens."""
        return f"{SCHEME}{self.address}:{self.port}/{self.group}"


def open_board(where: str) -> FolderBoard | SocketBoard:
    """Open the board at *where*: a folder, or tcp://ADDRESS:PORT/GROUP."""
    if not where.startswith(SCHEME):
        return FolderBoard(Path(where))
    place, _, group = where.removeprefix(SCHEME).partition("/")
    address, _, port = place.rpartition(":")
    return SocketBoard(address, int(port), group)


def _send(connection: socket.socket, data: bytes) -> None:
    connection.sendall(len(data).to_bytes(HEADER_BYTES, "big") + data)


def _receive(connection: socket.socket) -> bytes:
    length = int.from_bytes(_receive_exactly(connection, HEADER_BYTES), "big")
    if length > MAX_REQUEST_BYTES:
        raise ConnectionError(f"a message of {length} bytes is none of ours")
    return _receive_exactly(connection, length)


def _receive_exactly(connection: socket.socket, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        more = connection.recv(min(length - len(data), 2**20))
        if not more:
            raise ConnectionError("the connection was closed")
        data += more
    return bytes(data)


class BoardServer(socketserver.ThreadingTCPServer):
    """The messages of one group, for whoever knows its name."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 1024

    def __init__(self, address: str, port: int, group: str) -> None:
        """
        Listen at *address* and *port*, 0 for a free one.

        Raises:
            OSError: the port is taken.

        """
        self.group = group
        self.topics: dict[str, dict[int, bytes]] = {}
        self.changed = Condition()
        self.reached_at: Counter[str] = Counter()
        """This node's own addresses at which others reached it."""
        self.heard_at: dict[tuple[str, int], float] = {}
        """When each rank last left a message about each topic."""
        super().__init__((address, port), _Handler)
        Thread(target=self.serve_forever, daemon=True).start()

    @property
    def port(self) -> int:
        """The port that it listens at."""
        return int(self.server_address[1])

    def answer(self, request: _Request) -> bytes:
        """Keep a message, or give those of a topic, once there are enough or time is up."""
        with self.changed:
            messages = self.topics.setdefault(request.topic, {})
            if request.rank >= 0:
                self.heard_at[request.topic, request.rank] = monotonic()
                if messages.get(request.rank) != request.message:
                    messages[request.rank] = request.message
                    self.changed.notify_all()
                return b""
            until = monotonic() + request.seconds
            while len(messages) < request.enough and (left := until - monotonic()) > 0:
                self.changed.wait(left)
            return msgspec.msgpack.encode(messages)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a client that went away tells its own story."""


class _Handler(socketserver.BaseRequestHandler):
    server: BoardServer  # pyright: ignore[reportIncompatibleVariableOverride]

    def handle(self) -> None:
        self.request.settimeout(CONNECT_SECONDS)
        own = str(self.request.getsockname()[0])
        request = msgspec.msgpack.decode(_receive(self.request), type=_Request)
        if request.group == self.server.group:  # else the connection closes without an answer
            self.server.reached_at[own] += 1
            self.request.settimeout(CONNECT_SECONDS + request.seconds)
            if request.round_trips:
                self._tell_time(request.round_trips)
                return
            _send(self.request, self.server.answer(request))

    def _tell_time(self, times: int) -> None:
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(times):
            _receive_exactly(self.request, len(QUESTION))
            self.request.sendall(TIME.pack(perf_counter()))
