"""Controllers of a Slurm on paper, their time, and the failure that they act on."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from hpcverify.fleet.controller import Controller
from hpcverify.fleet.holds_slurm import SlurmBackend
from hpcverify.fleet.ledger import Ledger
from hpcverify.fleet.states import Node, State
from hpcverify.model import Finding, FindingRule, Remedy, Result, Verdict
from hpcverify.plan.config import Fleet, Quarantine, Site
from hpcverify.records.spool import deposit
from hpcverify.records.store import Store
from hpcverify.slurm.client import Slurm
from tests.doubles import a_result, a_run
from tests.fleet.paper import ME, PaperNode, PaperSlurm

NOW = 1_800_000_000.0


def make_controller(
    state: Path,
    site: Site,
    run: Callable[[Sequence[str]], str],
    clock: Callable[[], float],
    say: Callable[[str], None],
    **changes: Any,
) -> Controller:
    """Start a controller whose commands of Slurm are run by *run*."""
    slurm = Slurm(run=run)
    return Controller(
        site=site,
        state=state,
        ledger=Ledger(state, clock),
        store=Store(state, clock=lambda: datetime.fromtimestamp(clock(), UTC)),
        slurm=slurm,
        backend=SlurmBackend(slurm),
        say=say,
        clock=clock,
        **changes,
    )


class Ticking:
    """Has a time of its own, *now*."""

    now: float

    def clock(self) -> float:
        """Go on a little each time that somebody looks."""
        self.now += 0.001
        return self.now


def make_wrong_word(check: str = "sdc", *, conclusive: bool = True, **changes: Any) -> Result:
    """Make a failure that no rerun takes back, unless it is not *conclusive*."""
    return a_result(
        check,
        verdict=Verdict.FAIL,
        reason="a wrong word",
        findings=(Finding("corruption", "cpu", "a wrong word"),),
        rulings={"corruption": FindingRule(Verdict.FAIL, Remedy.REPLACE, conclusive=conclusive)},
        **changes,
    )


@dataclass
class Room(Ticking):
    """A controller of the cluster *slurm*, started anew for each cycle."""

    folder: Path
    slurm: PaperSlurm
    now: float = NOW
    fleet: dict[str, Any] = field(default_factory=dict[str, Any])
    policy: dict[str, Any] = field(default_factory=dict[str, Any])
    said: list[str] = field(default_factory=list[str])

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.folder / "state", self.clock)

    @property
    def controller(self) -> Controller:
        policy: dict[str, Any] = {"enforce": ("*",), "check_share": 1, **self.policy}
        site = Site(
            fleet=Fleet(**{"spool": str(self.folder / "spool"), "user": ME, **self.fleet}),
            quarantine=Quarantine(**policy),
        )
        return make_controller(
            self.folder / "state", site, self.slurm, self.clock, self.said.append
        )

    def collect(self, times: int = 1, *, after: float = 600) -> None:
        """Take so many cycles, each so many seconds *after* the last."""
        for _ in range(times):
            self.now += after
            self.controller.reconcile()

    def finds(self, name: str, *results: Result, hook: bool = False, **changes: Any) -> None:
        """Have *name* leave a run that was ordered, or that a *hook* made."""
        ticket = self.ledger.issue_ticket(name, "sweep", "quick")
        verdict = max(result.verdict for result in results)
        when = f"{datetime.fromtimestamp(self.now, UTC):%Y%m%d-%H%M%S}-{ticket.number:06x}"
        run = a_run(id=when, node=name, verdict=verdict, results=results, **changes)
        if hook:
            self.ledger.close_ticket(ticket, "cancelled")
        deposit(run, self.folder / "spool", "" if hook else ticket.token)

    def quarantine(self, *names: str) -> None:
        """Have nodes found bad, and drained for it."""
        for name in names:
            self.finds(name, make_wrong_word())
        self.collect()
        assert {self.node(name).state for name in names} == {State.QUARANTINED}
        assert all(self.slurm.nodes[name].drained for name in names)

    def node(self, name: str) -> Node:
        return self.ledger.read_node(name)

    def chosen(self) -> list[str]:
        """Name whom a sweep would verify now, in order."""
        controller = self.controller
        return [pick.node for pick in controller.plan(controller.slurm.list_hosts()).chosen]

    def questions(self, **cycle: Any) -> int:
        """Count what Slurm is asked in a cycle."""
        before = len(self.slurm.asked)
        self.collect(**cycle)
        return len(self.slurm.asked) - before


def store_nodes(ledger: Ledger, nodes: Iterable[Node]) -> None:
    """Have *ledger* know these *nodes* and no others, without a change of any."""
    rows = [(node.name, msgspec.json.encode(node)) for node in nodes]
    with closing(sqlite3.connect(ledger.path)) as db, db:
        db.execute("delete from nodes")
        db.executemany("insert into nodes values (?, ?)", rows)


def a_room(folder: Path, count: int = 4) -> Room:
    """Make a cluster of n1 to nN, and a controller that knows nothing yet."""
    (folder / "spool").mkdir()
    nodes = {f"n{i}": PaperNode() for i in range(1, count + 1)}
    room = Room(folder, PaperSlurm(nodes))
    room.slurm.clock = room.clock
    return room
