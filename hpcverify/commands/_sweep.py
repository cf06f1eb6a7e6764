"""What ``hpcverify sweep`` does, apart from its options."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection

import click
import msgspec
from msgspec import Struct

from hpcverify.cli import say
from hpcverify.commands._acting import controller, refuse_unknown, tell_brakes
from hpcverify.config import Site
from hpcverify.errors import ActionError, ConfigError, SlurmError
from hpcverify.fleet.controller import Controller
from hpcverify.model import Verdict
from hpcverify.slurm import Host
from hpcverify.slurm.hostlist import expand, fold
from hpcverify.stop import Stop, stop_on_signals
from hpcverify.suite import load_suite
from hpcverify.suite import plan as make_ready
from hpcverify.view import Console, plain_table

LOOK_S = 0.1
"""Between looks at whether we are to end."""
TURN_S = 1.5
"""Between turns; what they ask Slurm is paced besides."""
AWAY_S = 600.0
"""For how long a Slurm that does not answer is waited for."""
STATUS = {Verdict.FAIL: 1, Verdict.ERROR: 3}


class Wish(Struct, frozen=True, kw_only=True):
    """What was asked for on the command line."""

    suite: str
    hostlist: str
    limit: int | None


def show_plan(wish: Wish, *, as_json: bool) -> None:
    """Print whom a sweep would verify now, and whom it passes over."""
    acting = controller()
    suite = wish.suite or acting.site.fleet.suite
    acting.orders.minutes(suite)
    warn_if_passive(suite, acting.site)
    hosts = acting.slurm.hosts()
    refuse_unknown(_only(wish), hosts)
    plan = acting.plan(hosts, only=_only(wish), limit=wish.limit)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(plan), indent=1))
        return
    click.echo(f"{len(plan.chosen)} to verify, {len(plan.passed_over)} passed over")
    rows = [("verify", pick.node, pick.why) for pick in plan.chosen]
    rows += [("-", node, why) for node, why in plan.passed_over]
    plain_table(Console(highlight=False), ("", "node", "why"), rows)


def carry_out(wish: Wish) -> int:
    """Verify who is idle, until all had their turn; return the status."""
    acting = controller()
    with stop_on_signals() as stop:
        sweep = Sweep(acting, wish, stop)
        acting.orders.minutes(sweep.suite)  # what is wrong with it shows now
        warn_if_passive(sweep.suite, acting.site)
        while not stop() and sweep.goes_on():
            _wait(stop)
    if stop():
        left = len(sweep.under_way())
        say(f"interrupted; still under way: {left}; hpcverify collect takes them in")
        return 3
    return sweep.status()


def warn_if_passive(suite: str, site: Site) -> None:
    """Say so if *suite* has passive checks only."""
    if not any(step.is_active for step in make_ready(load_suite(suite), site).steps):
        say(
            f"suite {suite} has passive checks only: to pass it is no full pass, and "
            "makes no node healthy"
        )


class Sweep:
    """Goes from turn to turn, with as many nodes at once as may be."""

    def __init__(self, acting: Controller, wish: Wish, stop: Stop) -> None:
        """Begin."""
        self.acting = acting
        self.stop = stop
        self.limit = wish.limit
        self.suite = wish.suite or acting.site.fleet.suite
        self.only = _only(wish)
        self.tickets: dict[str, int] = {}
        self._began = False
        self._passed_over: tuple[tuple[str, str], ...] = ()
        """Node and reason, in the last plan."""
        self._refusal = ""
        """Why the last one that could not be ordered could not."""
        self._left: Collection[str] = ()
        """Who was at it after the last turn: others may take in what they find."""
        self._away_since = 0.0

    def goes_on(self) -> bool:
        """Take a turn; return whether there is more to do."""
        try:
            with self.acting.alone():
                if not self._began:
                    self.acting.turn()
                    self._submit()
                elif self.acting.news() or self.under_way() != self._left:
                    self.acting.act()
                    self._submit()
                self._began = True
                self._left = self.under_way()
        except SlurmError as exc:
            return self._waits_for_slurm(exc)
        self._away_since = 0.0
        return bool(self.under_way())

    def _waits_for_slurm(self, exc: SlurmError) -> bool:
        """Wait for a scheduler that is away for a while: what runs goes on."""
        now = time.monotonic()
        if not self._away_since:
            self._away_since = now
            say(f"{exc}; waiting for it, nothing is done meanwhile")
        if now - self._away_since > AWAY_S:
            raise exc
        return True

    def _submit(self) -> None:
        """Order as many verifications as there is room for."""
        limit = None
        if self.limit is not None:
            limit = self.limit - len(self.under_way())
            if limit <= 0:
                return
        hosts = self.acting.slurm.hosts()
        if not self._began:  # what is there now may well go away later
            refuse_unknown(self.only, hosts)
        plan = self.acting.plan(
            hosts, only=self.only, done=self.tickets.keys(), limit=limit
        )
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
        """Whether not one was ordered of so many: it is not about the nodes, then."""
        return not any(self.tickets.values()) and len(self.tickets) >= enough

    def _order(self, host: Host) -> bool:
        """
        Have *host* verified; what is amiss with it alone costs it its turn alone.

        Raises:
            SlurmError: Slurm is away.

        """
        try:
            ticket = self.acting.orders.verify(host, self.suite)
        except (SlurmError, ConfigError) as exc:
            if isinstance(exc, SlurmError):
                self.acting.keeper.look()  # if it answers, it was about this node
            self._refusal = f"{host.name}: {exc}"
            say(self._refusal)
            self.tickets[host.name] = 0
            return False
        self.tickets[host.name] = ticket.number
        return True

    def under_way(self) -> Collection[str]:
        """Name the nodes that are still at it, the reruns of suspects among them."""
        busy = {ticket.node for ticket in self.acting.ledger.open_tickets()}
        return busy & {name for name, number in self.tickets.items() if number}

    def _why_nobody(self) -> str:
        """Say why nobody was due, the most common reasons first."""
        reasons = Counter(why for _, why in self._passed_over)
        told = [f"{count} {why}" for why, count in reasons.most_common(MOST_REASONS)]
        return f"nobody was due ({'; '.join(told)})"

    def status(self) -> int:
        """Count what came of it, and choose the exit status."""
        nodes = self.acting.ledger.nodes()
        ended = self.acting.ledger.by_number(self.tickets.values())
        found = [
            Verdict(nodes[t.node].verdict)
            for t in ended
            if t.run and t.node in nodes and nodes[t.node].finished >= t.made
        ]
        told = [
            f"{found.count(verdict)} {verdict.value}"
            for verdict in Verdict
            if verdict in found
        ]
        silent = len(self.tickets) - len(found)
        told += [f"{silent} without a verdict"] if silent else []
        count = len(self.tickets)
        them = "1 node" if count == 1 else f"{count} nodes"
        click.echo(f"{them}: {', '.join(told) or self._why_nobody()}")
        worst = STATUS.get(max(found, default=Verdict.PASS), 0)
        not_acted_on = tell_brakes(self.acting) or self.acting.status()
        return not_acted_on or worst or (3 if silent else 0)


MOST_REASONS = 5
"""That are told of why nobody was due."""


def _only(wish: Wish) -> set[str]:
    return set(expand(wish.hostlist)) if wish.hostlist else set()


def _wait(stop: Stop) -> None:
    until = time.monotonic() + TURN_S
    while not stop() and time.monotonic() < until:
        time.sleep(LOOK_S)
