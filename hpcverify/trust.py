"""
Who can change what lies at a path: the one place that decides it.

A path is only as safe as every folder on its way. Whoever owns one of them, or may
write to it, can put another file in the place of ours. In a sticky folder, such as
/tmp, nobody can touch what belongs to another user, but anybody can add a name. So we
follow no link there, or anywhere, that another user made.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from hpcverify.errors import ConfigError

ROOT = 0
MAX_LINKS = 40
"""On one path: as many as the kernel follows."""
FOLDER_MODE = 0o755
"""Of the folders that we make, less what the umask takes away."""
FOLDER_PATH_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class PathEntry(NamedTuple):
    """A name on the way to a path."""

    path: Path
    found: os.stat_result
    """What it is itself; a link is not followed."""
    inside: os.stat_result
    """The folder that it lies in."""


class PathEnd(NamedTuple):
    """The end of a path: a name in a folder that is open."""

    folder: int
    """Descriptor of the folder, which is closed with the block."""
    name: str
    path: Path
    """Where that is, once links were followed."""


@contextmanager
def walk_path(
    path: Path, visit: Callable[[PathEntry], None], *, make: bool = False
) -> Generator[PathEnd]:
    """
    Go to *path*, name by name, and *visit* each one that exists before it is followed.

    Each folder is opened from the one before, so nobody can lead us elsewhere in
    between. The last name need not exist. Missing folders on the way are made if *make*
    says so.

    Raises:
        OSError: a folder on the way is missing or is none, or a link goes in circles.

    """
    todo, at, links = deque(path.parts), Path(), 0
    folder = os.open(path.anchor or ".", FOLDER_PATH_FLAGS)
    try:
        while todo:
            name, at = todo[0], at / todo.popleft()
            found = _lstat(name, folder)
            if found is not None:
                visit(PathEntry(at, found, os.fstat(folder)))
            if found is not None and stat.S_ISLNK(found.st_mode):
                if (links := links + 1) > MAX_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                target = Path(os.readlink(name, dir_fd=folder))
                todo.extendleft(reversed(target.parts))
                at = at.parent
                continue
            if not todo and name != at.anchor:
                yield PathEnd(folder, name, at)
                return
            if found is None and make:
                with suppress(FileExistsError):  # made by somebody else just now
                    os.mkdir(name, FOLDER_MODE, dir_fd=folder)
            before, folder = folder, os.open(name, FOLDER_PATH_FLAGS, dir_fd=folder)
            os.close(before)
        yield PathEnd(folder, ".", at)
    finally:
        os.close(folder)


def _lstat(name: str, folder: int) -> os.stat_result | None:
    try:
        return os.lstat(name, dir_fd=folder)
    except FileNotFoundError:
        return None


def refuse_link_of_others(entry: PathEntry) -> None:
    """
    Refuse to follow a link that another user can have put where it is.

    In a sticky folder that is one that is not ours, or one with a second name: where
    fs.protected_hardlinks is off, anybody can give a link of ours another name there.

    Raises:
        ConfigError: it is such a link.

    """
    if not stat.S_ISLNK(entry.found.st_mode):
        return
    strangers = {entry.found.st_uid, entry.inside.st_uid} - _list_trusted_users()
    sticky = entry.inside.st_mode & stat.S_ISVTX and entry.found.st_nlink == 1
    if strangers or (_is_writable_by_others(entry.inside) and not sticky):
        whose = f"user {max(strangers)}" if strangers else "another user"
        raise ConfigError(
            f"{entry.path} is a link that {whose} can have put there, and it is not "
            "followed: give the path that it stands for, or remove it"
        )


def refuse_if_others_can_change(path: Path, *, shared: bool = False) -> None:
    """
    As root, refuse a file or folder that another user can change or replace.

    Every folder and link on the way counts. A sticky folder that all can write to may
    be on the way to what is ours; *shared* allows *path* itself to be one, where we
    make a folder of our own. What is missing is not judged.

    Raises:
        ConfigError: somebody can; names what has to be mended, and how.

    """
    if os.geteuid() == ROOT:
        _refuse_unsafe_path(path.absolute(), shared=shared)


def refuse_tree_others_can_change(folder: Path) -> None:
    """
    As root, refuse *folder* if another user can change it, or anything below it.

    That includes what links in it lead to, and ``__pycache__``: Python runs the
    compiled code that it finds there.

    Raises:
        ConfigError: somebody can; names what has to be mended, and how.
        OSError: it cannot be listed.

    """
    if os.geteuid() != ROOT:
        return
    todo, seen = [folder.absolute()], set[Path]()
    while todo:
        path = todo.pop()
        if path in seen:
            continue
        seen.add(path)
        _refuse_unsafe_path(path, shared=False)
        for inner in path.iterdir():
            if inner.is_symlink():
                _refuse_unsafe_path(inner, shared=False)
            else:
                found = inner.stat()
                _refuse_unsafe_entry(inner, found, loose=_is_writable_by_others(found))
            if inner.is_dir():
                todo.append(inner.resolve())


def refuse_folder_of_others(path: Path, *, shared: bool = False) -> None:
    """
    Refuse to keep things in a folder that another user owns, or that all can write to.

    As root, the whole path counts, as above. An ordinary user has to trust whoever made
    the folders above and the members of the group: only the folder itself counts.

    Raises:
        ConfigError: it is such a folder; says what to do about it.

    """
    if os.geteuid() == ROOT:
        _refuse_unsafe_path(path.absolute(), shared=shared)
        return
    with suppress(OSError):  # whoever uses it is told why it cannot be
        found = path.stat()
        _refuse_unsafe_entry(
            path, found, loose=_is_writable_by_others(found) and not (shared and _is_sticky(found))
        )


def _refuse_unsafe_path(path: Path, *, shared: bool) -> None:
    last: PathEntry | None = None

    def visit(entry: PathEntry) -> None:
        nonlocal last
        last = entry
        loose = _is_writable_by_others(entry.found) and not _is_sticky(entry.found)
        _refuse_unsafe_entry(entry.path, entry.found, loose=loose)

    try:
        with walk_path(path, visit) as end:
            if last is not None and last.path == end.path and not shared:
                _refuse_unsafe_entry(
                    last.path, last.found, loose=_is_writable_by_others(last.found)
                )
    except (FileNotFoundError, NotADirectoryError):  # whoever uses it is told
        return
    except OSError as exc:
        raise ConfigError(f"{path} cannot be read: {exc.strerror}") from exc


def _refuse_unsafe_entry(path: Path, found: os.stat_result, *, loose: bool) -> None:
    user = os.geteuid()
    fixes: list[str] = []
    if found.st_uid not in _list_trusted_users():
        fixes.append(f"chown {user} {path}")
    if loose:
        fixes.append(f"chmod go-w {path}")
    if fixes:
        raise ConfigError(
            f"{path} can be changed by other users (owner {found.st_uid}, mode "
            f"{stat.S_IMODE(found.st_mode):04o}): {' && '.join(fixes)}"
        )


def _list_trusted_users() -> set[int]:
    return {ROOT, os.geteuid()}


def _is_writable_by_others(found: os.stat_result) -> bool:
    """
    Whether others can change it by writing to it.

    A link has no mode, a device is not changed by what is written; a user trusts the
    own group.
    """
    if stat.S_ISLNK(found.st_mode) or stat.S_ISCHR(found.st_mode):
        return False
    group = stat.S_IWGRP if os.geteuid() == ROOT and found.st_gid != ROOT else 0
    return bool(found.st_mode & (stat.S_IWOTH | group))


def _is_sticky(found: os.stat_result) -> bool:
    return stat.S_ISDIR(found.st_mode) and bool(found.st_mode & stat.S_ISVTX)
