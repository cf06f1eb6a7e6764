"""Holding nodes of a real Slurm, with an administrator who does as he likes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

import pytest
from msgspec.structs import replace

from hpcverify.errors import SlurmError
from hpcverify.fleet.holds import HoldReading, apply_hold, take_over_hook_drain
from hpcverify.fleet.holds_slurm import SlurmBackend, build_reading, list_untouchable_states
from hpcverify.fleet.ledger import Ledger
from hpcverify.fleet.states import Node, State
from hpcverify.slurm import Host, Reservation
from hpcverify.slurm.client import Slurm
from tests.slurm_lab.lab import Cluster, a_cluster

THEIRS = "PSU swap"
ODD = 'it\'s "50 %" of $HOME `x` | a=b; \\n [root@now] ü ,n[1-4] #1'


@pytest.fixture(scope="module")
def shared() -> Iterator[Cluster]:
    """Bring up two nodes for all tests of this module."""
    with a_cluster(2) as up:
        yield up


@pytest.fixture
def cluster(shared: Cluster) -> Iterator[Cluster]:
    """Give the cluster to a test, and nothing held on it to the next."""
    yield shared
    for name in shared.slurm.list_reservations():
        shared.slurm.unreserve(name)

    def is_calm() -> bool:
        # If Slurm missed the node's registration, it asks again only with its next ping.
        shared.slurm.resume("n1")
        return shared.idle("n1", "n2")

    shared.until(is_calm, seconds=200)


def a_node(state: State, hold: str = "") -> Node:
    return Node(name="n1", state=state, reason="gemm: slow", enforced=True, hold_id=hold)


def admin_drains(cluster: Cluster, reason: str = THEIRS) -> None:
    cluster.run("scontrol", "update", "nodename=n1", "state=drain", f"reason={reason}")


def interposed(cluster: Cluster, before: str, act: Callable[[], object]) -> SlurmBackend:
    """Have *act* done once, just before the first command with *before* in it."""
    waiting = [act]

    def run(command: Sequence[str]) -> str:
        if waiting and before in command:
            waiting.pop()()
        return cluster.slurm.run(command)

    return SlurmBackend(dataclasses.replace(cluster.slurm, run=run))


def test_a_node_is_held_through_its_life(cluster: Cluster, ledger: Ledger) -> None:
    keeper = SlurmBackend(cluster.slurm)
    node = apply_hold(a_node(State.SUSPECT), keeper, ledger)
    assert keeper.read_hold("n1") == HoldReading(node="n1", reserved=True)
    mark = node.hold_id

    node = apply_hold(a_node(State.QUARANTINED, mark), keeper, ledger)
    seen = keeper.read_hold("n1")
    assert (seen.drained, seen.reserved, seen.hold_id) == (True, False, mark)
    assert seen.reason == f"{mark} gemm: slow"

    node = apply_hold(a_node(State.VERIFYING, mark), keeper, ledger)
    assert keeper.read_hold("n1") == HoldReading(node="n1", reserved=True)

    assert apply_hold(a_node(State.HEALTHY, mark), keeper, ledger).hold_id == ""
    assert keeper.read_holds() == {name: HoldReading(node=name) for name in ("n1", "n2")}


def test_a_drain_of_others_before_ours_is_left_alone(cluster: Cluster, ledger: Ledger) -> None:
    admin_drains(cluster, ODD)
    node = apply_hold(a_node(State.QUARANTINED), SlurmBackend(cluster.slurm), ledger)
    assert node.foreign == cluster.slurm.list_hosts("n1")["n1"].reason
    assert apply_hold(a_node(State.HEALTHY), SlurmBackend(cluster.slurm), ledger).foreign
    assert SlurmBackend(cluster.slurm).read_hold("n1").drained


def test_a_drain_of_others_after_our_first_read_keeps_its_reason(
    cluster: Cluster, ledger: Ledger
) -> None:
    intents: list[str] = []

    class Book(Ledger):
        def record_intent(self, node: str, act: str, reason: str, before: str = "") -> int:
            intents.append(act)
            admin_drains(cluster)
            return super().record_intent(node, act, reason, before)

    book = Book(ledger.path.parent)
    node = apply_hold(a_node(State.QUARANTINED), SlurmBackend(cluster.slurm), book)

    assert intents == ["drain"]
    assert (node.foreign, node.hold_id) == (THEIRS, "")
    assert SlurmBackend(cluster.slurm).read_hold("n1").reason == THEIRS


def test_a_drain_of_others_right_before_our_write_leaves_the_node_drained(
    cluster: Cluster, ledger: Ledger
) -> None:
    # Slurm keeps no reason but the last: theirs is lost, the node is not let go.
    keeper = interposed(cluster, "update", lambda: admin_drains(cluster))
    node = apply_hold(a_node(State.QUARANTINED), keeper, ledger)
    assert keeper.read_hold("n1").hold_id == node.hold_id != ""


def test_a_drain_of_others_after_ours_takes_the_node_over(cluster: Cluster, ledger: Ledger) -> None:
    keeper = SlurmBackend(cluster.slurm)
    node = apply_hold(a_node(State.QUARANTINED), keeper, ledger)
    admin_drains(cluster, ODD)

    node = apply_hold(node, keeper, ledger)

    assert (node.state, node.foreign) == (State.UNVERIFIED, keeper.read_hold("n1").reason)
    assert keeper.read_hold("n1").drained


def test_who_resumes_a_node_of_ours_is_not_worked_against(cluster: Cluster, ledger: Ledger) -> None:
    keeper = SlurmBackend(cluster.slurm)
    node = apply_hold(a_node(State.QUARANTINED), keeper, ledger)
    cluster.run("scontrol", "update", "nodename=n1", "state=resume")
    assert apply_hold(node, keeper, ledger).state is State.UNVERIFIED
    assert keeper.read_hold("n1") == HoldReading(node="n1")


@pytest.mark.parametrize("reason", [THEIRS, ODD])
def test_a_reason_that_our_late_write_replaced_is_given_back_word_for_word(
    cluster: Cluster, ledger: Ledger, reason: str
) -> None:
    keeper = SlurmBackend(cluster.slurm)
    ledger.record_intent("n1", "drain", "hpcverify[aa11bb] gemm: slow")
    keeper.drain("n1", reason)
    node = apply_hold(a_node(State.QUARANTINED), keeper, ledger)
    assert node.foreign == reason
    keeper.drain("n1", "hpcverify[aa11bb] gemm: slow")  # it comes about only now

    assert apply_hold(node, keeper, ledger).foreign == reason
    assert keeper.read_hold("n1").reason == reason


def test_a_controller_that_does_not_answer_has_nothing_done(
    cluster: Cluster, ledger: Ledger
) -> None:
    def away(command: Sequence[str]) -> str:
        raise SlurmError(f"{command[0]}: Unable to contact slurm controller")

    with pytest.raises(SlurmError):
        apply_hold(a_node(State.QUARANTINED), SlurmBackend(Slurm(run=away)), ledger)

    assert SlurmBackend(cluster.slurm).read_hold("n1") == HoldReading(node="n1")
    assert ledger.list_intents("n1") == []


def test_a_node_that_is_down_is_left_alone(cluster: Cluster, ledger: Ledger) -> None:
    keeper = SlurmBackend(cluster.slurm)
    cluster.run("scontrol", "update", "nodename=n1", "state=down", f"reason={THEIRS}")
    node = apply_hold(a_node(State.QUARANTINED), keeper, ledger)
    assert (node.foreign, keeper.read_hold("n1").drained) == (THEIRS, False)
    cluster.run("scontrol", "update", "nodename=n1", "state=resume")


def test_a_node_in_the_reservation_of_others_is_left_alone(
    cluster: Cluster, ledger: Ledger
) -> None:
    keeper = SlurmBackend(cluster.slurm)
    cluster.slurm.reserve("works", "n1")
    cluster.until(lambda: keeper.read_hold("n1").unavailable)
    assert "MAINT" in apply_hold(a_node(State.QUARANTINED), keeper, ledger).foreign
    assert not keeper.read_hold("n1").drained


def test_a_node_in_a_reservation_of_users_is_reserved_verified_and_drained_all_the_same(
    cluster: Cluster, ledger: Ledger
) -> None:
    keeper = SlurmBackend(cluster.slurm)
    team = ["reservationname=team", "nodes=n1", "starttime=now", "duration=1-0", "users=nobody"]
    cluster.run("scontrol", "create", "reservation", *team)
    cluster.until(lambda: "RESERVED" in cluster.slurm.list_hosts("n1")["n1"].flags)
    assert keeper.read_hold("n1") == HoldReading(node="n1")

    node = apply_hold(a_node(State.SUSPECT), keeper, ledger)
    assert (keeper.read_hold("n1").reserved, node.foreign) == (True, "")
    ours = ["--reservation=hpcverify-n1", "-w", "n1", "-o", "/dev/null", "-J", "ours"]
    cluster.run("sbatch", *ours, "--wrap", "true")
    asked = ["squeue", "-h", "-t", "all", "-n", "ours", "-o", "%T"]
    cluster.until(lambda: cluster.run(*asked).strip() == "COMPLETED")

    node = apply_hold(a_node(State.QUARANTINED, node.hold_id), keeper, ledger)
    assert (keeper.read_hold("n1").drained, keeper.read_hold("n1").reserved) == (True, False)
    assert apply_hold(a_node(State.HEALTHY, node.hold_id), keeper, ledger).hold_id == ""
    assert keeper.read_hold("n1") == HoldReading(node="n1")
    assert "team" in cluster.slurm.list_reservations()


def test_our_reservation_stays_until_our_job_in_it_ends(cluster: Cluster, ledger: Ledger) -> None:
    keeper = SlurmBackend(cluster.slurm)
    node = apply_hold(a_node(State.SUSPECT), keeper, ledger)
    options = ["--reservation=hpcverify-n1", "-w", "n1", "-o", "/dev/null"]
    cluster.run("sbatch", *options, "--begin=now+1hour", "--wrap", "true")

    node = apply_hold(a_node(State.QUARANTINED, node.hold_id), keeper, ledger)
    assert (keeper.read_hold("n1").drained, keeper.read_hold("n1").reserved) == (True, True)

    cluster.run("scancel", "--name=wrap")
    cluster.until(lambda: not cluster.run("squeue", "-h"))
    apply_hold(node, keeper, ledger)
    assert not keeper.read_hold("n1").reserved


def test_the_drain_of_a_prolog_that_failed_can_be_made_ours(
    cluster: Cluster, ledger: Ledger
) -> None:
    keeper = SlurmBackend(cluster.slurm)
    admin_drains(cluster, "Prolog error")  # by root, who is this cluster's SlurmUser

    node = take_over_hook_drain(a_node(State.QUARANTINED), keeper.read_hold("n1"), keeper, ledger)

    assert keeper.read_hold("n1").reason == f"{node.hold_id} gemm: slow"
    apply_hold(a_node(State.HEALTHY, node.hold_id), keeper, ledger)
    assert keeper.read_hold("n1") == HoldReading(node="n1")


MAINT = Reservation(name="works", nodes=("n1",), flags=frozenset({"MAINT"}))
TEAM = Reservation(name="team", nodes=("n1",), flags=frozenset({"SPEC_NODES"}))
BOTH = frozenset({"MAINT", "RESERVED"})


@pytest.mark.parametrize(
    ("host", "reservations", "forbidding"),
    [
        (Host(name="n1", state="IDLE"), [MAINT], []),  # works that are to come
        (Host(name="n1", state="IDLE", flags=frozenset({"MAINT"})), [], []),
        (Host(name="n1", state="IDLE", flags=frozenset({"MAINT"})), [MAINT], ["MAINT"]),
        (Host(name="n1", state="IDLE", flags=BOTH), [TEAM, MAINT], ["MAINT"]),
        (Host(name="n1", state="IDLE", flags=frozenset({"RESERVED"})), [TEAM], []),
        (Host(name="n1", state="IDLE", flags=BOTH), [TEAM], []),  # ours has just ended
        (Host(name="n1", state="UNKNOWN"), [], ["UNKNOWN"]),
        (Host(name="n1", state="IDLE", flags=frozenset({"PLANNED"})), [], []),
        (
            Host(name="n1", state="IDLE", flags=frozenset({"REBOOT_ISSUED", "DRAIN"})),
            [],
            ["REBOOT_ISSUED"],
        ),
        (Host(name="n1", state="IDLE", flags=frozenset({"POWERED_DOWN"})), [], ["POWERED_DOWN"]),
    ],
)
def test_some_states_forbid_touching_a_node(
    host: Host, reservations: list[Reservation], forbidding: list[str]
) -> None:
    assert list_untouchable_states(host, reservations) == forbidding


@pytest.mark.parametrize(
    ("reason", "by", "its_own"),
    [
        ("Prolog error", "slurm", True),
        ("Epilog error", "slurm", True),
        ("Prolog error", "jane", False),
        ("Prolog error: see ticket 4", "slurm", False),
        ("Not responding", "slurm", False),
    ],
)
def test_what_slurm_drained_for_a_hook_is_told_by_reason_and_user(
    reason: str, by: str, *, its_own: bool
) -> None:
    flags = frozenset({"DRAIN"})
    host = Host(name="n1", state="IDLE", flags=flags, reason=reason, reason_user=by)
    assert build_reading(host, {}, "slurm").hook_failed is its_own


# -- a reboot, which Slurm writes into the reason of the node


@pytest.fixture
def rebooting() -> Iterator[Cluster]:
    """Bring up a node of its own to reboot, since Slurm may yet set it down for that."""
    with a_cluster(1, extra="RebootProgram=/bin/true\nResumeTimeout=600") as up:
        yield up


RESTARTS = 5
"""Slurm takes the first registration after a reboot, now and then, for one from before it."""


def reboot(cluster: Cluster, *how: str) -> None:
    """Have n1 rebooted by Slurm, and wait until it is back."""

    def flags() -> frozenset[str]:
        return cluster.slurm.list_hosts("n1")["n1"].flags

    cluster.run("scontrol", "reboot", *how, "n1")
    cluster.until(lambda: "REBOOT_ISSUED" in flags())
    for _ in range(RESTARTS):
        cluster.stop("n1")
        cluster.start("n1")
        with suppress(AssertionError):
            cluster.until(lambda: flags() <= {"DRAIN"}, seconds=60)
            break
    cluster.until(lambda: cluster.slurm.list_hosts("n1")["n1"].state == "IDLE")


@pytest.mark.system
def test_a_node_that_we_drained_stays_ours_when_it_is_rebooted(
    rebooting: Cluster, ledger: Ledger
) -> None:
    keeper = SlurmBackend(rebooting.slurm)
    bad = replace(a_node(State.QUARANTINED), reason=ODD)
    node = apply_hold(bad, keeper, ledger)
    said = keeper.read_hold("n1").reason
    reboot(rebooting)

    assert keeper.read_hold("n1").reason != said
    assert apply_hold(node, keeper, ledger) == node
    assert apply_hold(a_node(State.HEALTHY, node.hold_id), keeper, ledger).hold_id == ""
    assert not keeper.read_hold("n1").drained


def test_a_node_that_is_rebooted_into_service_is_not_acquitted(
    rebooting: Cluster, ledger: Ledger
) -> None:
    keeper = SlurmBackend(rebooting.slurm)
    bad = replace(a_node(State.QUARANTINED), checks=("gemm",))
    node = apply_hold(bad, keeper, ledger)
    reboot(rebooting, "ASAP", "nextstate=RESUME")

    after = apply_hold(node, keeper, ledger)

    assert (after.state, after.owed_checks) == (State.UNVERIFIED, ("gemm",))
    assert after.reason.startswith("returned to service by somebody else, not verified")
    assert not keeper.read_hold("n1").drained
