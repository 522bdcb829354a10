"""The rows of the ranks dashboard that show time: all ranks as one, and chosen ones."""

from __future__ import annotations

from typing import Any

from grafana.source import panel, query, shown
from grafana.source.graph import (
    DASHED,
    PHASE_COLOURS,
    fixed,
    graph_panel,
    heatmap_panel,
    timeline_panel,
)
from grafana.source.panel import Query
from grafana.source.rank_query import HEARTBEAT, OWN, behind, share_of_allowed


def over_time(y: int) -> list[Any]:
    beat = f"max by (rank) ({HEARTBEAT}{{{OWN}}})"
    ages = f"clamp_min(time() - {beat}, 1)"
    seconds = f"training_health_rank_phase_seconds_total{{{OWN}}}"
    own = f"max by (rank, phase) (rate({seconds}[$__rate_interval]))"
    step = f"max by (rank) (training_health_rank_step{{{OWN}}})"
    return [
        heatmap_panel(
            "Ranks by time without progress",
            "All ranks in the lowest rows is good. A few that climb alone are stuck; all that "
            "climb together wait for one of them, or are in a checkpoint.",
            (0, y, 12, 9),
            Query(expr=f'count_values("seconds", 2 ^ ceil(log2({ages})))', legend="{{seconds}}"),
            cumulative=False,
            empty="No rank in this time",
            points=80,
        ),
        graph_panel(
            "Longest without progress, of what is allowed",
            "Far below 100 % is good; at 100 % a rank counts as stuck. The median tells whether "
            "all stand still or only some.",
            (12, y, 12, 9),
            [
                Query(expr=f"max({share_of_allowed('rank')})", legend="longest"),
                Query(expr=f"quantile(0.5, {share_of_allowed('rank')})", legend="median"),
            ],
            unit="percentunit",
            empty="No rank in this time",
            points=120,
            thresholds={1: panel.RED},
            styles={
                "longest": {"color": fixed("blue"), "custom.lineWidth": 2},
                "median": {"color": fixed("#b0b0b0")},
            },
        ),
        graph_panel(
            "Phases: median and slowest rank",
            "Share of the time. Median and slowest close together is good, in each phase. Apart in "
            "data or forward: one rank is slow, see the table above. Apart in backward only: the "
            "others wait for it.",
            (0, y + 9, 12, 9),
            [
                Query(expr=f"quantile by (phase) (0.5, {own})", legend="{{phase}}, median"),
                Query(expr=f"max by (phase) ({own})", legend="{{phase}}, slowest"),
            ],
            unit="percentunit",
            empty="The trainer marks no phases",
            points=30,
            styles={
                **{
                    f"/^{phase}/": {"color": fixed(colour)}
                    for phase, colour in PHASE_COLOURS.items()
                },
                "/slowest$/": {"custom.lineStyle": DASHED},
            },
        ),
        graph_panel(
            "Steps behind the first rank",
            "Against where the first rank was a moment ago. 0 is good where ranks wait for each "
            "other; after a resume they are all behind for a minute.",
            (12, y + 9, 12, 9),
            [
                Query(expr=f"max({behind(step)})", legend="last rank"),
                Query(expr=f"quantile(0.5, {behind(step)})", legend="median"),
            ],
            unit="short",
            decimals=0,
            empty="No step yet",
            most=5,
            points=120,
            styles={"last rank": {"color": fixed("blue")}, "median": {"color": fixed("#b0b0b0")}},
        ),
    ]


def chosen(y: int) -> list[Any]:
    """Single ranks: the chosen ones, and never more than 20."""
    states = f'max by (rank) (training_health_rank_state{{{OWN},state=~"%s"}} == 1) * 0 + %d'
    code = " or on (rank) ".join(
        states % (state, query.STATE_CODES[state]) for state in query.STATES_BY_WORTH
    )
    return [
        graph_panel(
            "Time without progress as a share of what is allowed",
            "Of the chosen ranks, the 20 highest. Far below 100 % is good; at 100 % a rank "
            "counts as stuck.",
            (0, y, 12, 9),
            [Query(expr=f"topk(20, {share_of_allowed('rank')})", legend="rank {{rank}}")],
            unit="percentunit",
            empty="No rank in this time",
            points=120,
            thresholds={1: panel.RED},
        ),
        timeline_panel(
            "State",
            "What the chosen ranks say of themselves, at most 20 of them. *Running* all along is "
            "good; a gap is a rank that was not scraped.",
            (12, y, 12, 9),
            [Query(expr=f"topk(20, {code})", legend="rank {{rank}}")],
            [
                panel.mapped(
                    {
                        str(query.STATE_CODES[state]): (
                            text,
                            panel.GREEN if state == "running" else colour,
                        )
                        for state, (text, colour) in shown.RANK_STATES.items()
                    }
                )
            ],
            empty="No rank in this time",
            rows=20,
            points=60,
        ),
    ]
