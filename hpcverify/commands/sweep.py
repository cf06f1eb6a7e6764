"""``hpcverify fleet sweep``: verify idle nodes through the scheduler."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress

import click

from hpcverify.commands._controller import (
    make_controller,
    refuse_unknown,
    report_brakes,
    tell_once_of_measurements,
)
from hpcverify.commands._options import SUITE, Duration, json_option, optional_hostlist_argument
from hpcverify.console import echo, print_json, say
from hpcverify.errors import ActionError, ConfigError, SlurmError
from hpcverify.fabric.admission import BatchTester
from hpcverify.fabric.links import plan_fabric, try_links
from hpcverify.fleet.controller import Controller
from hpcverify.insight.job_sensor import take_suspicions
from hpcverify.insight.night import judge_finished_night
from hpcverify.isolation.answer import IsolationAnswer, describe_answer
from hpcverify.model import Verdict
from hpcverify.plan.config import Site
from hpcverify.plan.hostlist import expand, fold
from hpcverify.plan.suite import list_suites, load_suite, make_plan
from hpcverify.run.stop import StopFlag, stop_on_signals
from hpcverify.selection.suites import (
    FAULT_SOURCE,
    SuiteFaultCoverage,
    choose_suite,
    compute_fault_coverage,
)
from hpcverify.selection.weighting import describe_gains, describe_weighting
from hpcverify.slurm import Host
from hpcverify.summary.terminal import Console, print_items, print_table
from hpcverify.units import format_count

POLL_S = 0.1
"""Between looks at whether we are to end."""
TURN_INTERVAL_S = 1.5
"""Between cycles; what they ask Slurm is paced besides."""
CYCLE_S = 60.0
"""Between the controller's cycles while nodes are tested with each other."""
MAX_AWAY_S = 600.0
"""How long a sweep waits for a Slurm that does not answer."""
MAX_REASONS = 5
"""How many reasons are printed why no node was due."""
EXIT_STATUSES = {Verdict.FAIL: 1, Verdict.ERROR: 3}
UNCLEAR_STATUS = 3
STATUS_RANKS = (ActionError.exit_code, 1, UNCLEAR_STATUS)
"""Exit statuses, the worst first."""


@click.command("sweep")
@click.option("--suite", type=SUITE, help="Run this suite (default: fleet.suite of the site).")
@click.option(
    "--time",
    type=Duration(low=60),
    help="Choose the suite with the best coverage that takes at most this long per node.",
)
@optional_hostlist_argument
@click.option(
    "--max-jobs",
    "limit",
    type=click.IntRange(1),
    metavar="N",
    help="Verify at most N nodes at a time.",
)
@click.option("--dry-run", is_flag=True, help="Print the plan; do not run jobs.")
@click.option(
    "--explain", is_flag=True, help="Print the risk of each node and its causes (with --dry-run)."
)
@json_option
def command(
    suite: str | None,
    time: float | None,
    hostlist: str | None,
    limit: int | None,
    *,
    dry_run: bool,
    explain: bool,
    as_json: bool,
) -> None:
    """
    Verify idle nodes through Slurm, with jobs that users' jobs preempt.

    Nodes that failed or returned to service come first, then the nodes with the highest risk;
    one place in ten is for the node with the oldest verification. If Slurm keeps accounts,
    nodes on which users' jobs fail early become suspects. If [fabric] period_days is set,
    admitted nodes are then tested with each other, and idle pairs test the links between
    them; the cause of a failed test is found as by `hpcverify fabric bisect`.

    If the sweep is stopped, the verifications continue, and `hpcverify fleet collect` reads
    their results. Exit status 4 while the breaker is tripped or a check is doubted.

    \b
    Examples:
      hpcverify fleet sweep --dry-run --explain
      hpcverify fleet sweep n[1-64] --max-jobs 8
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    if suite and time:
        raise click.UsageError("--suite and --time exclude each other: --time chooses a suite")
    if explain and not dry_run:
        raise click.UsageError("--explain needs --dry-run")
    controller = make_controller()
    suite = suite or (
        find_suite(controller.site, time / 60) if time else controller.site.fleet.suite
    )
    only = frozenset(expand(hostlist) if hostlist else ())
    controller.dispatcher.compute_job_minutes(suite)  # reports a mistake at once
    warn_if_passive(suite, controller.site)
    if dry_run:
        explained = explain_choice(controller, suite) if explain else ()
        show_plan(controller, only, limit, explained, as_json=as_json)
    else:
        sys.exit(carry_out(controller, suite, only, limit))


def list_fault_coverages(site: Site) -> list[SuiteFaultCoverage]:
    """List the fault coverage of each suite at this site."""
    plans = [make_plan(load_suite(name), site) for name in list_suites()]
    return [
        compute_fault_coverage(
            plan.suite,
            plan.budget / 60,
            [step.name for step in plan.steps],
            loads=any(step.is_active for step in plan.steps),
        )
        for plan in plans
    ]


def find_suite(site: Site, minutes: float) -> str:
    """
    Find the suite that sees most within *minutes*.

    Raises:
        ConfigError: none is as short.

    """
    suites = list_fault_coverages(site)
    if chosen := choose_suite(suites, minutes):
        return chosen.suite
    shortest = min((suite for suite in suites if suite.loads), key=lambda suite: suite.minutes)
    raise ConfigError(
        f"no suite that loads a node fits into {format_count(minutes, 'minute')}: the shortest, "
        f"{shortest.suite}, takes {shortest.minutes:g}"
    )


def explain_choice(controller: Controller, suite: str) -> tuple[str, ...]:
    """Describe *suite* beside the others, and what risks are judged by."""
    suites = list_fault_coverages(controller.site)
    suites.sort(key=lambda other: (other.suite != suite, other.minutes))
    shown = (other for other in suites if other.loads or other.suite == suite)
    weighting = controller.rank_risks().weighting
    return (
        f"suite {'; '.join(map(describe_fault_coverage, shown))}",
        f"shares count the fault classes of {FAULT_SOURCE}; how many a check would find is unknown",
        f"risk {describe_weighting(weighting)}{describe_gains(weighting)}",
    )


def describe_fault_coverage(suite: SuiteFaultCoverage) -> str:
    """Say in a few words which share of faults a suite has checks for."""
    return (
        f"{suite.suite} has a check for the classes of {suite.share:.0%} of faults "
        f"in {suite.minutes:g} min"
    )


def show_plan(
    controller: Controller,
    only: Collection[str],
    limit: int | None,
    explained: Collection[str] = (),
    *,
    as_json: bool,
) -> None:
    """
    Print which nodes a sweep would verify now, and which it passes over.

    If the choice is *explained*, in these lines, so is the risk of each node.
    """
    hosts = controller.slurm.list_hosts()
    refuse_unknown(only, hosts)
    plan = controller.plan(hosts, only=only, limit=limit)
    wanted = controller.site.fabric.period_days
    pairs = plan_fabric(controller, hosts, only).links.pairs if wanted else ()
    risks = {name: controller.rank_risks().explain(name) for name in plan.due} if explained else {}
    if as_json:
        document: dict[str, object] = {
            "chosen": plan.chosen,
            "passed_over": plan.passed_over,
            "links": pairs,
        }
        if explained:
            document |= {"explained": explained, "risks": risks}
        print_json(document)
        return
    echo(f"{len(plan.chosen)} to verify, {len(plan.passed_over)} passed over")
    if wanted:
        echo(f"{format_count(len(pairs), 'pair')} of nodes to try links between, if idle then")
    console = Console(highlight=False)
    print_items(console, explained)
    rows: list[tuple[str, str, str, str]] = []
    for pick in plan.chosen:  # first what makes it due, and then what its risk is from
        risk = risks.get(pick.node)
        why = "; ".join(dict.fromkeys((pick.why, *(risk.reasons if risk else ()))))
        rows.append(("verify", pick.node, f"{pick.risk:.1f}x", why))
    for pair in pairs:
        where = "at one switch, or at switches that are not known"
        if pair.switches is not None:
            where = f"between the switches {' and '.join(pair.switches)}"
        rows.append(("link", fold(pair.nodes), "", where))
    for node, why in plan.passed_over:
        if risk := risks.get(node):
            rows.append(("-", node, f"{risk.score:.1f}x", "; ".join((*risk.reasons, why))))
        else:
            rows.append(("-", node, "", why))
    print_table(console, ("", "node", "risk", "why"), rows)


def carry_out(controller: Controller, suite: str, only: Collection[str], limit: int | None) -> int:
    """Verify idle nodes until all have had their turn, then links; return the exit status."""
    with stop_on_signals() as stop:
        sweep = Sweep(controller, suite, stop, only, limit)
        while not stop() and sweep.run_cycle():
            until = time.monotonic() + TURN_INTERVAL_S
            while not stop() and time.monotonic() < until:
                time.sleep(POLL_S)
        if stop():
            left = len(sweep.list_under_way())
            say(f"interrupted; still under way: {left}; hpcverify fleet collect takes them in")
            return UNCLEAR_STATUS
        with controller.hold_lock():
            tell_once_of_measurements(controller.ledger, controller.measurements)
            judge_finished_night(controller)
            controller.ledger.record_sweep_end()
        statuses = {sweep.choose_exit_status()}
        sleep = make_sleep(controller)
        tested = BatchTester(controller, limit, stop, sleep).test_ready(only)
        tested = controller.iterate_convenience("tests of admitted nodes", tested)
        statuses.add(report_isolations(controller, tested))
        if controller.site.fabric.period_days:
            tried = try_links(controller, only, limit, stop, sleep)
            tried = controller.iterate_convenience("tests of links", tried)
            statuses.add(report_isolations(controller, tried))
            statuses.add(UNCLEAR_STATUS if stop() else 0)
        statuses.add(controller.choose_exit_status())
    return next((status for status in STATUS_RANKS if status in statuses), 0)


def make_sleep(
    controller: Controller, sleep: Callable[[float], None] = time.sleep
) -> Callable[[float], None]:
    """
    Make a *sleep* for tests between nodes in which the controller takes each cycle that is due.

    The tests take hours, and no other sweep starts: failures are held meanwhile, and metrics
    are written.
    """
    last = controller.clock()

    def rest(seconds: float) -> None:
        nonlocal last
        sleep(seconds)
        if 0 <= controller.clock() - last < CYCLE_S:
            return
        with (
            controller.run_convenience("cycles while nodes are tested with each other"),
            suppress(SlurmError),  # the tests ask it too, and say so
            controller.hold_lock(),
        ):
            controller.reconcile()
        last = controller.clock()

    return rest


def report_isolations(controller: Controller, answers: Iterable[IsolationAnswer]) -> int:
    """Print what was isolated, and act on it; return the exit status."""
    status = 0
    for answer in answers:
        echo("\n".join(describe_answer(answer)))
        status = 1 if answer.has_cause or status == 1 else UNCLEAR_STATUS
        if answer.faulty:
            with controller.hold_lock():
                controller.reconcile()
    return status


def warn_if_passive(suite: str, site: Site) -> None:
    """Warn if *suite* has only passive checks."""
    if not any(step.is_active for step in make_plan(load_suite(suite), site).steps):
        say(
            f"suite {suite} has only passive checks: passing it is not a full pass, and "
            "makes no node healthy"
        )


class Sweep:
    """Takes cycle after cycle, with as many nodes at once as allowed."""

    def __init__(
        self,
        controller: Controller,
        suite: str,
        stop: StopFlag,
        only: Collection[str] = (),
        limit: int | None = None,
    ) -> None:
        """Verify *only* these nodes, or all, with at most *limit* at once."""
        self.controller = controller
        self.suite = suite
        self.stop = stop
        self.only = only
        self.limit = limit
        self.tickets: dict[str, int] = {}
        self._began = False
        self._passed_over: tuple[tuple[str, str], ...] = ()
        """Node and reason, in the last plan."""
        self._refusal = ""
        """Why the last order failed."""
        self._last_under_way: Collection[str] = ()
        """Nodes under way after the last cycle: another command may take in their runs."""
        self._away_since = 0.0

    def run_cycle(self) -> bool:
        """Take a cycle; return whether there is more to do."""
        try:
            with self.controller.hold_lock():
                if not self._began:
                    with self.controller.run_convenience("users' jobs as a sensor"):
                        take_suspicions(self.controller)
                    self.controller.reconcile()
                    self._submit()
                elif (
                    self.controller.collect_results()
                    or self.list_under_way() != self._last_under_way
                ):
                    self.controller.act()
                    self._submit()
                self._began = True
                self._last_under_way = self.list_under_way()
        except SlurmError as exc:
            return self._wait_for_slurm(exc)
        self._away_since = 0.0
        return bool(self.list_under_way())

    def _wait_for_slurm(self, exc: SlurmError) -> bool:
        """Wait for a scheduler that is away for a while: what runs goes on."""
        now = time.monotonic()
        if not self._away_since:
            self._away_since = now
            say(f"{exc}; waiting for it, nothing is done in the meantime")
        if now - self._away_since > MAX_AWAY_S:
            raise exc
        return True

    def _submit(self) -> None:
        limit = None
        if self.limit is not None:
            limit = self.limit - len(self.list_under_way())
            if limit <= 0:
                return
        hosts = self.controller.slurm.list_hosts()
        if not self._began:  # a node may well disappear later
            refuse_unknown(self.only, hosts)
        plan = self.controller.plan(hosts, only=self.only, done=self.tickets.keys(), limit=limit)
        self._passed_over = plan.passed_over
        ordered: list[str] = []
        for pick in plan.chosen:
            if self.stop() or self._is_in_vain():
                break
            if self._order(hosts[pick.node]):
                ordered.append(pick.node)
        if ordered:
            say(f"verifying {fold(ordered)}")
        elif plan.chosen and self._is_in_vain(len(plan.chosen)):
            raise ActionError(f"no verification could be ordered: {self._refusal}")

    def _is_in_vain(self, enough: int = 4) -> bool:
        """Whether *enough* orders all failed: then it is not about the nodes."""
        return not any(self.tickets.values()) and len(self.tickets) >= enough

    def _order(self, host: Host) -> bool:
        """
        Order the verification of *host*; an error of its own costs only its own turn.

        Raises:
            SlurmError: Slurm does not answer at all.

        """
        try:
            ticket = self.controller.dispatcher.order_verification(host, self.suite)
        except (SlurmError, ConfigError) as exc:
            if isinstance(exc, SlurmError):
                self.controller.backend.read_holds()  # if it answers, the error is this node's
            self._refusal = f"{host.name}: {exc}"
            say(self._refusal)
            self.tickets[host.name] = 0
            return False
        self.tickets[host.name] = ticket.number
        return True

    def list_under_way(self) -> Collection[str]:
        """Name the nodes still being verified, including reruns of suspects."""
        busy = {ticket.node for ticket in self.controller.ledger.list_open_tickets()}
        return busy & {name for name, number in self.tickets.items() if number}

    def _explain_nobody_due(self) -> str:
        reasons = Counter(why for _, why in self._passed_over)
        counts = [f"{count} {why}" for why, count in reasons.most_common(MAX_REASONS)]
        return f"no node was due ({'; '.join(counts)})"

    def choose_exit_status(self) -> int:
        """Print the verdicts of the sweep, and choose the exit status."""
        nodes = self.controller.ledger.list_nodes()
        ended = self.controller.ledger.find_tickets(self.tickets.values())
        verdicts = [
            Verdict(nodes[t.node].verdict)
            for t in ended
            if t.run and t.node in nodes and nodes[t.node].last_run_at >= t.made
        ]
        outcomes = [
            f"{verdicts.count(verdict)} {verdict.value}"
            for verdict in Verdict
            if verdict in verdicts
        ]
        silent = len(self.tickets) - len(verdicts)
        outcomes += [f"{silent} without a verdict"] if silent else []
        them = format_count(len(self.tickets), "node")
        echo(f"{them}: {', '.join(outcomes) or self._explain_nobody_due()}")
        worst = EXIT_STATUSES.get(max(verdicts, default=Verdict.PASS), 0)
        not_acted_on = report_brakes(self.controller) or self.controller.choose_exit_status()
        return not_acted_on or worst or (3 if silent else 0)
