"""
The spool: nodes leave their runs here, and the controller collects them.

Each node has a directory that only its owner may write to. A node may be broken, and a
job on it may have become root, so nothing here is trusted: no link is followed, only
small regular files are read, a run counts only for the node of its directory, and a
flood from one node does not delay the others.

Leftovers are removed: collected runs, files put aside, and half-written documents whose
writer was killed. Their age is the file's ``ctime``, which the file server sets at every
change and nobody else can set. A hostile node can still fill its own directory: that
takes a quota.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from itertools import accumulate, chain, islice
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from hpcverify import gate
from hpcverify.errors import ConfigError, SpoolError, StoreError
from hpcverify.model import Run
from hpcverify.records import documents
from hpcverify.records.documents import MAX_DOCUMENT_BYTES
from hpcverify.trust import refuse_folder_of_others

NODE_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
"""Valid names for a node's directory."""
DOCUMENT_PATTERN = re.compile(r"([0-9]{8}-[0-9]{6}-(?:[0-9a-f]{6}|[0-9a-f]{12}))\.json")
"""The name of a document: the id of the run, as `orchestrator` makes it, or made it earlier."""
RESERVED_NAMES = frozenset({"gate"})
"""Directories of the spool that belong to no node."""
ASIDE_PREFIX = ".refused."
"""Put before the name of a file that is not read again."""
MAX_ASIDE_FILES = 20
"""Files put aside for each node: enough to see what is wrong with it."""
ASIDE_SECONDS = timedelta(days=14).total_seconds()
"""How long they stay: long enough for somebody on holiday."""
UNFINISHED_PATTERN = re.compile(rf"\.{DOCUMENT_PATTERN.pattern}\.[0-9a-f]+")
"""The name of a document while it is written: see `documents.write_bytes`."""
UNFINISHED_SECONDS = timedelta(days=2).total_seconds()
"""After this nobody writes it any more; clocks may be a day apart."""
NO_DIRECTORY_ERRORS = frozenset({errno.ENOTDIR, errno.ELOOP, errno.ENOENT})
"""What the kernel returns if a name in the spool is a file or a link, or gone."""
OTHERS_WRITE_BITS = stat.S_IWGRP | stat.S_IWOTH
DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
SPOOL_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
MAX_VALUES = 4_000_000
"""
Values in a document. In a dense one each takes 2 bytes, and 30 times that in memory; a
round of eight GPUs has fewer than 100,000, and at most 64 such rounds are written.
"""
MAX_PARAM_DEPTH = 16
"""
Nested lists of a parameter. A document is stored with a blank for each level before
each value, which turns two bytes into thousands.
"""
CHECK_NAME_PATTERN = re.compile(r"[a-z][a-z0-9_]{0,63}")
"""Valid names of checks: those of modules."""
MAX_CHECKS = 500
"""Checks in a run; the result of each is kept for a while by its name."""
MAX_DOCUMENT_ROUNDS = 10**6
VALID_YEARS = range(1970, 3000)
"""When a run may have begun: a clock may be wrong, arithmetic must not fail."""
MAX_DATES_APART = timedelta(days=1)
"""Between what the id of a run says of its start and its start."""
MAX_RUN_SECONDS = timedelta(days=366).total_seconds()


class SpoolQuota(Struct, frozen=True):
    """The most that we read from one node at a time; the rest waits for the next time."""

    documents: int = 50
    bytes: int = MAX_DOCUMENT_BYTES
    names: int = 10_000
    """New names to look at."""
    entries: int = 30_000
    """Entries of the directory; with more, some may never be read, and we report that."""
    leftovers: int = 1000
    """Files put aside or never finished, whose age we check."""
    refusals: int = 3
    """Refusals to report."""


class Arrival(Struct, frozen=True):
    """A run in the spool, at *path*."""

    run: Run
    path: Path


class Refusal(Struct, frozen=True):
    """A file of *node* that was refused, and why, in one sentence."""

    node: str
    reason: str
    aside: bool
    """Whether it was put aside; if not, it will be refused again next time."""


def deposit(run: Run, spool: Path, token: str = "", *, owner: int = 0) -> Path:
    """
    Leave *run* in the *spool*, with the *token* of whoever ordered it.

    To protect the token, only the owner of the node's directory can read it there. If we
    are root and have to make that directory, it is given to *owner*, the user of the spool.

    Raises:
        StoreError: it cannot be written, or others could change it there.

    """
    if not NODE_PATTERN.fullmatch(run.node) or run.node in RESERVED_NAMES:
        raise StoreError(f"a node called {run.node!r} can have no directory in {spool}")
    home = spool / run.node
    path = home / f"{run.id}.json"
    before = os.umask(0o077)
    try:
        _refuse_spool_of_others(spool, owner)
        with suppress(FileExistsError):
            home.mkdir(mode=0o700)  # a default ACL has the umask ignored
            if owner and os.geteuid() == 0:
                os.chown(home, owner, -1)
        _refuse_strangers(home)
        documents.write(replace(run, token=token), path)
    except OSError as exc:
        raise StoreError(f"{home} cannot be made or read: {exc.strerror}") from exc
    finally:
        os.umask(before)
    return path


def _refuse_spool_of_others(spool: Path, owner: int, *inside: Path) -> None:
    """
    Refuse a *spool*, or a path *inside* it, that users other than root and *owner* can change.

    Raises:
        StoreError: somebody can; names the path and the fix.

    """
    try:
        for path in (spool, *inside):
            refuse_folder_of_others(path, owner=owner)
    except ConfigError as exc:
        unless = "or set user of [fleet] here, if that user acts on the fleet"
        raise StoreError(f"the spool is not used: {exc}; {unless}") from exc


def fetch_gate(spool: Path, state: Path, node: str, owner: int = 0) -> bool:
    """
    Copy the gate file of *node* from the *spool* to *state*; return whether there was a good one.

    Raises:
        StoreError: users other than root and *owner*, the user of the spool, can change it there.

    """
    if "/" in node:
        return False
    folder = spool / gate.GATE_NAME
    _refuse_spool_of_others(spool, owner, folder, folder / node)
    job_gate = gate.read(folder / node)
    if job_gate is None:
        return False
    try:
        gate.write(state / gate.GATE_NAME, job_gate)
    except OSError:  # a full disk must not stop the verification
        return False
    return True


def take_place(spool: Path, node: str, owner: int = 0) -> bool:
    """
    Take one of the places to refuse a job in the *spool*; return whether *node* has one.

    Raises:
        StoreError: users other than root and *owner*, the user of the spool, can change it there.

    """
    if "/" in node or node.startswith("."):
        return False
    gates = spool / gate.GATE_NAME
    places = gates / gate.PLACES_NAME
    _refuse_spool_of_others(spool, owner, gates, places)
    own = places / node
    try:
        names = [path.name for path in places.iterdir()]
        for name in names if node not in names else ():
            if name.startswith(gate.FREE_PREFIX) and _rename_place(places / name, own):
                return True
    except OSError:  # no spool, or none that this node may write to
        return False
    return node in names


def _rename_place(place: Path, own: Path) -> bool:
    """Rename *place*; another node may have done so first."""
    try:
        place.rename(own)
    except FileNotFoundError:
        return False
    # The controller keeps it until Slurm has drained the node.
    os.utime(own, follow_symlinks=False)
    return True


def _refuse_strangers(home: Path) -> None:
    status = home.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise StoreError(f"{home} is not a directory: remove it")
    # Root writes the prolog's runs; the directory may belong to the sweep's user.
    ours = os.geteuid() in (0, status.st_uid)
    if not ours or status.st_mode & OTHERS_WRITE_BITS:
        raise StoreError(
            f"{home} belongs to user {status.st_uid}, or others can write to it: "
            f"chown {os.geteuid()} {home} && chmod 700 {home}"
        )


def gather(
    spool: Path,
    owner: int,
    is_known: Callable[[str], bool],
    explain_untimely: Callable[[Run], str],
    *,
    quota: SpoolQuota | None = None,
    clock: Callable[[], float] = time.time,
) -> Iterator[Arrival | Refusal]:
    """
    Yield the runs in the *spool*, the oldest of each node first.

    They must belong to root or to the user *owner*. A run whose id *is_known* was
    collected before: it is removed unread. If *explain_untimely* gives a reason, the run
    is refused with it.

    A directory that cannot be read is refused, and the others are read. If documents
    cannot be removed from a directory, that is reported; new runs are still found until
    it holds `SpoolQuota.entries` documents.

    Raises:
        SpoolError: it cannot be read, or all users can write to it.

    """
    with _open_spool(spool) as top:
        for node in _list_nodes(spool, top):
            try:
                with _open_home(node, top) as home:
                    yield from _NodeDirectory(
                        path=spool / node,
                        home=home,
                        owners={0, owner},
                        quota=quota or SpoolQuota(),
                        is_known=is_known,
                        explain_untimely=explain_untimely,
                        clock=clock,
                    ).read_runs()
            except OSError as exc:
                if exc.errno not in NO_DIRECTORY_ERRORS:
                    reason = _explain_unreadable(spool / node, owner, exc)
                    yield Refusal(node, reason, aside=False)


def remove_document(arrival: Arrival) -> None:
    """
    Remove the document of *arrival*, which was collected.

    Raises:
        StoreError: it cannot be removed.

    """
    try:
        home = os.open(arrival.path.parent, DIRECTORY_FLAGS)
        try:
            os.unlink(arrival.path.name, dir_fd=home)
        finally:
            os.close(home)
    except FileNotFoundError:
        return
    except OSError as exc:
        raise StoreError(f"{arrival.path} cannot be removed: {exc.strerror}") from exc


def list_homes(spool: Path) -> list[str]:
    """
    List the nodes that have a directory in the *spool*, by name.

    Raises:
        SpoolError: it cannot be read.

    """
    with _open_spool(spool) as top:
        return [name for name in _list_nodes(spool, top) if _is_home(name, top)]


def _is_home(name: str, top: int) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=top, follow_symlinks=False).st_mode)


def remove_home(spool: Path, node: str) -> None:
    """
    Remove the directory and the gate file of *node*, which is gone.

    Raises:
        StoreError: it holds uncollected runs, or something that is not a file.
        SpoolError: the spool cannot be read.

    """
    path = spool / node
    try:
        with _open_spool(spool) as top:
            with _open_home(node, top) as home:
                names = os.listdir(home)  # noqa: PTH208 - an open directory
                if any(map(DOCUMENT_PATTERN.fullmatch, names)):
                    raise StoreError(f"{path} has runs in it: hpcverify fleet collect first")
                for name in names:
                    os.unlink(name, dir_fd=home)
            os.rmdir(node, dir_fd=top)
    except FileNotFoundError:  # it never had one
        pass
    except OSError as exc:
        why = f"{path} cannot be removed: {exc.strerror}; see what it holds"
        raise StoreError(why) from exc
    with suppress(OSError):
        (spool / gate.GATE_NAME / node).unlink()


@contextmanager
def _open_spool(spool: Path) -> Generator[int]:
    try:
        top = os.open(spool, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as exc:
        raise SpoolError(f"the spool {spool} cannot be read: {exc.strerror}") from exc
    try:
        mode = os.fstat(top).st_mode
        if mode & stat.S_IWOTH:  # as `deposit` does
            raise SpoolError(f"all users can write to the spool {spool}: chmod o-w {spool}")
        yield top
    finally:
        os.close(top)


def _list_nodes(spool: Path, top: int) -> list[str]:
    try:
        names = os.listdir(top)
    except OSError as exc:
        raise SpoolError(f"the spool {spool} cannot be read: {exc.strerror}") from exc
    return sorted(n for n in names if NODE_PATTERN.fullmatch(n) and n not in RESERVED_NAMES)


@contextmanager
def _open_home(node: str, top: int) -> Generator[int]:
    home = os.open(node, DIRECTORY_FLAGS, dir_fd=top)
    try:
        yield home
    finally:
        os.close(home)


def _explain_unreadable(path: Path, owner: int, error: OSError) -> str:
    reason = f"{path} cannot be read: {error.strerror}"
    if not isinstance(error, PermissionError):
        return reason
    return f"{reason}: collect as root, or give it to your user: chown -R {owner} {path}"


class _UnfitFile(Exception):  # noqa: N818 - control flow: the file becomes a `Refusal`
    """Why a file is refused."""


class _NodeDirectory(Struct, kw_only=True):
    """The directory of one node, *path*, open as *home*."""

    path: Path
    home: int
    owners: set[int]
    quota: SpoolQuota
    is_known: Callable[[str], bool]
    explain_untimely: Callable[[Run], str]
    clock: Callable[[], float]
    bytes_left: int = 0
    """Bytes that may still be read."""
    handled: int = 0
    """Documents that are done and will not be seen again."""
    refused: int = 0
    stuck_reason: str = ""
    """Why something could not be removed."""

    @property
    def node(self) -> str:
        """The node that owns it."""
        return self.path.name

    def read_runs(self) -> Iterator[Arrival | Refusal]:
        """Yield the runs here, unless others could have written them."""
        status = os.fstat(self.home)
        if status.st_uid not in self.owners or status.st_mode & OTHERS_WRITE_BITS:
            yield self._build_refusal(
                f"{self.path} belongs to user {status.st_uid}, or others can write to "
                f"it, so nothing is collected: chown -R {max(self.owners)} {self.path} "
                f"&& chmod 700 {self.path}"
            )
            return
        with os.scandir(self.home) as entries:
            names = [entry.name for entry in islice(entries, self.quota.entries)]
        self._tidy(names)
        fresh = self._select_new(names)
        yield from self._report_overfull(names)
        self.bytes_left = self.quota.bytes
        for name in sorted(fresh):
            if self.bytes_left <= 0 or self.handled >= self.quota.documents:
                break
            yield from self._read_document(name)

    def _report_overfull(self, names: Sequence[str]) -> Iterator[Refusal]:
        """Report why files pile up here."""
        if self.stuck_reason:
            yield self._build_refusal(
                f"old files in {self.path} cannot be removed ({self.stuck_reason}): "
                "remove them, or make the directory writable here"
            )
        if len(names) >= self.quota.entries:
            yield self._build_refusal(
                f"{self.path} has {self.quota.entries} files or more, so new runs "
                "may not be found: empty it"
            )

    def _build_refusal(self, reason: str) -> Refusal:
        return Refusal(self.node, reason, aside=False)

    def _select_new(self, names: Iterable[str]) -> list[str]:
        """Choose the new files; known ones are removed and do not count."""
        fresh: list[str] = []
        for name in names:
            if len(fresh) >= self.quota.names:
                break
            matched = DOCUMENT_PATTERN.fullmatch(name)
            if matched and self.is_known(matched[1]):
                self._remove(name)
            elif not name.startswith("."):  # half-written, or put aside
                fresh.append(name)
        return fresh

    def _tidy(self, names: Iterable[str]) -> None:
        """Remove old files that were put aside or never finished."""
        now = self.clock()
        old = self._list_leftovers(names)
        aside = sorted(((t, n) for t, n in old if n.startswith(ASIDE_PREFIX)), reverse=True)
        ends = {
            *(n for t, n in aside if t < now - ASIDE_SECONDS),
            *(n for _, n in aside[MAX_ASIDE_FILES:]),
            *(n for t, n in old if t < now - UNFINISHED_SECONDS and UNFINISHED_PATTERN.match(n)),
        }
        for name in ends:
            self._remove(name)

    def _list_leftovers(self, names: Iterable[str]) -> list[tuple[float, str]]:
        """List the leftovers, with the time of their last change."""
        old = (n for n in names if n.startswith(ASIDE_PREFIX) or UNFINISHED_PATTERN.fullmatch(n))
        leftovers: list[tuple[float, str]] = []
        for name in islice(old, self.quota.leftovers):
            with suppress(FileNotFoundError):
                there = os.stat(name, dir_fd=self.home, follow_symlinks=False)
                leftovers.append((there.st_ctime, name))
        return leftovers

    def _read_document(self, name: str) -> Iterator[Arrival | Refusal]:
        try:
            run = self._read_run(name)
        except FileNotFoundError:  # a collector beside us was faster
            return
        except OSError as exc:
            yield from self._refuse(name, exc.strerror or "it cannot be read")
        except (StoreError, _UnfitFile) as exc:
            yield from self._refuse(name, str(exc))
        else:
            if run is None:
                return
            if why := self.explain_untimely(run):
                yield from self._refuse(name, why)
                return
            self.handled += 1
            yield Arrival(run, self.path / name)

    def _read_run(self, name: str) -> Run | None:
        """Read the file *name*; None if it exceeds the quota this time."""
        if not DOCUMENT_PATTERN.fullmatch(name):
            raise _UnfitFile("its name is not that of a run document")
        # Before it is opened, since opening a device may have an effect, and after.
        _require_fit_file(os.stat(name, dir_fd=self.home, follow_symlinks=False), self.owners)
        file = os.open(name, SPOOL_FILE_FLAGS, dir_fd=self.home)
        with os.fdopen(file, "rb") as opened:
            size = _require_fit_file(os.fstat(file), self.owners)
            if size > self.bytes_left and self.bytes_left < self.quota.bytes:
                self.bytes_left = 0
                return None
            # No more than the size that we checked, even if the file grows meanwhile.
            text = opened.read(size)
        self.bytes_left -= max(size, 1)
        return _parse_sound_run(text, self.node, name)

    def _refuse(self, name: str, reason: str) -> Iterator[Refusal]:
        aside = self._put_aside(name)
        self.handled += aside
        self.refused += 1
        if self.refused <= self.quota.refusals:
            yield Refusal(self.node, f"{name!a}: {reason}", aside)

    def _put_aside(self, name: str) -> bool:
        new = os.fsencode(ASIDE_PREFIX + name)[:255]
        try:
            os.rename(name, new, src_dir_fd=self.home, dst_dir_fd=self.home)
        except OSError:
            return False
        return True

    def _remove(self, name: str) -> None:
        try:
            try:
                os.unlink(name, dir_fd=self.home)
            except IsADirectoryError:
                os.rmdir(name, dir_fd=self.home)
        except FileNotFoundError:
            return
        except OSError as exc:
            self.stuck_reason = exc.strerror or "it is not known why"


def _require_fit_file(found: os.stat_result, owners: set[int]) -> int:
    if not stat.S_ISREG(found.st_mode):
        raise _UnfitFile("it is not a regular file")
    if found.st_nlink != 1:
        raise _UnfitFile("it has other hard links")
    if found.st_uid not in owners:
        raise _UnfitFile(f"it belongs to user {found.st_uid}")
    if found.st_size > MAX_DOCUMENT_BYTES:
        raise _UnfitFile(f"it is larger than any run ({found.st_size} bytes)")
    return found.st_size


def _parse_sound_run(text: bytes, node: str, name: str) -> Run:
    # Each value but the first follows one of these; a key does not.
    if sum(map(text.count, (b",", b"[", b"{"))) > MAX_VALUES:
        raise _UnfitFile("it holds more values than any run")
    run = documents.parse(text, "it")
    for fault in chain(_find_bad_names(run, node, name), _find_bad_values(run)):
        raise _UnfitFile(fault)
    return run


def _find_bad_names(run: Run, node: str, name: str) -> Iterator[str]:
    if run.node != node:
        yield f"it names node {run.node[:255]!a}"
    if f"{run.id}.json" != name:
        yield f"it holds run {run.id[:64]!a}"
    if not all(CHECK_NAME_PATTERN.fullmatch(result.check) for result in run.results):
        yield "a check in it has an invalid name"
    if len({result.check for result in run.results}) > MAX_CHECKS:
        yield f"it has more than {MAX_CHECKS} checks"


def read_id_time(run: str) -> datetime:
    """Read from the id *run* when it began; of a day that never was, the least time there is."""
    try:
        return datetime.strptime(run[:15], "%Y%m%d-%H%M%S").replace(tzinfo=UTC)
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)


def _find_bad_values(run: Run) -> Iterator[str]:
    if run.started.tzinfo is None or run.started.year not in VALID_YEARS:
        yield "its start is not a valid time with a time zone"
    elif abs(run.started - read_id_time(run.id)) > MAX_DATES_APART:
        yield f"it began on {run.started:%Y-%m-%d}, but its id says {run.id[:8]}: check its clock"
    if not all(0 <= s <= MAX_RUN_SECONDS for s in (run.seconds, *(r.seconds for r in run.results))):
        yield "its duration is not a valid number of seconds"
    if any(not 0 < n <= MAX_DOCUMENT_ROUNDS for n in (run.rounds, *(r.round for r in run.results))):
        yield "its round numbers are invalid"
    if any(_is_deep(result.params) for result in run.results):
        yield "its parameters are nested deeper than those of any run"
    if any(size > MAX_DOCUMENT_BYTES for size in accumulate(_list_sizes(run))):
        yield "it would be larger than any run once stored"


def _is_deep(value: Any, left: int = MAX_PARAM_DEPTH) -> bool:
    inner: Iterable[Any] = value.values() if isinstance(value, dict) else value
    nested = [item for item in inner if isinstance(item, dict | list)]
    return bool(nested) and (left == 0 or any(_is_deep(item, left - 1) for item in nested))


def _list_sizes(run: Run) -> Iterator[int]:
    """Yield the size of each part of *run* in bytes as `documents` writes it."""
    for part in (run.inventory, run.versions, *run.results):
        yield len(msgspec.json.format(msgspec.json.encode(part), indent=1))
