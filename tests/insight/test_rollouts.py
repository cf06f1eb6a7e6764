"""A fleet that is upgraded, from the nodes' documents to what an operator reads."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from hpcverify.fleet.ledger import Ledger
from hpcverify.fleet.states import DAY_S, HOUR_S, State
from hpcverify.insight.overview import Overview, read_overview
from hpcverify.model import Fact, Inventory, Part, Remedy, Verdict
from hpcverify.records.spool import deposit
from hpcverify.records.store import Store
from tests.cli import Cli
from tests.doubles import a_result, a_run
from tests.fleet.builders import Room, a_room
from tests.fleet.paper import PaperNode
from tests.reports.dom import Dom

NODES = 8
OLD, NEW = "570.86.15", "575.51.03"
CHANGED = "gpu vbios changed"


def an_inventory(driver: str) -> Inventory:
    """List the parts of a node with eight GPUs."""
    return Inventory(
        parts=(
            Part("system", "node", "node", {"vendor": "Supermicro", "product": "SYS-821GE"}),
            Part("cpu", "cpu", "CPU", {"model": "Xeon 8480", "sockets": "2"}),
            *(
                Part("gpu", f"GPU-{i}", f"GPU {i}", {"name": "NVIDIA H100", "driver": driver})
                for i in range(8)
            ),
        )
    )


def leave_run(
    room: Room, number: int, driver: str, days: float, smt: str = "on", *, warns: bool = False
) -> None:
    """Have a node leave the run of its prolog, so many *days* ago."""
    when = room.now - days * DAY_S
    started = datetime.fromtimestamp(when, UTC)
    verdict = Verdict.WARN if warns else Verdict.PASS
    inventory = a_result(
        "inventory",
        verdict=verdict,
        reason=CHANGED if warns else "",
        remedy=Remedy.INSPECT if warns else Remedy.NONE,
        measurements=(),
        findings=(),
        limits=(),
        facts=(Fact("SMT", smt),),
    )
    run = a_run(
        id=f"{started:%Y%m%d-%H%M%S}-{number:06x}",
        node=f"n{number}",
        suite="prolog",
        started=started,
        verdict=verdict,
        inventory=an_inventory(driver),
        results=(inventory,),
    )
    deposit(run, room.folder / "spool")


@pytest.fixture
def room(tmp_path: Path) -> Room:
    """Give a cluster whose controller acts on everything; what it does is two hours old."""
    room = a_room(tmp_path, NODES)
    room.now = time.time() - 2 * HOUR_S
    return room


def collect_days(room: Room, updated: Iterable[int], *, warns: bool = False) -> Overview:
    """Collect the runs of two days, in which the nodes *updated* get the new driver."""
    new = set(updated)
    for days in (4, 1):
        for number in range(1, NODES + 1):
            is_new = number in new and days <= 1
            leave_run(room, number, NEW if is_new else OLD, days, warns=warns and is_new)
        room.collect(after=1)
    return read_fleet(room)


def read_fleet(room: Room) -> Overview:
    return read_overview(room.ledger, Store(room.folder / "state"))


def test_a_driver_that_reaches_all_nodes_in_a_night_is_one_rollout_and_no_fault(room: Room) -> None:
    fleet = collect_days(room, range(1, NODES + 1), warns=True)

    (rollout,) = fleet.drift.rollouts
    assert (rollout.name, rollout.before, rollout.after) == ("GPU driver", (OLD,), NEW)
    assert (rollout.count, rollout.total, rollout.behind) == (NODES, NODES, ())
    assert not fleet.drift.deviations
    # A WARN is no failure: nobody is a suspect, nothing is held, the breaker rests.
    assert {row.node.state for row in fleet.rows} == {State.UNVERIFIED}
    assert not fleet.tripped
    assert not any(row.attention for row in fleet.rows)
    assert not any(node.drained for node in room.slurm.nodes.values())


def test_a_warning_of_the_run_that_first_saw_a_rollout_says_so(room: Room) -> None:
    fleet = collect_days(room, range(1, NODES + 1), warns=True)
    assert {row.why for row in fleet.rows} == {
        f"inventory: {CHANGED} (first seen with the rollout of GPU driver {NEW})"
    }
    assert {row.worst for row in fleet.rows} == {Verdict.WARN}  # what the run said stands


def test_a_node_that_is_not_updated_is_behind_and_a_stray_one_deviates(room: Room) -> None:
    fleet = collect_days(room, range(1, NODES - 1))
    leave_run(room, NODES, OLD, 0.1, smt="off")
    room.collect(after=1)
    fleet = read_fleet(room)

    (rollout,) = fleet.drift.rollouts
    assert (rollout.count, rollout.behind) == (6, ("n7", "n8"))
    ((name, nodes),) = [(one.name, one.nodes) for one in fleet.drift.deviations]
    assert (name, nodes) == ("SMT", ("n8",))


def test_a_node_that_is_held_does_not_count_and_one_that_is_gone_is_not_told(room: Room) -> None:
    collect_days(room, range(1, NODES - 2))
    room.slurm.nodes["n8"] = PaperNode(drained=True, reason="bad fan", at=room.now)
    room.collect(after=1)
    fleet = read_fleet(room)
    (rollout,) = fleet.drift.rollouts
    assert (rollout.total, rollout.behind) == (7, ("n6", "n7", "n8"))
    assert rollout.uncounted == ("n8",)

    del room.slurm.nodes["n8"]
    room.collect(after=1)
    (rollout,) = read_fleet(room).drift.rollouts
    assert rollout.behind == ("n6", "n7")


def test_what_a_node_told_before_it_was_forgotten_is_not_compared(room: Room) -> None:
    collect_days(room, range(1, NODES))
    Ledger(room.folder / "state", room.clock).forget("n8", "anna", "scrapped")
    (rollout,) = read_fleet(room).drift.rollouts
    assert (rollout.total, rollout.behind) == (7, ())


def keep_runs_of_64(store: Store) -> None:
    """Keep a week of runs of 64 nodes: 41 got a driver, three have a setting of their own."""
    now = datetime.now(UTC).timestamp()
    for number in range(1, 65):
        for days in (6.0, 1.0):
            started = datetime.fromtimestamp(now - days * DAY_S - number, UTC)
            is_new = number <= 41 and days == 1.0
            facts = [Fact("SMT", "off" if number in (50, 51) else "on")]
            facts.append(Fact("IOMMU", "DMA-FQ" if number == 60 else "identity"))
            run = a_run(
                id=f"{started:%Y%m%d-%H%M%S}-{number:06x}",
                node=f"gpu{number:03d}",
                started=started,
                inventory=an_inventory(NEW if is_new else OLD),
                results=(a_result("inventory", facts=tuple(facts)),),
            )
            store.save(run)


def test_nodes_and_page_tell_a_rollout_and_three_nodes_that_differ(cli: Cli) -> None:
    keep_runs_of_64(Store(cli.state))
    printed = cli("nodes")
    assert printed.returncode == 0, printed.stderr
    told = " ".join(printed.stdout.split())
    rollout = f"GPU driver from {OLD} to {NEW}: 41 of 64 nodes, 24 h ago; not yet: gpu[042-064]"
    odd = (
        "gpu[050-051]: SMT off, not on as on 62 of 64",
        "gpu060: IOMMU DMA-FQ, not identity as on 63 of 64",
    )
    assert f"rollout: {rollout}" in told
    assert all(f"differs: {one}" in told for one in odd)

    text = Dom(cli("report", "--fleet", "-o", "-").stdout).text
    assert rollout in text
    assert "1 rollout, 3 nodes differ from their peers" in text

    told_as_json = json.loads(cli("nodes", "--json").stdout)["drift"]
    assert [one["after"] for one in told_as_json["rollouts"]] == [NEW]
    assert [one["nodes"] for one in told_as_json["deviations"]] == [
        ["gpu050", "gpu051"],
        ["gpu060"],
    ]

    # Of one node, what is about it; nothing if it has what all have.
    odd_node = cli("nodes", "show", "gpu050").stdout
    assert "not yet: gpu050" in odd_node
    assert "gpu050: SMT off" in odd_node
    assert "IOMMU" not in odd_node
    assert "versions and settings" not in cli("nodes", "show", "gpu001").stdout
