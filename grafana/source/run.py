"""The dashboard of one run: is it healthy, and since when not?"""

from __future__ import annotations

from typing import Any

from grafana.source import frame, panel, query, run_curve, run_record, run_training, shown
from grafana.source.graph import timeline_panel
from grafana.source.panel import Query
from grafana.source.query import RUN, TOLD
from grafana.source.table import Column, table_panel


def first_screen() -> list[Any]:
    """Healthy or not, since when, what is wrong and which rank; and what shows it."""
    suspects = query.suspects(RUN, TOLD)
    age = f"time() - {query.latest('training_health_rank_heartbeat_timestamp_seconds', RUN)}"
    step = query.latest("training_health_rank_step", RUN)
    return [
        panel.stat_panel(
            "Verdict",
            "**Healthy** is good. Red is what pages: the first of the alerts that fire, the "
            "cause before its consequences; the table to the right has all, each with a runbook "
            "of its name. *Needs a look*: only tickets. *Not scraped*: Prometheus has lost all "
            "ranks, and will know in a minute whether they are dead. *Rules not loaded*: load "
            "alerts/rules into Prometheus, nothing here can judge without.",
            (0, 0, 5, 5),
            [Query(expr=query.verdict(RUN, TOLD), legend="{{run}}", instant=True)],
            unit="none",
            mappings=[shown.VERDICT],
            background=True,
            size=36,
            empty="Run unknown",
        ),
        panel.stat_panel(
            "In trouble for",
            "*No page* is good. Otherwise since when the oldest page fires; the curves below, at "
            "that time, show what happened.",
            (5, 0, 3, 5),
            [
                Query(
                    expr=f"time() - {query.firing(f'{TOLD},{query.CRITICAL}', ('run',))}",
                    legend="in trouble for",
                    instant=True,
                )
            ],
            unit="s",
            decimals=0,
            thresholds={0: panel.RED},
            size=36,
            empty="No page",
        ),
        table_panel(
            "What is wrong",
            "The alerts that fire. None is good. A page wants a person now, a ticket in working "
            "hours; the runbook has the alert's name.",
            (8, 0, 8, 5),
            [Query(expr=f"time() - {query.firing(TOLD, ('alertname', 'severity'))}")],
            [
                Column(source="alertname", title="Alert", mappings=[shown.ALERT], coloured="text"),
                Column(source="severity", title="Is a", width=60, mappings=[shown.SEVERITY]),
                Column(source="Value", title="For", width=90, unit="s", decimals=0),
            ],
            empty="Nothing: no alert fires",
            sort=("Is a", False),
        ),
        table_panel(
            "Which rank",
            "The ranks that the run waits for, or that are gone. None is good. *Dead*: the process "
            "is gone; look at its host. *Stuck*: it lives, but stands still; its stacks are beside "
            "the receipts (stacks-rank*.txt). *Never came*: look at the scheduler.",
            (16, 0, 8, 5),
            [
                Query(expr=f"max by (rank, host, reason) ({suspects})"),
                Query(
                    expr=query.total(
                        f"({age}) and on (rank) ({suspects})", _ranks(suspects), "rank"
                    )
                ),
                Query(
                    expr=query.total(f"{step} and on (rank) ({suspects})", _ranks(suspects), "rank")
                ),
            ],
            [
                Column(source="rank", title="Rank", width=60, link=_to_rank()),
                Column(source="host", title="Host"),
                Column(
                    source="reason",
                    title="Is",
                    width=95,
                    mappings=[shown.REASON],
                    coloured="text",
                ),
                Column(
                    source="Value #C",
                    title="Last step",
                    width=95,
                    unit="locale",
                    decimals=0,
                    empty="none",
                ),
                Column(
                    source="Value #B",
                    title="Silent for",
                    width=105,
                    unit="s",
                    decimals=0,
                    empty="always",
                ),
            ],
            empty="No suspects",
        ),
        *run_curve.figures(),
        timeline_panel(
            "Verdict over time",
            "Green all along is good. Where the colour changes is where to look in the curves "
            "below.",
            (0, 8, 24, 3),
            [Query(expr=query.verdict(RUN, TOLD), legend="verdict")],
            [shown.VERDICT],
            empty="Run unknown in this time",
            rows=1,
        ),
        run_curve.loss((0, 11, 14, 10)),
        run_curve.rate((14, 11, 10, 5)),
        run_curve.mfu((14, 16, 10, 5)),
    ]


def _ranks(suspects: str) -> str:
    return f"max by (rank) ({suspects})"


def _to_rank() -> str:
    return frame.link_to(frame.RANKS_UID, run="${run}", rank="${__data.fields.Rank}")


def build() -> dict[str, Any]:
    """The dashboard as classic JSON."""
    return frame.render(
        uid=frame.RUN_UID,
        title="Training health: run",
        description="Is this run healthy, since when not, what is wrong, and which rank is it?",
        span="3h",
        variables=[
            frame.data_source_variable(),
            frame.job_variable(),
            frame.run_variable(many=False),
        ],
        marks=frame.marks(RUN, TOLD),
        panels=[
            *first_screen(),
            frame.row("Loss and gradients", 21),
            *run_training.judgement(22),
            frame.row("Speed", 38),
            *run_training.speed(39),
            frame.row("Restarts and lost work", 55),
            *run_record.restarts(56),
            frame.row("The exporter itself", 64),
            *run_record.exporter(65),
        ],
    )
