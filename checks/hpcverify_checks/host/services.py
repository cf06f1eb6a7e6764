"""Services, users and hosts that must be there, and files as they must be."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import hpcverify.check as hv
from hpcverify.processes import ToolRunner
from hpcverify.telemetry import sysfs
from hpcverify_checks.host.apart import Question, Replies, ask_apart
from hpcverify_checks.host.needs import FileNeed, fits

NOBODYS_NAME = "hpcverify-no-such-user"
"""To look it up asks every source of the name service."""
LOCAL_SOURCES = frozenset({"files", "compat", "systemd", "db", "altfiles", "extrausers"})
"""Those of nsswitch.conf that no server answers for."""
UP = frozenset({"active", "reloading", "refreshing"})
TYPES = {
    "file": stat.S_ISREG,
    "directory": stat.S_ISDIR,
    "link": stat.S_ISLNK,
    "character": stat.S_ISCHR,
    "block": stat.S_ISBLK,
    "pipe": stat.S_ISFIFO,
    "socket": stat.S_ISSOCK,
}
MAX_FILE_BYTES = 2**20
"""The most to read of what is not a regular file, and may never end."""


def compare_services(
    units: Iterable[str], root: Path, tool: ToolRunner, seconds: float
) -> Iterator[hv.Finding]:
    """Report each of *units* that is not active."""
    named = [unit if "." in unit else f"{unit}.service" for unit in units]
    # A daemon has a cgroup with processes in it: then nobody needs to be asked.
    unsure = [unit for unit in named if not _runs(unit, root)]
    if not unsure:
        return
    command = ["systemctl", "show", "--property=Id,LoadState,ActiveState,SubState", *unsure]
    try:
        done = tool(command, timeout=seconds)
    except hv.Unable as exc:
        names = ", ".join(unsure)
        yield hv.Finding("service_unknown", "node", f"whether {names} runs is not known: {exc}")
        return
    answers = done.stdout.decode(errors="replace").strip().split("\n\n")
    properties = [
        {name: value for name, _, value in (line.partition("=") for line in text.splitlines())}
        for text in answers
    ]
    if len(properties) != len(unsure) or not all("ActiveState" in fields for fields in properties):
        message = done.stderr.decode(errors="replace").strip().partition("\n")[0].rstrip(".")
        text = (
            f"whether {', '.join(unsure)} runs is not known: systemctl says {message or 'nothing'}"
        )
        yield hv.Finding("service_unknown", "node", f"{text}: list processes instead of services")
        return
    for unit, fields in zip(unsure, properties, strict=True):
        state = fields["ActiveState"]
        if fields.get("LoadState") == "not-found":
            text = f"{unit} is not installed: install it, or take it out of params.host.expect"
            yield hv.Finding("service_down", "node", text)
        elif state == "activating":
            text = (
                f"{unit} still starts ({fields.get('SubState', '')}): run again; if it stays so: "
            )
            yield hv.Finding("service_down", "node", f"{text}journalctl -u {unit}")
        elif state not in UP:
            text = f"{unit} is {state} ({fields.get('SubState', '')}): systemctl start {unit}"
            text = f"{text}; if it ends again: journalctl -u {unit}"
            yield hv.Finding("service_down", "node", text, fix=f"systemctl start {unit}")


def _runs(unit: str, root: Path) -> bool:
    # Processes alone do not tell: containerd and others leave theirs behind when they end.
    # The link goes when a unit becomes inactive or failed (unit_notify in systemd's core/unit.c).
    if not (root / "run/systemd/units" / f"invocation:{unit}").is_symlink():
        return False
    cgroups = root / "sys/fs/cgroup"
    return any(
        sysfs.read_text(folder / "system.slice" / unit / "cgroup.procs")
        for folder in (cgroups, cgroups / "systemd")
    )


def measure_names(
    users: Iterable[str], hosts: Iterable[str], root: Path, seconds: float
) -> Iterator[hv.CheckItem]:
    """Report names that are not known, and a name service that does not answer in time."""
    questions: dict[str, Question] = {
        **{f"user {name}": partial(_find_user, name) for name in users},
        **{f"host {name}": partial(_find_host, name) for name in hosts},
    }
    servers = list_servers(root)
    if servers and not questions:
        questions["user of no name"] = partial(_find_user, NOBODYS_NAME)
    yield from report_names(ask_apart(questions, seconds), servers)


def report_names(replies: Replies, servers: str) -> Iterator[hv.CheckItem]:
    """Report what came of looking up names, where *servers* answer for users."""
    for name in replies.hung:
        text = f"the name service ({servers or 'files and DNS'}) has not answered for {name}"
        fix = "see that sssd or nslcd runs and reaches its server, and /etc/resolv.conf"
        yield hv.Finding("names_hung", "node", f"{text} in {replies.hung[name].seconds:g} s: {fix}")
    for name, known in replies.answers.items():
        if not known and name != "user of no name":
            text = f"{name} is not known: getent passwd or getent hosts says what is; see sssd, "
            yield hv.Finding("name_unknown", "node", f"{text}/etc/nsswitch.conf and DNS")


def list_servers(root: Path) -> str:
    """List the sources that nsswitch.conf names for users and that servers answer for."""
    for line in (sysfs.read_text(root / "etc/nsswitch.conf") or "").splitlines():
        name, _, sources = line.partition("#")[0].partition(":")
        if name.strip() == "passwd":
            words = [w for w in sources.split() if w.isalnum() and w not in LOCAL_SOURCES]
            return ", ".join(words)
    return ""


def _find_user(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def _find_host(name: str) -> bool:
    import socket

    try:
        return bool(socket.getaddrinfo(name, None))
    except socket.gaierror:
        return False


def compare_files(
    needs: Iterable[FileNeed], seconds: float, hung: Sequence[str] = ()
) -> Iterator[hv.Finding]:
    """Report each file that is not as it must be; none below the mounts that are *hung*."""
    questions: dict[str, Question] = {
        f"{number} {need.path}": partial(_list_wrongs, need)
        for number, need in enumerate(needs)
        if not any(Path(need.path).is_relative_to(point) for point in hung)
    }
    replies = ask_apart(questions, seconds)
    wrong: Mapping[str, list[str]] = replies.answers
    for name, texts in wrong.items():
        for text in texts:
            yield hv.Finding("file_wrong", name.partition(" ")[2], text)
    for name, error in replies.errors.items():
        text = f"{error.strerror}: create it, or take it out of params.host.expect"
        yield hv.Finding("file_wrong", name.partition(" ")[2], text)
    for name in replies.hung:
        text = f"no answer in {seconds:g} s: see the file system that it is on"
        yield hv.Finding("mount_hung", name.partition(" ")[2], text)


def _list_wrongs(need: FileNeed) -> list[str]:
    path = Path(need.path)
    about = path.lstat() if need.type == "link" else path.stat()
    wrong: list[str] = []
    if need.type and not TYPES[need.type](about.st_mode):
        kind = next((name for name, test in TYPES.items() if test(about.st_mode)), "unknown")
        fix = "see who made it, or correct params.host.expect"
        wrong.append(f"is of type {kind}, not {need.type}: {fix}")
    have, wanted = stat.S_IMODE(about.st_mode), int(need.mode.removeprefix("=") or "0", 8)
    if wanted & ~have or (need.mode.startswith("=") and have != wanted):
        wrong.append(f"has mode {have:04o}: chmod {wanted:04o} {path}")
    names = {str(about.st_uid)}, {str(about.st_gid)}
    with suppress(KeyError):
        names[0].add(pwd.getpwuid(about.st_uid).pw_name)
    with suppress(KeyError):
        names[1].add(grp.getgrgid(about.st_gid).gr_name)
    if need.user and need.user not in names[0]:
        wrong.append(f"belongs to user {about.st_uid}: chown {need.user} {path}")
    if need.group and need.group not in names[1]:
        wrong.append(f"belongs to group {about.st_gid}: chgrp {need.group} {path}")
    if need.empty is not None and need.empty != (about.st_size == 0):
        wrong.append(f"has {about.st_size} bytes: see who writes it")
    if need.contains:
        wrong += _compare_lines(path, need.contains)
    return wrong


def _compare_lines(path: Path, patterns: Iterable[str]) -> list[str]:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # not to wait for who writes a pipe
    with os.fdopen(descriptor, "rb") as file:
        most = -1 if stat.S_ISREG(os.fstat(descriptor).st_mode) else MAX_FILE_BYTES
        lines = [line.strip() for line in file.read(most).decode(errors="replace").splitlines()]
    wrong: list[str] = []
    for pattern in patterns:
        unwanted = pattern.startswith("!")
        if any(fits(line, pattern.removeprefix("!")) for line in lines) == unwanted:
            wrong.append(f"has {'a' if unwanted else 'no'} line that fits {pattern}: correct it")
    return wrong
