"""The site's program is told of each change, and cannot harm who tells it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from hpcverify.fleet.ledger import Ledger
from hpcverify.fleet.notify import EXPIRY_S, TransitionNotifier
from hpcverify.fleet.states import Node, State
from hpcverify.model import Finding, FindingRule, Inventory, Part, Remedy, Verdict
from hpcverify.records import documents
from hpcverify.records.store import Store
from tests.cli import is_alive
from tests.doubles import a_result, a_run

NOW = 1_800_000_000.0
KEEPS = 'cat >>"$(dirname "$0")/told"\n'
BAD = Node(
    name="n7",
    state=State.QUARANTINED,
    enforced=True,
    reason="sdc: GPU 3: a wrong word",
    checks=("sdc",),
    run="20270115-080000-abcdef",
)


@dataclass
class Site:
    """A controller's books, and a program that is told."""

    folder: Path
    now: float = NOW
    said: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.folder / "state", lambda: self.now)
        self.store = Store(self.folder / "state")

    @property
    def program(self) -> Path:
        return self.folder / "hook"

    def tell(self, text: str = KEEPS, **changes: Any) -> None:
        """Take the end of a cycle, with a program of this *text*."""
        self.program.write_text(f"#!/bin/sh\n{text}")
        self.program.chmod(0o755)
        usual: dict[str, Any] = {"program": str(self.program), "clock": self.ledger.clock}
        TransitionNotifier(
            **{**usual, **changes}, ledger=self.ledger, store=self.store, say=self.said.append
        ).notify()

    @property
    def told(self) -> list[dict[str, Any]]:
        """What the program has read, each once."""
        kept = self.folder / "told"
        return [*map(json.loads, kept.read_text().splitlines())] if kept.exists() else []

    def untold(self) -> int:
        return len(self.ledger.list_pending_transitions(1000))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_a_transition_comes_with_all_that_one_needs_to_act_on_it(site: Site) -> None:
    gpus = tuple(Part("gpu", f"GPU-{i}", f"GPU {i}") for i in (2, 3))
    wrong = a_result(
        check="sdc",
        verdict=Verdict.FAIL,
        findings=(Finding("corrupt", "GPU-3", "a wrong word"),),
        rulings={"corrupt": FindingRule(Verdict.FAIL, Remedy.CONTACT_VENDOR)},
    )
    slow = a_result(verdict=Verdict.FAIL, findings=(), rulings={})
    run = a_run(id=BAD.run, node="n7", inventory=Inventory(parts=gpus), results=(wrong, slow))
    documents.write(run, site.store.get_document_path(run.id))

    site.ledger.put(BAD, "quarantined")
    site.tell()

    (told,) = site.told
    ((fault,),) = (part.pop("faults") for part in told["parts"])
    assert (fault["code"], fault["part_id"]) == ("corrupt", "GPU-3")
    assert (fault["text"], fault["verdict"]) == ("a wrong word", "fail")
    assert told == {
        "event": "node",
        "number": 1,
        "time": "2027-01-15T08:00:00Z",
        "node": "n7",
        "before": "unverified",
        "after": "quarantined",
        "enforced": True,
        "reason": "sdc: GPU 3: a wrong word",
        "part": "GPU 3",
        "parts": [{"id": "GPU-3", "label": "GPU 3", "remedy": "contact_vendor"}],
        "remedy": "contact_vendor",
        "checks": ["sdc"],
        "run": BAD.run,
        "by": "",
    }
    site.tell()
    assert (len(site.told), site.said) == (1, [])


def test_a_run_that_is_gone_keeps_nobody_from_being_told(site: Site) -> None:
    site.ledger.put(BAD, "quarantined")
    site.tell()
    assert [(t["reason"], t["parts"]) for t in site.told] == [(BAD.reason, [])]


def test_a_change_that_nobody_sees_is_not_told(site: Site) -> None:
    site.ledger.put(Node(name="n1", last_run_at=NOW), "verified")
    site.ledger.put(BAD, "quarantined")
    site.ledger.put(Node(name="n7", state=State.QUARANTINED, enforced=True), "stands")
    site.tell()
    assert [(t["node"], t["after"]) for t in site.told] == [("n7", "quarantined")]


def test_a_node_that_others_take_is_told_with_their_reason_in_one_line(site: Site) -> None:
    reason = "fan\u2028swap\x85 \x9b31m"
    site.ledger.put(Node(name="n1", foreign=reason), "held by others")
    site.tell()
    (told,) = site.told
    assert (told["after"], told["reason"]) == ("held by others", reason)


def test_the_breaker_and_a_doubt_are_told_as_they_come_and_go(site: Site) -> None:
    site.ledger.trip("9 of 40 nodes")
    site.ledger.record_doubts({"gemm": "gemm fails on 4 of the 5 nodes"})
    site.ledger.record_doubts({"gemm": "gemm fails on 5 of the 5 nodes"})
    site.ledger.reset("ada", "image 41")
    site.ledger.record_doubts({})

    site.tell()

    assert [(t["event"], t["before"], t["after"]) for t in site.told] == [
        ("breaker", "closed", "tripped"),
        ("check", "trusted", "doubted"),
        ("breaker", "tripped", "closed"),
        ("check", "doubted", "trusted"),
    ]
    assert site.told[1]["checks"] == ["gemm"]
    assert (site.told[2]["by"], site.told[2]["reason"]) == ("ada", "image 41")


def test_what_a_controller_that_was_killed_did_not_tell_the_next_one_tells(site: Site) -> None:
    site.ledger.put(BAD, "quarantined")
    again = Site(site.folder)
    again.tell()
    assert [t["node"] for t in again.told] == ["n7"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("echo no mail server >&2; exit 3", "no mail server"),
        ("exit 1", "exit status 1"),
        ("kill -9 $$", "exit status -9"),
        ("kill -TERM 0", "exit status -15"),
    ],
)
def test_a_failure_is_one_line_and_is_tried_again(site: Site, text: str, why: str) -> None:
    for name in ("n1", "n2"):
        site.ledger.put(Node(name=name, state=State.HEALTHY), "passed")

    site.tell(text)

    assert site.said == [f"on_transition: {site.program}: {why}; the next cycle tries again"]
    assert site.untold() == 2
    site.tell()
    assert sorted(t["node"] for t in site.told) == ["n1", "n2"]


def test_what_the_program_cannot_take_keeps_nothing_else_back(site: Site) -> None:
    for name in ("n1", "n2", "n3"):
        site.ledger.put(Node(name=name, state=State.HEALTHY), "passed")
    picky = (
        "read -r line; case $line in *'\"n1\"'*) exit 1 ;; esac\n"
        'echo "$line" >>"$(dirname "$0")/told"\n'
    )

    site.tell(picky)
    site.tell(picky)

    assert ([t["node"] for t in site.told], site.untold()) == (["n2", "n3"], 1)


def test_a_program_that_hangs_is_ended_and_the_cycle_goes_on(site: Site) -> None:
    for name in ("n1", "n2"):
        site.ledger.put(Node(name=name, state=State.HEALTHY), "passed")

    site.tell('sleep 600 & echo $! >"$(dirname "$0")/child"; wait', timeout=5)

    (line,) = site.said
    assert "did not end within 5 s and was ended" in line
    assert site.untold() == 2
    assert not is_alive(int((site.folder / "child").read_text().strip()))


def test_a_cycle_without_time_left_leaves_the_rest_to_the_next(site: Site) -> None:
    site.ledger.put(BAD, "quarantined")
    site.tell(time_budget=-1.0)
    assert (site.told, site.untold()) == ([], 1)
    site.tell()
    assert len(site.told) == 1


def test_after_a_failure_the_same_controller_waits_before_it_tries_again(site: Site) -> None:
    site.ledger.put(BAD, "quarantined")
    teller = TransitionNotifier("/nowhere/hook", site.ledger, site.store, site.said.append)

    for _ in range(3):
        teller.notify()

    assert len(site.said) == 1
    assert "on_transition: /nowhere/hook" in site.said[0]


def test_what_nobody_took_for_a_day_is_given_up_in_one_line(site: Site) -> None:
    site.ledger.put(BAD, "quarantined")
    site.now += EXPIRY_S + 1
    site.tell()
    assert site.told == []
    assert site.said == [f"1 transition was dropped: {site.program} has failed for a day"]


def test_without_a_program_nothing_is_queued_for_ever(site: Site) -> None:
    site.ledger.put(BAD, "quarantined")
    site.tell(program="")
    assert (site.untold(), site.said) == (0, [])


def test_the_program_sees_nothing_of_our_environment(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "token")
    monkeypatch.setenv("LD_PRELOAD", "")
    site.ledger.put(BAD, "quarantined")

    site.tell('env >"$(dirname "$0")/env"; pwd >>"$(dirname "$0")/env"')

    seen = (site.folder / "env").read_text()
    assert "SECRET" not in seen
    assert "LD_PRELOAD" not in seen
    assert seen.endswith("\n/\n")


@pytest.mark.needs("root")
def test_as_root_a_program_that_others_can_change_is_not_started(site: Site) -> None:
    site.ledger.put(BAD, "quarantined")
    site.folder.chmod(0o755)
    site.tell("exit 0")  # taken

    site.ledger.put(Node(name="n1", state=State.HEALTHY), "passed")
    loose = site.folder / "loose"
    loose.mkdir()
    loose.chmod(0o777)
    program = loose / "hook"
    program.write_text(f"#!/bin/sh\n: >{site.folder}/ran\n")
    program.chmod(0o755)
    site.tell(program=str(program))

    assert "can be changed by other users" in site.said[-1]
    assert not (site.folder / "ran").exists()
    assert site.untold() == 1
