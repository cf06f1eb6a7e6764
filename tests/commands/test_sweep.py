"""What a sweep says before it begins, and of the links between nodes."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec.structs import replace

from hpcverify.commands.sweep import (
    CYCLE_S,
    carry_out,
    explain_choice,
    find_suite,
    make_sleep,
    report_isolations,
    show_plan,
    warn_if_passive,
)
from hpcverify.errors import ActionError, ConfigError
from hpcverify.fabric.admission import BatchTester
from hpcverify.fabric.links import try_links
from hpcverify.fleet.states import DAY_S, State
from hpcverify.isolation.answer import IsolationAnswer
from hpcverify.model import Verdict
from hpcverify.plan.config import Fabric, Site
from hpcverify.records.spool import deposit
from tests.doubles import a_run
from tests.fabric.test_admission import NAMES, make_batch
from tests.fabric.test_links import Site16, make_site
from tests.fleet.builders import make_wrong_word
from tests.isolation.stand_in import SimulatedCluster


@pytest.fixture
def paper(tmp_path: Path) -> Site16:
    return make_site(tmp_path)


@pytest.mark.parametrize(
    ("suite", "lines"), [("prolog", 1), ("epilog", 1), ("idle", 0), ("quick", 0)]
)
def test_a_suite_of_passive_checks_is_said_to_make_no_full_pass(
    suite: str, lines: int, capsys: pytest.CaptureFixture[str]
) -> None:
    warn_if_passive(suite, Site())
    said = capsys.readouterr().err.splitlines()
    assert len(said) == lines
    assert all("has only passive checks: passing it is not a full pass" in s for s in said)


def test_a_dry_run_lists_the_pairs_that_would_try_links(
    paper: Site16, capsys: pytest.CaptureFixture[str]
) -> None:
    show_plan(paper.controller, (), None, as_json=False)
    text = capsys.readouterr().out
    show_plan(paper.controller, (), None, as_json=True)
    told = json.loads(capsys.readouterr().out)

    assert "8 pairs of nodes to try links between, if idle then" in text
    assert text.count("\nlink ") == 8
    assert "between the switches leaf0 and leaf" in text
    assert len(told["links"]) == 8
    assert paper.jobs == []


def test_without_a_period_no_link_is_tried(
    paper: Site16, capsys: pytest.CaptureFixture[str]
) -> None:
    paper.fabric = Fabric()
    show_plan(paper.controller, (), None, as_json=False)
    assert "link" not in capsys.readouterr().out


def test_what_was_isolated_is_told_and_acted_on(
    paper: Site16, capsys: pytest.CaptureFixture[str]
) -> None:
    paper.slurm.cluster = SimulatedCluster(bad=("n7",))
    controller = paper.controller
    tried = try_links(controller, (), None, lambda: False, paper.slurm.sleep)

    assert report_isolations(controller, tried) == 1
    assert capsys.readouterr().out.startswith("n7 slows or fails collectives with ")
    assert paper.ledger.read_node("n7").state is State.SUSPECT


def test_while_links_are_tried_failures_are_held_and_metrics_are_written(
    paper: Site16, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Partners are drawn from both. By chance n7 can draw n16, which is drained, and then stays due.
    paper.slurm.now = 1.7e9
    monkeypatch.setattr("hpcverify.fabric.isolations.os.urandom", bytes)
    slurm, controller = paper.slurm, paper.controller
    slurm.cluster = SimulatedCluster(bad=("n7",))
    drained: list[tuple[float, bool]] = []
    written: list[float] = []
    controller.write_metrics = lambda *_: written.append(slurm.now)

    def meddle(*_: object) -> None:
        if not drained:  # the first of many tests
            ticket = paper.ledger.issue_ticket("n16", "sweep", "quick")
            bad = a_run(
                id=f"20231114-230000-{ticket.number:06x}",
                node="n16",
                verdict=Verdict.FAIL,
                results=(make_wrong_word(),),
            )
            deposit(bad, paper.folder / "spool", ticket.token)
        drained.append((slurm.now, slurm.nodes["n16"].drained))

    slurm.meddle = meddle
    began = slurm.now
    sleep = make_sleep(controller, slurm.sleep)
    answers = [*try_links(controller, (), 1, lambda: False, sleep)]

    assert [one.node for answer in answers for one in answer.faulty] == ["n7"]
    assert {is_out for at, is_out in drained if at - began > 2 * CYCLE_S} == {True}
    gaps = [b - a for a, b in pairwise([began, *written, slurm.now])]
    assert max(gaps) < 2 * CYCLE_S


def test_cycles_leave_a_batch_that_is_tested_alone(tmp_path: Path) -> None:
    batch = make_batch(tmp_path)
    batch.slurm.cluster = SimulatedCluster(bad=("n3",))
    cycles: list[float] = []
    controller = batch.controller
    controller.write_metrics = lambda *_: cycles.append(batch.slurm.now)
    sleep = make_sleep(controller, batch.slurm.sleep)
    answers = [*BatchTester(controller, 1, lambda: False, sleep).test_ready(())]

    assert [one.node for answer in answers for one in answer.faulty] == ["n3"]
    assert len(cycles) > 2
    assert {name: batch.ledger.read_node(name).state for name in NAMES} == {
        **dict.fromkeys(NAMES, State.HEALTHY),
        "n3": State.SUSPECT,
    }


def test_a_cycle_that_fails_meanwhile_ends_no_test(paper: Site16) -> None:
    """Another command may hold the lock, and another controller have claimed the spool."""
    slurm, controller = paper.slurm, paper.controller
    slurm.cluster = SimulatedCluster(bad=("n7",))
    (paper.folder / "spool/gate").mkdir()
    (paper.folder / "spool/gate/.claim").write_text("nonsense")
    sleep = make_sleep(controller, slurm.sleep)
    answers = [*try_links(controller, (), None, lambda: False, sleep)]

    assert [one.node for answer in answers for one in answer.faulty] == ["n7"]
    assert "while nodes are tested with each other: " in "\n".join(paper.said)
    assert controller.choose_exit_status() == ActionError.exit_code


def test_links_that_all_pass_are_no_news(paper: Site16) -> None:
    controller = paper.controller
    tried = try_links(controller, (), None, lambda: False, paper.slurm.sleep)
    assert report_isolations(controller, tried) == 0


def test_the_end_of_a_sweep_is_recorded_though_no_node_was_due(paper: Site16) -> None:
    controller = paper.controller
    controller.observe_holds()
    now = controller.clock()
    for node in controller.ledger.list_nodes().values():
        passed = replace(node, state=State.HEALTHY, last_pass_at=now, last_run_at=now)
        controller.ledger.put(passed, "healthy")
    paper.fabric = Fabric()
    carry_out(paper.controller, "quick", (), None)

    assert paper.jobs == []
    assert controller.ledger.read_sweep_end() >= now


def test_what_is_left_open_has_a_status_of_its_own(paper: Site16) -> None:
    vague = IsolationAnswer(
        id="x", intermittent=(("n1", "n2"),), passed=0, rounds=3, tests=9, node_minutes=9.0
    )
    assert report_isolations(paper.controller, [vague]) == 3


def test_what_is_explained_is_the_risk_of_each_node_and_why(
    paper: Site16, capsys: pytest.CaptureFixture[str]
) -> None:
    controller = paper.controller
    controller.observe_holds()
    ledger, back, clock = controller.ledger, controller.clock() - 2 * DAY_S, controller.clock
    node = ledger.read_node("n7")
    ledger.clock = lambda: back - DAY_S
    ledger.put(replace(node, state=State.QUARANTINED, enforced=True, reason="fan"), "quarantined")
    ledger.clock = lambda: back
    ledger.put(replace(node, returned_at=(back,)), "came back")
    ledger.clock = clock
    explained = explain_choice(controller, "idle")

    # One place in ten is for who has waited longest: of two, one at least goes by risk.
    show_plan(controller, (), 2, explained, as_json=False)
    text = capsys.readouterr().out
    show_plan(controller, (), 2, explained, as_json=True)
    told = json.loads(capsys.readouterr().out)

    assert re.search(
        r"\n - suite idle has a check for the classes of 100% of faults in 55 min", text
    )
    assert "how many a check would find is unknown" in " ".join(text.split())
    assert re.search(r"\n - risk by published data: ", text)
    assert re.search(r"\nverify +n7 +\d+\.\dx +came back 2 days ago", text)
    assert re.search(r"\n- +n\d+ +0\.\dx +is due, but this sweep is limited to 2", text)
    assert told["risks"]["n7"]["score"] > 3
    assert told["risks"]["n7"]["reasons"][0] == "came back 2 days ago"


@pytest.mark.parametrize(("minutes", "suite"), [(8, "quick"), (54, "quick"), (2000, "quick")])
def test_the_suite_that_buys_most_in_the_time_is_chosen(minutes: int, suite: str) -> None:
    assert find_suite(Site(), minutes) == suite


def test_a_time_that_is_too_short_for_any_suite_is_a_mistake() -> None:
    with pytest.raises(ConfigError, match=r"no suite .* fits into 3 minutes: the shortest, quick"):
        find_suite(Site(), 3)
