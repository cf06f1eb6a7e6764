"""The controller's word to a node: what stands, and what lets the job run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpcverify import gate
from hpcverify.gate import JobGate, read, write

LATER = 99_999_999_999
NOW = 1_800_000_000.0
BAD = JobGate("quarantined", LATER, "GPU 3: lost", ("inventory", "xid"))


@pytest.mark.parametrize(
    "word", [BAD, JobGate("ok", LATER), JobGate("hold", LATER, "for the vendor")]
)
def test_what_is_written_is_read(tmp_path: Path, word: JobGate) -> None:
    write(tmp_path / "gate", word)

    assert read(tmp_path / "gate") == word


def test_the_file_is_plain_text_of_four_lines(tmp_path: Path) -> None:
    write(tmp_path / "gate", BAD)

    text = (tmp_path / "gate").read_text()
    assert text == f"quarantined\n{LATER}\nGPU 3: lost\ninventory xid\n"


def test_equal_words_are_one(tmp_path: Path) -> None:
    write(tmp_path / "gate", BAD)

    assert {read(tmp_path / "gate"), BAD} == {BAD}


@pytest.mark.parametrize(("after", "stands"), [(-1, True), (0, False), (1, False)])
def test_a_word_stands_until_its_expiry(tmp_path: Path, after: float, *, stands: bool) -> None:
    write(tmp_path / "gate", JobGate("hold", int(NOW)))

    assert (read(tmp_path / "gate", NOW + after) is not None) == stands


CORRUPT = {
    "empty": b"",
    "another word": b"drained\n2000000000\nwhy\n\n",
    "no expiry": b"quarantined\n\nwhy\n\n",
    "an expiry that is not a number": b"quarantined\n2e9\nwhy\n\n",
    "an expiry of too many digits": b"quarantined\n" + b"9" * 13 + b"\nwhy\n\n",
    "other digits": "quarantined\n\u0662\u0660\u0660\u0660\n\n\n".encode(),
    "line ends of DOS": b"quarantined\r\n99999999999\r\nwhy\r\n\r\n",
    "a space too many": b" quarantined\n99999999999\nwhy\n\n",
    "too long": b"quarantined\n99999999999\n" + b"x" * 4096,
    "noise": bytes(range(256)) * 4,
}
"""Each of them has to let the job run: the hooks are tested on the same."""


@pytest.mark.parametrize("content", CORRUPT.values(), ids=CORRUPT)
def test_what_is_corrupt_says_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "gate").write_bytes(content)

    assert read(tmp_path / "gate", now=0.0) is None


def test_what_is_no_file_of_its_own_says_nothing(tmp_path: Path) -> None:
    write(tmp_path / "word", BAD)
    (tmp_path / "link").symlink_to(tmp_path / "word")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()

    for name in ("link", "fifo", "folder", "missing"):
        assert read(tmp_path / name) is None


def test_a_reason_is_one_line_of_printable_text_that_fits(tmp_path: Path) -> None:
    write(tmp_path / "gate", JobGate("hold", LATER, "a\nok\x1b[2J\u2028\0b" + "ü" * 5000))

    found = read(tmp_path / "gate")
    assert found is not None
    assert found.reason.startswith("a ok [2J  bü")
    assert found.until == LATER


def test_names_that_no_check_can_have_are_not_taken_over(tmp_path: Path) -> None:
    (tmp_path / "gate").write_text("ok\n99999999999\n\ninventory $(reboot)\n")

    assert read(tmp_path / "gate") == JobGate("ok", 99999999999)


def test_no_folder_is_made_for_a_spool_whose_mount_is_gone(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        gate.write(tmp_path / "gone/gate/n1", gate.JobGate("ok", 1, "", ()))

    assert list(tmp_path.iterdir()) == []


def test_a_write_that_fails_leaves_the_old_word_and_nothing_else(tmp_path: Path) -> None:
    write(tmp_path / "gate", BAD)
    with pytest.raises(UnicodeEncodeError):
        write(tmp_path / "gate", JobGate("\ud800", LATER))

    assert read(tmp_path / "gate") == BAD
    assert [p.name for p in tmp_path.iterdir()] == ["gate"]


def test_the_word_is_in_the_state_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HPCVERIFY_STATE", raising=False)
    default = gate.find_gate_path()
    monkeypatch.setenv("HPCVERIFY_STATE", "/scratch/state")

    assert default == "/var/lib/hpcverify/gate"
    assert gate.find_gate_path() == "/scratch/state/gate"
