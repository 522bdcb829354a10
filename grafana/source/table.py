"""Tables: instant queries, merged by the labels that they share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from grafana_foundation_sdk.builders import common as common_builder
from grafana_foundation_sdk.builders import dashboard as dashboard_builder
from grafana_foundation_sdk.builders import table
from grafana_foundation_sdk.models import common, dashboard
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from grafana.source.panel import (
    LETTERS,
    Place,
    Query,
    framed,
    instead_of_nan,
    targets,
    threshold_steps,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of a table: how the field of the query is shown.

    Args:
        source: Field of the merged frames: a label, or `Value #A`.
        title: Heading.
        width: Pixels; None shares what is left.
        unit, decimals: Of numbers.
        mappings: Values to texts and colours.
        coloured: How: `text`, `background` or not at all.
        thresholds: Value to colour from it on, beside the base colour.
        link: Relative address.
        empty: What stands for no value.
    """

    source: str
    title: str
    width: int | None = None
    unit: str = ""
    decimals: int | None = None
    mappings: Sequence[dashboard.ValueMapping] = ()
    coloured: str = ""
    thresholds: Mapping[float, str] = field(default_factory=dict)
    link: str = ""
    empty: str = ""


def table_panel(
    title: str,
    description: str,
    place: Place,
    queries: Sequence[Query],
    columns: Sequence[Column],
    *,
    empty: str,
    sort: tuple[str, bool] | None = None,
) -> Any:
    """Instant queries, merged by their common labels. `sort`: heading, whether descending."""
    order = {column.source: index for index, column in enumerate(columns)}
    rename = {column.source: column.title for column in columns}
    used = set(order)
    values = (
        ["Value"]
        if len(queries) == 1
        else [f"Value #{c}" for c, _ in zip(LETTERS, queries, strict=False)]
    )
    hidden = {name: True for name in ("Time", "run", "job", *values) if name not in used}
    instant = [Query(expr=query.expr, legend=query.legend, instant=True) for query in queries]
    panel = (
        framed(table.Panel(), title, description, place, "short", empty)
        .targets(targets(instant, form=PromQueryFormat.TABLE))
        .cell_height(common.TableCellHeight.SM)
        .show_header(True)
        .filterable(False)
        .color_scheme(dashboard_builder.FieldColor().mode(dashboard.FieldColorModeId.THRESHOLDS))
        .thresholds(threshold_steps({}))
    )
    if len(queries) > 1:
        panel = panel.with_transformation(
            dashboard.DataTransformerConfig(id_val="merge", options={})
        )
    panel = panel.with_transformation(
        dashboard.DataTransformerConfig(
            id_val="organize",
            options={"excludeByName": hidden, "indexByName": order, "renameByName": rename},
        )
    )
    for column in columns:
        panel = panel.override_by_name(column.title, _properties(column))
    if sort is not None:
        state = common_builder.TableSortByFieldState().display_name(sort[0]).desc(sort[1])
        panel = panel.sort_by([state])
    return panel


def _properties(column: Column) -> list[dashboard.DynamicConfigValue]:
    properties: dict[str, Any] = {}
    # A rank's number is a name: without this, rank 1000 is "1 K".
    unit = column.unit or ("" if column.source.startswith("Value") else "string")
    if unit:
        properties["unit"] = unit
    if column.decimals is not None:
        properties["decimals"] = column.decimals
    if column.width is not None:
        properties["custom.width"] = column.width
    # An empty cell would else show what an empty table does.
    properties["noValue"] = column.empty or "–"
    mappings = [*column.mappings, *([instead_of_nan(column.empty)] if column.empty else [])]
    if mappings:
        properties["mappings"] = mappings
    if column.thresholds:
        properties["thresholds"] = threshold_steps(column.thresholds).build()
    if column.coloured:
        properties["custom.cellOptions"] = {"type": f"color-{column.coloured}"}
    if column.link:
        properties["links"] = [{"title": "Show", "url": column.link}]
    return [
        dashboard.DynamicConfigValue(id_val=key, value=value) for key, value in properties.items()
    ]
