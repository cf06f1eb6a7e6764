"""What the dashboards have in common: their variables, links and events."""

from __future__ import annotations

from collections.abc import Sequence

from grafana_foundation_sdk.builders import dashboard as dashboard_builders
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import dashboard

from dashboards.panels import BLUE, CONTROLLER, DATASOURCE, ORANGE, PURPLE, RED, YELLOW

NODE_LINK = ("Its dashboard", "/d/hpcverify-node?var-node=${__value.raw}&${datasource:queryparam}")
PAGE_LINK = ("Its page", "${pages}/nodes/${node}/${__value.raw}.html")
"""Where `hpcverify report --fleet` writes the page of a node and a suite."""
OF_NODE = 'instance=~"$node([.:].*)?"'
"""What matches the node's own metrics: its node_exporter has its name, and a domain or a port."""

Row = tuple[str, Sequence[Builder[dashboard.Panel]]]
"""A heading, and the panels below it."""


def make_controller_variable() -> dashboard_builders.QueryVariable:
    """Choose the controllers whose fleets are shown."""
    return (
        dashboard_builders.QueryVariable("controller")
        .label("controller")
        .datasource(DATASOURCE)
        .query("label_values(hpcverify_controller_turn_timestamp_seconds, instance)")
        .refresh(dashboard.VariableRefresh.ON_DASHBOARD_LOAD)
        .multi(multi=True)
        .include_all(include_all=True)
        .all_value(".*")
    )


def make_board(
    uid: str,
    title: str,
    since: str,
    variables: Sequence[Builder[dashboard.VariableModel]],
    rows: Sequence[Row],
) -> dashboard.Dashboard:
    """Lay out *rows*; *since* is the beginning of the time that is shown at first."""
    board = (
        dashboard_builders.Dashboard(title)
        .uid(uid)
        .tags(["hpcverify"])
        .editable()
        .time(since, "now")
        .refresh("5m")
        .timezone("browser")
        .tooltip(dashboard.DashboardCursorSync.CROSSHAIR)
        .with_variable(
            dashboard_builders.DatasourceVariable("datasource")
            .label("datasource")
            .type("prometheus")
        )
    )
    for variable in variables:
        board.with_variable(variable)
    board.with_variable(
        dashboard_builders.TextBoxVariable("pages")
        .label("pages")
        .description("Where the pages of `hpcverify report --fleet` are")
        .default_value("https://hpcverify.example.org")
    )
    board.link(
        dashboard_builders.DashboardLink("hpcverify")
        .type(dashboard.DashboardLinkType.DASHBOARDS)
        .tags(["hpcverify"])
        .include_vars(include_vars=True)
        .keep_time(keep_time=True)
    )
    for name, panels in rows:
        board.with_row(dashboard_builders.Row(name))
        for panel in panels:
            board.with_panel(panel)
    made = board.build()
    for number, placed in enumerate(made.panels or [], 1):
        placed.id_val = number
    return made


ANNOTATIONS = {
    "hpcverify-fleet": [
        (
            "A sweep ended",
            BLUE,
            f"hpcverify_sweep_end_timestamp_seconds{{{CONTROLLER}}} * 1000",
            True,
            "A sweep ended",
        ),
        (
            "The breaker is tripped",
            RED,
            f"hpcverify_breaker_tripped{{{CONTROLLER}}} == 1",
            False,
            "The breaker is tripped",
        ),
        (
            "Alerts",
            ORANGE,
            'ALERTS{alertname=~"Hpcverify.*",alertstate="firing"}',
            False,
            "{{alertname}} {{node}}",
        ),
    ],
    "hpcverify-node": [
        (
            "Verification ran here",
            PURPLE,
            f"hpcverify_run_timestamp_seconds{{{OF_NODE}}} * 1000",
            True,
            "{{suite}} ran here",
        ),
        (
            "Alerts",
            ORANGE,
            'ALERTS{alertname=~"Hpcverify.*",alertstate="firing",node="$node"}',
            False,
            "{{alertname}}",
        ),
    ],
    "hpcverify-checks": [
        (
            "A check is doubted",
            YELLOW,
            f"hpcverify_check_doubted{{{CONTROLLER}}} == 1",
            False,
            "{{check}} is doubted",
        ),
    ],
}
"""By dashboard: name, colour, query, whether its value is the time, and text of each event."""
