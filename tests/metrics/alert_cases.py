"""Series of fleets with each fault that an alert is for, and of healthy ones that look odd."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.tables import read_table

SERIES = {
    "cycle": "hpcverify_controller_cycle_timestamp_seconds{@}",
    "cycle of b": 'hpcverify_controller_cycle_timestamp_seconds{@,cluster="b"}',
    "cycle elsewhere": (
        'hpcverify_controller_cycle_timestamp_seconds{instance="new:9100",job="node"}'
    ),
    "breaker": "hpcverify_breaker_tripped{@}",
    "doubt": 'hpcverify_check_doubted{check="gemm",@}',
    "to hold": "hpcverify_nodes_to_hold{@}",
    "prolog errors": "hpcverify_nodes_prolog_error{@}",
    "accused": "hpcverify_nodes_accused{@}",
    "since": 'hpcverify_node_state_since_timestamp_seconds{node="n2",@}',
    "hold": 'hpcverify_node_hold_info{node="n2",hold="drain",check="gemm",remedy="replace",@}',
    "hold by others": 'hpcverify_node_hold_info{node="n2",hold="others",check="gemm",'
    'remedy="replace",@}',
    "returns": 'hpcverify_node_recent_returns{node="n2",@}',
    "healthy": 'hpcverify_nodes{state="healthy",@}',
    "by person": 'hpcverify_nodes{state="held",@}',
    "quarantined": 'hpcverify_nodes{state="quarantined",@}',
    "overdue": "hpcverify_nodes_overdue{@}",
    "missing": 'hpcverify_node_parts_missing{node="n2",kind="gpu",@}',
    "drained": 'hpcverify_nodes_held{hold="drain",@}',
    "reserved": 'hpcverify_nodes_held{hold="reservation",@}',
    "others": 'hpcverify_nodes_held{hold="others",@}',
    "scrape error": "node_textfile_scrape_error{@}",
    "our file": 'node_textfile_mtime_seconds{file="/var/lib/hpcverify_run_quick.prom",@}',
    "another file": 'node_textfile_mtime_seconds{file="/var/lib/raid.prom",@}',
    "waiting": 'hpcverify_events_waiting{reader="journald",@}',
    "malfunction": 'hpcverify_malfunction_since_timestamp_seconds{convenience="history",@}',
    "findings": 'hpcverify_findings_total{check="xid",code="lost",verdict="fail",@}',
    "crossing": 'hpcverify_trend_crossing_timestamp_seconds{node="n2",check="thermal",'
    'metric="power",@}',
}
"""By their names in the table; ``@`` stands for the labels of the controller."""
CYCLE = SERIES["cycle"]


@dataclass(frozen=True)
class Case:
    """A row of ``alert_cases.csv``: series of a fleet, and which alerts fire at a time."""

    alert: str
    rule: str
    """What the alert does, as a name of the test."""
    series: tuple[str, ...]
    """Values by series, one each *step*."""
    minutes: int
    """When to look."""
    fires: tuple[str, ...] = ()
    """The labels of each alert that fires, without those of the scrape; ``-``: none."""
    step: int = 1
    """In minutes."""

    def read_series(self) -> Mapping[str, str]:
        named = (cell.split(": ") for cell in self.series)
        return {SERIES[name]: values for name, values in named}

    def read_labels(self) -> list[dict[str, str]]:
        return [dict(w.split("=") for w in one.split() if w != "-") for one in self.fires]


CASES = read_table(Path(__file__).with_suffix(".csv"), Case)
