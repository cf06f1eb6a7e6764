"""Queries and panels, with what all of ours have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from string import ascii_uppercase

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as dashboard_builders
from grafana_foundation_sdk.builders import prometheus as prometheus_builders
from grafana_foundation_sdk.builders.stat import Panel as StatPanel
from grafana_foundation_sdk.builders.statetimeline import Panel as StateTimelinePanel
from grafana_foundation_sdk.builders.statushistory import Panel as StatusHistoryPanel
from grafana_foundation_sdk.builders.table import Panel as TablePanel
from grafana_foundation_sdk.builders.timeseries import Panel as TimeSeriesPanel
from grafana_foundation_sdk.models import common, dashboard, prometheus

DATASOURCE = dashboard.DataSourceRef(type_val="prometheus", uid="${datasource}")
CONTROLLER = 'instance=~"$controller"'
"""What a query of the controller's metrics matches."""

GREEN, BLUE, YELLOW, ORANGE, RED, PURPLE, GREY = (
    *("#56a64b", "#3274d9", "#e0b400", "#ff780a", "#e02f44", "#8f3bb8", "#8e8e8e"),
)
STATE_COLORS = {
    "healthy": GREEN,
    "unverified": GREY,
    "verifying": BLUE,
    "suspect": YELLOW,
    "held": PURPLE,
    "quarantined": ORANGE,
    "repeat offender": RED,
    "held by others": "#5b5b5b",
}
VERDICT_COLORS = {"pass": GREEN, "skip": GREY, "warn": YELLOW, "error": PURPLE, "fail": RED}


def select(metric: str, *matchers: str) -> str:
    """Select the series of a *metric* of the controller."""
    return f"{metric}{{{','.join((CONTROLLER, *matchers))}}}"


def number_states(selectors: Mapping[str, str], *by: str) -> str:
    """Give, by labels, the number of the state whose selector of *selectors* is 1."""
    terms = [f"{selector} * {number}" for number, selector in enumerate(selectors.values())]
    return f"sum by ({', '.join(by)}) ({' or '.join(terms)})"


def ask(
    expression: str, legend: str = "", *, instant: bool = False
) -> prometheus_builders.Dataquery:
    """Ask Prometheus for *expression* over the time of the panel, or *instant*: at its end."""
    query = prometheus_builders.Dataquery().expr(expression).datasource(DATASOURCE).ref_id("A")
    if instant:
        return query.instant().format(prometheus.PromQueryFormat.TABLE)
    return query.range().legend_format(legend)


def map_values(states: Iterable[tuple[str, str]]) -> list[dashboard.ValueMapping]:
    """Map the numbers from 0 to the texts and colours of *states*."""
    return [
        dashboard.ValueMap(
            {
                str(number): dashboard.ValueMappingResult(text=text, color=color, index=number)
                for number, (text, color) in enumerate(states)
            }
        )
    ]


def set_thresholds(*steps: tuple[float | None, str]) -> dashboard_builders.ThresholdsConfig:
    """Colour values from each step on."""
    return (
        dashboard_builders.ThresholdsConfig()
        .mode(dashboard.ThresholdsMode.ABSOLUTE)
        .steps([dashboard.Threshold(value=value, color=color) for value, color in steps])
    )


def _color_by_threshold() -> dashboard_builders.FieldColor:
    return dashboard_builders.FieldColor().mode(dashboard.FieldColorModeId.THRESHOLDS)


def make_stat(
    title: str,
    description: str,
    expression: str,
    *steps: tuple[float | None, str],
    unit: str = "short",
    states: Sequence[tuple[str, str]] = (),
) -> StatPanel:
    """Show one number, coloured from each of *steps* on, or the text of one of *states*."""
    last = common_builders.ReduceDataOptions().calcs(["lastNotNull"])
    return (
        StatPanel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .with_target(ask(expression))
        .reduce_options(last)
        .unit(unit)
        .mappings(map_values(states) if states else [])
        .thresholds(set_thresholds(*(steps or ((None, GREEN),))))
        .color_scheme(_color_by_threshold())
        .color_mode(common.BigValueColorMode.VALUE)
        .graph_mode(common.BigValueGraphMode.NONE)
        .no_value("n/a")
        .span(3)
        .height(4)
    )


def make_time_series(
    title: str,
    description: str,
    *targets: prometheus_builders.Dataquery,
    unit: str = "short",
    is_stacked: bool = False,
    colors: Mapping[str, str] | None = None,
    steps: Sequence[tuple[float | None, str]] = (),
) -> TimeSeriesPanel:
    """Draw lines over time; *steps* are drawn as limits."""
    panel = (
        TimeSeriesPanel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .unit(unit)
        .legend(
            common_builders.VizLegendOptions()
            .display_mode(common.LegendDisplayMode.LIST)
            .placement(common.LegendPlacement.BOTTOM)
            .show_legend(show_legend=True)
        )
        .tooltip(common_builders.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI))
        .span(12)
        .height(8)
    )
    for letter, target in zip(ascii_uppercase, targets, strict=False):
        panel.with_target(target.ref_id(letter))
    if unit != "percentunit":  # shares near 1 would all be one line
        panel.min(0)
    if is_stacked:
        stacking = common_builders.StackingConfig().mode(common.StackingMode.NORMAL)
        panel.stacking(stacking).fill_opacity(60).line_width(0)
    for name, color in (colors or {}).items():
        value = {"mode": "fixed", "fixedColor": color}
        panel.override_by_name(name, [dashboard.DynamicConfigValue(id_val="color", value=value)])
    if steps:
        style = common_builders.GraphThresholdsStyleConfig()
        panel.thresholds(set_thresholds(*steps))
        panel.thresholds_style(style.mode(common.GraphThresholdsStyleMode.LINE))
    return panel


def make_state_timeline(
    title: str,
    description: str,
    target: prometheus_builders.Dataquery,
    colors: Mapping[str, str],
    links: Sequence[dashboard_builders.DashboardLink] = (),
) -> StateTimelinePanel:
    """Draw a band for each series, coloured by the state that its number stands for."""
    return (
        StateTimelinePanel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .with_target(target)
        .mappings(map_values(colors.items()))
        .thresholds(set_thresholds((None, GREY)))
        .color_scheme(_color_by_threshold())
        .data_links(list(links))
        .merge_values(merge_values=True)
        .show_value(common.VisibilityMode.NEVER)
        .row_height(0.8)
        .span(24)
        .height(9)
    )


def make_heat(
    title: str,
    description: str,
    target: prometheus_builders.Dataquery,
    *steps: tuple[float | None, str],
) -> StatusHistoryPanel:
    """Draw a row of squares for each series, coloured by how high a share is."""
    return (
        StatusHistoryPanel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .with_target(target.interval("6h"))
        .unit("percentunit")
        .decimals(0)
        .thresholds(set_thresholds(*steps))
        .color_scheme(_color_by_threshold())
        .show_value(common.VisibilityMode.NEVER)
        .span(12)
        .height(8)
    )


def make_table(
    title: str,
    description: str,
    expression: str,
    columns: Mapping[str, str],
    *,
    unit: str = "short",
    links: Mapping[str, tuple[str, str]] | None = None,
) -> TablePanel:
    """
    List the series of *expression* now: *columns* are the headings of labels, and of "Value".

    *links* has, by label, the text and the address that a cell of it leads to.
    """
    organize = {
        "includeByName": dict.fromkeys(columns, True),
        "indexByName": {name: number for number, name in enumerate(columns)},
        "renameByName": dict(columns),
    }
    panel = (
        TablePanel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .with_target(ask(expression, instant=True))
        .with_transformation(dashboard.DataTransformerConfig(id_val="organize", options=organize))
        .override_by_name(
            columns.get("Value", ""), [dashboard.DynamicConfigValue(id_val="unit", value=unit)]
        )
        .span(12)
        .height(8)
    )
    for label, (text, address) in (links or {}).items():
        value = [{"title": text, "url": address}]
        panel.override_by_name(
            columns[label], [dashboard.DynamicConfigValue(id_val="links", value=value)]
        )
    return panel
