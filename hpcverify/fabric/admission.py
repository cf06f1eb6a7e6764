"""
The end of an admission: nodes that were admitted together are tested with each other.

Each has passed its own suite, and stays in its own reservation. A job cannot span several
of them (Slurm 22.05 refuses it), so all are in one more for the tests: a maintenance
reservation may overlap with others. It ends by itself, should nobody be left to delete it.

A node that the tests name becomes a suspect, and is not let in. All others are: of what
was not found, the next sweeps try the links.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import groupby

from msgspec.structs import replace

from hpcverify.errors import UnverifiedError
from hpcverify.fabric.isolations import (
    carry_out_isolation,
    order_isolation,
    read_places,
    report_node,
)
from hpcverify.fabric.leftovers import (
    ADMISSION_LOCK_NAME,
    forget_isolation,
    name_reservation,
    remove_batches,
    unreserve,
)
from hpcverify.fabric.links import WAIT_S, name_kind
from hpcverify.fleet.claim import hold_controller_lock
from hpcverify.fleet.controller import Controller
from hpcverify.fleet.evidence import FaultReport
from hpcverify.fleet.holds_slurm import UNREGISTERED_STATE
from hpcverify.fleet.states import HOUR_S, Node, State, awaits_batch, compute_elapsed
from hpcverify.fleet.transitions import Purpose, admit_untested
from hpcverify.isolation.answer import IsolationAnswer
from hpcverify.isolation.journal import create_journal
from hpcverify.model import FABRIC_SUITE
from hpcverify.plan.hostlist import fold
from hpcverify.slurm import Host

RESERVED_MINUTES = 240
"""After that it ends by itself."""
MAX_WAIT_S = 2 * HOUR_S
"""How long a node that has passed waits for the others of its batch."""


def find_ready_batches(nodes: Collection[Node], now: float) -> Iterator[list[str]]:
    """List the nodes of each batch of which none is to be waited for any more."""
    admitted = [node for node in nodes if node.state is State.VERIFYING and node.batch]
    waiting = [node for node in admitted if awaits_batch(node)]
    slow = {node.batch for node in admitted if not awaits_batch(node)}
    for batch, group in groupby(sorted(waiting, key=lambda n: n.batch), lambda n: n.batch):
        members = list(group)
        waited = max(compute_elapsed(now, node.last_pass_at) for node in members)
        if batch not in slow or waited > MAX_WAIT_S:
            yield [node.name for node in members if node.hold_id and not node.foreign]


@dataclass(frozen=True)
class BatchTester:
    """Tests the nodes of a batch with each other, with at most *limit* jobs at once."""

    controller: Controller
    limit: int | None
    stop: Callable[[], bool]
    sleep: Callable[[float], None] = time.sleep

    def test_ready(self, only: Collection[str]) -> Iterator[IsolationAnswer]:
        """
        Test the batches that are ready, and admit their nodes; yield what was not clean.

        If *only* some nodes are to be touched, a batch must have no others. One process at
        a time does this; another one leaves it to the first.

        Raises:
            SlurmError: Slurm does not answer.
            ActionError: it takes no job.

        """
        controller = self.controller
        with ExitStack() as stack:
            try:
                lock = hold_controller_lock(
                    controller.state / ADMISSION_LOCK_NAME, controller.say, 0
                )
                stack.enter_context(lock)
            except UnverifiedError:
                controller.say("another hpcverify tests the nodes that were admitted")
                return
            nodes = controller.ledger.list_nodes().values()
            ready = find_ready_batches(nodes, controller.clock())
            batches = [names for names in ready if not only or set(names) <= set(only)]
            if batches:
                remove_batches(controller, self.sleep)
            for names in batches:
                yield from self._test_batch(names)

    def _test_batch(self, names: Collection[str]) -> Iterator[IsolationAnswer]:
        controller = self.controller
        hosts = controller.slurm.list_hosts()
        unheard = [n for n in names if n in hosts and hosts[n].state == UNREGISTERED_STATE]
        if unheard:  # no job would start, and they would be admitted untested
            controller.say(
                f"{fold(unheard)} has not registered with Slurm yet; the next sweep tests "
                f"{fold(names)} with each other"
            )
            return
        kinds = {name: name_kind(hosts[name]) for name in names if name in hosts}
        for _, group in groupby(sorted(kinds, key=kinds.__getitem__), kinds.__getitem__):
            members = list(group)
            why = "no other node of its kind has passed" if len(members) == 1 else ""
            if not controller.site.fabric.period_days:
                why = "[fabric] period_days is 0"
            if why:
                conclude(controller, members, dict.fromkeys(members, why))
                continue
            if self.stop():
                return
            answer = self._isolate([hosts[name] for name in members])
            if answer is None:
                controller.say(f"interrupted; the next sweep tests {fold(members)} anew")
                return
            known = {*answer.passed_nodes, *(faulty.node for faulty in answer.faulty)}
            unsure = f"not certain, see isolation {answer.id}"
            unclear = {n: answer.untested.get(n, unsure) for n in members if n not in known}
            conclude(controller, members, unclear, answer)
            if answer.has_cause or not answer.is_certain:
                yield answer

    def _isolate(self, hosts: Sequence[Host]) -> IsolationAnswer | None:
        controller, names = self.controller, [host.name for host in hosts]
        inside = min(host.gpus for host in hosts) > 1
        order = order_isolation(
            controller, names, read_places(controller, names), inside=inside, wait=WAIT_S
        )
        order = replace(order, reservation=name_reservation(order.id))
        answer = None
        # The journal comes first: whoever finds the reservation knows by it that it is ours.
        with closing(create_journal(controller.state, order)) as journal:
            controller.slurm.reserve(order.reservation, *names, minutes=RESERVED_MINUTES)
            controller.say(f"testing {fold(names)} with each other, isolation {order.id}")
            try:
                at_once = self.limit or controller.site.fleet.at_once
                answer = carry_out_isolation(
                    controller, journal, at_once, self.stop, self.sleep, reports_faulty=False
                )
            finally:
                unreserve(controller, order.reservation, self.sleep)
                if answer is None:
                    forget_isolation(controller, order.id)
        return answer


def conclude(
    controller: Controller,
    members: Collection[str],
    unclear: Mapping[str, str],
    answer: IsolationAnswer | None = None,
) -> None:
    """
    Judge each node that the *answer* finds faulty or not, all at once, as ordered.

    Those that are *unclear* are admitted. What a person has decided in the meantime stands.
    """
    reports: list[FaultReport] = []
    with controller.hold_lock():
        nodes = controller.ledger.list_nodes()
        waiting = [name for name in members if name in nodes and awaits_batch(nodes[name])]
        for name in waiting:
            if answer and name not in unclear:
                ticket = controller.ledger.issue_ticket(name, Purpose.ADMISSION, FABRIC_SUITE)
                reports.append(report_node(answer, name, ticket.token))
        controller.take_faults(reports)
        for name in waiting:
            if name in unclear:
                change = admit_untested(nodes[name], unclear[name], controller.clock())
                controller.ledger.put(change.node, change.what, change.detail)
                controller.say(f"{name}: {change.node.state}: {change.detail}")
        controller.reconcile()
