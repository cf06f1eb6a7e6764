"""Damaged files and absurd documents cost a line, and never a hold, a drain or a view."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from hpcverify.cli import cli
from hpcverify.commands._controller import decide
from hpcverify.errors import DamagedError
from hpcverify.fleet import transitions
from hpcverify.fleet.controller import HISTORY, Controller
from hpcverify.fleet.holds_slurm import SlurmBackend
from hpcverify.fleet.ledger import LEDGER_FILE_NAME, Ledger
from hpcverify.fleet.night import judge_finished_night
from hpcverify.fleet.states import State
from hpcverify.history.writer import DAMAGED_NAME, QUEUE_NAME, MeasurementWriter
from hpcverify.model import (
    Finding,
    FindingRule,
    Inventory,
    Measurement,
    Part,
    Remedy,
    Result,
    Run,
    Verdict,
)
from hpcverify.plan.config import Fleet, Quarantine, Site
from hpcverify.records.spool import deposit
from hpcverify.records.store import Store
from hpcverify.slurm.client import Slurm
from tests.fleet.paper import PaperNode, PaperSlurm

NODES = [f"n{number}" for number in range(1, 17)]
DAY = 86400.0
TORN = [b"", b"\0" * 4096, b"{}", b'{"night":"20', b"\xff\xfe", b"[" * 100_000, b"null", b"\n\n"]
"""What files look like after a power cut, a full disk or a careless editor."""


class Home:
    """A fleet on paper, with a history, whose nights are the last ones."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Make it; its clock begins ten days before now, at noon."""
        self.state, self.spool = folder / "state", folder / "spool"
        self.spool.mkdir()
        config = folder / "site.toml"
        config.write_text(f'[fleet]\nspool = "{self.spool}"\n')
        monkeypatch.setenv("HPCVERIFY_STATE", str(self.state))
        monkeypatch.setenv("HPCVERIFY_CONFIG", str(config))
        self.now = (time.time() // DAY - 10) * DAY + DAY / 2 + 3600
        self.paper = PaperSlurm({name: PaperNode() for name in NODES}, clock=lambda: self.now)
        self.said: list[str] = []
        self.chance = Random(7)  # noqa: S311 - nobody is to guess nothing
        self.written = 0

    def clock(self) -> float:
        """Go on a little each time that somebody looks."""
        self.now += 0.001
        return self.now

    @property
    def today(self) -> datetime:
        """The time on the fleet's clock."""
        return datetime.fromtimestamp(self.now, UTC)

    @property
    def ledger(self) -> Ledger:
        """What the controller knows."""
        return Ledger(self.state, self.clock)

    @property
    def queue(self) -> Path:
        """What a killed writer leaves."""
        return self.state / "measurements" / QUEUE_NAME

    @property
    def controller(self) -> Controller:
        """Start a controller."""
        slurm = Slurm(run=self.paper)
        writer = MeasurementWriter(self.state, self.said.append, lambda: self.today)
        return Controller(
            site=Site(
                fleet=Fleet(spool=str(self.spool)),
                quarantine=Quarantine(enforce=("*",), check_share=1, share=1),
            ),
            state=self.state,
            ledger=self.ledger,
            store=Store(self.state),
            slurm=slurm,
            backend=SlurmBackend(slurm),
            say=self.said.append,
            clock=self.clock,
            measurements=writer,
        )

    def collect(self) -> Controller:
        """Do what `hpcverify collect` does."""
        acting = self.controller
        with acting.hold_lock():
            acting.reconcile()
            judge_finished_night(acting)
        return acting

    def leave(self, node: str, ticket: str = "", **changes: Any) -> Run:
        """Have *node* leave a run, with a figure of each of two GPUs."""
        self.written += 1
        gpus = [Part("gpu", f"GPU-{node}-{i}", f"GPU {i}", {"name": "H100"}) for i in range(2)]
        figures = [
            Measurement("bf16.sustained", self.chance.gauss(500, 2), "TFLOP/s", gpu.id)
            for gpu in gpus
        ]
        result = Result(check="gemm", verdict=Verdict.PASS, measurements=tuple(figures))
        run = Run(
            id=f"{self.today:%Y%m%d-%H%M%S}-{self.written:06x}",
            node=node,
            suite="idle",
            started=self.today,
            seconds=60,
            verdict=Verdict.PASS,
            complete=True,
            passive=False,
            inventory=Inventory(parts=tuple(gpus)),
            results=(result,),
        )
        run = msgspec.structs.replace(run, **changes)
        deposit(run, self.spool, ticket)
        return run

    def find_broken(self, node: str) -> None:
        """Have *node* fail an ordered run by evidence that no rerun can take back."""
        finding = Finding("lost", "node", "a GPU is lost")
        result = Result(
            check="gemm",
            verdict=Verdict.FAIL,
            reason="a GPU is lost",
            remedy=Remedy.REPLACE,
            findings=(finding,),
            rulings={"lost": FindingRule(Verdict.FAIL, Remedy.REPLACE, hard=True)},
        )
        ticket = self.ledger.issue_ticket(node, "sweep", "idle")
        self.leave(node, ticket.token, verdict=Verdict.FAIL, results=(result,))

    def pass_nights(self, count: int, poison: Mapping[str, Any] | None = None) -> None:
        """Let nights pass in which each node leaves a run, and n16 one with *poison*."""
        for _ in range(count):
            self.now += DAY
            for node in NODES[:-1]:
                self.leave(node)
            self.leave(NODES[-1], **(poison or {}))
            self.collect()

    def view(self, *command: str) -> tuple[int, str]:
        """Run a command that shows something; give its status and its text."""
        done = CliRunner().invoke(cli, list(command))
        if done.exception and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done.exit_code, done.output

    def require_work(self) -> None:
        """Require that holds, drains, intake, releases and views go on."""
        self.find_broken("n2")
        self.collect()
        assert self.paper.nodes["n2"].drained
        assert self.ledger.read_node("n2").state is State.QUARANTINED
        hold = decide(self.controller, "n3", "fan", transitions.hold, "held")
        assert (hold in (0, 4), self.paper.nodes["n3"].drained) == (True, True)
        decide(self.controller, "n3", "fan is new", transitions.release, "released")
        assert not self.paper.nodes["n3"].drained
        assert not list(self.spool.glob("n*/[0-9]*.json"))
        assert self.view("nodes")[0] == 0
        nodes = json.loads(self.view("nodes", "--json")[1].partition("\n{")[0] or "{}")
        assert isinstance(nodes, dict)
        assert self.view("report", "--fleet", "--format", "json", "-o", "/dev/null")[0] == 0


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """Give a fleet that nothing has happened to."""
    return Home(tmp_path, monkeypatch)


def list_malfunctions(home: Home) -> list[str]:
    return [one.name for one in home.ledger.list_malfunctions()]


@pytest.mark.parametrize("torn", TORN)
def test_damaged_lines_of_the_queue_are_put_aside_and_the_turn_goes_on(
    home: Home, torn: bytes
) -> None:
    home.pass_nights(1)
    home.queue.write_bytes(torn + b"\n")

    home.require_work()

    assert not home.queue.exists()
    assert (home.queue.with_name(DAMAGED_NAME)).read_bytes() == torn
    assert sum("cannot be read" in line for line in home.said) == 1
    assert list_malfunctions(home) == []


def test_a_history_that_fails_is_a_state_until_it_works_again(home: Home) -> None:
    home.pass_nights(1)
    home.queue.mkdir()

    home.require_work()

    assert list_malfunctions(home) == [HISTORY]
    text = home.view("nodes")[1]
    assert HISTORY in text
    assert "_queue.ndjson" in text
    home.queue.rmdir()
    home.collect()
    assert list_malfunctions(home) == []


def test_a_bug_in_a_convenience_ends_it_alone(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise KeyError("one")

    monkeypatch.setattr(MeasurementWriter, "add", fail)
    home.leave("n1")

    home.require_work()

    (told,) = {line for line in home.said if HISTORY in line}
    assert "KeyError" in told


def test_a_damaged_ledger_stops_the_turn(home: Home) -> None:
    home.pass_nights(1)
    (home.state / LEDGER_FILE_NAME).write_bytes(b"no ledger" * 1000)

    with pytest.raises(DamagedError):
        home.collect()
    acting = object.__new__(Controller)
    with pytest.raises(DamagedError), acting.run_convenience("one"):
        raise DamagedError("the ledger")
