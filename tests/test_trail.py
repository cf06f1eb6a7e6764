"""What a worker was about to do can be read by others, however it ends."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from hpcverify import trail


def dies_after(path: Path, *words: str) -> None:
    pid = os.fork()
    if not pid:
        trail.begin(path)
        for text in words:
            trail.leave(text)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)


def test_the_last_line_survives_a_process_that_was_killed(tmp_path: Path) -> None:
    dies_after(
        tmp_path / "t", "a much longer line than the last", "nvmlX of GPU 3 (…4f)"
    )
    assert trail.follow(tmp_path / "t") == "nvmlX of GPU 3 (…4f)"


def test_a_line_that_is_too_long_is_cut(tmp_path: Path) -> None:
    dies_after(tmp_path / "t", "x" * 1000)
    assert trail.follow(tmp_path / "t") == "x" * trail.LENGTH


def test_a_process_that_did_what_it_had_to_leaves_nothing(tmp_path: Path) -> None:
    dies_after(tmp_path / "t", "something", "")
    assert trail.follow(tmp_path / "t") == ""


def test_without_a_trail_there_is_nothing_to_follow(tmp_path: Path) -> None:
    trail.leave("nobody keeps this")
    assert trail.follow(tmp_path / "none") == ""
