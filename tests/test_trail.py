"""What a worker was about to do can be read by others, however it ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from hpcverify import trail


@pytest.fixture
def path() -> Iterator[int]:
    descriptor = os.memfd_create("trail")
    yield descriptor
    os.close(descriptor)


def dies_after(path: int, *words: str) -> None:
    pid = os.fork()
    if not pid:
        trail.begin(path)
        for text in words:
            trail.leave(text)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)


def test_the_last_line_survives_a_process_that_was_killed(path: int) -> None:
    dies_after(path, "a much longer line than the last", "nvmlX of GPU 3 (…4f)")
    assert trail.read(path) == "nvmlX of GPU 3 (…4f)"


def test_a_line_that_is_too_long_is_cut(path: int) -> None:
    dies_after(path, "x" * 1000)
    assert trail.read(path) == "x" * trail.BREADCRUMB_BYTES


def test_a_process_that_did_what_it_had_to_leaves_nothing(path: int) -> None:
    dies_after(path, "something", "")
    assert trail.read(path) == ""


def test_without_a_trail_there_is_nothing_to_follow(path: int) -> None:
    trail.leave("nobody keeps this")
    assert trail.read(path) == ""
