"""Isolations of this site: whose jobs they are, where its switches are, and what they leave."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from hpcverify.errors import ConfigError
from hpcverify.fabric.link_events import record_links
from hpcverify.fleet.controller import Controller
from hpcverify.fleet.evidence import FaultReport, build_fault
from hpcverify.fleet.orders import list_site_options
from hpcverify.isolation.answer import IsolationAnswer, build_answer, describe_record
from hpcverify.isolation.journal import IsolationOrder, Journal, make_isolation_id
from hpcverify.isolation.runner import GroupJobSettings, Interrupted, IsolationRunner
from hpcverify.model import COLLECTIVES_CHECK, Source
from hpcverify.plan.config import look_up_uid
from hpcverify.records.spool import read_id_time
from hpcverify.selection.places import find_rack
from hpcverify.slurm.topology import index_switches


def read_switches(controller: Controller) -> dict[str, str]:
    """
    Read which nodes are at which switch: what the site says, else Slurm's topology.

    Raises:
        ConfigError: the site file names a switch of no node.
        SlurmError: Slurm does not answer.

    """
    if not (named := controller.site.fabric.switches):
        return controller.slurm.read_switches()
    try:
        return index_switches(named.items())
    except ConfigError as exc:
        file = controller.site.find_file("fabric", "switches")
        raise ConfigError(f"{file}: fabric.switches: {exc}") from exc


def read_places(controller: Controller, nodes: Iterable[str]) -> dict[str, str]:
    """
    Read the switch of each of *nodes*, or where none is known the rack that its name has.

    Raises:
        ConfigError: the site file names a switch of no node.
        SlurmError: Slurm does not answer.

    """
    switches = read_switches(controller)
    places = ((node, switches.get(node) or find_rack(node)) for node in nodes)
    return {node: place for node, place in places if place}


def order_isolation(
    controller: Controller, nodes: Sequence[str], switches: Mapping[str, str], **own: Any
) -> IsolationOrder:
    """Order the isolation of *nodes* at their *switches*, with *own* fields of the order."""
    return IsolationOrder(
        id=make_isolation_id(),
        at=controller.clock(),
        version=version("hpcverify"),
        nodes=tuple(nodes),
        switches={node: switches[node] for node in nodes if node in switches},
        seed=os.urandom(8).hex(),
        **own,
    )


def carry_out_isolation(
    controller: Controller,
    journal: Journal,
    at_once: int,
    stop: Callable[[], bool],
    sleep: Callable[[float], None] = time.sleep,
    *,
    reports_faulty: bool = True,
    take_in: Callable[[IsolationAnswer], object] = lambda _: None,
) -> IsolationAnswer | None:
    """
    Test until the cause is known; None: interrupted.

    Faulty nodes become suspects and nothing else, unless the caller *reports* them. At most
    *at_once* jobs run at a time. What the caller has to *take in* from the answer, it does
    before the isolation has ended: if it is killed meanwhile, it does so again.

    Raises:
        SlurmError: Slurm does not answer.

    """
    fleet = controller.site.fleet
    owner = look_up_uid(fleet.user)
    runner = IsolationRunner(
        journal=journal,
        slurm=controller.slurm,
        settings=GroupJobSettings(  # as the jobs of a sweep have them
            partition=fleet.partition,
            reservation=journal.order.reservation,
            user="" if owner == os.geteuid() else fleet.user,
            program=fleet.program,
            options=tuple(list_site_options(fleet)),
        ),
        spool=Path(fleet.spool),
        owner=owner,
        at_once=at_once,
        say=controller.say,
        stop=stop,
        clock=controller.clock,
        sleep=sleep,
    )
    try:
        result = runner.run()
    except Interrupted:
        return None
    answer = build_answer(journal, result, runner.gone, runner.end_reason)
    if journal.concluded is None:
        if answer.faulty and reports_faulty:
            reported = False
            with (
                controller.run_convenience("faults of nodes that were tested with each other"),
                controller.hold_lock(),
            ):
                controller.take_faults(report_node(answer, each.node) for each in answer.faulty)
                reported = True
            if not reported:  # the journal stays open: the next sweep reports them
                return answer
        take_in(answer)
        record_links(controller.ledger, journal.order, answer)
    runner.conclude()
    return answer


def report_node(answer: IsolationAnswer, node: str, token: str = "") -> FaultReport:
    """Report which tests *node* failed; if it is not faulty, that it passed; see `FaultReport`."""
    faults = [
        build_fault(
            COLLECTIVES_CHECK,
            "isolated",
            faulty.summary,
            {
                "isolation": answer.id,
                "failed": "; ".join(map(describe_record, faulty.failed)),
                "passed": "; ".join(map(describe_record, faulty.passed)) or "none",
            },
        )
        for faulty in answer.faulty
        if faulty.node == node
    ]
    return FaultReport(
        node=node,
        source=Source.FABRIC,
        at=read_id_time(answer.id).timestamp(),
        key=(answer.id,),
        faults=tuple(faults),
        examined=frozenset({COLLECTIVES_CHECK}),
        token=token,
    )
