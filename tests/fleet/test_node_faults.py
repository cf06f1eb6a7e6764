"""
What becomes of nodes whose host, network or kernel log fails: from the check to the drain.

The checks are the real ones, on the files of a node with the fault. Nothing of them loads the
node, and an event that was read once is not read again: so a rerun that finds nothing must not
acquit a node of what it could not have met.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hpcverify.fleet.states import Hold, State
from hpcverify.fleet.transitions import Decision, repair
from hpcverify.model import CheckItem, Finding, Inventory, Measurement, Result, Verdict
from hpcverify.plan.config import Quarantine
from hpcverify.records.spool import deposit
from hpcverify.run.conclude import judge_result
from hpcverify.testing import INVENTORY, has_no_past
from hpcverify_checks import host, kernel_log, nic
from tests.checks.host.nodes import a_node, look
from tests.checks.host.test_resources import cores
from tests.checks.nic_faults import lose_link
from tests.checks.nic_trees import h100
from tests.checks.test_kernel_log import BOARD, marks, measured
from tests.checks.test_nic import Node as Machine
from tests.doubles import a_result, a_run
from tests.fleet.builders import Room, a_room

UNPLUGGED = lose_link("mlx5_3")
UP = {"state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": "400 Gb/sec (4X NDR)"}


def conclude(
    name: str, check: Any, items: Iterable[CheckItem], inventory: Inventory = INVENTORY
) -> Result:
    """Make the result of a run of what the *check* of that *name* found."""
    found = list(items)
    bare = a_result(
        name,
        coverage=(),
        series=(),
        limits=(),
        measurements=tuple(item for item in found if isinstance(item, Measurement)),
        findings=tuple(item for item in found if isinstance(item, Finding)),
    )
    return judge_result(bare, check.rules, check.finding_rules, inventory, has_no_past)


@dataclass(frozen=True)
class Story:
    """What a node's check says in three runs: with the fault, in a rerun, and repaired."""

    found: Result
    again: Result
    mended: Result


def lose_a_core(folder: Path) -> Story:
    node, less = a_node(folder / "root"), cores(cores=63)
    say = partial(conclude, "host", host.CHECK)
    well = look(folder, node, inventory=cores())
    found = look(folder, node, before=well, inventory=less, previous=cores())
    again = look(folder, node, before=found, inventory=less, previous=less)
    mended = look(folder, node, before=again, inventory=cores(), previous=less)
    return Story(say(found), say(again), say(mended))


def lose_a_port(folder: Path) -> Story:
    machine = Machine(folder, h100)
    say = partial(conclude, "nic", nic.CHECK, inventory=machine.inventory)
    machine.look()
    machine.turn(**UNPLUGGED)
    found, again = machine.look(), machine.look()
    machine.turn(**{f"sys/class/infiniband/mlx5_3/ports/1/{k}": v for k, v in UP.items()})
    return Story(say(found), say(again), say(machine.look()))


def read_a_line(folder: Path, text: str) -> Story:
    """Read *text* in the kernel log, then nothing new, and then the log of a new boot."""
    folder.mkdir()
    say = partial(conclude, "kernel_log", kernel_log.CHECK, inventory=BOARD)
    found = measured(folder, text)
    again = measured(folder, text, carry_overs=marks(found))
    booted = tuple(mark for mark in marks(again) if mark.name != "standing")
    return Story(say(found), say(again), say(measured(folder, text, carry_overs=booted)))


MACHINE_CHECK = "[Hardware Error]: System Fatal error."
ADAPTER_FAULT = "mpt3sas_cm0: fault_state(0x5862)!"


def mend(room: Room, name: str) -> None:
    """Be a person who repaired *name*, as ``hpcverify nodes repaired`` does."""
    decision = Decision(
        by="ada", reason="mended", at=room.now, last_ticket=room.ledger.read_last_ticket_number()
    )
    change = repair(room.node(name), decision, suite=None, default="quick")
    room.ledger.put(change.node, change.what, change.detail, decision.by)
    room.collect()


def find(room: Room, name: str, result: Result) -> None:
    """Have *name* say so in a run that was ordered, in which all else passed."""
    room.finds(name, result, a_result("gemm", findings=(), limits=()))
    room.collect()


def find_by_hook(room: Room, result: Result) -> None:
    """Have the prolog of n1 say so, which nobody ordered."""
    run = a_run(
        id="20270115-000000-abcdef",
        suite="prolog",
        verdict=result.verdict,
        results=(result,),
        passive=True,
    )
    deposit(run, room.folder / "spool")
    room.collect()


@pytest.mark.parametrize("tell", [lose_a_core, lose_a_port])
def test_what_stays_broken_is_confirmed_by_the_rerun_and_released_by_the_repair(
    tmp_path: Path, room: Room, tell: Callable[[Path], Story]
) -> None:
    story = tell(tmp_path / "node")
    find(room, "n1", story.found)
    assert (room.node("n1").state, room.slurm.reserved) == (State.SUSPECT, {"n1"})

    find(room, "n1", story.again)
    assert room.node("n1").state is State.QUARANTINED
    assert room.slurm.holds("n1")[0]

    mend(room, "n1")
    find(room, "n1", story.mended)
    assert (room.node("n1").state, room.node("n1").desired_hold) == (State.HEALTHY, Hold.NONE)
    assert not room.slurm.holds("n1")[0]


@pytest.mark.parametrize("tell", [lose_a_core, lose_a_port])
def test_what_a_hook_found_and_stays_broken_is_confirmed_by_the_next_sweep(
    tmp_path: Path, room: Room, tell: Callable[[Path], Story]
) -> None:
    story = tell(tmp_path / "node")
    find_by_hook(room, story.found)
    assert (room.node("n1").state, room.slurm.reserved) == (State.SUSPECT, set())
    assert room.chosen()[0] == "n1"

    find(room, "n1", story.again)
    assert room.node("n1").state is State.QUARANTINED


def test_a_machine_check_that_is_not_read_again_is_not_forgiven(tmp_path: Path, room: Room) -> None:
    story = read_a_line(tmp_path / "node", MACHINE_CHECK)
    find(room, "n1", story.found)
    assert room.node("n1").state is State.QUARANTINED

    find(room, "n1", story.again)
    assert story.again.verdict is Verdict.WARN  # nothing new, and it stands
    assert room.node("n1").state is State.QUARANTINED

    mend(room, "n1")
    find(room, "n1", story.mended)
    assert room.node("n1").state is State.HEALTHY


def test_a_machine_check_that_a_hook_read_is_not_forgiven_by_a_sweep(
    tmp_path: Path, room: Room
) -> None:
    """The mark is with the node: the sweep does not read the line again."""
    story = read_a_line(tmp_path / "node", MACHINE_CHECK)
    find_by_hook(room, story.found)
    assert (room.node("n1").state, room.slurm.reserved) == (State.SUSPECT, {"n1"})
    assert not room.slurm.holds("n1")[0]

    find(room, "n1", story.again)
    assert room.node("n1").state is State.QUARANTINED
    assert room.slurm.holds("n1")[0]


def test_a_machine_check_that_a_hook_read_before_a_reboot_is_settled_by_a_sweep(
    tmp_path: Path, room: Room
) -> None:
    story = read_a_line(tmp_path / "node", MACHINE_CHECK)
    find_by_hook(room, story.found)
    find(room, "n1", story.mended)
    assert room.node("n1").state is State.HEALTHY


def test_an_event_whose_part_works_under_load_is_a_flake(tmp_path: Path, room: Room) -> None:
    story = read_a_line(tmp_path / "node", ADAPTER_FAULT)
    find(room, "n1", story.found)
    assert (room.node("n1").state, room.slurm.reserved) == (State.SUSPECT, {"n1"})

    find(room, "n1", story.again)
    assert (room.node("n1").state, room.node("n1").flakes) == (State.HEALTHY, 1)
    assert story.again.verdict is Verdict.WARN  # and it is still told


def lose_all_ports(folder: Path) -> Result:
    machine = Machine(folder, h100)
    machine.look()
    machine.turn(**{p: v for i in range(8) for p, v in lose_link(f"mlx5_{i}").items()})
    return conclude("nic", nic.CHECK, machine.look(), machine.inventory)


@pytest.mark.parametrize(("count", "told"), [(12, "nic fails on 10"), (100, "10 of 100 nodes")])
def test_ten_nodes_behind_a_dead_switch_are_not_drained_and_name_it(
    tmp_path: Path, count: int, told: str
) -> None:
    room = a_room(tmp_path, count)
    defaults = Quarantine()
    room.policy = {"check_share": defaults.check_share}
    dead = lose_all_ports(tmp_path / "node")
    for i in range(1, count + 1):
        room.finds(f"n{i}", dead if i <= 10 else a_result("nic", findings=(), limits=()))

    room.collect(times=2)

    assert room.slurm.reserved == set()
    assert not any(node.drained for node in room.slurm.nodes.values())
    for i in range(1, 11):
        reason = room.node(f"n{i}").full_reason
        assert "all 8 InfiniBand ports are down at once" in reason
        assert "look at their switch" in reason
        assert told in reason


HUNG = Finding("mount_hung", "/home", "nfs of filer1 has not answered for 2 s")


@pytest.mark.parametrize("drain_errors", [(), ("hung",)])
def test_a_file_server_that_hangs_on_all_nodes_takes_none_out_of_service(
    tmp_path: Path, drain_errors: tuple[str, ...]
) -> None:
    room = a_room(tmp_path, 30)
    room.policy = {"check_share": Quarantine().check_share, "drain_errors": drain_errors}
    hung = conclude("host", host.CHECK, [HUNG])
    assert hung.verdict is Verdict.ERROR
    for i in range(1, 31):
        room.finds(f"n{i}", hung)

    room.collect(times=2)

    assert room.slurm.reserved == set()
    assert not any(node.drained for node in room.slurm.nodes.values())
    assert {room.node(f"n{i}").state for i in range(1, 31)} == {State.UNVERIFIED}
