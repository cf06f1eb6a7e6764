"""Reports and documents: written where they were asked for, or not at all."""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from hpcverify.check import MAX_FAULTS
from hpcverify.errors import ConfigError, HpcverifyError, StoreError
from hpcverify.model import (
    Inventory,
    Limit,
    Measurement,
    Part,
    Result,
    Verdict,
)
from hpcverify.records import documents
from hpcverify.records.documents import MAX_COMPARISONS
from hpcverify.testing import judge_by
from tests.doubles import a_run

GPUS = Inventory(parts=tuple(Part("gpu", f"gpu-{i}", f"GPU {i}") for i in range(2)))
SOMEBODY = 4242
AS_ROOT = pytest.mark.needs("root")


@contextmanager
def umask(mask: int) -> Generator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def refused(path: Path) -> str:
    """Say why *path* is not written, at once and when it comes to it."""
    with pytest.raises(ConfigError) as early:
        documents.refuse_unwritable(str(path))
    with pytest.raises(StoreError) as late:
        documents.write_bytes(path, b"report")
    assert str(early.value) == str(late.value)
    assert "\n" not in str(late.value)
    return str(late.value)


@pytest.mark.parametrize(("mask", "expected"), [(0o000, 0o644), (0o022, 0o644), (0o077, 0o600)])
def test_nobody_else_can_write_to_a_new_file_whatever_the_umask(
    tmp_path: Path, mask: int, expected: int
) -> None:
    with umask(mask):
        documents.write_bytes(tmp_path / "made/r.html", b"report", make=True)
    assert (mode(tmp_path / "made/r.html"), mode(tmp_path / "made") & 0o022) == (expected, 0)


def test_a_file_is_replaced_as_a_whole_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "r.html"
    path.write_text("before")
    reader = path.open()
    documents.write_bytes(path, b"report")

    assert reader.read() == "before"
    reader.close()
    assert path.read_bytes() == b"report"
    assert list(tmp_path.iterdir()) == [path]


@AS_ROOT
def test_what_a_link_of_somebody_else_leads_to_stays_as_it_is(tmp_path: Path) -> None:
    secret = tmp_path / "root/secret"
    secret.parent.mkdir()
    secret.write_text("root's")
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    (shared / "r.html").symlink_to(secret)
    os.chown(shared / "r.html", SOMEBODY, SOMEBODY, follow_symlinks=False)
    told = refused(shared / "r.html")

    assert f"{shared}/r.html is a link that user 4242 may have created" in told
    assert secret.read_text() == "root's"
    assert (shared / "r.html").is_symlink()


@AS_ROOT
def test_a_folder_that_somebody_else_has_put_in_the_way_is_not_entered(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "nodes").symlink_to("root")
    os.chown(tmp_path / "nodes", SOMEBODY, 0, follow_symlinks=False)

    with pytest.raises(HpcverifyError, match="user 4242"):
        documents.write_bytes(tmp_path / "nodes/n1/idle.html", b"", make=True)
    assert list((tmp_path / "root").iterdir()) == []


def test_a_second_name_of_a_file_keeps_what_it_has(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("kept")
    os.link(tmp_path / "kept", tmp_path / "r.html")
    documents.write_bytes(tmp_path / "r.html", b"report")
    assert (tmp_path / "kept").read_text() == "kept"


def test_a_temporary_name_cannot_be_guessed(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("kept")
    for guess in ("", f".{os.getpid()}"):
        (tmp_path / f".r.html{guess}").symlink_to("kept")
    documents.write_bytes(tmp_path / "r.html", b"report")
    assert (tmp_path / "kept").read_text() == "kept"


def test_one_named_pipe_socket_or_directory_is_refused_in_one_line(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(tmp_path / "socket"))

        assert refused(tmp_path / "pipe").endswith("it is a named pipe")
        assert refused(tmp_path / "folder").endswith("it is a directory")
        assert refused(tmp_path / "socket").endswith("it is a socket")


def test_what_the_caller_opened_for_us_is_written_to() -> None:
    reading, writing = os.pipe()
    path = Path(f"/dev/fd/{writing}")
    documents.refuse_unwritable(str(path))
    documents.write_bytes(path, b"report")
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        assert pipe.read() == b"report"
    with pytest.raises(StoreError, match="Bad file descriptor"):
        documents.write_bytes(path, b"report")


def test_standard_output_by_its_name_is_no_file(capfd: pytest.CaptureFixture[str]) -> None:
    documents.write_bytes(Path("/dev/stdout"), b"report")
    assert capfd.readouterr().out == "report"


def test_a_folder_that_is_missing_or_read_only_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no directory"):
        documents.refuse_unwritable(str(tmp_path / "none/r.html"))
    with pytest.raises(StoreError, match="No such file"):
        documents.write_bytes(tmp_path / "none/r.html", b"")
    with pytest.raises(StoreError, match=r"/proc/r\.html cannot be written"):
        documents.write_bytes(Path("/proc/r.html"), b"")


def test_what_was_judged_is_not_judged_again_when_it_is_read() -> None:
    slow = judge_by([Measurement("speed", 9.0, "", "gpu-1")], [Limit("speed", low=10)], {}, GPUS)
    run = a_run(results=(replace(slow, limits=(Limit("speed", low=1),)),), inventory=GPUS)
    assert documents.parse(msgspec.json.encode(run), "it").results[0].faults == slow.faults


@pytest.mark.system
def test_values_that_break_as_many_limits_do_not_fill_the_memory() -> None:
    """A node can write a short document in which each value breaks each limit."""
    values = tuple(Measurement(f"m{i}", 5.0) for i in range(600))
    limits = tuple(Limit("m*", high=float(i % 5), source=f"limit {i}") for i in range(600))
    judged = judge_by(values, limits)

    assert judged.verdict is Verdict.FAIL
    assert 0 < len(judged.faults) <= MAX_FAULTS
    assert judged.faults[0].verdict is Verdict.FAIL


@pytest.mark.parametrize("name", ["m{}*", "*", "m1"])
def test_a_document_with_more_comparisons_than_any_run_is_refused(name: str) -> None:
    count = math.isqrt(MAX_COMPARISONS) + 1
    result = Result(
        check="gemm",
        verdict=Verdict.FAIL,
        measurements=tuple(
            Measurement("m1" if name == "m1" else f"m{i}", 5.0) for i in range(count)
        ),
        limits=tuple(Limit(name.format(i), high=float(i)) for i in range(count)),
    )

    with pytest.raises(StoreError, match="more limits for its values"):
        documents.parse(msgspec.json.encode(replace(a_run(), results=(result,))), "it")
