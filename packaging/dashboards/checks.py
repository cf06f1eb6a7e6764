"""The dashboard of the checks and their speeds."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as dashboard_builders
from grafana_foundation_sdk.models import dashboard

from dashboards.boards import NODE_LINK, make_board, make_controller_variable
from dashboards.panels import (
    DATASOURCE,
    GREEN,
    VERDICT_COLORS,
    YELLOW,
    ask,
    make_state_timeline,
    make_table,
    make_time_series,
    select,
)


def make_check_board() -> dashboard.Dashboard:
    """Show what the checks measure over weeks, and which of them find what."""
    check = 'check=~"$check"'
    variable = (
        dashboard_builders.QueryVariable("check")
        .label("check")
        .datasource(DATASOURCE)
        .query("label_values(hpcverify_check_doubted, check)")
        .refresh(dashboard.VariableRefresh.ON_DASHBOARD_LOAD)
        .sort(dashboard.VariableSort.ALPHABETICAL_ASC)
        .multi(multi=True)
        .include_all(include_all=True)
        .all_value(".*")
    )
    doubts = select("hpcverify_check_doubted", check)
    peak, measured = "hpcverify_measurement_peak_ratio", "hpcverify_measurement"
    lowest, median = 'statistic="min"', 'statistic="median"'
    by = "by (check, metric, model)"
    values = select(measured, check)
    low = f"max {by} ({select(measured, check, lowest)})"
    middle = f"max {by} ({select(measured, check, median)})"
    legend = "{{check}} {{metric}} {{model}}"
    return make_board(
        "hpcverify-checks",
        "hpcverify: checks and speeds",
        "now-60d",
        [make_controller_variable(), variable],
        [
            (
                "Speeds",
                [
                    make_time_series(
                        "Share of the peak, median of the fleet",
                        "What parts reach of their data sheet, where that has a figure.",
                        ask(f"max {by} ({select(peak, check, median)})", legend),
                        unit="percentunit",
                    ),
                    make_time_series(
                        "Share of the peak, slowest part",
                        "The same of the worst part of the fleet.",
                        ask(f"max {by} ({select(peak, check, lowest)})", legend),
                        unit="percentunit",
                    ),
                    make_time_series(
                        "Lowest value, as a share of the median",
                        "How far the lowest value of the fleet is from the middle.",
                        ask(f"{low} / ({middle} > 0)", legend),
                        unit="percentunit",
                    ),
                    make_table(
                        "Newest night",
                        "What parts reached, over the fleet.",
                        f"max by (check, metric, model, unit, statistic) ({values})",
                        {
                            "check": "check",
                            "metric": "measurement",
                            "model": "product",
                            "statistic": "of the fleet",
                            "Value": "value",
                            "unit": "unit",
                        },
                    ),
                ],
            ),
            (
                "Checks",
                [
                    make_state_timeline(
                        "Doubted checks",
                        "While a check is doubted, no node is held for it alone.",
                        ask(f"max by (check) ({doubts})", "{{check}}"),
                        {"believed": GREEN, "doubted": YELLOW},
                    ).span(12),
                    make_time_series(
                        "Findings opened within a day",
                        "By code.",
                        ask(
                            f"hpcverify:findings:increase1d{{{check}}}",
                            "{{check}} {{code}} ({{verdict}})",
                        ),
                    ).height(9),
                    make_time_series(
                        "Outliers",
                        "Parts, nodes and places that are worse than their peers.",
                        ask(f"sum by (verdict) ({select('hpcverify_outliers')})", "{{verdict}}"),
                        colors=VERDICT_COLORS,
                    ),
                    make_table(
                        "Limits that will be crossed",
                        "If the trends go on; the first one first.",
                        "sort("
                        + select("hpcverify_trend_crossing_timestamp_seconds", check)
                        + " - time())",
                        {"node": "node", "check": "check", "metric": "measurement", "Value": "in"},
                        unit="s",
                        links={"node": NODE_LINK},
                    ),
                ],
            ),
        ],
    )
