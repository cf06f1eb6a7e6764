"""
Alerts arrive: a real Slurm, node_exporter, Prometheus, Alertmanager, and a receiver.

Only the patience of the rules is taken away here; `test_rules.py` holds that.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import yaml

from tests.fleet.builders import a_room
from tests.fleet.cluster import HPCVERIFY, Fleet
from tests.fleet.conftest import a_site
from tests.insight.test_fleet_metrics import FAILED, Exporting, make_nodes
from tests.metrics.rules import RULES
from tests.prometheus_lab.lab import Alert, Monitoring, start_monitoring
from tests.prometheus_lab.tools import run_promtool

PATIENCE = {"15 * 60": "10", "3 * 86400": "0"}
"""Thresholds of the rules, and what they are here, in seconds."""
HELD = "HpcverifyNodeHeldLong"
SILENT = "HpcverifyControllerSilent"
CYCLE = "hpcverify_controller_cycle_timestamp_seconds"
SMALL = "size=256k,mode=0755"
"""A file system that a file of a quarter of a MiB fills."""


def shorten_rules() -> str:
    """Give the rules without delays."""
    text = RULES.read_text()
    for threshold, short in PATIENCE.items():
        assert text.count(threshold) == 1, threshold
        text = text.replace(threshold, short)
    rules = yaml.safe_load(text)
    for group in rules["groups"]:
        group["interval"] = "1s"
        for rule in group["rules"]:
            rule.pop("for", None)
    return str(yaml.safe_dump(rules))


@dataclass(frozen=True)
class MonitoredFleet:
    """A site on a real Slurm, and who watches its text files."""

    fleet: Fleet
    monitoring: Monitoring
    text_files: Path

    @contextmanager
    def run_controller(self) -> Generator[subprocess.Popen[bytes]]:
        """Take one cycle after the other, as the timer does, until the end or until killed."""
        process = subprocess.Popen(
            ["sh", "-c", 'while :; do "$0" fleet collect; sleep 0.2; done', HPCVERIFY],
            env=self.fleet.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def await_cycle(self) -> None:
        """Wait until Prometheus knows of a cycle later than those that it knows of now."""

        def read_cycle() -> float:
            return max((float(s["value"][1]) for s in self.monitoring.query(CYCLE)), default=0)

        before = read_cycle()
        self.monitoring.until(lambda: read_cycle() > before)

    def await_silence_to_end(self) -> Alert:
        """Take cycles until the alert is over."""
        with self.run_controller():
            return self.monitoring.await_alert(SILENT, "resolved")


@contextmanager
def mount_small_folder() -> Generator[Path]:
    """Mount a folder that is soon full."""
    with TemporaryDirectory(prefix="hvtext-", dir="/tmp") as name:
        subprocess.run(["mount", "-t", "tmpfs", "-o", SMALL, "tmpfs", name], check=True)
        try:
            yield Path(name)
        finally:
            subprocess.run(["umount", "--lazy", name], check=True)


@pytest.fixture(scope="module")
def monitored() -> Iterator[MonitoredFleet]:
    # The daemons of Slurm see only what is mounted before they start.
    with mount_small_folder() as text_files, a_site() as fleet:
        fleet.prepare(f'enforce = ["*"]\n[metrics]\ndirectory = "{text_files}"')
        with start_monitoring(text_files, shorten_rules()) as monitoring:
            yield MonitoredFleet(fleet, monitoring, text_files)


pytestmark = pytest.mark.needs("root", "slurmctld", "munged", "prometheus")


def test_a_held_node_arrives_with_its_check_and_remedy_and_is_resolved_by_its_repair(
    monitored: MonitoredFleet,
) -> None:
    fleet = monitored.fleet
    fleet.tell("n2", "corrupt")
    fleet("fleet", "sweep")
    assert fleet.node("n2").state == "quarantined"

    alert = monitored.monitoring.await_alert(HELD, node="n2")

    assert (alert.labels["check"], alert.labels["remedy"]) == ("told", "replace")
    assert (alert.labels["hold"], alert.labels["severity"]) == ("drain", "warning")
    words = alert.annotations["description"]
    assert [part for part in ("n2", "told", "replace") if part not in words] == []
    assert alert.annotations["runbook"].endswith("#hpcverifynodeheldlong")

    fleet.tell("n2", "100")
    fleet("nodes", "repaired", "n2", "--reason", "new DIMM")
    fleet.collected()
    assert fleet.node("n2").state == "healthy"
    monitored.monitoring.await_alert(HELD, "resolved", node="n2")
    assert {a.labels["node"] for a in monitored.monitoring.received if a.name == HELD} == {"n2"}


def test_a_controller_that_is_killed_is_reported_until_its_next_cycle(
    monitored: MonitoredFleet,
) -> None:
    with monitored.run_controller() as controller:
        monitored.await_cycle()
        os.killpg(controller.pid, signal.SIGKILL)
        alert = monitored.monitoring.await_alert(SILENT)

    assert alert.labels["severity"] == "critical"
    assert alert.annotations["runbook"].endswith("#hpcverifycontrollersilent")
    monitored.await_silence_to_end()


def test_a_full_disk_under_the_text_files_is_reported_and_ends_no_cycle(
    monitored: MonitoredFleet,
) -> None:
    with monitored.run_controller():
        monitored.await_cycle()
    full = monitored.text_files / "full"
    with pytest.raises(OSError, match="No space"):
        full.write_bytes(bytes(2**20))

    with monitored.run_controller():
        monitored.monitoring.await_alert(SILENT)
    done = monitored.fleet("fleet", "collect")
    assert (done.returncode, "metrics" in done.stderr) == (4, True)

    full.unlink()
    monitored.await_silence_to_end()


def test_a_text_file_that_cannot_be_read_is_reported_where_one_of_ours_was(
    monitored: MonitoredFleet,
) -> None:
    with monitored.run_controller():
        monitored.await_cycle()
        broken = monitored.text_files / "hpcverify_run_quick.prom"
        broken.write_text("# TYPE hpcverify_x stateset\nhpcverify_x 1\n")
        monitored.monitoring.await_alert("HpcverifyTextfileBroken")
        broken.unlink()
        monitored.monitoring.await_alert("HpcverifyTextfileBroken", "resolved")


def test_promtool_has_nothing_to_say_of_the_files_of_controller_and_nodes(
    monitored: MonitoredFleet,
) -> None:
    monitored.fleet("fleet", "sweep", "n1")
    files = sorted(monitored.text_files.glob("*.prom"))
    assert [path.name for path in files] == ["hpcverify_controller.prom", "hpcverify_run_told.prom"]
    done = run_promtool("check", "metrics", text="".join(path.read_text() for path in files))
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


# -- ten thousand nodes

MAX_SERIES = 40_000
"""The most series of the whole file, with a thousand nodes that need attention."""
MAX_LABEL_VALUES = 1000
"""The most values of any label."""


def test_no_label_explodes_with_10000_nodes(tmp_path: Path) -> None:
    text_files = tmp_path / "textfiles"
    text_files.mkdir()
    site = Exporting(a_room(tmp_path), text_files)
    site.write(make_nodes(**FAILED))

    with start_monitoring(text_files, seconds=60) as monitoring:
        monitoring.until(lambda: monitoring.query(CYCLE))
        ours = 'last_over_time({__name__=~"hpcverify_.*"}[1h])'
        (series,) = monitoring.query(f"count({ours})")
        samples = monitoring.query(f"group by (node, place, check) ({ours})")
        (errors,) = monitoring.query("last_over_time(node_textfile_scrape_error[1h])")

    assert int(series["value"][1]) < MAX_SERIES
    assert int(errors["value"][1]) == 0
    for name in ("node", "place", "check"):
        values = {sample["metric"][name] for sample in samples if name in sample["metric"]}
        assert 0 < len(values) <= MAX_LABEL_VALUES, name
