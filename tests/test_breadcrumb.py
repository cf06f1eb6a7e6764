"""What a worker was about to do can be read by others, however it ends."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from hpcverify import breadcrumb
from tests.waiting import PATIENCE_S


@pytest.fixture
def path() -> Iterator[int]:
    descriptor = os.memfd_create("trail")
    yield descriptor
    os.close(descriptor)


def dies_after(path: int, *words: str) -> None:
    pid = os.fork()
    if not pid:
        breadcrumb.begin(path)
        for text in words:
            breadcrumb.leave(text)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)


def read_text(path: int) -> str:
    found = breadcrumb.read(path)
    return found.text if found else ""


def test_the_last_line_survives_a_process_that_was_killed(path: int) -> None:
    dies_after(path, "a much longer line than the last", "nvmlX of GPU 3 (…4f)")
    assert read_text(path) == "nvmlX of GPU 3 (…4f)"


def test_a_line_that_is_too_long_is_cut(path: int) -> None:
    dies_after(path, "x" * 1000)
    text = read_text(path)
    assert text == "x" * len(text)
    assert breadcrumb.BREADCRUMB_BYTES - 40 < len(text) < breadcrumb.BREADCRUMB_BYTES


def test_a_process_that_did_what_it_had_to_leaves_nothing(path: int) -> None:
    dies_after(path, "something", "")
    assert breadcrumb.read(path) is None


def test_without_a_trail_there_is_nothing_to_follow(path: int) -> None:
    breadcrumb.leave("nobody keeps this")
    assert breadcrumb.read(path) is None


@pytest.fixture
def trail(path: int) -> int:
    breadcrumb.begin(path)
    return path


def test_an_operation_is_read_with_its_part_and_its_time_until_it_ends(trail: int) -> None:
    before = time.monotonic()
    with breadcrumb.during("bf16 products on GPU 2", "GPU-5f"):
        found = breadcrumb.read(trail)
    assert found is not None
    assert (found.text, found.part) == ("bf16 products on GPU 2", "GPU-5f")
    assert before <= found.since <= time.monotonic()
    assert breadcrumb.read(trail) is None


def test_an_operation_that_raises_has_ended(trail: int) -> None:
    with pytest.raises(RuntimeError), breadcrumb.during("products", "GPU-5f"):
        raise RuntimeError
    assert breadcrumb.read(trail) is None


def test_the_outer_operation_goes_on_after_the_inner_one_with_its_own_time(trail: int) -> None:
    with breadcrumb.during("outer", "a"):
        outer = breadcrumb.read(trail)
        with breadcrumb.during("inner", "b"):
            assert read_text(trail) == "inner"
        assert breadcrumb.read(trail) == outer


def test_of_operations_in_several_threads_the_one_that_has_not_ended_is_read(trail: int) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def hang() -> None:
        with breadcrumb.during("hangs", "a"):
            begun.set()
            go_on.wait(PATIENCE_S)

    thread = threading.Thread(target=hang)
    thread.start()
    begun.wait(PATIENCE_S)
    with breadcrumb.during("ends", "b"):
        assert read_text(trail) == "ends"
    assert read_text(trail) == "hangs"
    go_on.set()
    thread.join()
    assert breadcrumb.read(trail) is None


def test_who_is_done_with_a_task_has_no_operation_left(trail: int) -> None:
    operation = breadcrumb.during("never closed", "a")
    operation.__enter__()
    breadcrumb.leave("")
    assert breadcrumb.read(trail) is None
    operation.__exit__(None, None, None)
    assert breadcrumb.read(trail) is None


def test_half_a_line_is_no_breadcrumb(path: int) -> None:
    os.pwrite(path, b"12.3.4 GPU-5f\tproducts", 0)
    assert breadcrumb.read(path) is None
