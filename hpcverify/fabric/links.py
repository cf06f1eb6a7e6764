"""
What a sweep does for the fabric: it tries links between idle nodes.

Which ones is planned from what the ledger has; how pairs are tested, and what spoils those
that fail, is an isolation like any other. A pair names nobody.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing
from functools import partial
from itertools import chain
from math import ceil
from random import Random

from msgspec import Struct

from hpcverify.errors import ActionError, SlurmError
from hpcverify.fabric.isolations import carry_out_isolation, order_isolation, read_switches
from hpcverify.fleet.controller import Controller
from hpcverify.fleet.states import DAY_S, Node, State
from hpcverify.isolation.answer import IsolationAnswer
from hpcverify.isolation.group_tests import GroupOutcome
from hpcverify.isolation.journal import (
    ConcludedIsolation,
    IsolationOrder,
    Journal,
    create_journal,
    list_unfinished,
    read_run,
)
from hpcverify.isolation.judge import PairSpeed
from hpcverify.isolation.links import LinkPair, LinkPlan, find_switch_pair, plan_links
from hpcverify.isolation.runner import VersionError
from hpcverify.plan.config import Fleet
from hpcverify.plan.hostlist import fold
from hpcverify.slurm import Host
from hpcverify.slurm.idle import explain_not_idle
from hpcverify.units import format_count

WAIT_S = 300.0
"""How long a node that a user's job has taken is waited for."""
PAIR_BUDGET, ISOLATION_BUDGET = 4.0, 300.0
"""Node-minutes for each pair, two nodes of which a test usually takes one each, and for what
isolates the cause if some fail: that of one pair takes about 60."""
MAX_SPARE = 16
"""Nodes in no pair that may help to isolate what spoils one."""


class FabricPlan(Struct, frozen=True, kw_only=True):
    """What a sweep tests between nodes."""

    links: LinkPlan
    idle: Mapping[str, str]
    """The nodes that can be tested now, and their kinds."""
    switches: Mapping[str, str]


def plan_fabric(
    controller: Controller, hosts: Mapping[str, Host], only: Collection[str] = ()
) -> FabricPlan:
    """
    Plan which links between *hosts*, or *only* some of them, to try now.

    Raises:
        SlurmError: Slurm does not answer.

    """
    partition = controller.site.fleet.partition
    switches = read_switches(controller)
    kinds = {n: name_kind(host) for n, host in hosts.items() if partition in host.partitions}
    nodes = controller.ledger.list_nodes()
    busy = {ticket.node for ticket in controller.ledger.list_open_tickets()}
    idle = {
        name: kind
        for name, kind in kinds.items()
        if (not only or name in only)
        and name not in busy
        and not explain_not_idle(hosts[name], reserved=False)
        # One under suspicion would only be a cause that is known.
        and (node := nodes.get(name) or Node(name=name)).state in {State.HEALTHY, State.UNVERIFIED}
        and not (node.foreign or node.owed_checks)
    }
    links = plan_links(
        idle,
        switches,
        controller.ledger.read_links().history,
        now=controller.clock(),
        period=controller.site.fabric.period_days * DAY_S,
        random=Random(controller.clock()),  # noqa: S311 - which of equals goes first
    )
    return FabricPlan(links=links, idle=idle, switches=switches)


def record_fabric(controller: Controller, hosts: Mapping[str, Host], plan: FabricPlan) -> None:
    """Record which nodes there are, so that it can be counted how many links were tried."""
    partition = controller.site.fleet.partition
    controller.ledger.record_fabric(
        {
            name: (name_kind(host), plan.switches.get(name, ""))
            for name, host in hosts.items()
            if partition in host.partitions
        }
    )


def name_kind(host: Host) -> str:
    """Name what nodes must have in common to be tested together."""
    return format_count(host.gpus, "GPU")


def make_orders(controller: Controller, plan: FabricPlan) -> Iterator[IsolationOrder]:
    """Order the tests of the planned pairs, for each kind of nodes on its own."""
    by_kind: dict[str, list[LinkPair]] = {}
    for pair in plan.links.pairs:
        by_kind.setdefault(plan.idle[pair.nodes[0]], []).append(pair)
    for kind, pairs in by_kind.items():
        paired = [node for pair in pairs for node in pair.nodes]
        others = (node for node, other in plan.idle.items() if other == kind)
        spare = [node for node in others if node not in set(paired)][:MAX_SPARE]
        nodes = (*paired, *spare)
        yield order_isolation(
            controller,
            nodes,
            plan.switches,
            inside=kind not in {"0 GPUs", "1 GPUs"},  # with one rank there is nothing to exchange
            budget=len(pairs) * PAIR_BUDGET + ISOLATION_BUDGET,
            wait=WAIT_S,
            pairs=tuple(pair.nodes for pair in pairs),
            node_kind=kind,
            usual=controller.ledger.read_usual_speeds(kind),
        )


def count_jobs_at_once(fleet: Fleet, hosts: Mapping[str, Host], limit: int | None) -> int:
    """Count the pairs that may be tested at once: as many nodes as may be verified at once."""
    sizes = [
        sum(partition in host.partitions for host in hosts.values())
        for partition in {p for host in hosts.values() for p in host.partitions}
        if partition != fleet.partition
    ]
    nodes = min([fleet.at_once, limit or fleet.at_once, *(ceil(fleet.share * n) for n in sizes)])
    return max(1, nodes // 2)


def take_in_links(controller: Controller, journal: Journal, answer: IsolationAnswer) -> None:
    """
    Record the links that were tried, and what pairs that passed have reached.

    A link was not tried if its test did not come to its end, or if the *answer* leaves
    open what spoiled it: such nodes stay due. To do it twice changes nothing.
    """
    order, outcomes = journal.order, _list_outcomes(journal)
    open_nodes = {*answer.untested, *chain.from_iterable(answer.intermittent)}
    tried = (
        LinkPair((node, other), find_switch_pair((node, other), order.switches))
        for (node, other), outcome in zip(order.pairs, outcomes, strict=bool(outcomes))
        if outcome is not GroupOutcome.UNKNOWN and open_nodes.isdisjoint((node, other))
    )
    controller.ledger.record_tried_links(tried, order.at)
    documents = journal.list_documents(1) if outcomes else ()
    runs = (
        read_run(journal.folder / name)
        for place, name, _ in documents
        if name and outcomes[place] is GroupOutcome.PASSED
    )
    speeds = (PairSpeed(t.operation, t.size, t.busbw) for run in runs if run for t in run.timings)
    controller.ledger.record_pair_speeds(order.node_kind, speeds, order.at)
    if answer.is_widespread:  # it is reported now; the same each night would be no news
        controller.ledger.forget_pair_speeds(order.node_kind)


def _list_outcomes(journal: Journal) -> list[GroupOutcome]:
    """List what came of the pairs, in their order; nothing if they were not tested."""
    judged = journal.rounds[0].judged if journal.rounds else None
    return [judgement.outcome for judgement in judged.judgements] if judged else []


def try_links(
    controller: Controller,
    only: Collection[str],
    limit: int | None,
    stop: Callable[[], bool],
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[IsolationAnswer]:
    """
    Try the links that are due between nodes that are idle; yield what was isolated.

    *only* these nodes are tested, with at most *limit* at once. Where all pairs pass,
    there is nothing to isolate. What a sweep before has left in the middle goes first.

    Raises:
        SlurmError: Slurm does not answer.
        ActionError: it takes no job.

    """
    at_once = count_jobs_at_once(controller.site.fleet, controller.slurm.list_hosts(), limit)
    for journal in list_unfinished(controller.state):
        nodes = {*chain.from_iterable(journal.order.pairs)}
        if nodes and (not only or nodes <= {*only}):
            controller.say(f"resuming isolation {journal.order.id}, which a sweep began")
            yield from _carry_out(controller, journal, at_once, stop, sleep)
        if stop():
            return
    hosts = controller.slurm.list_hosts()
    plan = plan_fabric(controller, hosts, only)
    record_fabric(controller, hosts, plan)
    if plan.links.alone:
        controller.say(
            f"{fold(plan.links.alone)}: due, but no node of its kind is idle to try links with"
        )
    for order in make_orders(controller, plan):
        pairs = format_count(len(order.pairs), "pair")
        controller.say(f"trying links: {pairs} of nodes, isolation {order.id}")
        with closing(create_journal(controller.state, order)) as journal:
            yield from _carry_out(controller, journal, at_once, stop, sleep)
        if stop():
            return


def _carry_out(
    controller: Controller,
    journal: Journal,
    at_once: int,
    stop: Callable[[], bool],
    sleep: Callable[[float], None],
) -> Iterator[IsolationAnswer]:
    try:
        answer = carry_out_pairs(controller, journal, at_once, stop, sleep)
    except VersionError as exc:  # its pairs are still due
        controller.say(str(exc))
        journal.append(ConcludedIsolation(at=controller.clock(), end_reason=str(exc)))
        return
    except ActionError as exc:
        if not isinstance(exc, SlurmError):  # no job is taken: the next sweep begins anew
            journal.append(ConcludedIsolation(at=controller.clock(), end_reason=str(exc)))
        raise
    if answer is None:
        controller.say(
            f"interrupted; resume with: hpcverify fabric bisect --resume {journal.order.id}"
        )
    elif GroupOutcome.FAILED in _list_outcomes(journal):
        yield answer
    else:  # one each night would fill the disk
        shutil.rmtree(journal.folder, ignore_errors=True)


def carry_out_pairs(
    controller: Controller,
    journal: Journal,
    at_once: int,
    stop: Callable[[], bool],
    sleep: Callable[[float], None] = time.sleep,
) -> IsolationAnswer | None:
    """Carry out an isolation of a sweep, from where it is, and record the links it tried."""
    take_in = partial(take_in_links, controller, journal)
    answer = carry_out_isolation(controller, journal, at_once, stop, sleep, take_in=take_in)
    if answer is not None:
        came_of = Counter(_list_outcomes(journal))
        outcomes = ", ".join(
            f"{came_of[outcome]} {outcome}" for outcome in GroupOutcome if came_of[outcome]
        )
        controller.say(
            f"links: {format_count(len(journal.order.pairs), 'pair')} of nodes: {outcomes}"
        )
    return answer
