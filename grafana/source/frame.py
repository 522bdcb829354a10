"""What all dashboards share: variables, links, annotations, settings."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from grafana_foundation_sdk.builders import dashboard as builder
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard

from grafana.source import panel, query

FLEET_UID = "training-health-fleet"
RUN_UID = query.VALUES["run_dashboard"]
RANKS_UID = "training-health-ranks"
TAG = "training-health"

# Keep what is chosen when one goes from one dashboard to another.
_KEPT = "${datasource:queryparam}&${job:queryparam}&${__url_time_range}"


def link_to(uid: str, **variables: str) -> str:
    """A relative address with the data source, job and time range of now."""
    chosen = "".join(f"&var-{name}={value}" for name, value in variables.items())
    return f"/d/{uid}?{_KEPT}{chosen}"


def data_source_variable() -> builder.DatasourceVariable:
    """The Prometheus to ask."""
    return builder.DatasourceVariable("datasource").label("Data source").type("prometheus")


def values_variable(
    name: str, label: str, metric: str, *, many: bool, sort: dashboard.VariableSort
) -> builder.QueryVariable:
    """The values that a label of `metric` has. `many`: several of them at once, all by default."""
    text = f"label_values({metric}, {name})"
    variable = (
        builder.QueryVariable(name)
        .label(label)
        .datasource(panel.DATA_SOURCE)
        .query({"query": text, "refId": f"variable-{name}"})
        .refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(sort)
        .multi(many)
        .include_all(many)
    )
    if many:
        everything = dashboard.VariableOption(text=["All"], value=["$__all"], selected=True)
        variable = variable.all_value(".+").current(everything)
    return variable


def job_variable() -> builder.QueryVariable:
    """The scrape jobs that trainers are in."""
    alphabetical = dashboard.VariableSort.ALPHABETICAL_ASC
    return values_variable("job", "Job", "training_health_rank_info", many=True, sort=alphabetical)


def run_variable(*, many: bool) -> builder.QueryVariable:
    """The runs of these jobs."""
    metric = 'training_health_run_info{job=~"$job"}'
    order = dashboard.VariableSort.ALPHABETICAL_CASE_INSENSITIVE_ASC
    return values_variable("run", "Run", metric, many=many, sort=order)


def annotation(name: str, colour: str, expr: str, title: str, text: str) -> dict[str, Any]:
    """Marks at the times, in milliseconds, that are the query's values.

    The time of an event is exact so, and does not depend on how often the dashboard asks.
    Grafana below 11.3 reads `expr`, later ones `target`.
    """
    return {
        "name": name,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "enable": True,
        "hide": False,
        "iconColor": colour,
        "expr": expr,
        "step": "15s",
        "target": {
            "expr": expr,
            "interval": "15s",
            "refId": "Anno",
            "range": True,
            "instant": False,
        },
        "titleFormat": title,
        "textFormat": text,
        "tagKeys": "",
        "useValueForTime": True,
    }


def marks(own: str, recorded: str) -> list[dict[str, Any]]:
    """Anomalies, starts and alerts."""
    began = query.firing
    return [
        annotation(
            "Anomalies",
            panel.ORANGE,
            f"1000 * max by (run, kind) (training_health_last_anomaly_timestamp_seconds{{{own}}})",
            "{{kind}}",
            "{{run}}",
        ),
        annotation(
            "Starts and restarts",
            panel.BLUE,
            f"1000 * max by (run) (training_health_run_start_timestamp_seconds{{{own}}})",
            "An attempt started",
            "{{run}}",
        ),
        annotation(
            "Pages",
            panel.RED,
            f"1000 * {began(recorded + ',' + query.CRITICAL, ('run', 'alertname'))}",
            "{{alertname}}",
            "{{run}}",
        ),
        annotation(
            "Tickets",
            "yellow",
            f"1000 * {began(recorded + ',' + query.WARNING_ONLY, ('run', 'alertname'))}",
            "{{alertname}}",
            "{{run}}",
        ),
    ]


def render(
    *,
    uid: str,
    title: str,
    description: str,
    span: str,
    variables: Sequence[Any],
    marks: Sequence[dict[str, Any]],
    panels: Sequence[Any],
) -> dict[str, Any]:
    """The dashboard as classic JSON. `span`: how far back it looks, such as 3h."""
    made = (
        builder.Dashboard(title)
        .uid(uid)
        .description(description)
        .tags([TAG])
        .readonly()
        .refresh("30s")
        .time(f"now-{span}", "now")
        .timezone("browser")
        .tooltip(dashboard.DashboardCursorSync.CROSSHAIR)
        .variables(list(variables))
        .link(
            builder.DashboardLink("Training health")
            .type(dashboard.DashboardLinkType.DASHBOARDS)
            .tags([TAG])
            .as_dropdown(True)
            .include_vars(True)
            .keep_time(True)
            .icon("external link")
            .tooltip("The other dashboards, for the same time")
        )
        .build()
    )
    content: dict[str, Any] = json.loads(json.dumps(made, cls=JSONEncoder))
    content["annotations"] = {"list": list(marks)}
    content["panels"] = _numbered(
        [json.loads(json.dumps(each.build(), cls=JSONEncoder)) for each in panels]
    )
    return content


def row(title: str, y: int, folded: Sequence[Any] = ()) -> Any:
    """A heading across the dashboard. `folded`: panels that are asked for when it is unfolded."""
    heading = builder.Row(title).grid_pos(dashboard.GridPos(x=0, y=y, w=24, h=1))
    heading = heading.collapsed(bool(folded))
    for each in folded:
        heading = heading.with_panel(each)
    return heading


def _numbered(panels: list[dict[str, Any]]) -> list[dict[str, Any]]:
    below = [inner for each in panels for inner in each.get("panels", [])]
    for number, each in enumerate([*panels, *below], 1):
        each["id"] = number
    return panels
