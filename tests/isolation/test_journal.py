"""A journal is read as it was left, at whatever point its writer was killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcverify.errors import ActionError, ConfigError, StoreError
from hpcverify.isolation.group_tests import GroupOutcome, GroupPurpose, GroupTest
from hpcverify.isolation.journal import (
    FOLDER_NAME,
    JOURNAL_NAME,
    ConcludedIsolation,
    EndedJob,
    IsolationOrder,
    JudgedRound,
    PlannedRound,
    SubmittedJob,
    create_journal,
    list_isolations,
    list_unfinished,
    resume_journal,
)
from hpcverify.isolation.judge import GroupJudgement

TEST = GroupTest(("a", "b"), GroupPurpose.GROUP)
ENTRIES = (
    PlannedRound(number=1, tests=(TEST,)),
    SubmittedJob(round=1, tests=(0,), name="j", nodes=("a", "b")),
    EndedJob(round=1, tests=(0,), documents=("j.0.json",), name="j", job=7, nodes=("a", "b")),
    JudgedRound(
        number=1, judgements=(GroupJudgement(GroupOutcome.PASSED, "40 GB/s"),), gone={"b": "busy"}
    ),
    PlannedRound(number=2, tests=(TEST,)),
)


def make_order(number: int = 1) -> IsolationOrder:
    return IsolationOrder(
        id=f"20260101-00000{number}-abcdef",
        at=1.0,
        version="1",
        nodes=("a", "b"),
        seed="s",
        inside=False,
        wait=60,
    )


def write_all(state: Path) -> Path:
    journal = create_journal(state, make_order())
    for entry in ENTRIES:
        journal.append(entry)
    journal.close()
    return journal.folder / JOURNAL_NAME


def test_what_was_written_is_read(tmp_path: Path) -> None:
    write_all(tmp_path)

    journal = resume_journal(tmp_path)

    assert journal.order == make_order()
    assert journal.concluded is None
    first, second = journal.rounds
    assert (first.tests, first.submitted, first.ended, first.judged) == (
        (TEST,),
        [ENTRIES[1]],
        [ENTRIES[2]],
        ENTRIES[3],
    )
    assert second.judged is None
    journal.close()


def test_killed_at_any_byte_it_is_read_up_to_the_last_whole_line(tmp_path: Path) -> None:
    path = write_all(tmp_path)
    content = path.read_bytes()
    first_line = content.index(b"\n") + 1
    for end in range(first_line, len(content), 7):
        path.write_bytes(content[:end])

        journal = resume_journal(tmp_path)
        journal.append(ConcludedIsolation(at=2.0))
        journal.close()

        lines = path.read_bytes().splitlines()
        whole = content[:end].count(b"\n")
        assert lines[:-1] == content.splitlines()[:whole]
        resume_journal(tmp_path, make_order().id).close()


def test_one_that_was_killed_before_its_first_line_is_passed_over(tmp_path: Path) -> None:
    write_all(tmp_path)
    folder = tmp_path / FOLDER_NAME / make_order(2).id
    folder.mkdir()
    (folder / JOURNAL_NAME).write_text('{"kind":"orde')

    journal = resume_journal(tmp_path)

    assert journal.order.id == make_order(1).id
    journal.close()
    with pytest.raises(StoreError, match="is truncated"):
        _ = resume_journal(tmp_path, make_order(2).id).order


def test_only_one_process_works_on_an_isolation(tmp_path: Path) -> None:
    journal = create_journal(tmp_path, make_order())
    with pytest.raises(ActionError, match="another hpcverify process uses isolation"):
        resume_journal(tmp_path)
    journal.close()
    resume_journal(tmp_path).close()


def test_the_last_one_that_has_not_ended_is_resumed(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        journal = create_journal(tmp_path, make_order(number))
        if number == 3:
            journal.append(ConcludedIsolation(at=2.0))
        journal.close()

    journal = resume_journal(tmp_path)

    assert journal.order.id == make_order(2).id
    journal.close()
    assert list_isolations(tmp_path) == [make_order(n).id for n in (3, 2, 1)]


@pytest.mark.parametrize("wanted", ["", "nonsense", "20260101-000009-abcdef", "../../etc"])
def test_without_one_to_resume_that_is_said(tmp_path: Path, wanted: str) -> None:
    with pytest.raises(ConfigError, match="no isolation"):
        resume_journal(tmp_path, wanted)


DEEP = b'{"kind": "concluded", "at": 1, "more": ' + b"[" * 100_000


@pytest.mark.parametrize("damaged", [b"nonsense", b"\0" * 4096, b'{"kind": "\xff"}', DEEP])
def test_a_damaged_line_is_named(tmp_path: Path, damaged: bytes) -> None:
    path = write_all(tmp_path)
    lines = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([lines[0], damaged, *lines[2:], b""]))

    for _ in range(2):  # the first one has given up its lock
        with pytest.raises(StoreError, match="line 2, is damaged"):
            resume_journal(tmp_path)
    assert list(list_unfinished(tmp_path)) == []


def test_nobody_else_can_read_it(tmp_path: Path) -> None:
    path = write_all(tmp_path)
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
