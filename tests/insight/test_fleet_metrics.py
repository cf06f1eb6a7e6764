"""The controller's text file says of the fleet what the table has, however large it is."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from hpcverify.errors import SlurmError
from hpcverify.fleet.controller import METRICS, METRICS_INTERVAL_S, Controller, Cycle
from hpcverify.fleet.holds_slurm import SlurmBackend
from hpcverify.fleet.ledger import Ledger
from hpcverify.fleet.states import DAY_S, Node, State
from hpcverify.history.screen import PeerMetric
from hpcverify.insight.fleet_metrics import (
    MAX_CROSSINGS,
    MAX_PLACES,
    find_peak,
    write_fleet_metrics,
)
from hpcverify.insight.judgement import (
    JUDGEMENT_NAME,
    FleetJudgement,
    write_judgement,
)
from hpcverify.metrics.table import CONTROLLER_METRICS, FLEET_FILE_NAME, MAX_LISTED_NODES, STATES
from hpcverify.model import Finding, Measurement, Remedy, Verdict
from hpcverify.peers.screen import ListSummary
from hpcverify.plan.config import Fleet, Quarantine, Site, TextFiles
from hpcverify.slurm.client import Slurm
from hpcverify.trends.fleet import PartChange
from hpcverify.trends.slope import Crossing
from tests.doubles import a_result
from tests.fleet.builders import NOW, Room, a_room, make_controller, make_wrong_word, store_nodes
from tests.fleet.paper import ME
from tests.fuse import silent_file_system
from tests.metrics.reading import list_strays, read_families, read_samples, read_value

FLEET_NODES = 10_000
MAX_FILE_BYTES = 3 * 2**20
FAILED: dict[str, Any] = {
    "state": State.QUARANTINED,
    "enforced": True,
    "hold_id": "hv1",
    "checks": ("sdc", "gemm"),
    "since": NOW - DAY_S,
}


@dataclass
class Exporting:
    """A room whose controller writes metrics into *folder*."""

    room: Room
    folder: Path
    all_nodes: bool = False

    @property
    def controller(self) -> Controller:
        room = self.room
        site = Site(
            fleet=Fleet(spool=str(room.folder / "spool"), user=ME),
            quarantine=Quarantine(enforce=("*",), check_share=1),
            metrics=TextFiles(directory=str(self.folder), all_nodes=self.all_nodes),
        )
        state = room.folder / "state"
        controller = make_controller(state, site, room.slurm, room.clock, room.said.append)
        controller.write_metrics = write_fleet_metrics
        return controller

    @property
    def ledger(self) -> Ledger:
        return self.room.ledger

    @property
    def text(self) -> str:
        return (self.folder / FLEET_FILE_NAME).read_text()

    def read(self, name: str, **labels: str) -> float:
        return read_value(self.text, name, **labels)

    def list_labels(self, name: str) -> list[dict[str, str]]:
        return [dict(labels) for labels in read_samples(self.text).get(name, {})]

    def cycle(self, after: float = 600) -> int:
        """Take a cycle, and return its exit status."""
        self.room.now += after
        controller = self.controller
        with controller.hold_lock():
            controller.reconcile()
        return controller.choose_exit_status()

    def write(self, nodes: Mapping[str, Node], **changes: Any) -> str:
        """Write the metrics of these *nodes*, and return them."""
        controller = self.controller
        store_nodes(controller.ledger, nodes.values())
        write_fleet_metrics(controller, replace(Cycle(listed=nodes, doubts=()), **changes))
        return self.text


def refuse_to_answer(_command: Sequence[str]) -> str:
    raise SlurmError("slurmctld does not answer")


@pytest.fixture
def site(tmp_path: Path) -> Exporting:
    (tmp_path / "textfiles").mkdir()
    return Exporting(a_room(tmp_path), tmp_path / "textfiles")


def make_nodes(count: int = FLEET_NODES, **changes: Any) -> dict[str, Node]:
    changes = {"last_pass_at": NOW, "first_seen_at": NOW, "since": NOW, **changes}
    names = [f"r{i // 32:03d}n{i % 32:02d}" for i in range(count)]
    return {name: Node(name=name, **changes) for name in names}


def make_judgement(changes: int = 1) -> FleetJudgement:
    metric = PeerMetric("idle", "gemm", "bf16.sustained", "TFLOP/s", "gpu", "NVIDIA H100 80GB HBM3")
    reached = ListSummary(peers=8, centre=650.0, mad=5.0, low=500.0, high=700.0)
    change = PartChange(
        node="r000n00",
        part="GPU 3",
        metric="gemm bf16.sustained (idle)",
        verdict=Verdict.WARN,
        kind="trend",
        size=0.1,
        before=650.0,
        after=600.0,
        unit="TFLOP/s",
        day=date(2027, 1, 14),
        check="gemm",
        measurement="bf16.sustained",
        crossing=Crossing(NOW / DAY_S + 10, NOW / DAY_S, None),
    )
    return FleetJudgement(
        night=date(2027, 1, 14),
        levels=(
            (metric, reached),
            (replace(metric, check="host_memory", metric="copy", model="EPYC"), reached),
        ),
        changes=tuple(replace(change, node=f"r{i:03d}n00") for i in range(changes)),
    )


def test_every_metric_of_the_table_can_be_in_the_file_and_no_other(site: Exporting) -> None:
    missing = a_result(
        "inventory",
        verdict=Verdict.FAIL,
        measurements=(Measurement("gpus", 7),),
        findings=(Finding("gpu_missing", "GPU-1", "gone"),),
    )
    site.cycle()
    site.room.finds("n1", make_wrong_word(), missing)
    site.cycle()
    write_judgement(site.controller.state, make_judgement())
    site.ledger.record_malfunction("history of measurements", "the disk is full")
    nodes = {**make_nodes(40), **site.ledger.list_nodes()}
    text = site.write(nodes)

    assert list_strays(text, CONTROLLER_METRICS) == []
    assert {metric.name for metric in CONTROLLER_METRICS} == {*read_families(text)}


def test_a_cycle_writes_when_it_ended(site: Exporting) -> None:
    site.cycle()
    first = site.read("hpcverify_controller_cycle_timestamp_seconds")
    site.cycle(600)
    assert site.read("hpcverify_controller_cycle_timestamp_seconds") >= first + 600


def test_a_cycle_that_slurm_does_not_answer_writes_nothing(site: Exporting) -> None:
    site.cycle()
    before = site.text
    controller = site.controller
    controller.backend = SlurmBackend(Slurm(run=refuse_to_answer))
    with pytest.raises(SlurmError), controller.hold_lock():
        controller.reconcile()

    assert site.text == before


def test_all_states_and_holds_are_written_though_no_node_has_them(site: Exporting) -> None:
    site.cycle()
    states = {labels["state"] for labels in site.list_labels("hpcverify_nodes")}
    assert states == {*STATES}
    assert site.read("hpcverify_nodes", state="unverified") == 4
    assert site.read("hpcverify_nodes_held", hold="others") == 0


def test_a_quarantined_node_has_its_state_its_check_and_what_to_do(site: Exporting) -> None:
    site.cycle()
    site.room.finds("n1", make_wrong_word(remedy=Remedy.REPLACE))
    site.cycle()

    assert site.list_labels("hpcverify_node_hold_info") == [
        {"node": "n1", "hold": "drain", "check": "sdc", "remedy": "replace"}
    ]
    assert site.read("hpcverify_node_state", node="n1", state="quarantined") == 1
    assert site.read("hpcverify_node_state", node="n1", state="healthy") == 0
    assert site.read("hpcverify_nodes_held", hold="drain") == 1
    assert site.read("hpcverify_breaker_held_nodes") == 1
    before, after = "unverified", "quarantined"
    assert site.read("hpcverify_transitions_total", before=before, after=after) == 1


def test_the_reason_and_the_person_of_a_hold_are_not_in_the_file(site: Exporting) -> None:
    held = Node(name="n1", state=State.HELD, enforced=True, by="ann", reason="secret plan")
    drained = Node(name="n2", foreign="bob: his secret drain")
    text = site.write({"n1": held, "n2": drained})

    assert "ann" not in text.replace("annot", "")
    assert "secret" not in text
    assert "bob" not in text


def test_only_nodes_that_need_attention_have_series_of_their_own(site: Exporting) -> None:
    nodes = {
        **make_nodes(3, state=State.HEALTHY),
        "new": Node(name="new"),
        "bad": Node(name="bad", **FAILED),
        "taken": Node(name="taken", state=State.HEALTHY, foreign="their drain"),
        "back": Node(name="back", state=State.HEALTHY, returned_at=(NOW - 2, NOW - 1)),
    }
    site.write(nodes)
    listed = {labels["node"] for labels in site.list_labels("hpcverify_node_state")}

    assert listed == {"bad", "taken", "back"}
    assert site.read("hpcverify_node_recent_returns", node="back") == 2


def test_a_node_that_lacks_a_part_has_series_though_it_is_healthy(site: Exporting) -> None:
    missing = a_result(
        "inventory",
        measurements=(Measurement("gpus", 7), Measurement("disks", 2)),
        findings=(Finding("gpu_missing", "GPU-1", "gone"),),
    )
    site.cycle()
    site.room.finds("n1", missing)
    site.cycle()

    assert site.read("hpcverify_node_parts_missing", node="n1", kind="gpu") == 1
    assert site.read("hpcverify_node_parts_missing", node="n1", kind="disk") == 0
    assert site.read("hpcverify_parts_expected", kind="gpu") == 8
    assert site.read("hpcverify_parts_present", kind="gpu") == 7


def test_a_node_in_service_is_overdue_and_one_that_is_held_is_not(site: Exporting) -> None:
    past = NOW - 30 * DAY_S
    nodes = make_nodes(3, last_pass_at=past, first_seen_at=past)
    nodes["r000n01"] = replace(nodes["r000n01"], **FAILED)
    nodes["r000n02"] = replace(nodes["r000n02"], last_pass_at=NOW)
    site.write(nodes)

    assert site.read("hpcverify_nodes_overdue") == 1


def test_a_site_can_have_series_of_all_nodes(site: Exporting) -> None:
    site.all_nodes = True
    site.write(make_nodes(5, state=State.HEALTHY))
    assert len(site.list_labels("hpcverify_node_run_timestamp_seconds")) == 5


@pytest.mark.system
@pytest.mark.parametrize(
    "changes",
    [{}, {"state": State.HEALTHY}, FAILED, {"foreign": "maintenance", "state": State.HEALTHY}],
    ids=["new", "healthy", "failed", "drained by others"],
)
def test_the_file_stays_small_whatever_happens_to_10000_nodes(
    site: Exporting, changes: Mapping[str, Any]
) -> None:
    write_judgement(site.controller.state, make_judgement(changes=FLEET_NODES))
    text = site.write(make_nodes(**changes))
    series = sum(map(len, read_samples(text).values()))
    listed = {labels["node"] for labels in site.list_labels("hpcverify_node_state")}

    assert len(text.encode()) < MAX_FILE_BYTES
    assert series < 20 * MAX_LISTED_NODES
    assert len(listed) + site.read("hpcverify_nodes_unlisted") in (0, FLEET_NODES)
    assert len(listed) <= MAX_LISTED_NODES
    assert len(site.list_labels("hpcverify_trend_crossing_timestamp_seconds")) <= MAX_CROSSINGS
    assert sum(site.read("hpcverify_nodes", state=state) for state in STATES) == FLEET_NODES


def test_the_worst_nodes_are_listed_where_not_all_can_be(site: Exporting) -> None:
    nodes = make_nodes(2 * MAX_LISTED_NODES, foreign="maintenance")
    nodes["r999n99"] = Node(name="r999n99", **FAILED)
    site.write(nodes)
    assert site.read("hpcverify_node_state", node="r999n99", state="quarantined") == 1


def test_racks_are_counted_unless_names_have_too_many(site: Exporting) -> None:
    nodes = make_nodes(64)
    nodes["r001n00"] = replace(nodes["r001n00"], **FAILED)
    site.write(nodes)
    assert site.read("hpcverify_place_nodes", place="r001") == 32
    assert site.read("hpcverify_place_nodes_out", place="r001") == 1
    assert site.read("hpcverify_place_nodes_out", place="r000") == 0

    site.write({name: Node(name=name) for name in (f"r{i}n1" for i in range(MAX_PLACES + 1))})
    assert site.list_labels("hpcverify_place_nodes") == []


def test_a_node_that_the_scheduler_no_longer_has_is_missing_and_in_no_state(
    site: Exporting,
) -> None:
    gone = Node(name="n9", **FAILED, missing_since=NOW - DAY_S)
    site.write({"n1": Node(name="n1"), "n9": gone}, listed={"n1"})
    assert site.read("hpcverify_nodes_missing") == 1
    assert site.read("hpcverify_nodes", state="quarantined") == 0
    assert site.list_labels("hpcverify_node_state") == []


def test_a_failed_node_in_service_is_observed_and_not_held(site: Exporting) -> None:
    observed = Node(name="n1", state=State.SUSPECT, checks=("gemm",))
    late = Node(name="n2", state=State.QUARANTINED, enforced=True)
    site.write({"n1": observed, "n2": late})
    assert (site.read("hpcverify_nodes_observed"), site.read("hpcverify_nodes_to_hold")) == (1, 1)
    assert sum(site.read("hpcverify_nodes_held", hold=h) for h in ("drain", "others")) == 0


def test_a_doubted_check_is_1_among_all_checks(site: Exporting) -> None:
    site.write({}, doubts={"gemm"})
    checks = site.list_labels("hpcverify_check_doubted")
    assert site.read("hpcverify_check_doubted", check="gemm") == 1
    assert site.read("hpcverify_check_doubted", check="ecc") == 0
    assert len(checks) > 20


def test_what_parts_reach_is_shown_beside_the_data_sheet(site: Exporting) -> None:
    write_judgement(site.controller.state, make_judgement())
    site.write(make_nodes(1))
    labels = {"check": "gemm", "metric": "bf16.sustained", "model": "NVIDIA H100 80GB HBM3"}
    share = site.read("hpcverify_measurement_peak_ratio", **labels, statistic="median")

    assert site.read("hpcverify_measurement", **labels, unit="TFLOP/s", statistic="min") == 500
    assert share == pytest.approx(650 / 989.4, rel=0.01)
    assert len(site.list_labels("hpcverify_measurement_peak_ratio")) == 3


def test_a_metric_of_another_dimension_has_no_peak() -> None:
    (metric, _), _ = make_judgement().levels
    assert find_peak(replace(metric, unit="°C")) == 0
    assert find_peak(replace(metric, unit="furlongs")) == 0
    assert find_peak(replace(metric, model="another")) == 0


def test_a_trend_says_when_it_crosses_the_limit(site: Exporting) -> None:
    write_judgement(site.controller.state, make_judgement())
    site.write(make_nodes(1))
    labels = {"node": "r000n00", "check": "gemm", "metric": "bf16.sustained"}
    assert site.read("hpcverify_trend_crossing_timestamp_seconds", **labels) == NOW + 10 * DAY_S


def test_a_node_that_is_gone_crosses_no_limit(site: Exporting) -> None:
    write_judgement(site.controller.state, make_judgement(changes=2))
    site.write({name: node for name, node in make_nodes(64).items() if name != "r000n00"})
    (labels,) = site.list_labels("hpcverify_trend_crossing_timestamp_seconds")
    assert labels["node"] == "r001n00"


def test_a_damaged_judgement_leaves_the_rest(site: Exporting) -> None:
    (site.controller.state / JUDGEMENT_NAME).write_bytes(b'{"night":')
    site.cycle()
    assert site.read("hpcverify_night_timestamp_seconds") == 0
    assert site.list_labels("hpcverify_measurement") == []
    assert site.read("hpcverify_malfunctions") == 0


def test_a_directory_that_is_gone_ends_no_cycle_and_is_a_malfunction(site: Exporting) -> None:
    site.folder.rmdir()
    site.room.finds("n1", make_wrong_word())
    assert site.cycle() != 0
    (malfunction,) = site.ledger.list_malfunctions()
    assert site.room.node("n1").state is State.QUARANTINED
    assert malfunction.name == METRICS
    assert str(site.folder) in malfunction.why

    site.folder.mkdir()
    site.cycle()
    assert (site.ledger.list_malfunctions(), site.read("hpcverify_malfunctions")) == ([], 0)


@pytest.mark.needs("root")
def test_a_directory_that_does_not_answer_ends_no_cycle(site: Exporting) -> None:
    with silent_file_system(site.folder):
        assert site.cycle() != 0
    (malfunction,) = site.ledger.list_malfunctions()
    assert (malfunction.name, "did not respond" in malfunction.why) == (METRICS, True)


def test_another_malfunction_is_named(site: Exporting) -> None:
    site.ledger.record_malfunction("nightly judgement", "a bug")
    site.write({})
    (labels,) = site.list_labels("hpcverify_malfunction_since_timestamp_seconds")
    assert labels == {"convenience": "nightly judgement"}
    assert site.read("hpcverify_malfunctions") == 1


def test_the_end_of_a_sweep_is_known(site: Exporting) -> None:
    site.write({})
    assert site.read("hpcverify_sweep_end_timestamp_seconds") == 0
    site.ledger.record_sweep_end()
    site.write({})
    assert site.read("hpcverify_sweep_end_timestamp_seconds") >= NOW


def test_a_finding_is_counted_when_it_is_opened_and_stays_counted(site: Exporting) -> None:
    site.cycle()
    site.room.finds("n1", make_wrong_word())
    site.cycle()
    labels = {"check": "sdc", "code": "corruption", "verdict": "fail"}
    assert site.read("hpcverify_findings_total", **labels) == 1
    assert site.read("hpcverify_findings_open", **labels) == 1

    site.ledger.forget("n1", "ann", "gone")
    site.write({})
    assert site.read("hpcverify_findings_total", **labels) == 1
    assert site.read("hpcverify_findings_open", **labels) == 0


def test_the_events_of_a_cycle_do_not_wait_after_it(site: Exporting) -> None:
    site.room.finds("n1", make_wrong_word())
    site.cycle()
    assert site.read("hpcverify_events_waiting", reader="file") == 0


@pytest.mark.parametrize("claim", ["x" * 10_000, "two\nlines", "\x1b[31m"])
def test_what_a_node_makes_up_is_not_a_label(site: Exporting, claim: str) -> None:
    corruption = make_wrong_word()
    site.room.finds(
        "n1",
        replace(
            corruption,
            findings=(Finding(claim, "cpu", "a wrong word"), Finding(f"{claim}2", "cpu", "again")),
            rulings=dict.fromkeys((claim, f"{claim}2"), corruption.rulings["corruption"]),
        ),
    )
    site.cycle()
    judgement = make_judgement()
    metric, reached = judgement.levels[0]
    levels = [(replace(metric, **{n: claim}), reached) for n in ("metric", "model", "unit")]
    change = replace(judgement.changes[0], measurement=claim)
    write_judgement(site.controller.state, replace(judgement, levels=levels, changes=(change,)))
    text = site.write(make_nodes(1))

    assert max(map(len, text.splitlines())) < 400
    assert site.read("hpcverify_findings_total", check="other", code="other", verdict="fail") >= 1
    assert site.list_labels("hpcverify_measurement") == []
    assert site.list_labels("hpcverify_trend_crossing_timestamp_seconds") == []


def test_a_sweep_that_waits_is_not_silent(site: Exporting, monkeypatch: pytest.MonkeyPatch) -> None:
    controller = site.controller
    with controller.hold_lock():
        controller.reconcile()
    first = site.read("hpcverify_controller_cycle_timestamp_seconds")
    with controller.hold_lock():
        controller.collect_results()
    assert site.read("hpcverify_controller_cycle_timestamp_seconds") == first

    later = time.monotonic() + METRICS_INTERVAL_S
    monkeypatch.setattr(time, "monotonic", lambda: later)
    site.room.now += METRICS_INTERVAL_S
    with controller.hold_lock():
        controller.collect_results()
    assert site.read("hpcverify_controller_cycle_timestamp_seconds") > first + METRICS_INTERVAL_S
