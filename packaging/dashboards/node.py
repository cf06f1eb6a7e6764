"""The dashboard of a node."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as dashboard_builders
from grafana_foundation_sdk.models import dashboard

from dashboards.boards import OF_NODE, PAGE_LINK, make_board
from dashboards.panels import (
    DATASOURCE,
    GREEN,
    RED,
    STATE_COLORS,
    VERDICT_COLORS,
    YELLOW,
    ask,
    make_stat,
    make_state_timeline,
    make_table,
    make_time_series,
    number_states,
)
from hpcverify.metrics.table import STATES
from hpcverify.model import Verdict
from hpcverify.units import DAY_SECONDS

NODES = (
    "query_result(group by (node) (hpcverify_node_state or label_replace("
    'hpcverify_run_timestamp_seconds, "node", "$1", "instance", "([^.:]+).*")))'
)
"""The nodes that the controller lists, and those that have text files of their own."""


def make_node_board() -> dashboard.Dashboard:
    """Show one node: its state, its runs, its checks and what is wrong with its parts."""
    node = 'node="$node"'
    states = {s: f'hpcverify_node_state{{{node},state="{s}"}}' for s in STATES}
    verdicts = [verdict.value for verdict in Verdict]
    suites = {v: f'hpcverify_run_verdict{{{OF_NODE},verdict="{v}"}}' for v in verdicts}
    checks = {v: f'hpcverify_check_verdict_info{{{OF_NODE},verdict="{v}"}}' for v in verdicts}
    colors = {verdict: VERDICT_COLORS[verdict] for verdict in verdicts}
    variable = (
        dashboard_builders.QueryVariable("node")
        .label("node")
        .datasource(DATASOURCE)
        .query(NODES)
        .regex('/node="([^"]+)"/')
        .refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(dashboard.VariableSort.NATURAL_ASC)
    )
    return make_board(
        "hpcverify-node",
        "hpcverify: node",
        "now-30d",
        [variable],
        [
            (
                "Node",
                [
                    make_state_timeline(
                        "State",
                        "While the node needs attention; always with [metrics] all_nodes.",
                        ask(number_states(states, "node"), "{{node}}"),
                        STATE_COLORS,
                    ).height(4),
                    make_table(
                        "Hold",
                        "Why it is out of service, and what to do.",
                        f"hpcverify_node_hold_info{{{node}}}",
                        {"hold": "held by", "check": "check", "remedy": "remedy"},
                    )
                    .span(16)
                    .height(5),
                    make_stat(
                        "Last full pass",
                        "Its age.",
                        f"time() - (hpcverify_node_full_pass_timestamp_seconds{{{node}}} > 0)",
                        (None, GREEN),
                        (7 * DAY_SECONDS, YELLOW),
                        unit="s",
                    )
                    .span(4)
                    .height(5),
                    make_stat(
                        "Missing parts",
                        "That its newest run has not seen.",
                        f"sum(hpcverify_node_parts_missing{{{node}}})",
                        (None, GREEN),
                        (1, RED),
                    )
                    .span(4)
                    .height(5),
                ],
            ),
            (
                "Runs",
                [
                    make_state_timeline(
                        "Verdicts of suites",
                        "Of the last run of each suite at that time.",
                        ask(number_states(suites, "suite"), "{{suite}}"),
                        colors,
                    ).height(6),
                    make_state_timeline(
                        "Verdicts of checks",
                        "Of the last run of each suite at that time.",
                        ask(number_states(checks, "suite", "check"), "{{suite}} {{check}}"),
                        colors,
                    ),
                    make_table(
                        "Last runs",
                        "The pages of `hpcverify report --fleet` have all of each.",
                        f"time() - hpcverify_run_timestamp_seconds{{{OF_NODE}}}",
                        {"suite": "suite", "Value": "age"},
                        unit="s",
                        links={"suite": PAGE_LINK},
                    ),
                    make_table(
                        "What is wrong with its parts",
                        "By the last run of each suite.",
                        f"hpcverify_finding_info{{{OF_NODE}}}",
                        {
                            "suite": "suite",
                            "check": "check",
                            "code": "code",
                            "verdict": "verdict",
                            "kind": "part",
                            "index": "number",
                        },
                    ),
                    make_time_series(
                        "Time that runs took",
                        "By suite.",
                        ask(f"hpcverify_run_duration_seconds{{{OF_NODE}}}", "{{suite}}"),
                        unit="s",
                    ),
                    make_table(
                        "Limits that will be crossed",
                        "If the trends go on.",
                        f"hpcverify_trend_crossing_timestamp_seconds{{{node}}} - time()",
                        {"check": "check", "metric": "measurement", "Value": "in"},
                        unit="s",
                    ),
                ],
            ),
        ],
    )
