"""The run dashboard's rows on restarts and on the exporter itself."""

from __future__ import annotations

from typing import Any

from grafana.source import panel, query
from grafana.source.graph import graph_panel
from grafana.source.panel import Query
from grafana.source.query import RUN, TOLD
from grafana.source.table import Column, table_panel

VALUES = query.VALUES


def restarts(y: int) -> list[Any]:
    return [
        panel.stat_panel(
            "Loss continuous over resumes",
            "**Yes** is good. No: a resume did not restore all of its state, such as the "
            "optimizer's. Go back to the checkpoint before, and repair what it saves.",
            (0, y, 4, 4),
            [Query(expr=f"min(training_health_continuity_ok{{{RUN}}})", legend="continuous")],
            unit="none",
            mappings=[panel.mapped({"1": ("Yes", panel.TEXT), "0": ("No", panel.RED)})],
            empty="No step yet",
            size=26,
        ),
        panel.stat_panel(
            "Restarts",
            "Resumes since the run began. Few is good; many in a short time is a host or a job "
            "that keeps failing.",
            (4, y, 4, 4),
            [
                Query(
                    expr=f"max(training_health_restarts_total{{{RUN}}})",
                    legend="restarts",
                    instant=True,
                )
            ],
            unit="none",
            empty="–",
            size=26,
        ),
        panel.stat_panel(
            "Lost steps",
            "Steps that were done again after resumes. Few is good; else save checkpoints more "
            "often.",
            (0, y + 4, 4, 4),
            [
                Query(
                    expr=f"max(training_health_lost_steps_total{{{RUN}}})",
                    legend="lost steps",
                    instant=True,
                )
            ],
            unit="locale",
            empty="–",
            size=26,
        ),
        panel.stat_panel(
            "This attempt began",
            "When the newest process of rank 0 started. Long ago is good.",
            (4, y + 4, 4, 4),
            [
                Query(
                    expr=f"1000 * max(training_health_run_start_timestamp_seconds{{{RUN}}})",
                    legend="start",
                )
            ],
            unit="dateTimeFromNow",
            empty="–",
            size=26,
        ),
        graph_panel(
            "Goodput over time",
            "High and level is good. It falls at each restart and while the run stands still, "
            "and only recovers slowly.",
            (8, y, 8, 8),
            [Query(expr=f"max(training_health_goodput_ratio{{{RUN}}})", legend="goodput")],
            unit="percentunit",
            empty="No step yet",
            fill=10,
        ),
        graph_panel(
            "Step over time",
            "A straight line upwards is good. Flat: the run stands still. A step back: it was "
            "resumed from an older checkpoint.",
            (16, y, 8, 8),
            [Query(expr=f"max(training_health_step{{{RUN}}})", legend="step")],
            unit="locale",
            empty="No step yet",
            least=None,
        ),
    ]


def exporter(y: int) -> list[Any]:
    facts = "max by (model, framework, device, world_size, version, flops_convention)"
    return [
        panel.stat_panel(
            "Age of the receipt",
            "Below a minute is good: it is written every 30 s. Older than the threshold is a "
            "ticket: the file system of the receipts is full, read-only or hangs.",
            (0, y, 4, 4),
            [
                Query(
                    expr=f"time() - max(training_health_receipt_timestamp_seconds{{{RUN}}})",
                    legend="age",
                    instant=True,
                )
            ],
            unit="s",
            decimals=0,
            thresholds={_seconds("receipt_age"): panel.ORANGE},
            empty="None",
            size=26,
        ),
        panel.stat_panel(
            "Receipts not written",
            f"0 is good. {VALUES['receipt_failures']} within {VALUES['receipt_range']} are a "
            "ticket.",
            (4, y, 4, 4),
            [
                Query(
                    expr="sum(increase(training_health_receipt_write_failures_total"
                    f"{{{RUN}}}[{VALUES['receipt_range']}]))",
                    legend="failures",
                    instant=True,
                )
            ],
            unit="none",
            decimals=0,
            thresholds={float(VALUES["receipt_failures"]) - 0.5: panel.ORANGE},
            empty="–",
            size=26,
        ),
        panel.stat_panel(
            "Living ranks not scraped",
            "0 is good. Otherwise rank 0 hears ranks whose endpoints Prometheus does not reach: "
            "service discovery, a firewall, a port.",
            (0, y + 4, 4, 4),
            [
                Query(
                    expr=f'sum(training_health_ranks{{{RUN},status=~"alive|stuck"}})'
                    f" - max(run:training_health_present:count{{{TOLD}}})",
                    legend="not scraped",
                    instant=True,
                )
            ],
            unit="none",
            thresholds={1: panel.ORANGE},
            empty="–",
            size=26,
        ),
        panel.stat_panel(
            "Ranks without the store",
            "0 is good. Ranks that do not reach the job's store cannot be heard by rank 0; "
            "Prometheus has to tell dead from alive alone, which takes longer.",
            (4, y + 4, 4, 4),
            [
                Query(
                    expr=f"count(training_health_rank_store_connected{{{RUN}}} == 0) or vector(0)",
                    legend="without",
                    instant=True,
                )
            ],
            unit="none",
            empty="–",
            size=26,
        ),
        graph_panel(
            "Refused observations and failed pushes",
            "None is good. A refused observation is a bug in the training loop, and is in its "
            "log with its value; a failed push is a collector that cannot be reached.",
            (8, y, 8, 8),
            [
                Query(
                    expr="sum by (reason) (increase(training_health_rejected_observations_total"
                    f"{{{RUN}}}[$__rate_interval])) > 0",
                    legend="refused: {{reason}}",
                ),
                Query(
                    expr="sum(increase(training_health_rank_otlp_export_failures_total"
                    f"{{{RUN}}}[$__rate_interval])) > 0",
                    legend="pushes failed",
                ),
            ],
            unit="short",
            empty="None in this time",
            bars=True,
            decimals=0,
        ),
        table_panel(
            "About the run",
            "What the trainer says of itself. It is good to compare it with what was meant to run.",
            (16, y, 8, 8),
            [
                Query(
                    expr=f"{facts} (training_health_run_info{{{RUN}}}) or on () {facts}"
                    f" (last_over_time(training_health_run_info{{{RUN}}}[{VALUES['memory']}]))"
                )
            ],
            [
                Column(source="model", title="Model"),
                Column(source="device", title="Device"),
                Column(source="framework", title="Framework"),
                Column(source="world_size", title="Ranks", width=60),
                Column(source="version", title="Exporter", width=80),
                Column(source="flops_convention", title="FLOPs", width=120),
            ],
            empty="Run unknown",
        ),
    ]


def _seconds(name: str) -> float:
    units = {"s": 1, "m": 60, "h": 3600}
    value = VALUES[name]
    return float(value[:-1]) * units[value[-1]]
