"""Panels over time: lines, states and heat maps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from grafana_foundation_sdk.builders import common as common_builder
from grafana_foundation_sdk.builders import dashboard as dashboard_builder
from grafana_foundation_sdk.builders import heatmap, statetimeline, timeseries
from grafana_foundation_sdk.models import common, dashboard
from grafana_foundation_sdk.models import heatmap as heatmap_model
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from grafana.source.panel import Place, Query, framed, targets, threshold_steps

DASHED = {"fill": "dash", "dash": [6, 6]}
PHASE_COLOURS = {
    "data": "purple",
    "forward": "blue",
    "backward": "light-blue",
    "optimizer": "green",
    "checkpoint": "yellow",
    "eval": "orange",
}


def fixed(colour: str) -> dict[str, str]:
    """The value of a `color` property."""
    return {"mode": "fixed", "fixedColor": colour}


def graph_panel(
    title: str,
    description: str,
    place: Place,
    queries: Sequence[Query],
    *,
    unit: str,
    empty: str,
    least: float | None = 0,
    most: float | None = None,
    thresholds: Mapping[float, str] = {},
    decimals: int | None = None,
    styles: Mapping[str, Mapping[str, Any]] = {},
    bars: bool = False,
    log: bool = False,
    points: int | None = None,
    stacked: bool = False,
    fill: int = 0,
) -> Any:
    """Lines over time.

    Args:
        least: Where the axis begins, unless values are below it; None: at the values.
        most: Where it ends, unless values are above it.
        thresholds: Dashed lines at these values, in these colours.
        styles: Name of a series, or a regular expression between slashes, to properties of it.
        bars: Bars instead of lines.
        log: Logarithmic axis.
        points: Most points in time, where each costs something.
        stacked: Each on top of the one before.
        fill: Opacity below the line.
    """
    panel = (
        framed(timeseries.Panel(), title, description, place, unit, empty)
        .targets(targets(queries, form=PromQueryFormat.TIME_SERIES))
        .color_scheme(
            dashboard_builder.FieldColor().mode(dashboard.FieldColorModeId.PALETTE_CLASSIC)
        )
        .draw_style(common.GraphDrawStyle.BARS if bars else common.GraphDrawStyle.LINE)
        .line_width(0 if bars else 1)
        .fill_opacity(70 if bars else fill)
        .show_points(common.VisibilityMode.NEVER)
        .legend(
            common_builder.VizLegendOptions()
            .display_mode(common.LegendDisplayMode.LIST)
            .placement(common.LegendPlacement.BOTTOM)
            .show_legend(True)
            .calcs([])
        )
        .tooltip(
            common_builder.VizTooltipOptions()
            .mode(common.TooltipDisplayMode.MULTI)
            .sort(common.SortOrder.DESCENDING)
        )
    )
    if least is not None:
        panel = panel.axis_soft_min(least)
    if most is not None:
        panel = panel.axis_soft_max(most)
    if thresholds:
        style = common_builder.GraphThresholdsStyleConfig()
        panel = panel.thresholds(threshold_steps(thresholds)).thresholds_style(
            style.mode(common.GraphThresholdsStyleMode.DASHED)
        )
    if decimals is not None:
        panel = panel.decimals(decimals)
    if points is not None:
        panel = panel.max_data_points(points)
    if stacked or bars:
        panel = panel.stacking(
            common_builder.StackingConfig().mode(common.StackingMode.NORMAL).group("A")
        )
    if log:
        scale = common_builder.ScaleDistributionConfig().type(common.ScaleDistribution.LOG).log(10)
        panel = panel.scale_distribution(scale)
    for name, properties in styles.items():
        values = [
            dashboard.DynamicConfigValue(id_val=key, value=value)
            for key, value in properties.items()
        ]
        override = panel.override_by_regexp if name.startswith("/") else panel.override_by_name
        panel = override(name, values)
    return panel


def timeline_panel(
    title: str,
    description: str,
    place: Place,
    queries: Sequence[Query],
    mappings: Sequence[dashboard.ValueMapping],
    *,
    empty: str,
    rows: int,
    points: int = 200,
) -> Any:
    """States at most `points` times, at most `rows` of them on a page."""
    return (
        framed(statetimeline.Panel(), title, description, place, "none", empty)
        .targets(targets(queries, form=PromQueryFormat.TIME_SERIES))
        .mappings(list(mappings))
        .color_scheme(dashboard_builder.FieldColor().mode(dashboard.FieldColorModeId.THRESHOLDS))
        .thresholds(threshold_steps({}))
        .merge_values(True)
        .show_value(common.VisibilityMode.AUTO)
        .row_height(0.9)
        .fill_opacity(80)
        .line_width(0)
        .per_page(rows)
        .max_data_points(points)
        .legend(
            common_builder.VizLegendOptions()
            .show_legend(False)
            .display_mode(common.LegendDisplayMode.LIST)
            .placement(common.LegendPlacement.BOTTOM)
            .calcs([])
        )
    )


def heatmap_panel(
    title: str,
    description: str,
    place: Place,
    query: Query,
    *,
    cumulative: bool,
    empty: str,
    points: int,
) -> Any:
    """Counts by upper bound, in seconds, over time. `cumulative`: buckets of a histogram."""
    form = PromQueryFormat.HEATMAP if cumulative else PromQueryFormat.TIME_SERIES
    return (
        framed(heatmap.Panel(), title, description, place, "short", empty)
        .targets(targets([query], form=form))
        .calculate(False)
        .cell_gap(1)
        .max_data_points(points)
        .rows_frame(heatmap.RowsHeatmapOptions().layout(common.HeatmapCellLayout.LE))
        .y_axis(
            heatmap.YAxisConfig().unit("s").axis_placement(common.AxisPlacement.LEFT).reverse(False)
        )
        .cell_values(heatmap.CellValues().unit("short").decimals(0))
        .color(
            heatmap.HeatmapColorOptions()
            .mode(heatmap_model.HeatmapColorMode.SCHEME)
            .scheme("Blues")
            .scale(heatmap_model.HeatmapColorScale.EXPONENTIAL)
            .exponent(0.5)
            .steps(32)
            .reverse(False)
        )
        .filter_values(heatmap.FilterValueRange().le(1e-9))
        .show_legend()
    )
