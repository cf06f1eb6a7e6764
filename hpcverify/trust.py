"""
Who can change the file at a path: the one place that decides it.

A path is only as safe as every folder on its way: anyone who owns one, or may write to
it, can replace our file. In a sticky folder, such as /tmp, nobody can touch another
user's files, but anybody can add a name. So we never follow a link that another user
made.

A POSIX ACL (acl(5)) can let further users and groups write; a folder's default ACL gives the
same to what is made in it. Those of NFSv4 are the server's, and are not read.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import Struct

from hpcverify.errors import ConfigError

ROOT = 0
MAX_LINKS = 40
"""On one path: as many as the kernel follows."""
FOLDER_MODE = 0o755
"""The mode of the folders that we make, less what the umask takes away."""
ACL_NAMES = ("system.posix_acl_access", "system.posix_acl_default")
ACL_HEADER, ACL_ENTRY = struct.Struct("<I"), struct.Struct("<HHI")
"""An ACL as an attribute: the version, then a tag, permissions and an id for each entry (see
include/uapi/linux/posix_acl_xattr.h)."""
ACL_USER, ACL_GROUP_OWNER, ACL_GROUP, ACL_MASK = 0x02, 0x04, 0x08, 0x10
ACL_WRITE = 0x02
FOLDER_PATH_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class PathEntry(Struct, frozen=True):
    """A name on the way to a path."""

    path: Path
    found: os.stat_result
    """The entry itself; a link is not followed."""
    inside: os.stat_result


class PathEnd(Struct, frozen=True):
    """The end of a path: a name in an open folder."""

    folder: int
    """Descriptor of the folder; the end of the block closes it."""
    name: str
    path: Path
    """The path after following links."""


@contextmanager
def walk_path(
    path: Path, visit: Callable[[PathEntry], None], *, make: bool = False
) -> Generator[PathEnd]:
    """
    Walk to *path*, name by name, and *visit* each one that exists before following it.

    Each folder is opened from the one before, so nobody can redirect us in between. The
    last name need not exist. With *make*, missing folders are created.

    Raises:
        OSError: a folder on the way is missing or is not one, or links form a loop.

    """
    todo, at, links = deque(path.parts), Path(), 0
    folder = os.open(path.anchor or ".", FOLDER_PATH_FLAGS)
    try:
        while todo:
            name, at = todo[0], at / todo.popleft()
            status = _lstat(name, folder)
            if status is not None:
                visit(PathEntry(at, status, os.fstat(folder)))
            if status is not None and stat.S_ISLNK(status.st_mode):
                if (links := links + 1) > MAX_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                target = Path(os.readlink(name, dir_fd=folder))
                todo.extendleft(reversed(target.parts))
                at = at.parent
                continue
            if not todo and name != at.anchor:
                yield PathEnd(folder, name, at)
                return
            if status is None and make:
                with suppress(FileExistsError):  # somebody else has just made it
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


def refuse_link_of_others(entry: PathEntry, owner: int = ROOT) -> None:
    """Refuse to follow a link that another user than *owner* may have made or linked to."""
    if not stat.S_ISLNK(entry.found.st_mode):
        return
    strangers = {entry.found.st_uid, entry.inside.st_uid} - _list_trusted_users() - {owner}
    sticky = entry.inside.st_mode & stat.S_ISVTX and entry.found.st_nlink == 1
    loose = _is_writable_by_others(entry.path.parent, entry.inside, owner)
    if strangers or (loose and not sticky):
        whose = f"user {max(strangers)}" if strangers else "another user"
        raise ConfigError(
            f"{entry.path} is a link that {whose} may have created, so it is not "
            "followed. Fix: use the path of its target, or remove it"
        )


def refuse_if_others_can_change(path: Path, *, shared: bool = False, owner: int = ROOT) -> None:
    """
    As root, refuse a file or folder that another user can change or replace.

    Every folder and link on the way counts. A sticky folder that all can write to may
    be on the way; with *shared*, *path* itself may be one, and we make our own folder in
    it. A missing path is not judged. The user *owner* is trusted besides.

    Raises:
        ConfigError: somebody can; names the path and the fix.

    """
    if os.geteuid() == ROOT:
        _refuse_unsafe_path(path.absolute(), shared=shared, owner=owner)


def refuse_if_others_can_read(path: Path, found: os.stat_result) -> None:
    """Refuse a secret, the open file *path*, that another user owns or can read."""
    mode = stat.S_IMODE(found.st_mode)
    if not stat.S_ISREG(found.st_mode):
        raise ConfigError(f"{path} is not a regular file")
    if found.st_uid not in _list_trusted_users() or mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(
            f"{path} can be read by other users (owner {found.st_uid}, mode {mode:04o}). "
            f"Fix: chown {os.geteuid()} {path} && chmod 600 {path}, and change the passwords in it"
        )


def refuse_tree_others_can_change(folder: Path) -> None:
    """
    As root, refuse *folder* if another user can change it, or anything below it.

    That includes the targets of links, and ``__pycache__``: Python runs the compiled
    code there.
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
                status = inner.stat()
                _refuse_unsafe_entry(inner, status, loose=_is_writable_by_others(inner, status))
            if inner.is_dir():
                todo.append(inner.resolve())


def refuse_folder_of_others(path: Path, *, shared: bool = False, owner: int = ROOT) -> None:
    """
    Refuse to keep files in a folder that another user owns, or that all can write to.

    As root, the whole path counts, as above. An ordinary user has to trust the owners
    of the folders above and the members of the group: only the folder itself counts.
    The user *owner* is trusted besides.

    Raises:
        ConfigError: it is such a folder; says how to fix that.

    """
    if os.geteuid() == ROOT:
        _refuse_unsafe_path(path.absolute(), shared=shared, owner=owner)
        return
    with suppress(OSError):  # using it will fail and say why
        status = path.stat()
        _refuse_unsafe_entry(
            path,
            status,
            loose=_is_writable_by_others(path, status, owner)
            and not (shared and _is_sticky(status)),
            owner=owner,
        )


def _refuse_unsafe_path(path: Path, *, shared: bool, owner: int = ROOT) -> None:
    last: PathEntry | None = None

    def visit(entry: PathEntry) -> None:
        nonlocal last
        last = entry
        refuse_link_of_others(entry, owner)
        writable = _is_writable_by_others(entry.path, entry.found, owner)
        loose = writable and not _is_sticky(entry.found)
        _refuse_unsafe_entry(entry.path, entry.found, loose=loose, owner=owner)

    try:
        with walk_path(path, visit) as end:
            if last is not None and last.path == end.path and not shared:
                loose = _is_writable_by_others(last.path, last.found, owner)
                _refuse_unsafe_entry(last.path, last.found, loose=loose, owner=owner)
    except (FileNotFoundError, NotADirectoryError):  # using it will fail and say why
        return
    except OSError as exc:
        raise ConfigError(f"{path} cannot be read: {exc.strerror}") from exc


def _refuse_unsafe_entry(
    path: Path, found: os.stat_result, *, loose: bool, owner: int = ROOT
) -> None:
    fixes: list[str] = []
    if found.st_uid not in _list_trusted_users() | {owner}:
        fixes.append(f"chown {owner or os.geteuid()} {path}")
    if loose and _grants_writing(path, found, owner):
        fixes.append(f"setfacl -b -k {path}")
    if loose:
        fixes.append(f"chmod go-w {path}")
    if fixes:
        raise ConfigError(
            f"{path} can be changed by other users (owner {found.st_uid}, mode "
            f"{stat.S_IMODE(found.st_mode):04o}): {' && '.join(fixes)}"
        )


def _list_trusted_users() -> set[int]:
    return {ROOT, os.geteuid()}


def _is_writable_by_others(path: Path, found: os.stat_result, owner: int = ROOT) -> bool:
    """Whether others than *owner* can write to *path*; a user trusts their group."""
    if stat.S_ISLNK(found.st_mode) or stat.S_ISCHR(found.st_mode):
        return False
    if found.st_mode & stat.S_IWOTH or _grants_writing(path, found, owner):
        return True
    if os.geteuid() != ROOT or found.st_gid == ROOT or not found.st_mode & stat.S_IWGRP:
        return False
    # With an ACL this bit is of its mask: what that lets through has just been read.
    return ACL_MASK not in {tag for tag, _, _ in _read_acl(path, ACL_NAMES[0])}


def _grants_writing(path: Path, found: os.stat_result, owner: int) -> bool:
    """Whether an ACL of *path*, whose folders nobody else can change, lets others write."""
    names = ACL_NAMES if stat.S_ISDIR(found.st_mode) else ACL_NAMES[:1]
    return any(_lets_others_write(_read_acl(path, name), found, owner) for name in names)


def _read_acl(path: Path, name: str) -> list[tuple[int, int, int]]:
    """Read the entries of an ACL: tag, permissions, id; what a FUSE may answer is refused."""
    try:
        acl = os.getxattr(path, name, follow_symlinks=False)
    except OSError:  # it has none, or its file system has no such thing
        return []
    try:
        return [*ACL_ENTRY.iter_unpack(acl[ACL_HEADER.size :])]
    except struct.error:
        raise ConfigError(f"{path} has an ACL that makes no sense: see getfacl {path}") from None


def _lets_others_write(
    entries: Sequence[tuple[int, int, int]], found: os.stat_result, owner: int
) -> bool:
    if not any(perms & ACL_WRITE for tag, perms, _ in entries if tag == ACL_MASK):
        return False  # there is one wherever a user or a group is named
    writing = [(tag, who) for tag, perms, who in entries if perms & ACL_WRITE]
    users = {who for tag, who in writing if tag == ACL_USER} - _list_trusted_users() - {owner}
    groups = {who for tag, who in writing if tag == ACL_GROUP}
    groups |= {found.st_gid for tag, _ in writing if tag == ACL_GROUP_OWNER}
    return bool(users or (os.geteuid() == ROOT and groups - {ROOT}))


def _is_sticky(found: os.stat_result) -> bool:
    return stat.S_ISDIR(found.st_mode) and bool(found.st_mode & stat.S_ISVTX)
