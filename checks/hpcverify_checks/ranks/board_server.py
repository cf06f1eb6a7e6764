"""
The server of a board that ranks of several nodes share: one thread, whoever connects.

Who has not proved yet to know the secret of the job costs a connection, a few kilobytes and
`STRANGER_SECONDS`. If there are too many of them, the one goes that has waited longest among
those from the busiest address: so a crowd on one node cannot keep another node out. A crowd
may still keep the board so busy that ranks are not heard: see `is_crowded`.
"""

from __future__ import annotations

import asyncio
import resource
import socket
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from threading import Lock, Thread
from time import monotonic, perf_counter

import msgspec
from msgspec import Struct

from hpcverify_checks.ranks.board import (
    CREDENTIAL_LENGTH,
    MAX_REQUEST_BYTES,
    QUESTION,
    TIME,
    TRANSFER_SECONDS,
    UNREADABLE,
    BoardRequest,
)
from hpcverify_checks.ranks.seal import (
    ANSWER,
    HEADER,
    MAC_BYTES,
    NONCE_BYTES,
    PROOF,
    REQUEST,
    Seal,
    make_nonce,
)

STRANGER_SECONDS = 5.0
"""The time for a client to prove that it knows the secret."""
MIN_STRANGERS, STRANGERS_FOR_RANK = 128, 4
"""Connections that may be about to prove it: at the start all ranks come at once. If more
never do, strangers crowd the board."""
MAX_RANK_BYTES = 16 * 2**20
"""The most that is kept of one rank's messages."""
MAX_TOPICS = 2**12
BACKLOG = 1024
"""Connections that wait to be taken: all ranks may come at once."""
ACCEPTS_PER_TURN, TURNS_TO_ADMIT = 4, 8
"""Connections that asyncio takes in a turn of its loop, and turns until each of them has been
admitted, and another one ended for it. Their product bounds the descriptors beyond the limit."""
BUFFER_BYTES = 2**14
"""What is read of a connection before it is asked for."""


class Message(Struct, frozen=True):
    """What a rank left about a topic."""

    content: bytes
    heard: float
    """When the rank last left it, on the monotonic clock."""


class BoardServer:
    """The messages of one group, for whoever knows its secret."""

    def __init__(
        self,
        address: str,
        port: int,
        group: str,
        secret: str,
        *,
        world: int,
        credential: bytes = b"",
    ) -> None:
        """
        Listen at *address* alone, and at *port*, 0 for a free one.

        Each connection is shown the *credential*, from which the job's user, and nobody
        else, can get the secret. Raises the soft limit of open files of this process if the
        ranks need more.

        Raises:
            OSError: the port is taken, or the address is not one of this node.

        """
        self.group, self.world = group, world
        self._secret, self._credential = secret, credential
        self._topics: dict[str, dict[int, Message]] = {}
        self._lock = Lock()
        self._bytes: Counter[int] = Counter()
        self._strangers: dict[asyncio.StreamWriter, str] = {}
        self._max_strangers = _make_room(MIN_STRANGERS + STRANGERS_FOR_RANK * world)
        self._unproved = 0
        listener = socket.create_server((address, port), backlog=BACKLOG)
        self.address, self.port = listener.getsockname()
        self._loop = asyncio.new_event_loop()
        self._news, self._over = asyncio.Event(), asyncio.Event()
        self._thread = Thread(
            target=self._loop.run_until_complete, args=(self._serve(listener),), daemon=True
        )
        self._thread.start()

    @classmethod
    @contextmanager
    def open(
        cls, address: str, port: int, group: str, secret: str, *, world: int
    ) -> Generator[BoardServer]:
        """Keep a board while the block runs."""
        server = cls(address, port, group, secret, world=world)
        try:
            yield server
        finally:
            server.close()

    @property
    def is_crowded(self) -> bool:
        """Whether so many strangers came that the silence of a rank says nothing."""
        return self._unproved > self._max_strangers

    def close(self) -> None:
        """End it, and all connections."""
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()
        self._loop.close()

    def read(self, topic: str) -> dict[int, bytes]:
        """Read what ranks left about *topic*."""
        return {rank: message.content for rank, message in self.read_messages(topic).items()}

    def read_messages(self, topic: str) -> dict[int, Message]:
        """Read what ranks left about *topic*, and when."""
        with self._lock:
            return dict(self._topics.get(topic, {}))

    def leave(self, topic: str, rank: int, content: bytes) -> None:
        """Leave a message for *rank*, unless it left one itself."""
        with self._lock:
            self._topics.setdefault(topic, {}).setdefault(rank, Message(content, monotonic()))
        self._loop.call_soon_threadsafe(self._tell)

    async def _serve(self, listener: socket.socket) -> None:
        server = await asyncio.start_server(
            self._handle, sock=listener, limit=BUFFER_BYTES, backlog=ACCEPTS_PER_TURN
        )
        listener.listen(BACKLOG)  # asyncio has made the kernel's queue as short as its turns
        await self._over.wait()
        self._loop.remove_reader(listener)
        for _ in range(TURNS_TO_ADMIT):  # who never begins cannot end its connection
            await asyncio.sleep(0)
        server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request; whoever breaks off, or is not one of us, gets no answer."""
        try:
            self._admit(writer)
            async with asyncio.timeout(STRANGER_SECONDS):
                seal = await self._greet(reader, writer)
            self._strangers.pop(writer, None)
            self._unproved -= 1
            async with asyncio.timeout(TRANSFER_SECONDS):
                request = await _read_request(reader, seal)
            answer = await self._answer(request, reader, writer)
            writer.write(seal.pack(ANSWER, answer))
            async with asyncio.timeout(TRANSFER_SECONDS):
                await writer.drain()
        except (OSError, EOFError, asyncio.CancelledError, *UNREADABLE):
            writer.transport.abort()
        finally:
            self._strangers.pop(writer, None)
            writer.close()

    def _admit(self, writer: asyncio.StreamWriter) -> None:
        """Count one more stranger, and end another one if there are too many."""
        self._unproved += 1
        peer = writer.get_extra_info("peername")  # None: it has gone already
        self._strangers[writer] = str(peer[0]) if peer else ""
        if len(self._strangers) > self._max_strangers:
            ((busiest, _),) = Counter(self._strangers.values()).most_common(1)
            first = next(w for w, source in self._strangers.items() if source == busiest)
            del self._strangers[first]
            first.transport.abort()

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Seal:
        challenge = make_nonce()
        writer.write(challenge + CREDENTIAL_LENGTH.pack(len(self._credential)) + self._credential)
        nonce = await reader.readexactly(NONCE_BYTES)
        seal = Seal.make(self._secret, self.group, challenge, nonce)
        seal.require(await reader.readexactly(MAC_BYTES), PROOF)
        return seal

    async def _answer(
        self, request: BoardRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bytes:
        """Keep a message, tell the time, or give a topic: once there is enough or time is up."""
        if request.round_trips:
            async with asyncio.timeout(TRANSFER_SECONDS):
                return await _tell_time(reader, writer, request.round_trips)
        if request.rank >= 0:
            self._keep(request)
            return b""
        until = self._loop.time() + request.seconds
        while len(messages := self.read(request.topic)) < request.enough:
            try:
                async with asyncio.timeout_at(until):
                    await self._news.wait()
            except TimeoutError:
                break
        return msgspec.msgpack.encode(messages)

    def _keep(self, request: BoardRequest) -> None:
        with self._lock:
            before = self._topics.get(request.topic, {}).get(request.rank)
            more = len(request.message) - (len(before.content) if before else 0)
            if (
                request.rank >= self.world
                or self._bytes[request.rank] + more > MAX_RANK_BYTES
                or len({*self._topics, request.topic}) > MAX_TOPICS
            ):
                raise OSError("more than ranks have to say")
            self._bytes[request.rank] += more
            messages = self._topics.setdefault(request.topic, {})
            messages[request.rank] = Message(request.message, monotonic())
        if before is None or before.content != request.message:
            self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


def _make_room(strangers: int) -> int:
    """
    Make room for as many *strangers* as descriptors of ranks and of the process itself.

    Returns how many strangers there is room for: fewer if the hard limit is too low.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < (wanted := 2 * strangers):
        soft = min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return min(strangers, soft // 2)


async def _read_request(reader: asyncio.StreamReader, seal: Seal) -> BoardRequest:
    length, signature = HEADER.unpack(await reader.readexactly(HEADER.size))
    if length > MAX_REQUEST_BYTES:
        raise OSError(f"a request of {length} bytes is not one of ours")
    data = await reader.readexactly(length)
    seal.require(signature, REQUEST, data)
    return msgspec.msgpack.decode(data, type=BoardRequest)


async def _tell_time(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, times: int
) -> bytes:
    """Tell the time as often as asked, and at the end all of it once more, to be signed."""
    received = b""
    for _ in range(times):
        await reader.readexactly(len(QUESTION))
        now = TIME.pack(perf_counter())
        writer.write(now)
        received += now
    return received
