"""
Where ranks leave messages for each other before, beside and after their process group.

Ranks of one node meet in a folder. Ranks of several nodes, which need not share one, meet
at a small TCP server on the node of rank 0 (`board_server`). It runs in a process without
torch, so that it goes on when rank 0 is stuck. Who does not know the secret of the job can
neither leave a message there nor answer for it (`seal`).
"""

from __future__ import annotations

import os
import secrets
import socket
import stat
import struct
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, perf_counter, sleep
from typing import Annotated, Protocol, TypeVar

import msgspec
from msgspec import Meta, Struct

from hpcverify.records.collectives import SECRET_VARIABLE
from hpcverify_checks.ranks.clocks import RoundTrip
from hpcverify_checks.ranks.seal import (
    ANSWER,
    HEADER,
    NONCE_BYTES,
    PROOF,
    REQUEST,
    Seal,
    make_nonce,
)

SCHEME = "tcp://"
MAX_MESSAGE_BYTES = 4 * 2**20
"""The longest message: the times of a rank are far fewer."""
MAX_ANSWER_BYTES = 256 * 2**20
"""The most for the messages of all ranks about one topic."""
MAX_RANKS = 2**16
CONNECT_SECONDS = 5.0
"""The time for one try of a request, besides the time that the server is asked to wait."""
PATIENCE_SECONDS = 9.0
"""How long a rank begins new tries: a busy server may be slow to accept. With the last try this
is less than the 15 s after which a rank that stands still is missing."""
TRANSFER_SECONDS = 60.0
"""The time for an answer of any length, however slowly it comes."""
QUESTION = b"?"
TIME = struct.Struct("!d")
"""The answer to it, in seconds."""
CREDENTIAL_LENGTH = struct.Struct("!H")
"""After the challenge: the bytes of what the job's user can get the secret from, if any."""
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What decoding a message of another version, or of nobody of ours, raises."""
CROWDED = "which ranks are missing is not known: find (ss -tn) whose connections crowd"
"""Before the address of a board to which many came who do not know its secret."""
READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
WRITE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

Port = Annotated[int, Meta(ge=1, le=65535)]
T = TypeVar("T")


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
    """A board of files in a folder that nobody else can write to."""

    pause = 0.02

    def __init__(self, folder: Path) -> None:
        """
        Use *folder*, which the run made for its ranks.

        Raises:
            BoardError: it is not a folder of this user alone.

        """
        try:
            status = folder.lstat()
        except OSError as exc:
            raise BoardError(f"{folder} is gone: {exc.strerror}") from exc
        own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
        if not own or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise BoardError(f"{folder} is not a folder that only this user can write to")
        self.folder = folder

    def post(self, topic: str, rank: int, message: bytes = b"") -> None:
        """Write the file, so that no reader sees half of it."""
        new = self.folder / f".{secrets.token_hex(8)}"
        with os.fdopen(os.open(new, WRITE_FLAGS, 0o600), "wb") as file:
            file.write(message)
        new.replace(self.folder / f"{topic}{rank}")

    def read(self, topic: str, enough: int = 0) -> dict[int, bytes]:  # noqa: ARG002 - never waits
        """Read the files that are there."""
        paths = {path.name.removeprefix(topic): path for path in self.folder.glob(f"{topic}[0-9]*")}
        messages: dict[int, bytes] = {}
        for rank, path in paths.items():
            if rank.isdigit():
                with os.fdopen(os.open(path, READ_FLAGS), "rb") as file:
                    messages[int(rank)] = file.read(MAX_ANSWER_BYTES)
        return messages

    def make_round_trips(self, count: int) -> list[RoundTrip]:  # noqa: ARG002 - one node, one clock
        """Make none."""
        return []


class BoardRequest(Struct, omit_defaults=True):
    """What a rank asks of a board."""

    topic: Annotated[str, Meta(max_length=64)]
    rank: Annotated[int, Meta(ge=-1, lt=MAX_RANKS)] = -1
    """-1: a question."""
    message: Annotated[bytes, Meta(max_length=MAX_MESSAGE_BYTES)] = b""
    enough: Annotated[int, Meta(ge=0, le=MAX_RANKS)] = 0
    seconds: Annotated[float, Meta(ge=0, le=60)] = 0.0
    round_trips: Annotated[int, Meta(ge=0, le=1000)] = 0
    """Instead of a message: ask so often for the time."""


MAX_REQUEST_BYTES = MAX_MESSAGE_BYTES + 2**10
"""The longest request, encoded."""


class SocketBoard:
    """A board on another node, or on this one. Each request has a connection of its own."""

    pause = 0.25
    WAIT_SECONDS = 1.0

    def __init__(
        self,
        address: str,
        port: int,
        group: str,
        secret: str,
        *,
        patience: float = CONNECT_SECONDS,
        transfer: float = TRANSFER_SECONDS,
    ) -> None:
        """
        Ask the server at *address* about *group*.

        Gives up if no answer begins within *patience* seconds, or ends within *transfer*. If
        a try was in vain, begins another one within *patience*.
        """
        self.address, self.port, self.group = address, port, group
        self.secret, self._patience, self._transfer = secret, patience, transfer

    def post(self, topic: str, rank: int, message: bytes = b"") -> None:
        """Send the message."""
        self._ask(BoardRequest(topic, rank, message))

    def read(self, topic: str, enough: int = 0) -> dict[int, bytes]:
        """Ask for the messages; the server waits up to `WAIT_SECONDS` for *enough*."""
        wait = self.WAIT_SECONDS if enough else 0.0
        answer = self._ask(BoardRequest(topic, enough=enough, seconds=wait))
        try:
            return msgspec.msgpack.decode(answer, type=dict[int, bytes])
        except UNREADABLE as exc:
            raise BoardError(f"the board {describe_unreadable(exc)}") from exc

    def make_round_trips(self, count: int) -> list[RoundTrip]:
        """Ask *count* times for the time of the server's node, over one connection."""
        return self._connect(BoardRequest("", round_trips=count), count)[1]

    def _ask(self, request: BoardRequest) -> bytes:
        return self._connect(request)[0]

    def _connect(self, request: BoardRequest, trips: int = 0) -> tuple[bytes, list[RoundTrip]]:
        """Ask, again if a busy server drops it or is too slow: no request does harm twice."""
        until = monotonic() + self._patience
        while True:
            try:
                patience = min(self._patience, CONNECT_SECONDS) + request.seconds
                with connect(self.address, self.port, patience, self._transfer) as line:
                    return self._talk(line, request, trips)
            except OSError as exc:
                is_busy = isinstance(exc, (ConnectionError, TimeoutError))
                is_busy = is_busy and not isinstance(exc, ConnectionRefusedError)
                if not is_busy or monotonic() > until:
                    text = f"the board at {self.address} port {self.port} does not answer: {exc}"
                    raise BoardError(text) from exc
            sleep(self.pause)

    def _talk(
        self, line: BoardLine, request: BoardRequest, trips: int
    ) -> tuple[bytes, list[RoundTrip]]:
        nonce = make_nonce()
        seal = Seal.make(self.secret, self.group, line.challenge, nonce)
        asked = seal.pack(REQUEST, msgspec.msgpack.encode(request))
        line.socket.sendall(nonce + seal.sign(PROOF) + asked)
        made = [line.make_round_trip() for _ in range(trips)]
        length, signature = HEADER.unpack(line.receive(HEADER.size))
        if length > MAX_ANSWER_BYTES:
            raise OSError(f"an answer of {length} bytes is not one of ours")
        answer = line.receive(length)
        seal.require(signature, ANSWER, answer)
        if made and answer != b"".join(TIME.pack(trip.read) for trip in made):
            raise OSError("the times were changed on their way")
        return answer, made

    def __str__(self) -> str:
        """Give what `open_board` opens."""
        return f"{SCHEME}{self.address}:{self.port}/{self.group}"


class BoardLine:
    """A connection to a board that has greeted."""

    def __init__(self, connection: socket.socket, patience: float, transfer: float) -> None:
        """
        Read the greeting.

        Waits at most *patience* seconds for any answer to begin, and *transfer* for its end.
        """
        self.socket, self._patience = connection, patience
        self._until = monotonic() + patience
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.challenge = self.receive(NONCE_BYTES)
        (length,) = CREDENTIAL_LENGTH.unpack(self.receive(CREDENTIAL_LENGTH.size))
        self.credential = self.receive(length)
        self._until = monotonic() + transfer

    def receive(self, length: int) -> bytes:
        """Receive just so many bytes."""
        data = bytearray()
        while len(data) < length:
            left = self._until - monotonic()
            if left <= 0:
                raise TimeoutError("it answers too slowly")
            self.socket.settimeout(min(left, self._patience))
            more = self.socket.recv(min(length - len(data), 2**20))
            if not more:
                raise ConnectionError("the connection was closed")
            data += more
        return bytes(data)

    def make_round_trip(self) -> RoundTrip:
        """Ask for the time."""
        sent = perf_counter()
        self.socket.sendall(QUESTION)
        answer = self.receive(TIME.size)
        return RoundTrip(sent, TIME.unpack(answer)[0], perf_counter())


@contextmanager
def connect(
    address: str, port: int, patience: float, transfer: float = TRANSFER_SECONDS
) -> Generator[BoardLine]:
    """
    Connect to the board at *address*.

    Raises:
        OSError: it does not answer, or not in time.

    """
    with socket.create_connection((address, port), patience) as connection:
        yield BoardLine(connection, patience, transfer)


def open_board(where: str) -> FolderBoard | SocketBoard:
    """
    Open the board at *where*, which never came from a board.

    That is a folder of this run, or tcp://ADDRESS:PORT/GROUP; its secret is in the
    environment. A rank at a board in the network is patient with it.
    """
    if not where.startswith(SCHEME):
        return FolderBoard(Path(where))
    place, _, group = where.removeprefix(SCHEME).partition("/")
    address, _, port = place.rpartition(":")
    secret = os.environ[SECRET_VARIABLE]
    return SocketBoard(address, int(port), group, secret, patience=PATIENCE_SECONDS)


def decode_messages(
    messages: dict[int, bytes], decode: Callable[[bytes], T]
) -> tuple[dict[int, T], dict[int, str]]:
    """Decode the messages of ranks about one topic; also say whose cannot be read, and why."""
    read: dict[int, T] = {}
    unreadable: dict[int, str] = {}
    for rank, message in sorted(messages.items()):
        try:
            read[rank] = decode(message)
        except UNREADABLE as exc:
            unreadable[rank] = describe_unreadable(exc)
    return read, unreadable


def describe_unreadable(why: object) -> str:
    """Say of a rank that what it sent cannot be read, and what to do."""
    return f"sent what cannot be read here ({why}): install the same hpcverify on all nodes"
