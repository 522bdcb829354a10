"""The run dashboard's rows on loss, gradients and speed."""

from __future__ import annotations

from typing import Any

from grafana.source import panel, query, shown
from grafana.source.graph import DASHED, PHASE_COLOURS, fixed, graph_panel, heatmap_panel
from grafana.source.panel import Query
from grafana.source.query import RUN, TOLD
from grafana.source.table import Column, table_panel

VALUES = query.VALUES


def judgement(y: int) -> list[Any]:
    def z(signal: str) -> str:
        return f'max(training_health_z_score{{{RUN},signal="{signal}"}})'

    counted = f"training_health_anomalies_total{{{RUN}}}"
    anomalies = f"max by (kind) ({counted} > 0)"
    newest = f"max by (kind) (training_health_last_anomaly_timestamp_seconds{{{RUN}}})"
    at_step = f"max by (kind) (training_health_last_anomaly_step{{{RUN}}})"
    return [
        graph_panel(
            "Robust z-scores",
            "Between -3 and 3 almost always is good. Above the dashed threshold a value is a "
            "spike. Now and then one is a bad batch; many are a learning rate too high, or bad "
            "data.",
            (0, y, 12, 8),
            [
                Query(expr=z("loss"), legend="loss"),
                Query(expr=z("grad_norm"), legend="gradient norm"),
                Query(
                    expr=f"max by (signal) (training_health_z_score_threshold{{{RUN}}})",
                    legend="threshold ({{signal}})",
                ),
            ],
            unit="short",
            empty="No baseline yet",
            least=None,
            styles={
                "loss": {"color": fixed("blue")},
                "gradient norm": {"color": fixed("purple")},
                "/^threshold/": {"color": fixed(panel.RED), "custom.lineStyle": DASHED},
            },
        ),
        graph_panel(
            "Gradient norm",
            "Close to its baseline is good. Climbing for long comes before a divergence: look at "
            "the learning rate. The axis is logarithmic.",
            (12, y, 12, 8),
            [
                Query(expr=f"max(training_health_grad_norm{{{RUN}}})", legend="gradient norm"),
                Query(
                    expr=f'max(training_health_baseline{{{RUN},signal="grad_norm"}})',
                    legend="baseline",
                ),
            ],
            unit="short",
            empty="The trainer reports no gradient norm",
            least=None,
            log=True,
            styles={
                "gradient norm": {"color": fixed("purple")},
                "baseline": {"color": fixed("#b0b0b0"), "custom.lineStyle": DASHED},
            },
        ),
        graph_panel(
            "Anomalies by kind",
            f"None is good; a spike now and then is nothing. More than {VALUES['loss_spikes']} "
            f"loss spikes or {VALUES['grad_norm_spikes']} gradient norm spikes within "
            f"{VALUES['spike_range']} are a ticket.",
            (0, y + 8, 12, 8),
            [
                Query(
                    expr=f"round(sum by (kind) (increase({counted}[$__rate_interval]))) > 0",
                    legend="{{kind}}",
                )
            ],
            unit="short",
            empty="No anomaly in this time",
            bars=True,
            decimals=0,
        ),
        table_panel(
            "Anomalies of the whole run",
            "The newest of each kind, and how many since the run began, over all its restarts. "
            "An empty table is good.",
            (12, y + 8, 12, 8),
            [
                Query(expr=anomalies),
                Query(expr=query.total(f"time() - {newest}", anomalies, "kind")),
                Query(expr=query.total(at_step, anomalies, "kind")),
            ],
            [
                Column(source="kind", title="Kind", mappings=[shown.KIND]),
                Column(source="Value #A", title="Count", width=80, decimals=0),
                Column(
                    source="Value #C",
                    title="Last at step",
                    width=110,
                    unit="locale",
                    decimals=0,
                    empty="unknown",
                ),
                Column(
                    source="Value #B", title="Ago", width=100, unit="s", decimals=0, empty="unknown"
                ),
            ],
            empty="No anomaly yet",
            sort=("Ago", False),
        ),
    ]


def speed(y: int) -> list[Any]:
    steps = f"training_health_step_duration_seconds_bucket{{{RUN}}}"
    buckets = f"sum by (le) (rate({steps}[$__rate_interval]))"
    # A sample, so that it costs the same at any number of ranks.
    seconds = f'training_health_rank_phase_seconds_total{{{RUN},rank=~"[0-9]{{1,2}}"}}'
    phases = f"avg by (phase) (rate({seconds}[$__rate_interval]))"
    slow = (
        f"max(quantile_over_time(0.5, run:training_health_step_duration:seconds{{{TOLD}}}"
        f"[{VALUES['slow_range']}])) / {VALUES['slow_share']}"
    )
    return [
        graph_panel(
            "Step time",
            "Level, with the quantiles close together, is good. A high 99 % with a low half: "
            "single steps wait, for data or for a rank. Where MFU is unknown, the mean above the "
            f"dashed line for {VALUES['slow_for']} is a ticket.",
            (0, y, 12, 8),
            [
                *(
                    Query(expr=f"histogram_quantile({q}, {buckets})", legend=legend)
                    for q, legend in ((0.5, "half of the steps"), (0.95, "95 %"), (0.99, "99 %"))
                ),
                Query(
                    expr=f"max(run:training_health_step_duration:seconds{{{TOLD}}})",
                    legend=f"mean of {VALUES['speed_range']}",
                ),
                Query(expr=slow, legend="ticket above"),
            ],
            unit="s",
            empty="No step yet",
            styles={
                "half of the steps": {"color": fixed("blue"), "custom.lineWidth": 2},
                "95 %": {"color": fixed("light-blue")},
                "99 %": {"color": fixed("#8ab8ff")},
                f"mean of {VALUES['speed_range']}": {"color": fixed("#b0b0b0")},
                "ticket above": {"color": fixed(panel.ORANGE), "custom.lineStyle": DASHED},
            },
        ),
        graph_panel(
            "Tokens per second",
            "Level is good. It counts repeated steps, too. Without batch size or sequence length "
            "there are no tokens to count.",
            (12, y, 12, 8),
            [
                Query(
                    expr=f"sum(rate(training_health_tokens_total{{{RUN}}}[$__rate_interval]))",
                    legend="tokens per second",
                )
            ],
            unit="short",
            empty="Batch size or sequence length is unknown",
            fill=10,
        ),
        graph_panel(
            "Where the time goes",
            "Mean over the first hundred ranks. Mostly forward, backward and optimizer is good. "
            "Growing data: the loaders are slow; growing backward: ranks wait for a slow one in "
            "the all-reduce. The ranks dashboard says who. Only phases that the trainer marks "
            "are known.",
            (0, y + 8, 12, 8),
            [Query(expr=phases, legend="{{phase}}")],
            unit="percentunit",
            empty="The trainer marks no phases",
            stacked=True,
            most=1,
            fill=40,
            points=120,
            styles={name: {"color": fixed(colour)} for name, colour in PHASE_COLOURS.items()},
        ),
        heatmap_panel(
            "Steps by duration",
            "One narrow band is good. A second one above it: some steps are slow for a reason of "
            "their own, such as a checkpoint that is not marked as a phase.",
            (12, y + 8, 12, 8),
            Query(
                expr=f"sum by (le) (increase({steps}[$__rate_interval]))",
                legend="{{le}}",
            ),
            cumulative=True,
            empty="No step yet",
            points=120,
        ),
    ]
