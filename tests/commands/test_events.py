"""Events are listed as they are kept, and a chain that is broken is an exit status."""

from __future__ import annotations

import gzip
import json
import shutil
import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from hpcverify.commands.events import EventFilter, iterate_events
from hpcverify.events.event import EventKind
from hpcverify.fleet.event_log import NewEvent
from hpcverify.fleet.event_stream import EVENTS_FILE_NAME, EventStream
from hpcverify.fleet.ledger import LEDGER_FILE_NAME, Ledger
from hpcverify.fleet.states import Node, State
from hpcverify.plan.config import Events
from tests.cli import Cli
from tests.events.ocsf_schema import list_violations

DAY_S = 86400.0
NOW = 1_800_000_000.0  # 2027-01-15, 08:00 UTC
PACKED = gzip.compress(b'{"number":1}\n' * 1000, mtime=0)
TORN = PACKED[:10] + bytes(255 - byte for byte in PACKED[10:])


class Time:
    """A clock that is set."""

    now = NOW - 10 * DAY_S

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def ledger(cli: Cli) -> Ledger:
    """Make a ledger with an event of n1, two of the breaker ten days later, and its file."""
    clock = Time()
    ledger = Ledger(cli.state, clock)
    ledger.put(Node(name="n1", state=State.QUARANTINED, checks=("gemm",)), "quarantined")
    clock.now = NOW
    ledger.trip("3 of 4 nodes")
    ledger.reset("ada", "image 41")
    EventStream(cli.state, Events(), ledger).drain()
    return ledger


def listed(cli: Cli, *options: str) -> list[dict[str, Any]]:
    done = cli("fleet", "events", *options)
    assert (done.returncode, done.stderr) == (0, "")
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.usefixtures("ledger")
def test_events_in_another_format_are_the_same_ones(cli: Cli) -> None:
    kept = listed(cli)
    ocsf = listed(cli, "--format", "ocsf")
    enveloped = listed(cli, "--format", "cloudevents")

    assert [event["metadata"]["uid"] for event in ocsf] == [event["id"] for event in kept]
    assert [list_violations(event) for event in ocsf] == [[], [], []]
    assert [event["data"] for event in enveloped] == kept


@pytest.mark.usefixtures("ledger")
@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        ((), [1, 2, 3]),
        (("--since", "2027-01-14"), [2, 3]),
        (("--node", "n1"), [1]),
        (("--kind", "breaker"), [2, 3]),
        (("--kind", "breaker.reset", "--since", "2027-01-01"), [3]),
        (("--kind", "night"), []),
    ],
)
def test_events_are_chosen_by_time_node_and_kind(
    cli: Cli, options: tuple[str, ...], numbers: list[int]
) -> None:
    assert [event["number"] for event in listed(cli, *options)] == numbers


@pytest.mark.usefixtures("ledger")
def test_what_is_listed_are_the_lines_of_the_file(cli: Cli) -> None:
    assert cli("fleet", "events").stdout == (cli.state / EVENTS_FILE_NAME).read_text()


def test_a_kind_that_there_is_not_is_refused_with_those_that_there_are(cli: Cli) -> None:
    done = cli("fleet", "events", "--kind", "nodes")
    assert done.returncode == 2
    assert "--kind nodes" in done.stderr
    assert "node, hold, finding" in done.stderr


@pytest.mark.usefixtures("ledger")
def test_the_chain_of_the_ledger_and_of_rotated_files_together_is_whole(cli: Cli) -> None:
    path = cli.state / EVENTS_FILE_NAME
    first, *rest = path.read_bytes().splitlines(keepends=True)
    path.with_name("events.jsonl.1.gz").write_bytes(gzip.compress(first))
    path.write_bytes(b"".join(rest) + b'{"schema":1,"num')  # a line is being written
    files = [str(file) for file in sorted(cli.state.glob("events.jsonl*"))]

    for given in ((), files):
        done = cli("fleet", "events", "verify", *given)
        assert done.returncode == 0
        assert done.stdout.startswith("ledger: 3 events in order: 1 to 3, digest ")
        assert "\nfiles: 3 events in order: 1 to 3, digest " in done.stdout
        assert "not shown: events deleted after 3 in ledger and files alike" in done.stdout


@pytest.mark.usefixtures("ledger")
def test_an_event_that_was_changed_is_named_with_its_place(cli: Cli) -> None:
    path = cli.state / EVENTS_FILE_NAME
    path.write_bytes(path.read_bytes().replace(b"3 of 4", b"1 of 4"))
    done = cli("fleet", "events", "verify")
    assert done.returncode == 1
    assert f"{path}, line 2: event 2: the ledger has another line" in done.stdout

    with closing(sqlite3.connect(cli.state / LEDGER_FILE_NAME)) as db:
        db.execute("drop trigger events_stay")
        db.execute("update events set actor = 'eve' where number = 3")
        db.commit()
    assert (
        "ledger: event 3: its actor in the audit log is eve"
        in cli("fleet", "events", "verify").stdout
    )


@pytest.mark.usefixtures("ledger")
def test_without_a_ledger_what_a_chain_does_not_show_is_said_and_a_digest_shows_it(
    cli: Cli, tmp_path: Path
) -> None:
    path = tmp_path / EVENTS_FILE_NAME
    lines = (cli.state / EVENTS_FILE_NAME).read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[1:]))
    cli.environment["HPCVERIFY_STATE"] = str(tmp_path / "elsewhere")

    done = cli("fleet", "events", "verify", str(path))
    assert done.returncode == 0
    limits = "not shown: events removed before 2, or events deleted after 3, or all events written"
    assert limits in done.stdout
    known = f"2:{json.loads(lines[2])['previous']}"
    done = cli("fleet", "events", "verify", str(path), "--expect", known)
    assert (done.returncode, "all events after 2 written anew" in done.stdout) == (0, True)
    for unknown in (f"4:{known[2:]}", f"2:{'0' * 64}"):
        assert cli("fleet", "events", "verify", str(path), "--expect", unknown).returncode == 1
    for wrong in ("2:0", f"0:{'0' * 64}"):  # nothing has the number 0
        assert "64 hexadecimal digits" in cli("fleet", "events", "verify", "--expect", wrong).stderr
    done = cli("fleet", "events", "verify")
    assert (done.returncode, "there is no ledger in" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("name", "content"),
    [("none", None), ("cut.gz", PACKED[:-9]), ("other.gz", b"x"), ("torn.gz", TORN)],
)
def test_a_file_that_cannot_be_read_is_one_line(
    cli: Cli, tmp_path: Path, name: str, content: bytes | None
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    done = cli("fleet", "events", "verify", str(tmp_path / name))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "cannot be read" in done.stderr


def commands(cli: Cli) -> list[tuple[str, str, str, int]]:
    """List the commands that were kept: who, what, the outcome and the exit status."""
    return [
        (
            event["actor"]["name"],
            event["command"]["name"],
            event["command"]["outcome"],
            event["command"]["exit_status"],
        )
        for event in listed(cli, "--kind", "command")
    ]


def test_a_command_that_changes_something_is_kept_refused_ones_too(
    cli: Cli, ledger: Ledger
) -> None:
    cli.environment["SUDO_USER"] = "ada"
    ledger.trip("3 of 4 nodes")

    for _ in range(2):
        cli("fleet", "breaker", "reset", "--reason", "image 42")

    assert commands(cli) == [
        ("ada", "fleet breaker reset", "done", 0),
        ("ada", "fleet breaker reset", "refused", 4),
    ]
    cli.environment["SUDO_USER"] = "ad\udcff"
    cli("fleet", "breaker", "reset", "--reason", "image 42")
    assert commands(cli)[-1] == ("ad\\udcff", "fleet breaker reset", "refused", 4)
    last = listed(cli, "--kind", "command")[-1]
    assert (last["text"], last["actor"]["is_person"]) == ("image 42", True)
    assert last["actor"]["host"]


def test_a_command_on_a_host_without_a_ledger_makes_none(cli: Cli) -> None:
    shutil.rmtree(cli.state, ignore_errors=True)
    cli("history", "rejudge")
    assert not (cli.state / LEDGER_FILE_NAME).exists()


def test_events_go_on_as_they_come_with_follow(cli: Cli, ledger: Ledger) -> None:
    with cli.start("fleet", "events", "--follow") as follower:
        assert follower.stdout is not None
        for number in range(1, 4):
            assert json.loads(follower.stdout.readline())["number"] == number
        ledger.record_event(NewEvent(kind=EventKind.HEARTBEAT))
        assert json.loads(follower.stdout.readline())["kind"] == "controller.heartbeat"
        follower.send_signal(signal.SIGINT)
        assert (follower.communicate(), follower.returncode) == (("", ""), 0)


def test_follow_goes_on_behind_the_last_event_that_a_restored_ledger_still_has(
    ledger: Ledger, tmp_path: Path
) -> None:
    def add(count: int) -> None:
        for _ in range(count):
            ledger.record_event(NewEvent(kind=EventKind.HEARTBEAT))

    backup = tmp_path / "backup.sqlite"
    shutil.copyfile(ledger.path, backup)
    add(4)
    followed = iterate_events(ledger, EventFilter(), follow=True)
    numbers = [json.loads(next(followed))["number"] for _ in range(7)]
    for new in (2, 6):  # fewer events than were seen, and more
        shutil.copyfile(backup, ledger.path)
        add(new)
        numbers += [json.loads(next(followed))["number"] for _ in range(new)]
    assert numbers == [*range(1, 8), 4, 5, *range(4, 10)]

    ledger.path.unlink()
    Ledger(ledger.path.parent, ledger.clock)
    add(1)
    assert json.loads(next(followed))["number"] == 1
