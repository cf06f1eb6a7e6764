"""The spool: a run gets through, and nothing that only looks like one."""

from __future__ import annotations

import os
import resource
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from hpcverify.errors import StoreError
from hpcverify.model import Run
from hpcverify.records import documents
from hpcverify.records.spool import (
    ASIDE_SECONDS,
    DOCUMENT_PATTERN,
    MAX_ASIDE_FILES,
    UNFINISHED_SECONDS,
    Arrival,
    Refusal,
    SpoolQuota,
    deposit,
    gather,
    remove_document,
)
from hpcverify.run.orchestrator import make_run_id
from tests.doubles import a_result, a_run

ID = a_run().id
STRANGER = 65534
TOKEN = "0f"  # noqa: S105 - of a test
root_only = pytest.mark.needs("root")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "n1"
    home.mkdir(mode=0o700)
    return home


def new(run: str) -> bool:
    del run
    return False


def timely(run: Run) -> str:
    """Have nothing against the date of a run."""
    del run
    return ""


def look(
    spool: Path,
    known: Callable[[str], bool] = new,
    untimely: Callable[[Run], str] = timely,
    *,
    room: SpoolQuota | None = None,
    later: float = 0.0,
) -> tuple[list[Run], list[Refusal]]:
    """Gather all, *later* seconds from now: the runs, and what was refused."""

    def clock() -> float:
        return time.time() + later

    owner = os.getuid()
    found = list(gather(spool, owner, known, untimely, quota=room, clock=clock))
    runs = [item.run for item in found if isinstance(item, Arrival)]
    return runs, [item for item in found if isinstance(item, Refusal)]


def refused(home: Path) -> str:
    """Say why the one thing in the spool is not taken; it is told of only once."""
    runs, (refusal,) = look(home.parent)
    assert runs == []
    assert refusal.aside
    assert look(home.parent) == ([], [])
    return refusal.reason


def write(home: Path, text: bytes, name: str = f"{ID}.json") -> Path:
    path = home / name
    path.write_bytes(text)
    return path


def number(count: int, **changes: object) -> Run:
    return a_run(id=f"20260101-000000-{count:06x}", **changes)


def test_what_is_left_is_gathered_with_its_token_and_gone_when_done(tmp_path: Path) -> None:
    path = deposit(a_run(), tmp_path, TOKEN)
    (arrival,) = gather(tmp_path, os.geteuid(), new, timely)

    assert arrival == Arrival(a_run(token=TOKEN), path)
    assert isinstance(arrival, Arrival)
    remove_document(arrival)
    remove_document(arrival)
    assert list((tmp_path / "n1").iterdir()) == []


def test_done_follows_no_link_that_was_put_there_meanwhile(tmp_path: Path) -> None:
    arrival = Arrival(a_run(), deposit(a_run(), tmp_path))
    (tmp_path / "n1").rename(tmp_path / "n2")
    (tmp_path / "n1").symlink_to("n2")
    with pytest.raises(StoreError, match="cannot be removed"):
        remove_document(arrival)


def test_only_its_owner_can_read_what_has_a_token(tmp_path: Path) -> None:
    path = deposit(a_run(), tmp_path, TOKEN)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@root_only
def test_a_folder_that_root_makes_is_given_to_the_user_of_the_sweep(tmp_path: Path) -> None:
    deposit(a_run(), tmp_path, owner=4242)
    deposit(a_run(id="20260101-000001-abcdef"), tmp_path, owner=4343)
    assert (tmp_path / "n1").stat().st_uid == 4242


def test_the_callers_umask_is_as_it_was(tmp_path: Path) -> None:
    before = os.umask(0o027)
    deposit(a_run(), tmp_path)
    assert os.umask(before) == 0o027


@pytest.mark.parametrize("node", ["", "..", "a/b", "gate", "<b>n1</b>", "n" * 300])
def test_a_name_that_can_be_no_directory_is_refused(tmp_path: Path, node: str) -> None:
    with pytest.raises(StoreError, match="can have no directory"):
        deposit(a_run(node=node), tmp_path)


def test_a_spool_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="spool/n1 cannot be made"):
        deposit(a_run(), tmp_path / "spool")
    with pytest.raises(StoreError, match="spool cannot be read: No such file"):
        look(tmp_path / "spool")


def test_nothing_is_left_where_others_could_change_it(home: Path) -> None:
    home.chmod(0o770)
    with pytest.raises(StoreError, match="chmod 700"):
        deposit(a_run(), home.parent)


def test_nothing_is_left_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "n1").symlink_to(tmp_path)
    with pytest.raises(StoreError, match="is not a directory"):
        deposit(a_run(), tmp_path)


@pytest.mark.parametrize("mode", [0o777, 0o1777])
def test_a_spool_that_all_can_write_to_is_refused(home: Path, mode: int) -> None:
    home.parent.chmod(mode)
    with pytest.raises(StoreError, match=f"chmod o-w {home.parent}"):
        look(home.parent)


def test_the_folder_of_words_and_what_is_being_written_are_no_runs(home: Path) -> None:
    (home.parent / "gate").mkdir()
    write(home.parent / "gate", b"ok\n", "n1")
    write(home, b"{", f".{ID}.json.123")
    assert look(home.parent) == ([], [])


def test_a_link_to_another_nodes_directory_is_not_followed(tmp_path: Path) -> None:
    deposit(a_run(), tmp_path)
    (tmp_path / "n2").symlink_to(tmp_path / "n1")
    assert look(tmp_path) == ([a_run()], [])


@pytest.mark.parametrize("mode", [0o770, 0o702])
def test_a_directory_that_others_can_write_is_not_read(home: Path, mode: int) -> None:
    deposit(a_run(), home.parent)
    home.chmod(mode)
    runs, (refusal,) = look(home.parent)

    assert runs == []
    assert "so nothing is collected" in refusal.reason
    assert not refusal.aside


@root_only
def test_a_strangers_directory_is_not_read(home: Path) -> None:
    deposit(a_run(), home.parent)
    os.chown(home, STRANGER, -1)
    runs, (refusal,) = look(home.parent)
    assert runs == []
    assert f"belongs to user {STRANGER}" in refusal.reason


@root_only
def test_a_strangers_file_is_refused(home: Path) -> None:
    os.chown(deposit(a_run(), home.parent), STRANGER, -1)
    assert f"belongs to user {STRANGER}" in refused(home)


@root_only
def test_the_sweeps_user_is_no_stranger(home: Path) -> None:
    os.chown(deposit(a_run(), home.parent), STRANGER, -1)
    os.chown(home, STRANGER, -1)
    assert [*gather(home.parent, STRANGER, new, timely)] != []


def make_device(path: Path) -> None:
    os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 5))


def make_link(path: Path) -> None:
    elsewhere = path.parent.parent / "elsewhere"
    documents.write(a_run(), elsewhere)
    path.symlink_to(elsewhere)


def make_large(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**30)


def make_second_name(path: Path) -> None:
    elsewhere = path.parent.parent / "elsewhere"
    documents.write(a_run(), elsewhere)
    path.hardlink_to(elsewhere)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (os.mkfifo, "not a regular file"),
        (Path.mkdir, "not a regular file"),
        (lambda path: path.symlink_to("/nowhere"), "not a regular file"),
        (make_link, "not a regular file"),
        pytest.param(make_device, "not a regular file", marks=root_only),
        (make_large, "larger than any run"),
        (make_second_name, "other hard links"),
        (Path.touch, "not a complete run document"),
    ],
)
def test_what_is_no_small_file_of_the_nodes_own_is_refused(
    home: Path, make: Callable[[Path], None], reason: str
) -> None:
    make(home / f"{ID}.json")
    assert reason in refused(home)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"node": "n2"}, "it names node 'n2'"),
        ({"id": number(1).id}, "holds run"),
        ({"id": "../../etc/passwd"}, "holds run '../../etc/passwd'"),
        ({"schema": 99}, "upgrade hpcverify"),
        ({"started": "2026-01-01T00:00:00"}, "not a valid time with a time zone"),
        ({"started": "0001-01-01T00:00:00Z"}, "not a valid time with a time zone"),
        ({"seconds": -1}, "not a valid number of seconds"),
        ({"rounds": 10**30}, "round numbers are invalid"),
        ({"rounds": 0}, "round numbers are invalid"),
        ({"results": [{"check": "sdc", "verdict": "pass", "round": 2**70}]}, "round numbers"),
        ({"results": None}, "not a complete run document"),
        ({"verdict": "splendid"}, "not a complete run document"),
    ],
)
def test_a_run_that_is_not_as_ours_are_is_refused(
    home: Path, changes: dict[str, object], reason: str
) -> None:
    write(home, msgspec.json.encode(msgspec.to_builtins(a_run()) | changes))
    assert reason in refused(home)


def params(text: bytes) -> bytes:
    """Put *text* where a document may hold anything."""
    run = msgspec.to_builtins(a_run())
    run["results"][0]["params"] = {"seconds": "HERE"}
    return msgspec.json.encode(run).replace(b'"HERE"', text)


def checks(*names: str) -> bytes:
    """Make the document of a run of checks that are called so."""
    results = tuple(a_result(name) for name in names)
    return msgspec.json.encode(a_run(results=results))


UPSETTING = {
    "name": (checks("gemm", "../gemm"), "a check in it has an invalid name"),
    "many": (checks(*(f"c{i}" for i in range(501))), "more than 500 checks"),
    "nan": (params(b"NaN"), "not a complete run document"),
    "deep": (params(b"[" * 100_000 + b"]" * 100_000), "not a complete run document"),
    "wide": (params(b"[" + b"[]," * 4_000_000 + b"0]"), "more values than any run"),
    "surrogate": (params(b'"\\ud800"'), "not a complete run document"),
    "lists": (params(b"[" * 18 + b"0" + b"]" * 18), "nested deeper"),
    "objects": (params(b'{"a":' * 18 + b"0" + b"}" * 18), "nested deeper"),
    "bytes": (params(b'"\xff"'), "not a complete run document"),
    "two": (params(b"1") + b"{}", "not a complete run document"),
    "half": (msgspec.json.encode(a_run())[:300], "not a complete run document"),
}


@pytest.mark.parametrize(("text", "reason"), UPSETTING.values(), ids=UPSETTING)
def test_a_text_made_to_upset_us_is_refused(home: Path, text: bytes, reason: str) -> None:
    write(home, text)
    assert reason in refused(home)


def test_a_long_word_is_only_a_text(home: Path) -> None:
    write(home, params(b'"' + b"a" * 2**20 + b'"'))
    assert len(look(home.parent)[0]) == 1


@pytest.mark.parametrize("name", ["run.json", f"{ID}.json.", f"{ID}", "\x1b[2J.json"])
def test_a_file_that_is_called_otherwise_is_put_aside(home: Path, name: str) -> None:
    write(home, b"{}", name)
    assert "its name is not that of a run document" in refused(home)
    assert [path.name for path in home.iterdir()] == [f".refused.{name}"]


def test_what_is_refused_keeps_no_other_run_from_its_turn(home: Path) -> None:
    write(home, b"{", "00000000-000000-000000.json")
    deposit(a_run(), home.parent)
    deposit(a_run(node="n2"), home.parent)
    assert [run.node for run in look(home.parent)[0]] == ["n1", "n2"]


def test_a_known_run_is_removed_unread(home: Path) -> None:
    path = write(home, b"whatever")
    assert look(home.parent, known={ID}.__contains__) == ([], [])
    assert not path.exists()


def test_a_node_has_its_oldest_runs_taken_first_and_no_more_than_its_share(tmp_path: Path) -> None:
    for count in (3, 1, 2):
        deposit(number(count), tmp_path)
    deposit(a_run(node="n2"), tmp_path)
    runs, _ = look(tmp_path, room=SpoolQuota(documents=2))
    assert [run.id for run in runs] == [number(1).id, number(2).id, ID]


def test_a_node_has_no_more_bytes_read_than_its_share_but_always_one_run(tmp_path: Path) -> None:
    size = deposit(number(1), tmp_path).stat().st_size
    deposit(number(2), tmp_path)
    assert [r.id for r in look(tmp_path, room=SpoolQuota(bytes=1))[0]] == [number(1).id]
    assert len(look(tmp_path, room=SpoolQuota(bytes=size + 1))[0]) == 1
    assert len(look(tmp_path, room=SpoolQuota(bytes=2 * size))[0]) == 2


def test_a_heap_of_rubbish_is_told_of_in_a_few_lines(home: Path) -> None:
    for count in range(20):
        write(home, b"", f"rubbish{count}")
    runs, refusals = look(home.parent)
    assert runs == []
    assert len(refusals) == SpoolQuota().refusals


def test_the_names_of_a_directory_are_not_listed_without_end(home: Path) -> None:
    for count in range(5):
        write(home, b"", f"rubbish{count}")
    assert len(look(home.parent, room=SpoolQuota(names=2))[1]) == 2


def test_a_text_that_would_be_larger_once_it_is_kept_is_refused(home: Path) -> None:
    raw = msgspec.to_builtins(a_run())
    raw["results"][0]["limits"] = [{"name": ""}] * 400_000
    assert write(home, msgspec.json.encode(raw)).stat().st_size < documents.MAX_DOCUMENT_BYTES // 8
    assert "larger than any run once stored" in refused(home)


def test_a_run_that_is_untimely_is_put_aside_with_the_reason(home: Path) -> None:
    deposit(number(1), home.parent)
    deposit(number(2), home.parent)
    runs, (refusal,) = look(
        home.parent, untimely=lambda run: "it is old" if run == number(1) else ""
    )

    assert runs == [number(2)]
    assert refusal.reason == f"'{number(1).id}.json': it is old"
    assert refusal.aside


def test_a_question_that_has_no_answer_puts_nothing_aside(home: Path) -> None:
    path = deposit(a_run(), home.parent)

    def ask(run: Run) -> str:
        raise StoreError(f"nobody knows of {run.id}")

    with pytest.raises(StoreError, match="nobody knows"):
        look(home.parent, untimely=ask)
    assert path.exists()


# -- what cannot be read or removed


@contextmanager
def as_stranger() -> Generator[None]:
    """Have no more rights than anybody."""
    os.seteuid(STRANGER)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def public() -> Iterator[Path]:
    """Make a spool that everybody can get to, with a node n1."""
    with tempfile.TemporaryDirectory() as made:
        spool = Path(made)
        spool.chmod(0o755)
        (spool / "n1").mkdir(mode=0o755)
        yield spool


def legible(run: Run, spool: Path) -> Path:
    path = deposit(run, spool)
    path.chmod(0o644)
    path.parent.chmod(0o755)
    return path


@root_only
def test_a_directory_that_we_may_not_open_is_named_with_the_fix(public: Path) -> None:
    (public / "n1").chmod(0o700)
    (public / "link").symlink_to("n1")
    (public / "file").touch()
    legible(a_run(node="n2"), public)
    with as_stranger():
        runs, (refusal,) = look(public)

    assert [run.node for run in runs] == ["n2"]
    assert (refusal.node, refusal.aside) == ("n1", False)
    assert f"{public}/n1 cannot be read: Permission denied" in refusal.reason
    assert f"chown -R 0 {public}/n1" in refusal.reason


def most_files() -> int:
    """Say how many can be open for two more, and no third, to be opened."""
    free = [os.dup(0) for _ in range(3)]
    for descriptor in free:
        os.close(descriptor)
    return max(free)


def test_a_directory_that_fails_while_it_is_read_keeps_no_other_from_its_turn(
    tmp_path: Path,
) -> None:
    for node in ("n1", "n2"):
        deposit(a_run(node=node), tmp_path)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = gather(tmp_path, os.geteuid(), new, timely)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files(), before[1]))
    try:
        refusal = next(found)  # it could be opened, and not listed
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)

    reason = f"{tmp_path}/n1 cannot be read: Too many open files"
    assert refusal == Refusal("n1", reason, aside=False)
    assert [a.run.node for a in found if isinstance(a, Arrival)] == ["n2"]


@root_only
def test_what_cannot_be_removed_is_told_and_hides_nothing_that_is_new(public: Path) -> None:
    for count in range(6):
        legible(number(count), public)
    old = {number(count).id for count in range(5)}
    with as_stranger():
        runs, (refusal,) = look(public, old.__contains__, room=SpoolQuota(names=2))

    assert [run.id for run in runs] == [number(5).id]
    assert f"{public}/n1 cannot be removed (Permission denied)" in refusal.reason
    assert len([*(public / "n1").iterdir()]) == 6


@root_only
def test_what_cannot_be_put_aside_hides_nothing_that_is_new(public: Path) -> None:
    for count in range(3):
        write(public / "n1", b"", f"0{count}")
    legible(a_run(), public)
    with as_stranger():
        runs, refusals = look(public, room=SpoolQuota(documents=1))

    assert runs == [a_run()]
    assert {refusal.aside for refusal in refusals} == {False}


def test_more_names_than_are_listed_are_told(home: Path) -> None:
    for count in range(3):
        deposit(number(count), home.parent)
    runs, (refusal,) = look(home.parent, room=SpoolQuota(entries=2))
    assert len(runs) == 2
    assert "2 files or more" in refusal.reason


# -- what is left over


def names(home: Path) -> set[str]:
    return {path.name for path in home.iterdir()}


def test_half_a_document_goes_when_nobody_can_be_writing_it(home: Path) -> None:
    write(home, b"{", f".{ID}.json.4711")
    write(home, b"", ".nfs0000001")  # a file server's own

    assert look(home.parent, later=UNFINISHED_SECONDS - 60) == ([], [])
    assert names(home) == {f".{ID}.json.4711", ".nfs0000001"}
    assert look(home.parent, later=UNFINISHED_SECONDS + 60) == ([], [])
    assert names(home) == {".nfs0000001"}


KILLED = """
import pathlib, resource, signal, sys
from hpcverify.records import documents
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
documents.write_bytes(pathlib.Path(sys.argv[1]), b"{" * 100)
"""


def test_what_a_writer_that_was_killed_leaves_goes_too(home: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(home / f"{ID}.json")]
    assert subprocess.run(command, check=False).returncode == -signal.SIGXFSZ
    assert (len(names(home)), look(home.parent, later=UNFINISHED_SECONDS + 60)) == (1, ([], []))
    assert names(home) == set()


def test_what_was_put_aside_goes_after_some_weeks(home: Path) -> None:
    write(home, b"", "rubbish")
    (home / f"{ID}.json").mkdir()
    look(home.parent)
    os.utime(home / ".refused.rubbish", (2e9, 2e9))  # as its owner may pretend

    assert (look(home.parent, later=ASIDE_SECONDS - 60), len(names(home))) == (([], []), 2)
    assert (look(home.parent, later=ASIDE_SECONDS + 60), names(home)) == (([], []), set())


def test_of_what_was_put_aside_only_the_last_is_kept(home: Path) -> None:
    for count in range(MAX_ASIDE_FILES + 5):
        write(home, b"", f"rubbish{count:02}")
        look(home.parent)
    look(home.parent)

    last = range(5, MAX_ASIDE_FILES + 5)
    assert names(home) == {f".refused.rubbish{count:02}" for count in last}


def test_a_directory_put_aside_that_cannot_be_removed_is_told(home: Path) -> None:
    (home / ".refused.x" / "y").mkdir(parents=True)
    runs, (refusal,) = look(home.parent, later=ASIDE_SECONDS + 60)
    assert runs == []
    assert "cannot be removed (Directory not empty)" in refusal.reason


def test_the_age_of_a_bounded_number_is_looked_at(home: Path) -> None:
    for count in range(5):
        write(home, b"", f".refused.{count}")
    look(home.parent, room=SpoolQuota(leftovers=2), later=ASIDE_SECONDS + 60)
    assert len(names(home)) == 3


@pytest.mark.parametrize("letter", ["a", "\u00e9", "\udcff"])
def test_a_name_as_long_as_can_be_is_put_aside(home: Path, letter: str) -> None:
    write(home, b"", letter * (255 // len(os.fsencode(letter))))
    assert "its name is not that of a run document" in refused(home)


def test_ids_of_this_version_and_of_earlier_ones_name_documents() -> None:
    names = [f"20261123-000225-{tail}.json" for tail in ("ad001d", "ad001dad001d", "ad001da")]
    assert list(filter(DOCUMENT_PATTERN.fullmatch, names)) == names[:2]


def test_the_id_of_a_run_names_a_document_and_has_48_random_bits() -> None:
    made = {make_run_id(datetime(2026, 11, 23, tzinfo=UTC)) for _ in range(2)}
    assert len(made) == 2
    assert all(DOCUMENT_PATTERN.fullmatch(f"{run}.json") for run in made)
    assert {len(run) for run in made} == {len("20261123-000000-") + 12}
