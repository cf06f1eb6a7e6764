"""One run on a node at a time."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import uuid
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

from hpcverify.errors import UnverifiedError
from hpcverify.run.lock import LockHolder, NodeLock, find_lock_holder, node_lock
from tests.own_node import let_all_enter

SOMEBODY, ANOTHER = 4242, 4343
AS_ROOT = pytest.mark.needs("root")

Lock = Callable[..., AbstractContextManager[NodeLock]]


@pytest.fixture
def name() -> str:
    return f"\0hpcverify.test.{uuid.uuid4()}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make what root alone can write and everybody can see, as /run/hpcverify."""
    let_all_enter(tmp_path)
    return tmp_path / "hpcverify"


@pytest.fixture
def lock(name: str, folder: Path) -> Lock:
    return partial(node_lock, name, folder=folder)


@contextmanager
def another_process(uid: int, act: Callable[[], object]) -> Generator[LockHolder]:
    """Have a process of user *uid* do what *act* says, and stay until the end."""
    reading, writing = os.pipe()
    stays, goes = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(goes)
        os.setresuid(uid, uid, uid)
        kept = act()
        os.write(writing, b".")
        os.read(stays, 1)  # until its other end is closed
        del kept
        os._exit(0)
    os.close(writing)
    try:
        assert os.read(reading, 1) == b"."
        yield LockHolder(pid, uid)
    finally:
        for descriptor in (goes, stays, reading):
            os.close(descriptor)
        os.waitpid(pid, 0)


def bound(name: str, *, listens: bool) -> socket.socket:
    """Take the name that the lock has, as anybody can."""
    made = socket.socket(socket.AF_UNIX)
    made.bind(name)
    if listens:
        made.listen()
    return made


def entered(lock: Lock) -> ExitStack:
    held = ExitStack()
    held.enter_context(lock())
    return held


def as_user(uid: int, lock: Lock) -> str:
    """Try to hold the node as user *uid*; return what was said, if it was refused."""
    os.seteuid(uid)
    try:
        with lock():
            return ""
    except UnverifiedError as exc:
        return str(exc)
    finally:
        os.seteuid(0)


@AS_ROOT
@pytest.mark.parametrize("listens", [True, False])
def test_no_user_keeps_root_from_the_node_and_root_says_who_holds_the_name(
    name: str, folder: Path, lock: Lock, *, listens: bool
) -> None:
    with another_process(SOMEBODY, partial(bound, name, listens=listens)) as stranger:
        assert find_lock_holder(name, folder=folder) == stranger
        with lock() as hold:
            assert hold.other_holder == stranger
            # Another run of root's is kept out all the same, and so is everybody else.
            with pytest.raises(UnverifiedError, match=f"process {os.getpid()} of user 0"):
                entered(lock)
            assert f"process {os.getpid()} of user 0" in as_user(ANOTHER, lock)
        seen = stranger.description if listens else "a process that only root can see"
        assert seen in as_user(ANOTHER, lock)
    assert find_lock_holder(name, folder=folder) is None


@AS_ROOT
def test_a_users_run_keeps_out_other_users_and_not_root(lock: Lock) -> None:
    with another_process(SOMEBODY, lambda: entered(lock)) as first:
        assert f"process {first.pid} of user {SOMEBODY}" in as_user(SOMEBODY, lock)
        assert f"process {first.pid} of user {SOMEBODY}" in as_user(ANOTHER, lock)
        with lock() as hold:
            assert hold.other_holder == first
    assert as_user(SOMEBODY, lock) == ""


@AS_ROOT
def test_a_users_run_waits_for_root(lock: Lock) -> None:
    with lock() as hold:
        assert hold == NodeLock(waited=False)
        assert f"process {os.getpid()} of user 0" in as_user(SOMEBODY, lock)
    assert as_user(SOMEBODY, lock) == ""


@AS_ROOT
def test_where_root_can_keep_no_file_the_socket_alone_decides(
    name: str, folder: Path, lock: Lock
) -> None:
    folder.touch()  # in place of the folder
    with (
        another_process(SOMEBODY, partial(bound, name, listens=True)) as stranger,
        pytest.raises(UnverifiedError, match=f"{stranger.pid} of user 4242"),
    ):
        entered(lock)
    with lock(), pytest.raises(UnverifiedError, match=f"process {os.getpid()}"):
        entered(lock)


@AS_ROOT
@pytest.mark.parametrize("options", ["ro,size=64k", "nr_inodes=1,size=64k"])
def test_where_the_folder_takes_no_file_the_socket_alone_decides(
    name: str, folder: Path, lock: Lock, options: str
) -> None:
    """A root that is read-only has the folder of a package; /run may be full."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"{options},mode=755", "t", folder], check=True)
    try:
        with lock(), pytest.raises(UnverifiedError, match=f"process {os.getpid()}"):
            entered(lock)
        assert find_lock_holder(name, folder=folder) is None
        assert list(folder.iterdir()) == []
    finally:
        subprocess.run(["umount", folder], check=True)


@AS_ROOT
def test_a_program_of_roots_that_has_the_socket_of_a_user_open_decides_nothing(
    name: str, lock: Lock
) -> None:
    stranger = bound(name, listens=False)  # as root's program would have inherited it
    with lock() as hold:
        assert hold.other_holder == LockHolder(os.getpid(), 0)
    stranger.close()


@AS_ROOT
def test_roots_lock_is_free_when_its_holder_is_killed_and_leaves_no_file(
    folder: Path, lock: Lock
) -> None:
    with another_process(0, lambda: entered(lock)) as first:
        os.kill(first.pid, signal.SIGKILL)
        with lock(wait=60):
            pass
    assert list(folder.iterdir()) == []


def test_the_second_is_told_who_holds_the_node(lock: Lock) -> None:
    with lock(), pytest.raises(UnverifiedError, match=f"process {os.getpid()} of user"), lock():
        pass


def test_the_node_is_free_again_afterwards(lock: Lock) -> None:
    for _ in range(3):
        with lock():
            pass


def test_who_waits_has_the_node_when_the_other_has_ended(lock: Lock) -> None:
    asked: list[bool] = []
    with ExitStack() as first:
        first.enter_context(lock())

        def stopped() -> bool:  # the other ends while we wait
            asked.append(True)
            first.close()
            return False

        with lock(wait=60, should_stop=stopped) as hold:
            assert hold == NodeLock(waited=True)
    assert asked == [True]


def test_who_finds_the_node_free_has_not_waited(lock: Lock) -> None:
    with lock(wait=60) as hold:
        assert hold == NodeLock(waited=False)


@pytest.mark.parametrize(("wait", "stopped"), [(0.01, False), (60, True)])
def test_waiting_ends_in_time_and_when_told_to_stop(
    wait: float,
    stopped: bool,  # noqa: FBT001 - a case
    lock: Lock,
) -> None:
    with (
        lock(),
        pytest.raises(UnverifiedError, match=f"process {os.getpid()}"),
        lock(wait=wait, should_stop=lambda: stopped),
    ):
        pass
