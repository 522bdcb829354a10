"""Figures and curves of the run dashboard's first screen."""

from __future__ import annotations

from typing import Any

from grafana.source import panel, query
from grafana.source.graph import DASHED, fixed, graph_panel
from grafana.source.panel import Query
from grafana.source.query import RUN, TOLD

VALUES = query.VALUES


def figures() -> list[Any]:
    known = "training_health_ranks"
    dead = (
        f"max(run:training_health_dead:count{{{TOLD}}})"
        f' or max({known}{{{RUN},status="dead"}}) or vector(0)'
    )
    alive = (
        f'max({known}{{{RUN},status="alive"}})'
        f" or max(run:training_health_present:count{{{TOLD}}}) or vector(0)"
    )
    ranks = [
        Query(expr=alive, legend="alive", instant=True),
        Query(
            expr=f"max(last_over_time(training_health_world_size{{{RUN}}}[{VALUES['memory']}]))",
            legend="expected",
            instant=True,
        ),
        *(
            Query(
                expr=f'max({known}{{{RUN},status="{status}"}}) or vector(0)',
                legend=status,
                instant=True,
            )
            for status in ("stuck", "missing", "finished")
        ),
    ]
    ranks.insert(2, Query(expr=dead, legend="dead", instant=True))
    crying = {1.0: panel.RED}
    return [
        panel.stat_panel(
            "Ranks",
            "Alive as many as expected, and nobody stuck, dead or missing, is good. Stuck ranks "
            "live but make no progress; missing ones never came. The ranks dashboard names them.",
            (0, 5, 9, 3),
            ranks,
            unit="none",
            colours={"dead": crying, "stuck": crying},
            size=26,
        ),
        panel.stat_panel(
            "Pages firing",
            "0 is good. Otherwise the table above says which.",
            (9, 5, 3, 3),
            [
                Query(
                    expr=f'count(ALERTS{{alertname=~"{query.PREFIX}.+",alertstate="firing",severity="critical",{TOLD}}})'
                    " or vector(0)",
                    legend="pages",
                    instant=True,
                )
            ],
            unit="none",
            thresholds={1: panel.RED},
            size=26,
        ),
        panel.stat_panel(
            "Step",
            "The last observed step. Growing is good; after a resume it may go back.",
            (12, 5, 3, 3),
            [Query(expr=f"max(training_health_step{{{RUN}}})", legend="step")],
            unit="locale",
            decimals=0,
            size=26,
            empty="None yet",
        ),
        panel.stat_panel(
            "Steps per minute",
            "Steady is good, whatever the level. 0: the run stands still, see which rank it "
            "waits for.",
            (15, 5, 3, 3),
            [
                Query(
                    expr=f"60 * sum(rate(training_health_steps_total{{{RUN}}}[$__rate_interval]))",
                    legend="steps per minute",
                    instant=True,
                )
            ],
            unit="short",
            decimals=1,
            size=26,
            empty="None",
        ),
        panel.stat_panel(
            "MFU",
            "Model FLOPs utilisation of the last step. Steady is good; its level depends on "
            "model and hardware. Without a known peak there is none.",
            (18, 5, 3, 3),
            [Query(expr=f"max(training_health_mfu_ratio{{{RUN}}})", legend="MFU")],
            unit="percentunit",
            decimals=1,
            size=26,
            empty="Unknown",
        ),
        panel.stat_panel(
            "Goodput",
            "Share of all time since the run's first start that went into steps that counted. "
            "Near 100 % is good; restarts, lost steps, checkpoints and waiting take the rest.",
            (21, 5, 3, 3),
            [Query(expr=f"max(training_health_goodput_ratio{{{RUN}}})", legend="goodput")],
            unit="percentunit",
            decimals=1,
            size=26,
            empty="None yet",
        ),
    ]


def loss(place: panel.Place) -> Any:
    base = f'max(training_health_baseline{{{RUN},signal="loss"}})'
    reach = (
        f'max(training_health_z_score_threshold{{{RUN},signal="loss"}})'
        f' * max(training_health_spread{{{RUN},signal="loss"}})'
    )
    # An anomaly is marked for two steps of the graph, so that none falls between them; at the loss,
    # or where that is not finite, at the baseline.
    fresh = (
        f"max by (kind) (time() - training_health_last_anomaly_timestamp_seconds{{{RUN}}}"
        " < 2 * $__interval_ms / 1000)"
    )
    loss = f"max(training_health_loss{{{RUN}}})"
    mark = f"{fresh} * 0 + on () group_left () (({loss} > -Inf < Inf) or {base})"
    return graph_panel(
        "Loss against its baseline",
        "Inside the grey band is good: it is what the last steps make likely, up to the "
        "threshold above which a value is a spike. Points are anomalies, of whatever kind. A gap "
        "with points is a loss that is NaN or infinite: stop the run and go back to the "
        "checkpoint before. A jump at a restart (blue line): the checkpoint was not restored "
        "whole.",
        place,
        [
            Query(expr=loss, legend="loss"),
            Query(expr=base, legend="baseline"),
            Query(expr=f"{base} + {reach}", legend="spike above"),
            Query(expr=f"{base} - {reach}", legend="band"),
            Query(expr=mark, legend="anomaly: {{kind}}"),
        ],
        unit="short",
        empty="No step yet",
        least=None,
        styles={
            "loss": {"color": fixed("blue"), "custom.lineWidth": 2},
            "baseline": {"color": fixed("#b0b0b0"), "custom.lineStyle": DASHED},
            "spike above": {
                "color": fixed("#808080"),
                "custom.lineWidth": 0,
                "custom.fillBelowTo": "band",
                "custom.fillOpacity": 14,
                "custom.hideFrom": {"legend": True, "tooltip": False, "viz": False},
            },
            "band": {
                "color": fixed("#808080"),
                "custom.lineWidth": 0,
                "custom.hideFrom": {"legend": True, "tooltip": True, "viz": False},
            },
            "/^anomaly/": {
                "color": fixed(panel.RED),
                "custom.drawStyle": "points",
                "custom.showPoints": "always",
                "custom.pointSize": 9,
            },
        },
    )


def rate(place: panel.Place) -> Any:
    return graph_panel(
        "Steps per minute over time",
        "Level is good. A fall to 0 is where the run stood still; a lower level is slower steps, "
        "see the step time and the phases below.",
        place,
        [
            Query(
                expr=f"60 * sum(rate(training_health_steps_total{{{RUN}}}[$__rate_interval]))",
                legend="steps per minute",
            )
        ],
        unit="short",
        empty="No step yet",
        fill=10,
    )


def mfu(place: panel.Place) -> Any:
    mean = f"max(run:training_health_mfu:ratio{{{TOLD}}})"
    low = (
        f"{VALUES['slow_share']} * max(quantile_over_time(0.5, "
        f"run:training_health_mfu:ratio{{{TOLD}}}[{VALUES['slow_range']}]))"
    )
    return graph_panel(
        "MFU over time",
        f"Level is good. Below the dashed line for {VALUES['slow_for']} is a ticket: "
        f"{float(VALUES['slow_share']):.0%} of the run's own median over {VALUES['slow_range']}. "
        "Look for a slow rank, a changed driver, a busy file system.",
        place,
        [
            Query(expr=f"max(training_health_mfu_ratio{{{RUN}}})", legend="MFU"),
            Query(expr=mean, legend=f"mean of {VALUES['speed_range']}"),
            Query(expr=low, legend="ticket below"),
        ],
        unit="percentunit",
        empty="The accelerator's peak is unknown",
        styles={
            "MFU": {"color": fixed("light-blue")},
            f"mean of {VALUES['speed_range']}": {"color": fixed("blue"), "custom.lineWidth": 2},
            "ticket below": {"color": fixed(panel.ORANGE), "custom.lineStyle": DASHED},
        },
    )
