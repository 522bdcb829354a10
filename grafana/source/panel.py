"""Panels as every dashboard of ours has them: data source, unit, empty state and colours set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grafana_foundation_sdk.builders import common as common_builder
from grafana_foundation_sdk.builders import dashboard as dashboard_builder
from grafana_foundation_sdk.builders import prometheus, stat
from grafana_foundation_sdk.models import common, dashboard
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

DATA_SOURCE = dashboard.DataSourceRef(type_val="prometheus", uid="${datasource}")

# One meaning each: red pages, orange is a ticket, green is well, blue is no judgement, grey is
# absent or over.
RED, ORANGE, GREEN, BLUE, GREY, TEXT = "red", "orange", "green", "blue", "#8e8e8e", "text"
LETTERS = "ABCDEFGHIJKLMNOP"
"""Names of a panel's queries."""
Place = tuple[int, int, int, int]
"""x, y, width, height on the 24-column grid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One query of a panel.

    Args:
        expr: PromQL.
        legend: Name of its series.
        instant: Only the value now.
    """

    expr: str
    legend: str = ""
    instant: bool = False


def mapped(texts: Mapping[str, tuple[str, str]]) -> dashboard.ValueMap:
    """Values to (text, colour)."""
    results = {
        value: dashboard.ValueMappingResult(text=text, color=colour, index=index)
        for index, (value, (text, colour)) in enumerate(texts.items())
    }
    return dashboard.ValueMap(options=results)


def instead_of_nan(text: str) -> dashboard.SpecialValueMap:
    """What a NaN and an empty cell show."""
    return dashboard.SpecialValueMap(
        options=dashboard.DashboardSpecialValueMapOptions(
            match=dashboard.SpecialValueMatch.NULL_AND_NAN,
            result=dashboard.ValueMappingResult(text=text, color=GREY, index=99),
        )
    )


def threshold_steps(
    steps: Mapping[float, str], base: str = TEXT
) -> dashboard_builder.ThresholdsConfig:
    """`base` below the first step."""
    return (
        dashboard_builder.ThresholdsConfig()
        .mode(dashboard.ThresholdsMode.ABSOLUTE)
        .steps(
            [
                dashboard.Threshold(value=None, color=base),
                *(
                    dashboard.Threshold(value=value, color=colour)
                    for value, colour in steps.items()
                ),
            ]
        )
    )


def targets(queries: Sequence[Query], *, form: PromQueryFormat) -> list[Any]:
    """The queries, named A, B, C, ..."""
    built = []
    for letter, query in zip(LETTERS, queries, strict=False):
        target = (
            prometheus.Dataquery()
            .expr(query.expr)
            .ref_id(letter)
            .datasource(DATA_SOURCE)
            .format(form)
            .legend_format(query.legend or "__auto")
        )
        built.append(target.instant() if query.instant else target.range())
    return built


def framed(panel: Any, title: str, description: str, place: Place, unit: str, empty: str) -> Any:
    """What all kinds of panels have in common."""
    x, y, w, h = place
    return (
        panel.title(title)
        .description(description)
        .datasource(DATA_SOURCE)
        .grid_pos(dashboard.GridPos(x=x, y=y, w=w, h=h))
        .unit(unit)
        .no_value(empty)
    )


def stat_panel(
    title: str,
    description: str,
    place: Place,
    queries: Sequence[Query],
    *,
    unit: str = "short",
    empty: str = "–",
    decimals: int | None = None,
    thresholds: Mapping[float, str] = {},
    base: str = TEXT,
    mappings: Sequence[dashboard.ValueMapping] = (),
    background: bool = False,
    colours: Mapping[str, Mapping[float, str]] = {},
    size: int | None = None,
) -> Any:
    """Big numbers. `colours`: thresholds of single series, by name."""
    panel = (
        framed(stat.Panel(), title, description, place, unit, empty)
        .targets(targets(queries, form=PromQueryFormat.TIME_SERIES))
        .reduce_options(common_builder.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
        .graph_mode(common.BigValueGraphMode.NONE)
        .color_mode(
            common.BigValueColorMode.BACKGROUND if background else common.BigValueColorMode.VALUE
        )
        .text_mode(
            common.BigValueTextMode.VALUE if len(queries) == 1 else common.BigValueTextMode.AUTO
        )
        .justify_mode(common.BigValueJustifyMode.AUTO)
        .orientation(
            common.VizOrientation.VERTICAL if len(queries) > 1 else common.VizOrientation.AUTO
        )
        .color_scheme(dashboard_builder.FieldColor().mode(dashboard.FieldColorModeId.THRESHOLDS))
        .thresholds(threshold_steps(thresholds, base))
        .mappings(list(mappings))
    )
    if decimals is not None:
        panel = panel.decimals(decimals)
    if size is not None:
        panel = panel.text(common_builder.VizTextDisplayOptions().value_size(size).title_size(13))
    for name, steps in colours.items():
        config = threshold_steps(steps).build()
        panel = panel.override_by_name(
            name, [dashboard.DynamicConfigValue(id_val="thresholds", value=config)]
        )
    return panel
