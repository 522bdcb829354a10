"""The dashboard of all runs: which of them wants somebody?"""

from __future__ import annotations

from typing import Any

from grafana.source import frame, panel, query, shown
from grafana.source.graph import timeline_panel
from grafana.source.panel import Query
from grafana.source.table import Column, table_panel

OWN = 'job=~"$job",run=~"$run"'
TOLD = 'run=~"$run"'
VALUES = query.VALUES
MEMORY = VALUES["memory"]


def _count(expr: str) -> str:
    return f"count({expr}) or vector(0)"


def _alerts(severity: str) -> str:
    return (
        f'ALERTS{{alertname=~"{query.PREFIX}.+",alertstate="firing",severity="{severity}",{TOLD}}}'
    )


def _figures() -> list[Any]:
    figures = [
        (
            "Runs training",
            "Runs whose state is running, also while they stand still. As many as you expect is "
            "good.",
            _count(f'max by (run) (training_health_run_state{{{OWN},state="running"}} == 1)'),
            {},
        ),
        (
            "Runs in trouble",
            "0 is good. Otherwise they stand first in the table below.",
            _count(f"count by (run) ({_alerts('critical')})"),
            {1.0: panel.RED},
        ),
        (
            "Pages firing",
            "0 is good. Each wants a person now.",
            _count(_alerts("critical")),
            {1.0: panel.RED},
        ),
        (
            "Tickets firing",
            "0 is good. Each wants a person in working hours.",
            _count(_alerts("warning")),
            {1.0: panel.ORANGE},
        ),
        (
            "Ranks alive",
            "Of all runs, as their ranks 0 see them. As many as were started is good.",
            f'sum(max by (run) (training_health_ranks{{{OWN},status="alive"}})) or vector(0)',
            {},
        ),
        (
            "Ranks dead or stuck",
            "0 is good. Their runs stand first in the table below.",
            f'(sum(max by (run) (training_health_ranks{{{OWN},status="stuck"}})) or vector(0))'
            f" + (sum(run:training_health_dead:count{{{TOLD}}}) or vector(0))",
            {1.0: panel.RED},
        ),
    ]
    panels = [
        panel.stat_panel(
            title,
            description,
            (4 * i if i < 4 else 12 + 3 * (i - 3) + 1, 0, 4 if i < 4 else 3, 3),
            [Query(expr=expr, legend=title.lower(), instant=True)],
            unit="locale",
            thresholds=steps,
            size=28,
        )
        for i, (title, description, expr, steps) in enumerate(figures)
    ]
    panels.append(
        panel.stat_panel(
            "Alert rules",
            "**Loaded** is good. Otherwise load alerts/rules into Prometheus: without them no "
            "verdict here means anything, and nobody is paged.",
            (22, 0, 2, 3),
            [
                Query(
                    expr=f'max(ALERTS{{alertname="{query.WATCHDOG}"}}) or vector(0)',
                    legend="rules",
                    instant=True,
                )
            ],
            unit="none",
            mappings=[panel.mapped({"1": ("Loaded", panel.TEXT), "0": ("Missing", panel.RED)})],
            size=18,
        )
    )
    return panels


def _runs(place: panel.Place) -> Any:
    base = f"max by (run) (last_over_time(run:training_health_seen:time{{{TOLD}}}[{MEMORY}]))"

    def known(expr: str) -> str:
        return query.total(expr, base, "run")

    ranks = f'max by (run) (training_health_ranks{{{OWN},status="alive"}})'
    newest = f"last_over_time(training_health_last_anomaly_timestamp_seconds{{{OWN}}}[{MEMORY}])"
    queries = [
        query.verdict(OWN, TOLD),
        known(f"time() - {query.firing(f'{TOLD},{query.CRITICAL}', ('run',))}"),
        known(f"max by (run) (last_over_time(training_health_step{{{OWN}}}[{MEMORY}]))"),
        known(f"60 * sum by (run) (rate(training_health_steps_total{{{OWN}}}[$__rate_interval]))"),
        known(f"max by (run) (training_health_mfu_ratio{{{OWN}}})"),
        known(f"max by (run) (last_over_time(training_health_goodput_ratio{{{OWN}}}[{MEMORY}]))"),
        known(f"{ranks} or on (run) run:training_health_present:count{{{TOLD}}}"),
        known(f"max by (run) (last_over_time(training_health_world_size{{{OWN}}}[{MEMORY}]))"),
        known(f"max by (run, kind) (time() - topk by (run) (1, {newest}))"),
        known(f"max by (run) (last_over_time(training_health_restarts_total{{{OWN}}}[{MEMORY}]))"),
    ]
    link = frame.link_to(frame.RUN_UID, run="${__data.fields.Run}")
    return table_panel(
        "Runs",
        f"All runs of the last {MEMORY}, those that page first. Green, alive as many as expected "
        "and no anomaly is good. A click on a run leads to its dashboard.",
        place,
        [Query(expr=expr) for expr in queries],
        [
            Column(source="run", title="Run", link=link),
            Column(
                source="Value #A",
                title="Verdict",
                width=150,
                mappings=[shown.VERDICT],
                coloured="background",
            ),
            Column(
                source="Value #B", title="Paged for", width=100, unit="s", decimals=0, empty="–"
            ),
            Column(
                source="Value #C", title="Step", width=100, unit="locale", decimals=0, empty="–"
            ),
            Column(source="Value #D", title="Steps/min", width=90, decimals=1, empty="–"),
            Column(
                source="Value #E", title="MFU", width=80, unit="percentunit", decimals=1, empty="–"
            ),
            Column(
                source="Value #F",
                title="Goodput",
                width=85,
                unit="percentunit",
                decimals=1,
                empty="–",
            ),
            Column(
                source="Value #G", title="Alive", width=75, unit="locale", decimals=0, empty="–"
            ),
            Column(
                source="Value #H", title="Of ranks", width=80, unit="locale", decimals=0, empty="–"
            ),
            Column(source="Value #J", title="Restarts", width=80, decimals=0, empty="–"),
            Column(
                source="Value #I",
                title="Last anomaly",
                width=115,
                unit="s",
                decimals=0,
                empty="none yet",
            ),
            Column(source="kind", title="It was", mappings=[shown.KIND_IN_SHORT]),
        ],
        empty=f"No run in the last {MEMORY}",
        sort=("Verdict", True),
    )


def build() -> dict[str, Any]:
    """The dashboard as classic JSON."""
    firing = query.firing(TOLD, ("run", "alertname", "severity"))
    panels = [
        *_figures(),
        _runs((0, 3, 24, 10)),
        table_panel(
            "Alerts that fire",
            "None is good. A page wants a person now, a ticket in working hours; the runbook has "
            "the alert's name.",
            (0, 13, 10, 9),
            [Query(expr=f"time() - {firing}")],
            [
                Column(
                    source="run",
                    title="Run",
                    width=150,
                    link=frame.link_to(frame.RUN_UID, run="${__data.fields.Run}"),
                ),
                Column(source="alertname", title="Alert", mappings=[shown.ALERT], coloured="text"),
                Column(source="severity", title="Is a", width=60, mappings=[shown.SEVERITY]),
                Column(source="Value", title="For", width=100, unit="s", decimals=0),
            ],
            empty="Nothing: no alert fires",
            sort=("Is a", False),
        ),
        timeline_panel(
            "Verdicts over time",
            "Green is good. Runs that turn red at the same time have one cause: look at what "
            "they share, a network or a file system.",
            (10, 13, 14, 9),
            [Query(expr=query.verdict(OWN, TOLD), legend="{{run}}")],
            [shown.VERDICT],
            empty="No run in this time",
            rows=12,
        ),
    ]
    return frame.render(
        uid=frame.FLEET_UID,
        title="Training health: fleet",
        description="All training runs: which of them wants somebody?",
        span="6h",
        variables=[
            frame.data_source_variable(),
            frame.job_variable(),
            frame.run_variable(many=True),
        ],
        marks=frame.marks(OWN, TOLD),
        panels=panels,
    )
