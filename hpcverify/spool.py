"""
The spool: where nodes leave their runs, and the controller takes them from.

One directory a node, which nobody but its owner may write to. A node may be broken and
a job on it may have become root: what lies here is taken for what it is and no more. No
link is followed, nothing but a small regular file is read, each run speaks for the node
of its directory alone, and one node's heap keeps no other from its turn.
"""

from __future__ import annotations

import heapq
import math
import os
import re
import stat
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from hpcverify import documents
from hpcverify.documents import LARGEST
from hpcverify.errors import StoreError
from hpcverify.model import Run

NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
"""What a node's directory can be called."""
DOCUMENT = re.compile(r"([0-9]{8}-[0-9]{6}-[0-9a-f]{6})\.json")
"""What a document is called: by the id of the run, as `orchestrator` makes it."""
RESERVED = frozenset({"standing"})
"""Directories of the spool that are no node's."""
ASIDE = ".refused."
"""What is put before the name of a file that is not looked at again."""
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
MOST_VALUES = 4_000_000
"""
Values in a document. In a dense one each has 2 bytes, and 30 times that in memory; a
round of eight GPUs has fewer than 100,000, and no more than 64 such rounds are written.
"""
MOST_ROUNDS = 10**6
YEARS = range(1970, 3000)
"""In which a run may have begun: a clock may be wrong, arithmetic must not fail."""


class Room(Struct, frozen=True):
    """What one node may have us read at one time; the rest has its turn later."""

    documents: int = 50
    bytes: int = LARGEST
    names: int = 10_000
    """Of the directory, which are looked at."""
    refusals: int = 3
    """That are told of."""


class Arrival(Struct, frozen=True):
    """A run that was found in the spool, at *path*."""

    run: Run
    path: Path


class Refusal(Struct, frozen=True):
    """What was not taken from *node*, in one sentence."""

    node: str
    reason: str
    aside: bool
    """Whether it was put aside; what was not will be refused again the next time."""


def deposit(run: Run, spool: Path, token: str = "") -> Path:
    """
    Leave *run* in the *spool*, with the *token* of who ordered it.

    Nobody but the owner of the node's directory can read it there, for the sake of
    the token.

    Raises:
        StoreError: it cannot be written, or others could change it there.

    """
    if not NODE.fullmatch(run.node) or run.node in RESERVED:
        raise StoreError(f"a node called {run.node!r} can have no directory in {spool}")
    home = spool / run.node
    path = home / f"{run.id}.json"
    before = os.umask(0o077)
    try:
        with suppress(FileExistsError):
            home.mkdir()
        _refuse_strangers(home)
        documents.write(replace(run, token=token), path)
    except OSError as exc:
        raise StoreError(f"{home} cannot be made or read: {exc.strerror}") from exc
    finally:
        os.umask(before)
    return path


def _refuse_strangers(home: Path) -> None:
    found = home.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise StoreError(f"{home} is no directory: remove it")
    # The prolog's runs are root's, in a directory that may be the sweep's user's.
    ours = os.geteuid() in (0, found.st_uid)
    if not ours or found.st_mode & OTHERS_WRITE:
        raise StoreError(
            f"{home} belongs to user {found.st_uid}, or others can write to it: "
            f"chown {os.geteuid()} {home} && chmod 700 {home}"
        )


def gather(
    spool: Path, owner: int, known: Callable[[str], bool], room: Room | None = None
) -> Iterator[Arrival | Refusal]:
    """
    Yield the runs that lie in the *spool*, the oldest of each node first.

    They must be of root or of the user *owner*. A run whose id is *known* was taken
    in to the end before: it is removed, and not looked at again.

    Raises:
        StoreError: the spool cannot be read, or anybody can rename what is in it.

    """
    with _opened(spool) as top:
        for node in sorted(filter(NODE.fullmatch, os.listdir(top))):  # noqa: PTH208 - it is open, and stays the one that was looked at
            if node in RESERVED:
                continue
            try:
                home = os.open(node, DIRECTORY, dir_fd=top)
            except OSError:  # a file, or a link: nothing to do with us
                continue
            try:
                shelf = _Shelf(spool, node, home, {0, owner}, room or Room())
                yield from shelf.taken(known)
            finally:
                os.close(home)


def done(arrival: Arrival) -> None:
    """
    Remove the document of *arrival*, which was taken in.

    Raises:
        StoreError: it is there still.

    """
    try:
        home = os.open(arrival.path.parent, DIRECTORY)
        try:
            os.unlink(arrival.path.name, dir_fd=home)
        finally:
            os.close(home)
    except FileNotFoundError:
        return
    except OSError as exc:
        raise StoreError(f"{arrival.path} cannot be removed: {exc.strerror}") from exc


@contextmanager
def _opened(spool: Path) -> Generator[int]:
    try:
        top = os.open(spool, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as exc:
        raise StoreError(f"the spool {spool} cannot be read: {exc.strerror}") from exc
    try:
        mode = os.fstat(top).st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise StoreError(
                f"anybody can rename what is in the spool {spool}: chmod +t {spool}"
            )
        yield top
    finally:
        os.close(top)


class _Unfit(Exception):  # noqa: N818 - control flow: the file becomes a `Refusal`
    """Why a file is not taken."""


class _Shelf(Struct):
    """The directory of one node, open as *home*."""

    spool: Path
    node: str
    home: int
    owners: set[int]
    room: Room
    left: int = 0
    """Bytes that may still be read."""
    refused: int = 0

    def taken(self, known: Callable[[str], bool]) -> Iterator[Arrival | Refusal]:
        """Yield what lies here, unless others could have put it there."""
        found = os.fstat(self.home)
        if found.st_uid not in self.owners or found.st_mode & OTHERS_WRITE:
            reason = f"{self.spool / self.node} belongs to user {found.st_uid}"
            told = f"{reason}, or others can write to it: nothing there is taken"
            yield Refusal(self.node, told, aside=False)
            return
        self.left = self.room.bytes
        for name in self._oldest(known):
            if self.left <= 0:
                break
            yield from self._one(name)

    def _oldest(self, known: Callable[[str], bool]) -> list[str]:
        """Choose what to look at; what is *known* needs no room."""
        with os.scandir(self.home) as entries:
            names = [entry.name for entry in islice(entries, self.room.names)]
        fresh: list[str] = []
        for name in names:
            matched = DOCUMENT.fullmatch(name)
            if matched and known(matched[1]):
                self._remove(name)
            elif not name.startswith("."):  # one that is being written, or put aside
                fresh.append(name)
        return heapq.nsmallest(self.room.documents, fresh)

    def _one(self, name: str) -> Iterator[Arrival | Refusal]:
        try:
            run = self._run(name)
        except FileNotFoundError:  # a collector beside us was faster
            return
        except OSError as exc:
            yield from self._refuse(name, exc.strerror or "it cannot be read")
        except (StoreError, _Unfit) as exc:
            yield from self._refuse(name, str(exc))
        else:
            if run is not None:
                yield Arrival(run, self.spool / self.node / name)

    def _run(self, name: str) -> Run | None:
        """Read the file *name*; nothing if there is no room for it this time."""
        if not DOCUMENT.fullmatch(name):
            raise _Unfit("it is not called as a run document is")
        # Before it is opened, which a device may take for an order, and after.
        _fit(os.stat(name, dir_fd=self.home, follow_symlinks=False), self.owners)
        file = os.open(name, FILE, dir_fd=self.home)
        with os.fdopen(file, "rb") as opened:
            size = _fit(os.fstat(file), self.owners)
            if size > self.left and self.left < self.room.bytes:
                self.left = 0
                return None
            # No further than was allowed, though it should grow meanwhile.
            text = opened.read(size)
        self.left -= max(size, 1)
        return _sound(text, self.node, name)

    def _refuse(self, name: str, reason: str) -> Iterator[Refusal]:
        aside = self._put_aside(name)
        self.refused += 1
        if self.refused <= self.room.refusals:
            yield Refusal(self.node, f"{self.node}: {name!a}: {reason}", aside)

    def _put_aside(self, name: str) -> bool:
        new = (ASIDE + name)[:255]
        try:
            os.rename(name, new, src_dir_fd=self.home, dst_dir_fd=self.home)
        except OSError:
            return False
        return True

    def _remove(self, name: str) -> None:
        with suppress(OSError):  # it is not looked at anyway
            os.unlink(name, dir_fd=self.home)


def _fit(found: os.stat_result, owners: set[int]) -> int:
    """Say how large a file is that may be read."""
    if not stat.S_ISREG(found.st_mode):
        raise _Unfit("it is no regular file")
    if found.st_nlink != 1:
        raise _Unfit("it has other names elsewhere")
    if found.st_uid not in owners:
        raise _Unfit(f"it belongs to user {found.st_uid}")
    if found.st_size > LARGEST:
        raise _Unfit(f"it is larger than any run ({found.st_size} bytes)")
    return found.st_size


def _sound(text: bytes, node: str, name: str) -> Run:
    """Make a run of *text*, in which nothing can upset who reads it."""
    # Each value but the first has one of these before it, a key none.
    if sum(map(text.count, (b",", b"[", b"{"))) > MOST_VALUES:
        raise _Unfit("it holds more values than any run")
    run = documents.parse(text, name)
    if run.node != node:
        raise _Unfit(f"it speaks for node {run.node[:255]!a}")
    if f"{run.id}.json" != name:
        raise _Unfit(f"it holds run {run.id[:64]!a}")
    if run.started.tzinfo is None or run.started.year not in YEARS:
        raise _Unfit("when it began is no time in a known zone")
    if not (math.isfinite(run.seconds) and run.seconds >= 0):
        raise _Unfit("it took no number of seconds")
    if any(not 0 < n <= MOST_ROUNDS for n in (run.rounds, *_rounds(run))):
        raise _Unfit("its rounds are not counted as a run counts them")
    return run


def _rounds(run: Run) -> Iterator[int]:
    return (result.round for result in run.results)
