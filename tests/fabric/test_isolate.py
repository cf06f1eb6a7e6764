"""
``hpcverify fabric bisect`` on nodes and switches with real faults, by real collectives.

What is at fault is named, all good nodes are cleared, and nobody else is faulty: six nodes
at three switches, links that carry 40 % of what they should.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest

from hpcverify.isolation.answer import IsolationAnswer
from tests.fabric.site import FabricSite, a_site, finish
from tests.fabric_lab.cluster import Fabric, a_fabric
from tests.fabric_lab.faults import MBIT

pytestmark = [
    pytest.mark.needs("root"),
    pytest.mark.timed,
    pytest.mark.needs("root", "slurmctld", "munged"),
]

SWITCHES = {"sw1": ("n1", "n2"), "sw2": ("n3", "n4"), "sw3": ("n5", "n6")}
FOUR_SWITCHES = {**SWITCHES, "sw4": ("n7", "n8")}
"""Of three, none has two others that are known to pass with each other."""
NODES = {node for nodes in SWITCHES.values() for node in nodes}
SLOW = 0.4 * MBIT
EXIT_CLEARED, EXIT_FOUND, EXIT_UNCERTAIN = 0, 1, 3

Inject = Callable[[Fabric], AbstractContextManager[None]]


@pytest.fixture(scope="module")
def shared_site() -> Iterator[FabricSite]:
    """Bring up six nodes at three switches, once for all scenarios."""
    with a_fabric(SWITCHES, MBIT) as fabric, a_site(fabric) as made:
        yield made


@pytest.fixture
def site(shared_site: FabricSite) -> FabricSite:
    """Give it once the jobs of the scenario before are over."""
    shared_site.fabric.cluster.until(shared_site.fabric.cluster.idle)
    return shared_site


def list_faulty(answer: IsolationAnswer) -> set[str]:
    """List all that is faulty, whatever it is."""
    links = {">".join(link) for link in answer.links}
    return {one.node for one in answer.faulty} | {*answer.switches} | links


def test_on_healthy_nodes_nobody_is_to_blame(site: FabricSite) -> None:
    answer, status = site.isolate()

    assert list_faulty(answer) == set()
    assert set(answer.passed_nodes) == NODES
    assert answer.is_certain
    assert status == EXIT_CLEARED


NODE_FAULTS: dict[str, tuple[Inject, str, set[str]]] = {
    "lossy": (lambda f: f.network.lossy("n1", 8), "n1", {"sends"}),
    "far away": (lambda f: f.network.delayed("n4", 0.02), "n4", {"sends", "receives"}),
    "unplugged": (lambda f: f.network.unplugged("n6"), "n6", {"sends", "receives"}),
    "hanging": (lambda f: f.hanging("n5"), "n5", {"sends", "receives"}),
    "little CPU": (lambda f: f.slow_cpu("n2", 0.1), "n2", {"sends", "receives"}),
}


@pytest.mark.parametrize("fault", NODE_FAULTS)
def test_a_node_with_a_fault_is_named_and_all_others_are_cleared(
    site: FabricSite, fault: str
) -> None:
    inject, node, ways = NODE_FAULTS[fault]
    with inject(site.fabric):
        answer, status = site.isolate()

    assert list_faulty(answer) == {node}
    assert set(answer.faulty[0].directions) <= ways
    assert set(answer.passed_nodes) == NODES - {node}
    assert status == EXIT_FOUND


def test_a_slow_link_is_named_and_both_its_nodes_are_cleared(site: FabricSite) -> None:
    with site.fabric.network.slow_link("n3", "n4", SLOW):
        answer, status = site.isolate()

    assert list_faulty(answer) == {"n3>n4"}
    assert set(answer.passed_nodes) == NODES
    assert status == EXIT_FOUND


def test_a_slow_switch_is_named_and_all_nodes_are_cleared() -> None:
    with (
        a_fabric(FOUR_SWITCHES, MBIT) as fabric,
        a_site(fabric) as site,
        fabric.network.slow_switch("sw2", SLOW),
    ):
        answer, status = site.isolate()

    assert list_faulty(answer) == {"sw2"}
    assert set(answer.passed_nodes) == {*NODES, "n7", "n8"}
    assert status == EXIT_FOUND


def test_a_slow_receiver_is_named_though_a_user_takes_another_node(
    site: FabricSite,
) -> None:
    cluster = site.fabric.cluster
    job = ("sbatch", "-p", "batch", "-w", "n4", "--exclusive", "-J", "user", "-o", "/dev/null")
    with site.fabric.network.slow_to_receive("n5", SLOW):
        begun = site.begin("--wait", "6s")
        cluster.until(lambda: site.count_lines("submitted"))
        cluster.run(*job, "--wrap", "sleep 9999")
        try:
            answer, status = finish(begun)
        finally:
            cluster.run("scancel", "--name=user")

    assert list_faulty(answer) == {"n5"}
    assert answer.faulty[0].directions == ("receives",)
    assert set(answer.untested) == {"n4"}
    assert set(answer.passed_nodes) == NODES - {"n4", "n5"}
    assert status == EXIT_FOUND


def test_a_slow_sender_is_named_by_an_isolation_that_was_killed(site: FabricSite) -> None:
    """No test that had ended, or that ran on, is repeated."""
    with site.fabric.network.slow_to_send("n6", SLOW):
        begun = site.begin()
        site.fabric.cluster.until(lambda: site.count_lines("judged"))
        under_way = site.count_lines("ended")
        site.fabric.cluster.until(lambda: site.count_lines("submitted") > under_way)
        begun.send_signal(signal.SIGKILL)
        begun.communicate()
        answer, status = site.isolate("--resume")

    assert list_faulty(answer) == {"n6"}
    assert answer.faulty[0].directions == ("sends",)
    assert set(answer.passed_nodes) == NODES - {"n6"}
    assert status == EXIT_FOUND
    assert max(Counter(site.list_tested()).values()) == 1
