"""Isolations of this site: whose jobs they are, where its switches are, and what they leave."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from hpcverify.errors import ConfigError
from hpcverify.fleet.accusation import build_accusation
from hpcverify.fleet.controller import Controller
from hpcverify.fleet.orders import list_site_options, look_up_uid
from hpcverify.isolation.answer import IsolationAnswer, build_answer
from hpcverify.isolation.group_jobs import GroupJobSettings
from hpcverify.isolation.journal import Journal
from hpcverify.isolation.rounds import Interrupted, RoundTester
from hpcverify.isolation.runner import IsolationRunner
from hpcverify.plan.config import Site
from hpcverify.records import spool
from hpcverify.slurm.topology import index_switches


def read_switches(acting: Controller) -> dict[str, str]:
    """
    Read which nodes are at which switch: what the site says, else Slurm's topology.

    Raises:
        ConfigError: the site file names a switch of no node.
        SlurmError: Slurm does not answer.

    """
    if not (named := acting.site.fabric.switches):
        return acting.slurm.read_switches()
    try:
        return index_switches(named.items())
    except ConfigError as exc:
        raise ConfigError(f"{acting.site.path}: fabric.switches: {exc}") from exc


def carry_out_isolation(
    acting: Controller,
    journal: Journal,
    at_once: int,
    stop: Callable[[], bool],
    sleep: Callable[[float], None] = time.sleep,
) -> IsolationAnswer | None:
    """
    Test until it is known who is to blame, and leave runs of those; None: interrupted.

    At most *at_once* jobs run at a time.
    """
    site = acting.site
    tester = RoundTester(
        journal=journal,
        slurm=acting.slurm,
        settings=make_settings(site, journal.order.reservation),
        spool=Path(site.fleet.spool),
        owner=look_up_uid(site.fleet.user),
        at_once=at_once,
        say=acting.say,
        stop=stop,
        clock=acting.clock,
        sleep=sleep,
    )
    tester.prepare()
    runner = IsolationRunner(journal, tester, acting.say, acting.clock)
    try:
        found = runner.run()
    except Interrupted:
        return None
    answer = build_answer(journal, found, tester.gone, runner.end_reason)
    if journal.concluded is None:
        for accused in answer.accused:
            run = build_accusation(answer, accused, datetime.now(UTC))
            spool.deposit(run, Path(site.fleet.spool), owner=tester.owner)
    runner.conclude()
    tester.clean_up()
    return answer


def make_settings(site: Site, reservation: str) -> GroupJobSettings:
    """Take over what the jobs of a sweep have; use the nodes of *reservation*, if any."""
    fleet = site.fleet
    return GroupJobSettings(
        partition=fleet.partition,
        reservation=reservation,
        user="" if look_up_uid(fleet.user) == os.geteuid() else fleet.user,
        program=fleet.program,
        options=tuple(list_site_options(fleet)),
    )
