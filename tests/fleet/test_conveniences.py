"""Damaged files and absurd documents cost a line, and never a hold, a drain or a view."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from hpcverify.cli import cli
from hpcverify.commands.collect import take_cycle
from hpcverify.commands.decisions import decide
from hpcverify.errors import ActionError, DamagedError, SlurmError
from hpcverify.fabric.leftovers import ADMISSION_LOCK_NAME
from hpcverify.fabric.links import try_links
from hpcverify.fleet import transitions
from hpcverify.fleet.controller import HISTORY, Controller
from hpcverify.fleet.holds_slurm import SlurmBackend
from hpcverify.fleet.ledger import LEDGER_FILE_NAME, Ledger
from hpcverify.fleet.states import Caveat, State
from hpcverify.history.columns import find_night
from hpcverify.history.database import find_database, list_nights, open_to_read, open_to_write
from hpcverify.history.reader import Choice, read_measurements
from hpcverify.history.rebuild import rebuild_measurements
from hpcverify.history.screen import read_misdated_runs
from hpcverify.history.writer import QUEUE_NAME, MeasurementWriter
from hpcverify.insight.job_sensor import take_suspicions
from hpcverify.insight.judgement import JUDGEMENT_NAME, FleetJudgement, read_judgement
from hpcverify.model import (
    Finding,
    FindingRule,
    Inventory,
    Measurement,
    Part,
    Remedy,
    Result,
    Run,
    Source,
    Verdict,
)
from hpcverify.plan.config import Fabric, Fleet, Quarantine, Site
from hpcverify.records.spool import deposit
from hpcverify.slurm.client import Slurm
from tests.doubles import add_missing_faults
from tests.fleet.builders import Ticking, make_controller
from tests.fleet.paper import ME, PaperNode, PaperSlurm

NODES = [f"n{number}" for number in range(1, 17)]
DAY = 86400.0
TORN = [b"", b"\0" * 4096, b"{}", b'{"night":"20', b"\xff\xfe", b"[" * 100_000, b"null", b"\n\n"]
"""What files look like after a power cut, a full disk or a careless editor."""


def list_gpus(node: str) -> list[Part]:
    return [Part("gpu", f"GPU-{node}-{i}", f"GPU {i}", {"name": "H100"}) for i in range(2)]


def measure(node: str, speeds: Iterable[float], steps: Iterable[float]) -> tuple[Result, ...]:
    """Make the results of two checks: of one, low values are bad, and of the other high ones."""
    gpus = list_gpus(node)
    return tuple(
        Result(
            check=check,
            verdict=Verdict.PASS,
            measurements=tuple(
                Measurement(metric, value, unit, gpu.id)
                for gpu, value in zip(gpus, values, strict=True)
            ),
        )
        for check, metric, unit, values in (
            ("gemm", "bf16.sustained", "TFLOP/s", speeds),
            ("training", "step_p50", "ms", steps),
        )
    )


def claim(names: Iterable[str]) -> tuple[Result, ...]:
    """Make the result of a check that claims a metric of each of these *names*."""
    found = tuple(Measurement(name, 1.0, "TFLOP/s") for name in names)
    return (Result(check="gemm", verdict=Verdict.PASS, measurements=found),)


class Home(Ticking):
    """A fleet on paper, with a history, whose nights are the last ones."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Make it; its clock begins ten days before now, at noon."""
        self.state, self.spool = folder / "state", folder / "spool"
        self.spool.mkdir()
        config = folder / "site.toml"
        config.write_text(f'[fleet]\nspool = "{self.spool}"\n')
        monkeypatch.setenv("HPCVERIFY_STATE", str(self.state))
        monkeypatch.setenv("HPCVERIFY_CONFIG", str(config))
        self.now = (time.time() // DAY - 10) * DAY + DAY / 2 + 3600
        self.paper = PaperSlurm({name: PaperNode() for name in NODES}, clock=lambda: self.now)
        self.said: list[str] = []
        self.chance = Random(7)  # noqa: S311 - a fleet, and no secret
        self.written = 0

    @property
    def today(self) -> datetime:
        return datetime.fromtimestamp(self.now, UTC)

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.state, self.clock)

    @property
    def queue(self) -> Path:
        """What a killed writer leaves."""
        return find_database(self.state).with_name(QUEUE_NAME)

    @property
    def controller(self) -> Controller:
        site = Site(
            fleet=Fleet(spool=str(self.spool), user=ME),
            quarantine=Quarantine(enforce=("*",), check_share=1, share=1),
        )
        writer = MeasurementWriter(self.state, self.said.append, lambda: self.today)
        return make_controller(
            self.state, site, self.paper, self.clock, self.said.append, measurements=writer
        )

    def collect(self) -> Controller:
        """Do what `hpcverify fleet collect` does."""
        controller = self.controller
        take_cycle(controller)
        return controller

    def leave(self, node: str, ticket: str = "", **changes: Any) -> Run:
        """Have *node* leave a run, with a figure of each of two GPUs."""
        self.written += 1
        gpus = list_gpus(node)
        speeds = [self.chance.gauss(500, 2) for _ in gpus]
        steps = [self.chance.gauss(0.5, 0.002) for _ in gpus]
        run = Run(
            id=f"{self.today:%Y%m%d-%H%M%S}-{self.written:06x}",
            node=node,
            suite="idle",
            started=self.today,
            seconds=60,
            verdict=Verdict.PASS,
            complete=True,
            passive=False,
            inventory=Inventory(parts=tuple(gpus)),
            results=measure(node, speeds, steps),
        )
        run = add_missing_faults(replace(run, **changes))
        deposit(run, self.spool, ticket)
        return run

    def find_broken(self, node: str) -> None:
        """Have *node* fail an ordered run by evidence that no rerun can take back."""
        finding = Finding("lost", "node", "a GPU is lost")
        result = Result(
            check="gemm",
            verdict=Verdict.FAIL,
            reason="a GPU is lost",
            remedy=Remedy.REPLACE,
            findings=(finding,),
            rulings={"lost": FindingRule(Verdict.FAIL, Remedy.REPLACE, conclusive=True)},
        )
        ticket = self.ledger.issue_ticket(node, "sweep", "idle")
        self.leave(node, ticket.token, verdict=Verdict.FAIL, results=(result,))

    def pass_nights(self, count: int, *poison: tuple[Result, ...]) -> None:
        """Let nights pass in which each node leaves a run, and n16 one with each *poison*."""
        for _ in range(count):
            self.now += DAY
            for node in NODES[:-1]:
                self.leave(node)
            for results in poison:
                self.leave(NODES[-1], results=results)
            self.collect()

    def view(self, *command: str) -> tuple[int, str]:
        """Run a command that shows something; give its status and its text."""
        done = CliRunner().invoke(cli, list(command))
        if done.exception and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done.exit_code, done.output

    def require_work(self) -> None:
        """Require that holds, drains, intake, releases and views go on."""
        self.find_broken("n2")
        self.collect()
        assert self.paper.nodes["n2"].drained
        assert self.ledger.read_node("n2").state is State.QUARANTINED
        hold = decide(self.controller, "n3", "fan", transitions.hold, "held")
        assert (hold, self.paper.nodes["n3"].drained) == (0, True)
        decide(self.controller, "n3", "fan is new", transitions.release, "released")
        assert not self.paper.nodes["n3"].drained
        assert not list(self.spool.glob("n*/[0-9]*.json"))
        assert self.view("nodes")[0] == 0
        nodes = json.loads(self.view("nodes", "--json")[1].partition("\n{")[0] or "{}")
        assert isinstance(nodes, dict)
        assert self.view("report", "--fleet", "--format", "json", "-o", "/dev/null")[0] == 0


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    return Home(tmp_path, monkeypatch)


def list_malfunctions(home: Home) -> list[str]:
    return [one.name for one in home.ledger.list_malfunctions()]


@pytest.mark.parametrize("torn", TORN)
def test_damaged_lines_of_the_queue_are_told_and_the_cycle_goes_on(home: Home, torn: bytes) -> None:
    home.pass_nights(1)
    home.queue.write_bytes(torn)

    home.require_work()

    assert not home.queue.exists()
    told = sum("cannot be read" in line for line in home.said)
    assert (told, list_malfunctions(home)) == (bool(torn.strip()), [])


def test_a_history_that_fails_is_a_state_until_it_works_again(home: Home) -> None:
    home.pass_nights(1)
    home.queue.mkdir()

    home.require_work()

    assert list_malfunctions(home) == [HISTORY]
    text = home.view("nodes")[1]
    assert HISTORY in text
    assert "queue.ndjson" in text
    home.queue.rmdir()
    home.collect()
    assert list_malfunctions(home) == []


def test_a_bug_in_a_convenience_ends_it_alone(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **_options: object) -> None:
        raise KeyError("one")

    monkeypatch.setattr(MeasurementWriter, "add", fail)
    home.leave("n1")

    home.require_work()

    (told,) = {line for line in home.said if HISTORY in line}
    assert "KeyError" in told


def test_a_damaged_ledger_stops_the_cycle(home: Home) -> None:
    home.pass_nights(1)
    (home.state / LEDGER_FILE_NAME).write_bytes(b"no ledger" * 1000)

    with pytest.raises(DamagedError):
        home.collect()
    controller = object.__new__(Controller)
    with pytest.raises(DamagedError), controller.run_convenience("one"):
        raise DamagedError("the ledger")


def read_judged(home: Home) -> FleetJudgement:
    judged = read_judgement(home.state)
    assert judged is not None
    return judged


ABSURD = [(1.7e308,), (-1.7e308,) * 8, (1e200, 1.0) * 4, (1e30, 1e-30) * 4, (5e-324, -0.0) * 4]


@pytest.mark.system
@pytest.mark.parametrize("values", ABSURD)
def test_absurd_numbers_of_a_node_leave_the_nights_judged_and_the_views_whole(
    home: Home, values: tuple[float, ...]
) -> None:
    home.pass_nights(4, *(measure("n16", (value, 500.0), (0.5, value)) for value in values))
    home.require_work()
    require_sound_judgement(home)


@pytest.mark.system
@pytest.mark.parametrize("values", ABSURD)
def test_absurd_numbers_that_the_history_has_from_before_are_not_judged(
    home: Home, monkeypatch: pytest.MonkeyPatch, values: tuple[float, ...]
) -> None:
    with monkeypatch.context() as before:
        before.setattr("hpcverify.model.LARGEST_VALUE", math.inf)
        home.pass_nights(3, *(measure("n16", (value, 500.0), (0.5, value)) for value in values))
    home.pass_nights(1, measure("n16", (500.0, 500.0), (0.5, 0.5)))

    home.require_work()

    require_sound_judgement(home)


def require_sound_judgement(home: Home) -> None:
    """Require that the last night was judged, and that nobody is infinitely far."""
    judged = read_judged(home)
    assert judged.night == find_night(home.today) - timedelta(days=1)
    assert all(math.isfinite(one.distance) for one in (*judged.outliers, *judged.unconfirmed))
    assert len(judged.metrics) + judged.screened == 2
    assert list_malfunctions(home) == []


@pytest.mark.parametrize("torn", TORN)
def test_a_torn_judgement_is_not_shown_and_the_next_night_makes_a_new_one(
    home: Home, torn: bytes
) -> None:
    home.pass_nights(2)
    path = home.state / JUDGEMENT_NAME
    path.write_bytes(torn)

    code, text = home.view("nodes")
    assert (code, "judgement.json is damaged" in text) == (0, True)
    code, text = home.view("report", "--fleet", "-o", str(home.spool.parent / "fleet.html"))
    assert (code, "judgement.json is damaged" in text) == (0, True)

    home.collect()
    assert read_judged(home).night == find_night(home.today) - timedelta(days=1)
    assert path.with_suffix(".damaged").read_bytes() == torn


def test_an_outlier_without_nodes_in_the_judgement_ends_no_night(home: Home) -> None:
    home.pass_nights(3)
    night = find_night(home.today)
    named = {"level": "part", "name": "n1 GPU 0", "metric": "gemm", "verdict": "fail"}
    days = {"distance": 0.5, "since": str(night), "last": str(night)}
    old = {"night": str(night - timedelta(days=1)), "outliers": [named | days]}
    (home.state / JUDGEMENT_NAME).write_text(json.dumps(old))
    home.pass_nights(1)

    assert list_malfunctions(home) == []
    judged = read_judgement(home.state)
    assert judged is not None
    assert judged.night == night


def test_an_outlier_of_a_day_to_come_in_the_judgement_is_forgotten(home: Home) -> None:
    home.pass_nights(2)
    night = find_night(home.today) - timedelta(days=1)
    named = {"level": "part", "name": "n1 GPU 0", "node": "n1", "nodes": ["n1"], "suite": "idle"}
    days = {"metric": "gemm", "verdict": "fail", "distance": 0.5, "nights": 2}
    far = {"since": str(night), "last": "9999-12-31"}
    old = {"night": str(night), "outliers": [named | days | far]}
    (home.state / JUDGEMENT_NAME).write_text(json.dumps(old))
    home.pass_nights(1)

    assert (list_malfunctions(home), read_judged(home).night) == ([], night + timedelta(days=1))
    assert read_judged(home).outliers == ()


def test_a_slow_part_is_named_though_another_node_claims_absurd_numbers(home: Home) -> None:
    for _ in range(3):
        home.now += DAY
        for node in NODES[:-2]:
            home.leave(node)
        home.leave("n15", results=measure("n15", (-1.7e308, 1e29), (1.7e308, 1e200)))
        home.leave("n16", results=measure("n16", (400.0, 500.0), (0.5, 0.5)))
        home.collect()

    judged = read_judged(home)
    assert "n16 GPU 0" in {one.name for one in judged.outliers}
    assert [note for note in judged.notes if "n15 not compared" in note]


def test_a_run_with_too_many_metrics_is_left_out_and_named(home: Home) -> None:
    home.pass_nights(2, claim(f"m{number}" for number in range(30_000)))
    home.require_work()
    assert len([line for line in home.said if "30000 different metrics" in line]) == 2
    require_sound_judgement(home)


def test_a_node_with_too_many_metrics_over_its_runs_is_left_out_of_the_night_and_named(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcverify.history.screen.MAX_NODE_METRICS", 20)
    home.pass_nights(2, *(claim([f"m{number}"]) for number in range(30)))
    assert [note for note in read_judged(home).notes if note.startswith("n16 is not judged")]
    require_sound_judgement(home)


# -- other sources than runs


@pytest.mark.parametrize("how", ["open", "file", "link"])
def test_what_jobs_say_of_a_node_does_not_depend_on_its_folder(home: Home, how: str) -> None:
    home.collect()
    folder = home.spool / "n7"
    match how:
        case "open":
            folder.mkdir()
            folder.chmod(0o777)
        case "file":
            folder.write_text("")
        case _:
            folder.symlink_to(home.state)
    ended = int(home.now) - 60
    home.paper.ended = f"7|batch|NODE_FAIL|{ended - 60}|{ended}|n7\n"

    with home.controller.run_convenience("sensor"):
        take_suspicions(home.controller)

    assert home.ledger.read_node("n7").state is State.SUSPECT
    assert list_malfunctions(home) == []


def leave_bmc_run(home: Home, verdict: Verdict, *checks: str, is_signed: bool) -> Run:
    """Leave a run of the suite of BMCs of n1: of the controller if *is_signed*, else forged."""
    home.written += 1
    found = (
        (Finding("fan", "node", "a fan has failed", {"event": "x" * 5000}),)
        if verdict is Verdict.FAIL
        else ()
    )
    made = Run(
        id=f"{home.today:%Y%m%d-%H%M%S}-{home.written:06x}",
        node="n1",
        suite=Source.BMC,
        started=home.today,
        seconds=1,
        verdict=verdict,
        complete=True,
        passive=True,
        inventory=Inventory(),
        results=tuple(
            Result(
                check=check,
                verdict=verdict,
                reason="a fan has failed" if found else "",
                findings=found,
                rulings={"fan": FindingRule(Verdict.FAIL, Remedy.INSPECT, conclusive=not is_signed)}
                if found
                else {},
            )
            for check in checks
        ),
    )
    run = add_missing_faults(made)
    deposit(run, home.spool, home.ledger.sign(run) if is_signed else "\N{SNOWMAN}")
    return run


def test_a_node_cannot_take_back_what_its_bmc_showed(home: Home) -> None:
    leave_bmc_run(home, Verdict.FAIL, "chassis", is_signed=True)
    home.collect()
    assert home.ledger.read_node("n1").bmc_failures == {"chassis": "a fan has failed"}

    leave_bmc_run(home, Verdict.PASS, "chassis", is_signed=False)
    home.collect()
    assert home.ledger.read_node("n1").bmc_failures == {"chassis": "a fan has failed"}

    leave_bmc_run(home, Verdict.PASS, "chassis", is_signed=True)
    home.collect()
    assert home.ledger.read_node("n1").bmc_failures == {}


def test_a_run_of_a_bmc_that_was_changed_in_the_spool_is_not_ours(home: Home) -> None:
    leave_bmc_run(home, Verdict.FAIL, "chassis", is_signed=True)
    home.collect()
    run = leave_bmc_run(home, Verdict.FAIL, "chassis", is_signed=True)
    passed = replace(
        run, verdict=Verdict.PASS, results=(Result(check="chassis", verdict=Verdict.PASS),)
    )
    deposit(passed, home.spool, home.ledger.sign(run))
    home.collect()

    assert home.ledger.read_node("n1").bmc_failures == {"chassis": "a fan has failed"}


def test_what_a_node_claims_of_its_bmc_makes_it_a_suspect_and_is_not_kept_as_that(
    home: Home,
) -> None:
    for batch in range(4):
        checks = (f"c{batch}_{number}" for number in range(400))
        leave_bmc_run(home, Verdict.FAIL, *checks, is_signed=False)
        home.collect()

    node = home.ledger.read_node("n1")
    assert (node.state, node.caveat, node.bmc_failures) == (State.SUSPECT, Caveat.VERIFICATION, {})
    assert len(node.checks) < 1000, "it does not grow with each run"


def test_no_node_can_tell_the_id_of_a_run_of_ours(home: Home, tmp_path: Path) -> None:
    """Whoever could would use it first, and ours would pass for one that was judged before."""
    others = Ledger(tmp_path / "others", home.clock)
    words = "n1", "black_hole"
    assert home.ledger.make_mark(*words) == home.ledger.make_mark(*words)
    assert home.ledger.make_mark(*words) != others.make_mark(*words)
    assert home.ledger.make_mark("n1 black", "hole") != home.ledger.make_mark("n1", "black hole")


def test_links_that_cannot_be_tried_end_alone_and_are_a_state(home: Home) -> None:
    home.collect()
    controller = home.controller
    controller.site = replace(
        controller.site, fabric=Fabric(period_days=7, switches={"leaf1": "n[1-"})
    )
    found = controller.iterate_convenience("links", try_links(controller, (), None, lambda: False))

    assert list(found) == []
    assert list_malfunctions(home) == ["links"]
    assert controller.choose_exit_status() == ActionError.exit_code
    home.require_work()


def test_what_a_killed_sweep_left_can_be_damaged_and_the_cycle_goes_on(home: Home) -> None:
    home.pass_nights(1)
    for number, line in enumerate(TORN):
        folder = home.state / "isolations" / f"20261128-{number:06}-abcdef"
        folder.mkdir(parents=True)
        (folder / "journal.jsonl").write_bytes(line + b"\n")

    home.require_work()

    assert list_malfunctions(home) == []


def test_a_lock_of_admissions_that_cannot_be_opened_is_a_state_and_the_cycle_goes_on(
    home: Home,
) -> None:
    home.pass_nights(1)
    (home.state / ADMISSION_LOCK_NAME).unlink()
    (home.state / ADMISSION_LOCK_NAME).mkdir()

    home.require_work()

    assert list_malfunctions(home) == ["removal of what a killed sweep left"]
    (home.state / ADMISSION_LOCK_NAME).rmdir()
    home.collect()
    assert list_malfunctions(home) == []


# -- clocks


@pytest.mark.system
def test_a_clock_that_jumps_for_one_collect_closes_no_week_and_no_night(home: Home) -> None:
    home.now -= 10 * DAY
    home.pass_nights(10)
    before = list(list_nights(home.state))
    for jump in (120 * DAY, -120 * DAY):
        home.now += jump
        for _ in range(2):
            home.leave("n1")
            home.collect()
            home.now += DAY
        home.now -= jump + 2 * DAY
        assert set(before) <= set(list_nights(home.state))
        with open_to_read(home.state) as db:
            assert db.execute("from weeks").fetchall() == []
    home.pass_nights(2)

    assert read_judged(home).night == find_night(home.today) - timedelta(days=1)
    assert len([n for n in list_nights(home.state) if n <= find_night(home.today)]) >= 12
    assert list_malfunctions(home) == []


def test_runs_of_a_week_that_is_closed_are_dropped_with_a_line(home: Home) -> None:
    assert home.controller.measurements is not None
    home.pass_nights(1)
    (night,) = list_nights(home.state)
    with open_to_write(home.state) as db:
        db.execute("insert into weeks (week) values (date_trunc('week', ?::date))", [night])
    home.leave("n1")
    home.said.clear()
    home.collect()

    assert [line for line in home.said if line.startswith("1 run of weeks")]


@pytest.mark.parametrize("off", [timedelta(days=3), timedelta(days=-3), timedelta(days=365000)])
def test_a_run_whose_dates_disagree_is_refused_in_one_line(home: Home, off: timedelta) -> None:
    home.now += DAY
    home.leave("n1", started=home.today + off)
    home.leave("n2")
    home.collect()

    (told,) = home.said
    assert told.startswith("n1: ")
    assert len(list_nights(home.state)) == 1


def test_runs_of_nodes_with_wrong_clocks_count_for_the_night_they_arrive(
    home: Home,
) -> None:
    right = home.now
    for node, days in (("n1", -9000), ("n2", 9000)):
        ticket = home.ledger.issue_ticket(node, "sweep", "idle")
        home.now = right + days * DAY
        home.leave(node, ticket.token)
    home.now = right
    home.leave("n3")
    home.collect()

    assert home.ledger.read_node("n1").state is State.HEALTHY
    assert home.ledger.read_node("n2").state is State.HEALTHY
    for _ in range(2):
        assert set(read_measurements(home.state)["node"]) == {"n1", "n2", "n3"}
        assert list(list_nights(home.state)) == [find_night(home.today)]
        misdated = read_misdated_runs(home.state, Choice())
        assert {run.node: round(run.error / DAY) for run in misdated} == {"n1": -9000, "n2": 9000}
        rebuild_measurements(home.state, [])


def test_a_slurm_that_is_away_still_ends_the_cycle(home: Home) -> None:
    def refuse(_: object) -> str:
        raise SlurmError("squeue: nobody answers")

    controller = home.controller
    controller.slurm = Slurm(run=refuse)
    with controller.run_convenience("sensor"):
        take_suspicions(controller)
    controller.backend = SlurmBackend(controller.slurm)

    with pytest.raises(SlurmError):
        controller.reconcile()


def test_a_hold_is_done_though_its_event_cannot_be_written(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    home.collect()
    (home.state / "events.jsonl").unlink()
    (home.state / "events.jsonl").mkdir()
    controller = home.controller

    assert decide(controller, "n1", "fan", transitions.hold, "held") == 0
    assert capsys.readouterr().out == "n1: held\n"
    assert home.paper.nodes["n1"].drained
    assert list_malfunctions(home) == ["events.jsonl"]
    assert controller.choose_exit_status() == ActionError.exit_code
