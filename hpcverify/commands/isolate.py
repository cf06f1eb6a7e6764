"""``hpcverify fabric bisect``: find the node, link or switch that slows collectives."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from random import Random
from socket import gethostname

import click

from hpcverify.commands._controller import make_controller, record_command, refuse_unknown
from hpcverify.commands._options import (
    Duration,
    FiniteRange,
    json_option,
    optional_hostlist_argument,
)
from hpcverify.console import echo, print_json, say
from hpcverify.errors import ConfigError, UnknownNameError
from hpcverify.fabric.isolations import carry_out_isolation, order_isolation, read_places
from hpcverify.fabric.links import carry_out_pairs
from hpcverify.fleet.claim import check_claim
from hpcverify.fleet.controller import Controller
from hpcverify.isolation.answer import IsolationAnswer, describe_answer
from hpcverify.isolation.group_tests import name_members
from hpcverify.isolation.journal import (
    IsolationOrder,
    create_journal,
    resume_journal,
)
from hpcverify.isolation.stages import isolate
from hpcverify.plan.hostlist import expand, fold
from hpcverify.run.stop import stop_on_signals
from hpcverify.slurm import Host
from hpcverify.slurm.idle import explain_not_idle
from hpcverify.units import format_count

MIN_NODES = 2
ENOUGH_NODES = 4
TOO_FEW = f"of fewer than {ENOUGH_NODES} nodes none can be named for being slow"
LAST = "last"
WAIT_S = 300.0
EXIT_FOUND, EXIT_UNCERTAIN = 1, 3


@click.command("bisect")
@optional_hostlist_argument
@click.option(
    "--budget", type=FiniteRange(min=1), metavar="N", help="Spend at most N node-minutes."
)
@click.option(
    "--max-jobs",
    type=click.IntRange(1),
    metavar="N",
    default=32,
    show_default=True,
    help="Run at most N jobs at a time.",
)
@click.option(
    "--wait",
    type=Duration(),
    show_default=f"{WAIT_S / 60:g}m",
    help="Wait this long for a node that a user's job took.",
)
@click.option("--reservation", default="", metavar="NAME", help="Run in this Slurm reservation.")
@click.option(
    "--resume",
    is_flag=False,
    flag_value=LAST,
    metavar="[ID]",
    help="Resume an interrupted search: the last search, or ID.",
)
@click.option("--dry-run", is_flag=True, help="Print the plan; do not run jobs.")
@json_option
@record_command()
def command(
    *,
    hostlist: str | None,
    budget: float | None,
    max_jobs: int,
    wait: float | None,
    reservation: str,
    resume: str | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """
    Find the node, link or switch that slows or corrupts collectives between nodes.

    Groups of idle nodes (of HOSTLIST, or all) run collectives as jobs that users' jobs
    preempt. Groups that fail are split. A node is reported only if it fails with different
    partners that pass; it becomes a suspect and stays in service. Ctrl-C cancels the jobs;
    --resume continues.

    Exit status 1 if a node, link or switch is faulty; 3 if the result is not certain:
    intermittent, untested, out of budget or interrupted.

    \b
    Examples:
      hpcverify fabric bisect n[1-232] --dry-run
      hpcverify fabric bisect n[1-232] --budget 2000
      hpcverify fabric bisect --resume
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    controller = make_controller()
    check_claim(Path(controller.site.fleet.spool), controller.ledger, gethostname())
    if resume is not None:
        if hostlist or dry_run or reservation or budget or wait is not None:
            raise click.UsageError("--resume continues a search: leave out the other options")
        journal = resume_journal(controller.state, "" if resume == LAST else resume)
        say(f"resuming isolation {journal.order.id}")
    else:
        wait_s = WAIT_S if wait is None else wait
        order = make_order(controller, hostlist, reservation, budget or 0.0, wait_s)
        if len(order.nodes) < ENOUGH_NODES:
            say(f"{TOO_FEW}: add some that are well")
        if dry_run:
            show_plan(order, as_json=as_json)
            return
        journal = create_journal(controller.state, order)
        summary = f"isolation {order.id}: {format_count(len(order.nodes), 'node')}"
        say(f"{summary}, {fold(order.nodes)}")
    with closing(journal), stop_on_signals() as stop:
        carry_out = carry_out_pairs if journal.order.pairs else carry_out_isolation
        answer = carry_out(controller, journal, max_jobs, stop)
    if answer is None:
        say(f"interrupted; resume with: hpcverify fabric bisect --resume {journal.order.id}")
        sys.exit(EXIT_UNCERTAIN)
    if as_json:
        print_json(answer)
    else:
        echo("\n".join(describe_answer(answer)))
    sys.exit(choose_exit_status(answer))


def make_order(
    controller: Controller, hostlist: str | None, reservation: str, budget: float, wait: float
) -> IsolationOrder:
    """
    Choose the nodes that are idle now, and note why the others are left out.

    Raises:
        ConfigError: too few are, or a name is wrong.
        SlurmError: Slurm does not answer.

    """
    hosts = controller.slurm.list_hosts()
    partition = controller.dispatcher.partition.name
    names = expand(hostlist) if hostlist else list(hosts)
    refuse_unknown(names, hosts)
    if reservation and reservation not in (there := controller.slurm.list_reservations()):
        raise UnknownNameError("reservation", reservation, there)
    reserved = (
        set(controller.slurm.list_reservations()[reservation].nodes) if reservation else set()
    )
    reasons = {n: explain_left_out(hosts[n], partition, reserved, reservation) for n in names}
    left_out = {node: why for node, why in reasons.items() if why and (hostlist or why != OUTSIDE)}
    nodes = [node for node, why in reasons.items() if not why]
    if len(nodes) < MIN_NODES:
        raise ConfigError(f"fewer than two nodes can be tested: {explain(left_out)}")
    switches = read_places(controller, nodes)
    gpus = {hosts[node].gpus for node in nodes}
    return order_isolation(
        controller,
        nodes,
        switches,
        left_out=left_out,
        inside=min(gpus) > 1,  # with one rank there is nothing to exchange
        budget=budget,
        wait=wait,
        reservation=reservation,
    )


OUTSIDE = "is not in the partition of verifications"


def explain_left_out(host: Host, partition: str, reserved: set[str], reservation: str) -> str:
    """Say why *host* cannot be tested now; empty if it can."""
    if partition not in host.partitions:
        return OUTSIDE
    if reservation and host.name not in reserved:
        return f"is not in reservation {reservation}"
    return explain_not_idle(host, reserved=bool(reservation))


def explain(left_out: Mapping[str, str]) -> str:
    """Say why some nodes are left out."""
    reasons = [f"{node} {why}" for node, why in left_out.items()]
    return name_members(reasons) or "there is no other"


def choose_exit_status(answer: IsolationAnswer) -> int:
    """Choose the exit status for *answer*."""
    if answer.has_cause:
        return EXIT_FOUND
    return 0 if answer.is_certain else EXIT_UNCERTAIN


def show_plan(order: IsolationOrder, *, as_json: bool) -> None:
    """Print what would be tested."""
    random = Random(order.seed)  # noqa: S311 - of a plan
    first = next(isolate(order.nodes, order.switches, random, inside=False))
    nodes, left_out, switches = order.nodes, order.left_out, len({*order.switches.values()})
    if as_json:
        plan = {"nodes": nodes, "left_out": left_out, "switches": switches}
        print_json({**plan, "inside": order.inside, "first": first})
        return
    if switches:
        groups = f"by {switches} switch{'' if switches == 1 else 'es'} or racks"
    else:
        groups = (
            "by lot: Slurm has no topology, the site file no [fabric] switches, and names no rack"
        )
    echo(f"{format_count(len(nodes), 'node')}, {fold(nodes)}, in groups {groups}")
    if left_out:
        echo(f"left out: {explain(left_out)}")
    stages = ["each node alone"] if order.inside else []
    stages += ["groups of nodes", "groups of switches"] if switches else ["groups of nodes"]
    echo(f"stages: {', '.join(stages)}")
    echo("first groups:")
    for test in first:
        echo(f"  {fold(test.members)}")
