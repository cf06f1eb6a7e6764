"""The dashboard of the fleet."""

from __future__ import annotations

from collections.abc import Sequence

from grafana_foundation_sdk.builders import dashboard as dashboard_builders
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import dashboard

from dashboards.boards import NODE_LINK, make_board, make_controller_variable
from dashboards.panels import (
    BLUE,
    GREEN,
    ORANGE,
    RED,
    STATE_COLORS,
    YELLOW,
    ask,
    make_heat,
    make_stat,
    make_state_timeline,
    make_table,
    make_time_series,
    number_states,
    select,
)
from hpcverify.metrics.table import STATES


def make_fleet_board() -> dashboard.Dashboard:
    """Show the fleet: how many nodes are out, which, why, and how often that happens."""
    return make_board(
        "hpcverify-fleet",
        "hpcverify: fleet",
        "now-7d",
        [make_controller_variable()],
        [
            ("Now", _make_overview()),
            ("Nodes", _make_node_panels()),
            ("Faults", _make_fault_panels()),
            ("Reliability", _make_reliability_panels()),
            ("The controller", _make_controller_panels()),
        ],
    )


def _make_overview() -> Sequence[Builder[dashboard.Panel]]:
    held, nodes = select("hpcverify_nodes_held"), select("hpcverify_nodes")
    drained = select("hpcverify_nodes_held", 'hold="drain"')
    reserved = select("hpcverify_nodes_held", 'hold="reservation"')
    return [
        make_stat(
            "In service",
            "The share of the nodes that nobody holds.",
            f"1 - sum({held}) / (sum({nodes}) > 0)",
            (None, RED),
            (0.9, YELLOW),
            (0.95, GREEN),
            unit="percentunit",
        ),
        make_stat(
            "Drained",
            "By hpcverify: they failed and wait for a person.",
            f"sum({drained})",
            (None, GREEN),
            (1, ORANGE),
        ),
        make_stat(
            "Being verified",
            "Reserved: only our verification runs there.",
            f"sum({reserved})",
            (None, BLUE),
        ),
        make_stat(
            "Overdue",
            "Nodes in service without a full pass for 7 days, or for overdue_days.",
            f"sum({select('hpcverify_nodes_overdue')})",
            (None, GREEN),
            (1, YELLOW),
        ),
        make_stat(
            "Breaker",
            "While it is tripped, no node is held for a failure.",
            f"max({select('hpcverify_breaker_tripped')})",
            states=[("armed", GREEN), ("tripped", RED)],
        ),
        make_stat(
            "Doubted checks",
            "They fail on so many nodes that no node is held for them alone.",
            f"sum({select('hpcverify_check_doubted')})",
            (None, GREEN),
            (1, YELLOW),
        ),
        make_stat(
            "Last turn",
            "The age of the last turn of the controller.",
            f"time() - max({select('hpcverify_controller_turn_timestamp_seconds')})",
            (None, GREEN),
            (900, YELLOW),
            (1800, RED),
            unit="s",
        ),
        make_stat(
            "In service, 7 days",
            "Node time in service: the upper bound of goodput.",
            "avg(hpcverify:node_seconds_in_service:ratio_rate7d)",
            (None, RED),
            (0.9, YELLOW),
            (0.95, GREEN),
            unit="percentunit",
        ),
    ]


def _make_node_panels() -> Sequence[Builder[dashboard.Panel]]:
    states = {s: select("hpcverify_node_state", f'state="{s}"') for s in STATES}
    unhealthy = select("hpcverify_nodes", 'state!="healthy"')
    link = dashboard_builders.DashboardLink("Its dashboard").url(
        "/d/hpcverify-node?var-node=${__field.labels.node}"
    )
    share = (
        f"sum by (place) ({select('hpcverify_place_nodes_out')}) "
        f"/ sum by (place) ({select('hpcverify_place_nodes')})"
    )
    held = (
        f"{select('hpcverify_node_hold_info')} * ignoring (hold, check, remedy) group_left () "
        f"(time() - {select('hpcverify_node_state_since_timestamp_seconds')})"
    )
    return [
        make_state_timeline(
            "States of nodes",
            "Nodes that need attention; all nodes with [metrics] all_nodes.",
            ask(number_states(states, "node"), "{{node}}"),
            STATE_COLORS,
            [link],
        ),
        make_time_series(
            "Nodes that are not healthy",
            "By state.",
            ask(f"sum by (state) ({unhealthy})", "{{state}}"),
            is_stacked=True,
            colors=STATE_COLORS,
        ),
        make_heat(
            "Out of service, by rack or switch",
            "The share of the nodes of a place that failed or are held. Several at one place: "
            "look for what they share.",
            ask(share, "{{place}}"),
            (None, GREEN),
            (0.05, YELLOW),
            (0.2, ORANGE),
            (0.5, RED),
        ),
        make_table(
            "Held nodes",
            "The longest first. The remedy is that of the failed check.",
            f"sort_desc({held})",
            {
                "node": "node",
                "hold": "held by",
                "check": "check",
                "remedy": "remedy",
                "Value": "for",
            },
            unit="s",
            links={"node": NODE_LINK},
        ).span(24),
    ]


def _make_fault_panels() -> Sequence[Builder[dashboard.Panel]]:
    return [
        make_time_series(
            "Findings opened within a day",
            "By check and code.",
            ask("hpcverify:findings:increase1d", "{{check}} {{code}} ({{verdict}})"),
        ),
        make_table(
            "Open findings",
            "The most frequent first.",
            f"sort_desc(sum by (check, code, verdict) ({select('hpcverify_findings_open')}) > 0)",
            {"check": "check", "code": "code", "verdict": "verdict", "Value": "parts"},
        ),
        make_time_series(
            "Parts that are missing",
            "By kind: what the last accepted inventory has, less what the newest runs have seen.",
            ask(
                f"(sum by (kind) ({select('hpcverify_parts_expected')}) > 0) "
                f"- sum by (kind) ({select('hpcverify_parts_present')})",
                "{{kind}}",
            ),
        ),
        make_time_series(
            "The breaker",
            "Nodes newly held within its window, and how many may be.",
            ask(f"max({select('hpcverify_breaker_held_nodes')})", "newly held"),
            ask(f"max({select('hpcverify_breaker_limit_nodes')})", "limit"),
            colors={"newly held": BLUE, "limit": RED},
        ),
    ]


def _make_reliability_panels() -> Sequence[Builder[dashboard.Panel]]:
    buckets = select("hpcverify_time_to_return_seconds_bucket")
    holds = select("hpcverify_time_to_hold_seconds_bucket")
    return [
        make_time_series(
            "Node time in service",
            "Over 7 days: the upper bound of goodput.",
            ask("hpcverify:node_seconds_in_service:ratio_rate7d", "in service"),
            unit="percentunit",
            colors={"in service": GREEN},
        ),
        make_time_series(
            "MTBF of a node",
            "Mean time between failures, over 30 days. None without a failure.",
            ask("hpcverify:node_mtbf_seconds:rate30d < Inf", "MTBF"),
            unit="s",
            colors={"MTBF": BLUE},
        ),
        make_time_series(
            "Failures a day",
            "By who found them.",
            ask(
                f"sum by (cause) (increase({select('hpcverify_failures_total')}[1d]))", "{{cause}}"
            ),
        ),
        make_time_series(
            "Nine of ten nodes are held and return within",
            "From the beginning of an outage, over 30 days.",
            ask(f"histogram_quantile(0.9, sum by (le) (increase({holds}[30d])))", "held"),
            ask(
                f"histogram_quantile(0.9, sum by (le) (increase({buckets}[30d])))",
                "back in service",
            ),
            unit="s",
            colors={"held": ORANGE, "back in service": GREEN},
        ),
    ]


def _make_controller_panels() -> Sequence[Builder[dashboard.Panel]]:
    failing = select("hpcverify_malfunction_since_timestamp_seconds")
    return [
        make_time_series(
            "Turn of the controller",
            "How long a turn takes.",
            ask(f"max({select('hpcverify_controller_turn_duration_seconds')})", "a turn"),
            unit="s",
            colors={"a turn": BLUE},
        ),
        make_time_series(
            "Errors of turns, and what waits",
            "Actions that failed, documents that were refused, drains that were not done, "
            "events that a reader has not got.",
            ask(f"sum({select('hpcverify_controller_turn_errors')})", "errors"),
            ask(f"sum({select('hpcverify_spool_refusals')})", "refused documents"),
            ask(f"sum({select('hpcverify_nodes_to_hold')})", "nodes to hold"),
            ask(f"sum({select('hpcverify_events_waiting')})", "events"),
        ),
        make_table(
            "What does not work",
            "Conveniences of the controller.",
            f"time() - {failing}",
            {"convenience": "convenience", "Value": "for"},
            unit="s",
        )
        .span(24)
        .height(5),
    ]
