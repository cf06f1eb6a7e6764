"""What dies or is done by others in the midst of a sweep; all on a real Slurm."""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from hpcverify.commands._controller import make_controller
from hpcverify.commands.sweep import Sweep
from hpcverify.errors import SlurmError
from hpcverify.fleet.controller import SLURMCTLD_SAVE_S
from hpcverify.fleet.ledger import Ledger
from hpcverify.fleet.orders import MAX_SUBMISSION_DELAY_S
from hpcverify.fleet.schedule import LOST_RETRY_S
from hpcverify.fleet.states import Ticket
from hpcverify.run.stop import StopFlag
from hpcverify.slurm.command import run_command
from tests.fleet.cluster import SITE, Fleet
from tests.slurm_lab.lab import a_cluster

THEIRS = "disk 3: don't touch  (ticket 7)"
FOUND = "told: speed 10 GB/s < 50 (hpcverify default)"
GOOD = {"n1": "healthy", "n3": "healthy", "n4": "healthy"}
MORTAL = multiprocessing.get_context("fork")
"""A controller that dies is a process of its own, and has everything imported."""


@pytest.fixture
def fleet() -> Generator[Fleet]:
    """Bring up a site of four nodes that nobody has ever verified."""
    # Slurm's commands say sooner than after the usual 9 s that the controller is away.
    with a_cluster(4, extra="MessageTimeout=4\n") as cluster:
        folder = Path(tempfile.mkdtemp(prefix="hvsite-", dir="/tmp"))
        try:
            fleet = Fleet(cluster, folder)
            fleet.prepare()
            yield fleet
        finally:
            cluster.down()  # no job writes there any more
            shutil.rmtree(folder)


def drain(fleet: Fleet, node: str) -> None:
    fleet.cluster.slurm.drain(node, THEIRS)


def tickets(fleet: Fleet) -> list[Ticket]:
    return fleet.ledger.find_tickets(range(1, fleet.ledger.read_last_ticket_number() + 1))


def is_running(fleet: Fleet, jobs: int) -> bool:
    """Say whether so many verifications have begun."""
    states = [job.state for job in fleet.cluster.slurm.list_jobs("hpcverify-").values()]
    return states.count("RUNNING") >= jobs


def waiting(fleet: Fleet) -> list[Path]:
    return [*fleet.spool.glob("n*/[0-9]*.json")]


def audited(fleet: Fleet, what: str) -> list[str]:
    """Name the nodes of which the audit log says *what*, as often as it does."""
    return [e.node for e in fleet.ledger.read_audit(limit=10_000) if e.what == what]


def times_judged(fleet: Fleet) -> list[int]:
    """Count for each document that is kept how often it was judged."""
    told = [e.detail for e in fleet.ledger.read_audit(limit=10_000)]
    kept = (fleet.folder / "controller" / "runs").rglob("*.json*")
    ids = {path.name.partition(".")[0] for path in kept}
    return [sum(f"run {name}:" in text for text in told) for name in ids]


def die(_fleet: Fleet) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def crash_slurm(fleet: Fleet) -> None:
    """Kill slurmctld, once all jobs have ended; it forgets what it did last."""
    fleet.cluster.until(lambda: fleet.cluster.run("squeue", "-h") == "")
    fleet.cluster.crash()


@dataclass(frozen=True)
class Doom:
    """Kills the controller once at each step of a kind; what it did outlives it."""

    fleet: Fleet
    kind: str
    """``before`` or ``after`` a command of Slurm's, ``writing`` its own books."""
    only: str = ""
    """What a step has to have in it."""
    strike: Callable[[Fleet], None] = die
    ahead: float = 0.0
    """Seconds that the controller's clock is ahead of ours."""

    @property
    def done(self) -> list[str]:
        """List the steps at which it has killed."""
        path = self.fleet.folder / "doom"
        return path.read_text().splitlines() if path.exists() else []

    def meet(self, kind: str, step: str) -> None:
        """Pass a step, or die there."""
        if kind == self.kind and self.only in step and step not in self.done:
            with (self.fleet.folder / "doom").open("a") as file:
                file.write(f"{step}\n")
            self.strike(self.fleet)

    def run(self, command: Sequence[str]) -> str:
        """Run a command of Slurm's, if we live."""
        words = "sbatch" if command[0] == "sbatch" else " ".join(command[:4])
        if words != "sbatch":  # else nobody knows for minutes whether it was done
            self.meet("before", words)
        printed = run_command(command)
        self.meet("after", words)
        return printed

    def clock(self) -> float:
        """Be asked for the time by the ledger, as it is in the midst of a write."""
        frames = traceback.extract_stack(limit=3)
        self.meet("writing", " > ".join(frame.name for frame in frames[:2]))
        return time.time()

    def say(self, text: str) -> None:
        """Be told something, as between two writes."""
        self.meet("writing", text)

    def cycle(self, *, sweep: bool) -> None:
        """Be a controller that takes one cycle."""
        os.environ.update(self.fleet.env)
        tempfile.tempdir = None  # TMPDIR is read anew
        sys.path.insert(0, str(SITE))  # where the site's own checks are
        controller = make_controller(self.run)
        controller.ledger = Ledger(controller.state, self.clock)
        controller.say = self.say
        controller.clock = lambda: time.time() + self.ahead
        if sweep:
            Sweep(controller, controller.site.fleet.suite, StopFlag()).run_cycle()
            return
        with controller.hold_lock():
            try:
                controller.reconcile()
            except SlurmError as exc:
                sys.exit(exc.exit_code)

    def survived(self, *, sweep: bool = False) -> bool:
        """Start a controller, and say whether it came to the end of its turn."""
        process = MORTAL.Process(target=self.cycle, kwargs={"sweep": sweep})
        process.start()
        process.join()
        assert process.exitcode in (0, SlurmError.exit_code, -signal.SIGKILL)
        return process.exitcode == 0


def has_settled(fleet: Fleet) -> bool:
    """Say whether the bad node is out by a drain alone, and nothing is under way."""
    out = fleet.node("n2").state == "quarantined" and "n2" in fleet.drained()
    under_way = fleet.ledger.list_open_tickets() or waiting(fleet)
    return out and not under_way and not fleet.cluster.slurm.list_reservations()


@pytest.mark.parametrize(
    ("kind", "steps"),
    [
        ("before", {"create", "state=drain", "delete", "squeue"}),
        ("after", {"sbatch", "create", "state=drain", "delete", "squeue"}),
        (
            "writing",
            {
                "issue_ticket",
                "record_judgments",
                "record_intent",
                "record_outcome",
                "close_ticket",
                "healthy",
            },
        ),
    ],
)
def test_a_controller_killed_at_each_step_comes_to_the_same_end(
    fleet: Fleet, kind: str, steps: set[str]
) -> None:
    fleet.tell("n2", "10")
    doom = Doom(fleet, kind)
    fleet.cluster.until(lambda: doom.survived(sweep=True))
    fleet.cluster.until(lambda: doom.survived() and has_settled(fleet), 60)
    assert steps <= set(" ".join(doom.done).split())
    assert (fleet.states(), fleet.drained()) == (GOOD | {"n2": "quarantined"}, {"n2"})
    assert FOUND in fleet.host("n2").reason
    assert (audited(fleet, "quarantined"), times_judged(fleet)) == (["n2"], [1] * 5)
    ordered = sorted(ticket.node for ticket in tickets(fleet))
    assert ordered == ["n1", "n2", "n2", "n3", "n4"]


def test_a_submission_that_never_took_effect_is_given_up_and_made_again(fleet: Fleet) -> None:
    fleet.ledger.issue_ticket("n1", "sweep", "told")  # and the controller died
    assert re.search(r"n1 +is being verified", fleet("fleet", "sweep", "--dry-run").stdout)
    assert Doom(fleet, "never", ahead=MAX_SUBMISSION_DELAY_S + 1).survived(sweep=True)
    later = MAX_SUBMISSION_DELAY_S + LOST_RETRY_S + 2
    assert Doom(fleet, "never", ahead=later).survived(sweep=True)
    made = [t for t in tickets(fleet) if t.node == "n1"]
    assert [(t.ending, bool(t.job)) for t in made] == [("vanished", False), ("", True)]


def test_an_administrators_drain_keeps_its_reason_before_during_and_after_a_sweep(
    fleet: Fleet,
) -> None:
    fleet.pause()
    fleet.tell("n2", "10")
    drain(fleet, "n1")
    sweep = fleet.begin("fleet", "sweep")
    fleet.cluster.until(lambda: is_running(fleet, 3))
    drain(fleet, "n2")
    fleet.go_on()
    sweep.communicate()
    drain(fleet, "n3")
    fleet("fleet", "collect")
    assert {n: fleet.host(n).reason for n in ("n1", "n2", "n3", "n4")} == {
        "n1": THEIRS,
        "n2": THEIRS,
        "n3": THEIRS,
        "n4": "",
    }
    assert (fleet.drained(), fleet.node("n2").checks) == ({"n1", "n2", "n3"}, ("told",))
    assert not fleet.cluster.slurm.list_reservations()


def test_a_node_that_an_administrator_has_let_go_is_used_again(fleet: Fleet) -> None:
    drain(fleet, "n1")
    fleet("fleet", "collect")
    assert fleet.node("n1").foreign == THEIRS
    fleet.cluster.slurm.resume("n1")
    fleet.cluster.until(lambda: fleet.cluster.idle("n1"))
    assert fleet("fleet", "sweep", "n1").returncode == 0
    assert fleet.states() == {"n1": "healthy"}


def test_a_sweep_goes_on_after_slurmctld_was_killed_and_started_again(fleet: Fleet) -> None:
    fleet.pause()
    sweep = fleet.begin("fleet", "sweep")
    fleet.cluster.until(lambda: is_running(fleet, 4))
    began, jobs = time.time(), fleet.cluster.folder / "state" / "job_state"
    fleet.cluster.until(lambda: jobs.stat().st_mtime > began)
    fleet.cluster.crash()
    fleet.cluster.start("slurmctld")
    fleet.go_on()
    assert "4 nodes: 4 pass" in sweep.communicate()[0]
    assert sweep.returncode == 0
    assert fleet.states() == GOOD | {"n2": "healthy"}
    assert not fleet.drained()


def test_what_slurmctld_forgot_when_it_was_killed_is_no_failure_of_a_node(fleet: Fleet) -> None:
    fleet.pause()
    Doom(fleet, "never").survived(sweep=True)
    fleet.cluster.until(lambda: is_running(fleet, 4))
    fleet.cluster.crash()
    fleet.go_on()
    fleet.cluster.start("slurmctld")
    later = Doom(fleet, "never", ahead=MAX_SUBMISSION_DELAY_S + 1)
    fleet.cluster.until(
        lambda: later.survived() and not fleet.ledger.list_open_tickets() + waiting(fleet)
    )
    assert set(fleet.states().values()) <= {"healthy", "unverified"}
    # Slurm itself drains a node on which it starts a job for the second time.
    reasons = {host.reason for host in fleet.cluster.slurm.list_hosts().values()}
    assert reasons <= {"", "Duplicate jobid"}


@pytest.mark.parametrize("kind", ["before", "after"])
def test_a_drain_in_which_slurmctld_was_killed_is_made_good_by_the_next_collect(
    fleet: Fleet, kind: str
) -> None:
    fleet.tell("n2", "10")
    doom = Doom(fleet, kind, only="state=drain", strike=crash_slurm)
    assert doom.survived(sweep=True)
    fleet.cluster.until(lambda: not doom.survived())
    assert doom.done
    fleet.cluster.start("slurmctld")
    # A job whose end slurmctld has forgotten runs for it until the node says otherwise.
    fleet.cluster.until(
        lambda: not fleet("fleet", "collect").returncode and has_settled(fleet), 120
    )
    assert FOUND in fleet.host("n2").reason
    assert (fleet.drained(), audited(fleet, "quarantined")) == ({"n2"}, ["n2"])


@pytest.mark.parametrize(
    ("kind", "steps"),
    [
        ("before", {"state=drain"}),
        ("after", {"state=drain"}),
        ("writing", {"record_intent", "record_outcome", "put"}),
    ],
)
def test_a_controller_killed_while_it_adopts_a_drain_lets_nobody_back(
    fleet: Fleet, kind: str, steps: set[str]
) -> None:
    fleet.prepare('enforce = ["told"]\nfail_closed = ["told"]')
    fleet.tell("n2", "corrupt")
    fleet.by_hand("n2")
    fleet.cluster.slurm.drain("n2", "Prolog error")  # by Slurm's own user
    doom = Doom(fleet, kind)
    while not doom.survived():
        assert "n2" in fleet.drained()
    assert steps <= set(" ".join(doom.done).split())
    assert fleet.states()["n2"] == "quarantined"
    assert fleet.host("n2").reason.startswith(f"{fleet.node('n2').hold_id} Prolog error: ")
    assert audited(fleet, "quarantined") == ["n2"]


def test_a_hold_that_lasted_and_is_gone_was_lifted_by_somebody(fleet: Fleet) -> None:
    assert fleet("nodes", "hold", "n2", "--reason", "fan").returncode == 0
    Doom(fleet, "never", ahead=SLURMCTLD_SAVE_S + 1).survived()
    assert audited(fleet, "hold confirmed") == ["n2"]
    fleet.cluster.stop("slurmctld")
    fleet.cluster.start("slurmctld")
    fleet.cluster.until(lambda: fleet.host("n2").state == "IDLE")
    fleet.cluster.slurm.resume("n2")
    fleet.cluster.until(lambda: fleet.cluster.idle("n2"))
    assert fleet("fleet", "collect").returncode == 0
    assert (fleet.node("n2").state, fleet.drained()) == ("unverified", set())


def test_nothing_is_changed_while_slurmctld_is_away(fleet: Fleet) -> None:
    fleet.tell("n2", "10")
    Doom(fleet, "never").survived(sweep=True)
    fleet.cluster.until(lambda: len(waiting(fleet)) == 4)
    before = waiting(fleet), fleet.ledger.list_nodes(), fleet.ledger.read_audit()
    fleet.cluster.stop("slurmctld")
    done = fleet("fleet", "collect")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (4, "", 1)
    assert (waiting(fleet), fleet.ledger.list_nodes(), fleet.ledger.read_audit()) == before
    fleet.cluster.start("slurmctld")
    assert fleet("fleet", "collect").returncode == 0
    assert fleet.states() == GOOD | {"n2": "suspect"}


def test_two_sweeps_at_once_verify_no_node_twice(fleet: Fleet) -> None:
    sweeps = [fleet.begin("fleet", "sweep") for _ in range(2)]
    told = [sweep.communicate()[0] for sweep in sweeps]
    assert [sweep.returncode for sweep in sweeps] == [0, 0], told
    assert sorted(t.node for t in tickets(fleet)) == ["n1", "n2", "n3", "n4"]
    assert set(fleet.states().values()) == {"healthy"}


def test_jobs_go_on_when_their_sweep_is_told_to_end(fleet: Fleet) -> None:
    fleet.pause()
    sweep = fleet.begin("fleet", "sweep")
    fleet.cluster.until(lambda: is_running(fleet, 4))
    sweep.terminate()
    told, _ = sweep.communicate()
    fleet.go_on()
    assert sweep.returncode == 3
    assert "still under way: 4" in told
    fleet.collected()
    assert fleet.states() == GOOD | {"n2": "healthy"}
