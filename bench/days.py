"""
Hard days of a fleet on paper: who is drained, and how soon.

The controller is the product's own; Slurm, the time and the nodes are made up. Each hour nodes
run their hooks and the verifications that were ordered, and the controller takes a cycle; every
six hours a sweep verifies the nodes that are due. The bench knows which nodes are sick. For each
day and size of the fleet it prints the healthy nodes that were out of service at once and the
number that the breaker allows, and the hours after which the sick nodes had left service.

Words select days: `bench/days.py rollout fail_closed`.
"""

from __future__ import annotations

import random
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from msgspec.structs import replace

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from hpcverify import gate  # noqa: E402 - below the path
from hpcverify.fleet.breaker import compute_allowance  # noqa: E402 - as this
from hpcverify.fleet.controller import Controller  # noqa: E402 - as this
from hpcverify.fleet.states import DAY_S, HOUR_S  # noqa: E402 - as this
from hpcverify.model import Fact, Finding, FindingRule, Remedy, Result, Verdict  # noqa: E402
from hpcverify.plan.config import Quarantine, Suppression  # noqa: E402 - as this
from hpcverify.records.spool import deposit, take_place  # noqa: E402 - as this
from tests.doubles import a_result, a_run  # noqa: E402 - they belong to the tests
from tests.fleet.builders import NOW, Room  # noqa: E402 - as this
from tests.fleet.paper import PaperNode, PaperSlurm  # noqa: E402 - as this

SIZES = (12, 40, 1000)
SWEEP_HOURS = 6
LARGE, LARGE_DAYS = 100, 4
"""
A fleet of more nodes lives through this many days, since a cycle takes longer there; all of them
if a sick node may take longer to leave.
"""
CHECKS = ("inventory", "gemm", "sdc", "storage")
HARD, SOFT = "sdc", "gemm"
"""The check whose failures are conclusive here, and one whose failures are not."""


@dataclass
class Machine:
    """A node as it is, whatever the fleet makes of it."""

    fails: dict[str, float] = field(default_factory=dict[str, float])
    """How likely each check fails in a run."""
    sick_since: float = 0.0
    """When its hardware broke; 0: it is healthy, even if a check fails."""
    busy: bool = False
    """Whether users' jobs follow each other on it for as long as it takes any."""
    driver: str = "550"
    left_at: float = 0.0
    """When it left service; 0: it is in service."""


@dataclass
class AnsweringSlurm(PaperSlurm):
    """Keeps what a verification needs to answer: the token and the suite of its script."""

    orders: dict[int, tuple[str, str]] = field(default_factory=dict[int, tuple[str, str]])

    def __call__(self, command: Sequence[str]) -> str:
        """Run *command*; keep the order of a job."""
        answer = super().__call__(command)
        if command[0] == "sbatch":
            script = Path(command[-1]).read_text()
            (token,) = re.findall(r"HPCVERIFY_TOKEN=(\S+)", script)
            (suite,) = re.findall(r"(?m)^suite=(\S+)", script)
            self.orders[int(answer)] = (token, suite)
        return answer


@dataclass
class Site(Room):
    """A cluster of machines and its controller."""

    machines: dict[str, Machine] = field(default_factory=dict[str, Machine])
    suppress: tuple[Suppression, ...] = ()
    random: random.Random = field(default_factory=lambda: random.Random(1))  # noqa: S311 - a seed
    silent: bool = False
    """Whether nothing reaches the spool."""
    clock_error: float = 0.0
    """Seconds that the controller's clock is ahead."""
    told: set[str] = field(default_factory=set[str])
    drained: set[str] = field(default_factory=set[str])
    """The healthy nodes that were drained at any time."""
    worst: int = 0
    """The most of them that were drained at once."""
    runs: int = 0

    def clock(self) -> float:
        """Read the controller's clock."""
        return super().clock() + self.clock_error

    @property
    def controller(self) -> Controller:
        """Start the controller anew."""
        made = super().controller
        made.site = replace(made.site, suppress=self.suppress)
        return made

    # -- what nodes do

    def verify(self, name: str, checks: Iterable[str] = CHECKS) -> tuple[Result, ...]:
        """Have *name* run *checks*."""
        machine = self.machines[name]
        results = []
        for check in checks:
            failed = self.random.random() < machine.fails.get(check, 0.0)
            results.append(make_failure(check) if failed else make_pass(check))
        facts = (Fact("GPU driver", machine.driver),)
        return (replace(results[0], facts=facts), *results[1:])

    def leave(self, name: str, results: tuple[Result, ...], suite: str, token: str = "") -> None:
        """Leave a run of *name* in the spool."""
        self.runs += 1
        if self.silent:
            return
        at = datetime.fromtimestamp(self.now, UTC)
        run = a_run(
            id=f"{at:%Y%m%d-%H%M%S}-{self.runs:06x}",
            node=name,
            suite=suite,
            started=at,
            verdict=max(result.verdict for result in results),
            results=results,
            passive=not token,
        )
        deposit(run, self.folder / "spool", token)

    def run_hooks(self) -> None:
        """Run the prolog of each node that begins a job, which refuses it if it may."""
        spool = self.folder / "spool"
        for name, machine in self.machines.items():
            there = self.slurm.nodes[name]
            free = not there.drained and name not in self.slurm.reserved
            begins = machine.busy and free and there.state in {"IDLE", "ALLOCATED"}
            if there.state in {"IDLE", "ALLOCATED"}:
                there.state = "ALLOCATED" if begins else "IDLE"
            if not begins:
                continue
            job_gate = gate.read(spool / gate.GATE_NAME / name, self.now)
            if job_gate is not None and job_gate.refuses_jobs:
                continue
            results = self.verify(name, ("inventory", HARD))
            self.leave(name, results, "prolog")
            failed = {result.check for result in results if result.verdict is Verdict.FAIL}
            if job_gate and failed.intersection(job_gate.checks) and take_place(spool, name):
                self.slurm.drain([name], "Prolog error", by="slurm")

    def end_jobs(self) -> None:
        """End the verifications that were ordered, each with its run."""
        orders = cast("AnsweringSlurm", self.slurm).orders
        for job in self.slurm.jobs.values():
            if job.end:
                continue
            name = job.name.rpartition("-")[2]
            there = self.slurm.nodes[name]
            if there.state != "IDLE":
                continue
            token, suite = orders[job.id]
            self.leave(name, self.verify(name), suite, token)
            job.state, job.end = "COMPLETED", int(self.now)

    # -- what the fleet makes of it

    def cycle(self) -> None:
        """Take a cycle of the controller, and note what it reports of the brakes."""
        said = len(self.said)
        self.controller.reconcile()
        for line in self.said[said:]:
            if line.startswith("the breaker tripped"):
                self.told.add("tripped")
            if line.startswith("a check is doubted"):
                self.told.add("doubted, rollout named" if "rollout" in line else "doubted")

    def sweep(self) -> None:
        """Order a verification of each node that is due, as many at once as the site allows."""
        controller = self.controller
        hosts = controller.slurm.list_hosts()
        for pick in controller.plan(hosts).chosen:
            controller.dispatcher.order_verification(hosts[pick.node], controller.site.fleet.suite)

    def look(self) -> None:
        """Note who is out of service."""
        healthy: set[str] = set()
        for name, machine in self.machines.items():
            out = self.slurm.nodes[name].drained
            if out and not machine.sick_since:
                healthy.add(name)
            if not out and name not in self.slurm.reserved:
                machine.left_at = 0.0
            elif not machine.left_at:
                machine.left_at = self.now
        self.drained |= healthy
        self.worst = max(self.worst, len(healthy))

    def pick(self, share: float, least: int = 1) -> list[str]:
        """Choose a *share* of the nodes, in their order."""
        count = max(least, round(share * len(self.machines)))
        return list(self.machines)[:count]


def make_pass(check: str) -> Result:
    """Make a result of *check* that passed."""
    return Result(check=check, verdict=Verdict.PASS, seconds=1.0)


def make_failure(check: str) -> Result:
    """Make a failure of *check*; those of `HARD` are conclusive."""
    rule = FindingRule(Verdict.FAIL, Remedy.REPLACE, conclusive=check == HARD)
    return a_result(
        check,
        verdict=Verdict.FAIL,
        reason="a wrong word",
        coverage=(),
        measurements=(),
        series=(),
        limits=(),
        findings=(Finding("corruption", "cpu", "a wrong word"),),
        rulings={"corruption": rule},
    )


# -- the days

Change = Callable[[Site, int], None]
"""What a day does to the site at each hour."""


@dataclass(frozen=True)
class Day:
    """What happens to a fleet, for how many days, and how its site is set up."""

    name: str
    change: Change
    days: int = 10
    fleet: dict[str, Any] = field(default_factory=dict[str, Any])
    policy: dict[str, Any] = field(default_factory=dict[str, Any])
    within: float = 0.0
    """Hours within which the documentation has the sick nodes leave service."""


def at_start(act: Callable[[Site], None]) -> Change:
    """Do *act* in the first hour."""
    return lambda site, hour: act(site) if hour == 0 else None


def break_node(site: Site, *, check: str, share: float = 1.0, busy: bool = False) -> None:
    """Have the hardware of the last node fail this *share* of its runs from the second day."""
    machine = site.machines[list(site.machines)[-1]]
    machine.fails, machine.sick_since, machine.busy = {check: share}, site.now, busy


def one_sick(check: str, share: float = 1.0, *, busy: bool = False) -> Change:
    """Break one node on the second day."""

    def change(site: Site, hour: int) -> None:
        if hour == 24:
            break_node(site, check=check, share=share, busy=busy)

    return change


def fail_wrongly(site: Site, names: Iterable[str], check: str, share: float = 1.0) -> None:
    """Have *check* fail on healthy nodes: a limit, a driver or a bug of ours is wrong."""
    for name in names:
        if not site.machines[name].sick_since:
            site.machines[name].fails[check] = share


def roll_out(share: float, *, first: int = 24, with_sick: bool = False) -> Change:
    """Bring a driver with which SOFT fails to this *share* of the nodes each day."""

    def change(site: Site, hour: int) -> None:
        if hour < first or (hour - first) % 24:
            return
        day = (hour - first) // 24
        count = max(1, round(share * len(site.machines)))
        names = list(site.machines)[day * count : (day + 1) * count]
        for name in names:
            site.machines[name].driver = "560"
        fail_wrongly(site, names, SOFT)
        if with_sick and day == 0:
            break_node(site, check=SOFT)

    return change


def lose_storage(hours: int) -> Change:
    """Have storage fail on all nodes for so many *hours* each night."""

    def change(site: Site, hour: int) -> None:
        for machine in site.machines.values():
            machine.fails = {"storage": 1.0} if hour % 24 < hours and hour >= 24 else {}

    return change


def jump(seconds: float, hours: int = 6) -> Change:
    """Set the controller's clock ahead for some *hours*, in a time when a limit is wrong."""

    def change(site: Site, hour: int) -> None:
        if hour == 30:
            fail_wrongly(site, site.pick(0.3), SOFT)
        site.clock_error = seconds if hour >= 30 and hour % 12 < hours and hour < 120 else 0.0

    return change


def lose_spool(site: Site, hour: int) -> None:
    """Let no run arrive for nine days."""
    site.silent = 24 <= hour < 24 * 10


def upgrade_slurm(site: Site, hour: int) -> None:
    """Take all nodes down for two hours; their jobs end with NODE_FAIL."""
    state = {48: "DOWN", 49: "DOWN", 50: "UNKNOWN", 51: "IDLE"}.get(hour)
    if state:
        for there in site.slurm.nodes.values():
            there.state = state
    if hour == 48:
        for job in site.slurm.jobs.values():
            if not job.end:
                job.state, job.end = "NODE_FAIL", int(site.now)


def expire_suppression(site: Site, hour: int) -> None:
    """Have a wrong limit on 30 % of the nodes suppressed for two days only."""
    names = site.pick(0.3)
    if hour == 0:
        until = datetime.fromtimestamp(site.now + 2 * DAY_S, UTC).date()
        nodes = ",".join(names)
        site.suppress = (
            Suppression(check=SOFT, nodes=nodes, until=until, reason="known", by="jane"),
        )
        fail_wrongly(site, names, SOFT)


def all_begin_jobs(site: Site, hour: int) -> None:
    """Begin a job on each node in the hour in which conclusive evidence is wrong everywhere."""
    for machine in site.machines.values():
        machine.busy = hour >= 24
    if hour == 24:
        fail_wrongly(site, site.machines, HARD)


def reset_each_day(change: Change) -> Change:
    """Reset the breaker each day, whatever is the cause."""

    def act(site: Site, hour: int) -> None:
        change(site, hour)
        if hour % 24 == 12 and site.ledger.read_trip_reason():
            site.ledger.reset("root", "try again")

    return act


def heal(change: Change, hour_healed: int) -> Change:
    """End what makes healthy nodes fail, and reset the breaker once it is over."""

    def act(site: Site, hour: int) -> None:
        change(site, hour)
        if hour == hour_healed:
            for machine in site.machines.values():
                if not machine.sick_since:
                    machine.fails = {}
            if site.ledger.read_trip_reason():
                site.ledger.reset("root", "the cause is gone")

    return act


def flake_everywhere(site: Site) -> None:
    """Have each node fail once in 200 runs, as healthy ones may."""
    for machine in site.machines.values():
        machine.fails[SOFT] = 1 / 200


def keep_busy(site: Site, hour: int) -> None:
    """Leave the fleet idle for two hours of each night only."""
    for machine in site.machines.values():
        machine.busy = hour % 24 >= 2
    if hour == 24:
        break_node(site, check=SOFT)
        list(site.machines.values())[-1].busy = True


def break_batch(site: Site, hour: int) -> None:
    """Have a bad batch: a twentieth of the nodes really breaks."""
    if hour == 24:
        for name in site.pick(0.05):
            machine = site.machines[name]
            machine.fails, machine.sick_since = {SOFT: 1.0}, site.now


def forge_evidence(site: Site, hour: int) -> None:
    """Have a user who can write into the spool leave false evidence of each node, hourly."""
    if hour >= 24:
        for name in site.machines:
            site.leave(name, (make_pass("inventory"), make_failure(HARD)), "prolog")


CLOSED = {"fail_closed": (HARD,)}
DAYS = (
    Day("nobody fails", at_start(lambda _: None)),
    Day("healthy nodes flake once in 200 runs", at_start(flake_everywhere), days=30),
    Day("a node fails in each run", one_sick(SOFT), within=48),
    Day("conclusive evidence, never idle", one_sick(HARD, busy=True), within=10),
    Day("conclusive, never idle, fail_closed", one_sick(HARD, busy=True), policy=CLOSED, within=10),
    Day("a node fails one run in three", one_sick(SOFT, 1 / 3), days=16, within=14 * 24),
    Day("a node fails one run in two", one_sick(SOFT, 1 / 2), days=16, within=14 * 24),
    Day("idle for two hours a night, one sick", keep_busy, within=72),
    Day("a bad batch: 5 % break", break_batch, within=10 * 24),
    Day("a limit is wrong for all", at_start(lambda s: fail_wrongly(s, s.machines, SOFT))),
    Day(
        "the same, reset each day",
        reset_each_day(at_start(lambda s: fail_wrongly(s, s.machines, SOFT))),
    ),
    Day("a limit is wrong for 30 %", at_start(lambda s: fail_wrongly(s, s.pick(0.3), SOFT))),
    Day("rollout of 1 % a day", roll_out(0.01), days=20),
    Day("rollout of 5 % a day", roll_out(0.05), days=20),
    Day("rollout of 10 % a day", roll_out(0.1)),
    Day("rollout of 30 % a day", roll_out(0.3)),
    Day("rollout of 5 % a day, reset each day", reset_each_day(roll_out(0.05)), days=20),
    Day("rollout of 5 % a day, one sick", roll_out(0.05, with_sick=True), within=14 * 24),
    Day("storage away, 1 h each night", lose_storage(1)),
    Day("storage away, 3 h each night", lose_storage(3)),
    Day("controller 25 h ahead, a wrong limit", jump(25 * HOUR_S)),
    Day("controller 120 days ahead", jump(120 * DAY_S)),
    Day("no run arrives for nine days", lose_spool, days=14, fleet={"overdue_days": 7}),
    Day("Slurm is upgraded", upgrade_slurm),
    Day("a suppression of 30 % expires", expire_suppression),
    Day("fail_closed, wrong on every node", all_begin_jobs, policy=CLOSED),
    Day("the same, healed and reset", heal(all_begin_jobs, 72), policy=CLOSED),
    Day("forged evidence of every node", forge_evidence, days=4),
)


def live(day: Day, size: int, folder: Path) -> Site:
    """Live through *day* with *size* nodes."""
    (folder / "spool").mkdir()
    names = [f"n{i}" for i in range(1, size + 1)]
    slurm = AnsweringSlurm({name: PaperNode() for name in names})
    site = Site(
        folder,
        slurm,
        fleet={"at_once": 2000, "share": 1.0, **day.fleet},
        policy={"check_share": 0.3, **day.policy},
        machines={name: Machine() for name in names},
    )
    slurm.clock = site.clock
    is_short = size > LARGE and day.within <= LARGE_DAYS * 24
    for hour in range(24 * (LARGE_DAYS if is_short else day.days)):
        site.now = NOW + hour * HOUR_S
        day.change(site, hour)
        site.run_hooks()
        site.end_jobs()
        site.cycle()
        if hour % SWEEP_HOURS == 0:
            site.sweep()
        site.look()
    return site


def describe(day: Day, size: int, site: Site, seconds: float) -> str:
    """Write the line of *day*."""
    allowed = compute_allowance(size, Quarantine())
    sick = [machine for machine in site.machines.values() if machine.sick_since]
    hours = [(m.left_at - m.sick_since) / HOUR_S for m in sick if m.left_at]
    left = f"{len(hours)} of {len(sick)}, {max(hours):.0f} h" if hours else f"0 of {len(sick)}"
    wrong = "" if site.worst <= allowed else "  OVER THE ALLOWANCE"
    if sick and (len(hours) < len(sick) or max(hours) > day.within):
        wrong += f"  LATE: {day.within:g} h"
    return (
        f"{day.name:38} {size:5} | {site.worst} ({len(site.drained)}) of {allowed:2} | "
        f"{left if sick else '-':16} "
        f"| {', '.join(sorted(site.told)) or '-'}{wrong}  ({seconds:.0f} s)"
    )


def main() -> None:
    """Live through the days, and print a line for each."""
    words = [word for word in sys.argv[1:] if not word.isdigit()]
    sizes = [int(word) for word in sys.argv[1:] if word.isdigit()] or SIZES
    print("day, nodes | healthy nodes drained at once (ever), allowed | sick nodes out | reported")
    for day in DAYS:
        if words and not any(word in day.name for word in words):
            continue
        for size in sizes:
            with tempfile.TemporaryDirectory() as folder:
                began = time.process_time()
                site = live(day, size, Path(folder))
                print(describe(day, size, site, time.process_time() - began), flush=True)


if __name__ == "__main__":
    main()
