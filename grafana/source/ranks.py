"""The dashboard of a run's ranks: who is the problem? Made for 8 ranks and for 16,384."""

from __future__ import annotations

from typing import Any

from grafana_foundation_sdk.models import dashboard

from grafana.source import frame, panel, query, rank_history, shown
from grafana.source.panel import Query
from grafana.source.query import RUN, TOLD
from grafana.source.rank_query import (
    BEATS,
    HEARTBEAT,
    OWN,
    behind,
    excess,
    share_of_allowed,
    with_info,
)
from grafana.source.table import Column, table_panel

VALUES = query.VALUES


def _first_screen() -> list[Any]:
    step = f"training_health_rank_step{{{OWN}}}"
    return [
        _statuses((0, 0, 12, 3)),
        panel.stat_panel(
            "Longest without progress",
            "Of all ranks, now. A step's time or two is good, or a checkpoint's.",
            (12, 0, 4, 3),
            [Query(expr=f"time() - min({BEATS})", legend="longest", instant=True)],
            unit="s",
            decimals=0,
            size=26,
            empty="No rank",
        ),
        panel.stat_panel(
            "Of what is allowed",
            "The same as a share of the time that a rank may make no progress in what it is doing: "
            "ten steps, at least 30 s, longer in a checkpoint, an evaluation or before the first "
            "step. Far below 100 % is good; from there on the rank is stuck, or dead.",
            (16, 0, 4, 3),
            [Query(expr=f"max({share_of_allowed('rank')})", legend="share", instant=True)],
            unit="percentunit",
            decimals=0,
            thresholds={1: panel.RED},
            size=26,
            empty="No rank",
        ),
        panel.stat_panel(
            "Last rank is behind by",
            "Steps, against where the first rank was a moment ago. 0 is good, 1 is a rank that the "
            "others wait for; it is in the table below.",
            (20, 0, 4, 3),
            [Query(expr=f"max({behind(step)})", legend="steps", instant=True)],
            unit="locale",
            size=26,
            empty="No step yet",
        ),
        _suspects((0, 3, 10, 8)),
        _slow((10, 3, 14, 8)),
        _ranks((0, 11, 14, 10)),
        _hosts((14, 11, 10, 5)),
        _slow_hosts((14, 16, 10, 5)),
    ]


def _statuses(place: panel.Place) -> Any:
    known = "training_health_ranks"
    count = f'max({known}{{{RUN},status="%s"}}) or vector(0)'
    dead = f"max(run:training_health_dead:count{{{TOLD}}}) or " + count % "dead"
    alive = (
        f'max({known}{{{RUN},status="alive"}}) or max(run:training_health_present:count{{{TOLD}}})'
        " or vector(0)"
    )
    expected = f"max(last_over_time(training_health_world_size{{{RUN}}}[{VALUES['memory']}]))"
    return panel.stat_panel(
        "Ranks",
        "Alive as many as expected, and nobody stuck, dead or missing, is good.",
        place,
        [
            Query(expr=alive, legend="alive", instant=True),
            Query(expr=expected, legend="expected", instant=True),
            Query(expr=dead, legend="dead", instant=True),
            *(
                Query(expr=count % status, legend=status, instant=True)
                for status in ("stuck", "missing", "finished")
            ),
        ],
        unit="locale",
        colours={"dead": {1.0: panel.RED}, "stuck": {1.0: panel.RED}},
        size=26,
    )


def _suspects(place: panel.Place) -> Any:
    suspects = query.suspects(RUN, TOLD)
    base = f"max by (rank) ({suspects})"
    last = f"time() - {query.latest(HEARTBEAT, RUN)}"
    step = query.latest("training_health_rank_step", RUN)
    return table_panel(
        "Suspects",
        "The ranks that the others wait for, or that are gone; at most 64. An empty table is "
        "good. Look at the rank's host first; of a stuck rank, the stacks are beside the "
        "receipts (stacks-rank*.txt).",
        place,
        [
            Query(expr=f"max by (rank, host, reason) ({suspects})"),
            Query(expr=query.total(f"({last}) and on (rank) ({base})", base, "rank")),
            Query(expr=query.total(f"{step} and on (rank) ({base})", base, "rank")),
        ],
        [
            Column(source="rank", title="Rank", width=65),
            Column(source="host", title="Host"),
            Column(
                source="reason", title="Is", width=110, mappings=[shown.REASON], coloured="text"
            ),
            Column(
                source="Value #C",
                title="Last step",
                width=85,
                unit="locale",
                decimals=0,
                empty="none",
            ),
            Column(
                source="Value #B",
                title="Silent for",
                width=90,
                unit="s",
                decimals=0,
                empty="always",
            ),
        ],
        empty="No suspects",
        sort=("Silent for", True),
    )


def _slow(place: panel.Place) -> Any:
    worst = f"topk(20, {excess(VALUES['speed_range'])})"
    return table_panel(
        "Slowest ranks by phase",
        "None is good. Otherwise the 20 that spend the most in a phase above the median of all "
        f"ranks, over {VALUES['speed_range']}; less than a twentieth of a step is left out. One "
        "rank far above in data or forward is the one that the others wait for; they themselves "
        "wait in backward. The same host throughout: look at the host.",
        place,
        [Query(expr=worst)],
        [
            Column(source="rank", title="Rank", width=80, link=_this_rank()),
            Column(source="host", title="Host"),
            Column(source="phase", title="Phase", width=110),
            Column(source="Value", title="Above the median", width=140, unit="s"),
        ],
        empty="No rank is slower than the others, or the trainer marks no phases",
        sort=("Above the median", True),
    )


def _this_rank() -> str:
    return frame.link_to(frame.RANKS_UID, run="${run}", rank="${__data.fields.Rank}")


def _ranks(place: panel.Place) -> Any:
    oldest = f"bottomk(50, {BEATS})"
    step = query.latest("training_health_rank_step", OWN)
    allowed = query.latest("training_health_rank_timeout_seconds", OWN)
    return table_panel(
        "Ranks, longest without progress first",
        "At most 50; choose host or rank above for others. All ages below what is allowed, and "
        "no rank behind, is good. One that lags while the others wait for it is the one to look "
        "at.",
        place,
        [
            Query(expr=with_info(f"time() - {oldest}", "host, local_rank")),
            Query(expr=f"{allowed} and on (rank) {oldest}"),
            Query(expr=f"{step} and on (rank) {oldest}"),
            Query(expr=f"{behind(step)} and on (rank) {oldest}"),
        ],
        [
            Column(source="rank", title="Rank", width=80, link=_this_rank()),
            Column(source="host", title="Host"),
            Column(source="local_rank", title="Local", width=60),
            Column(source="Value #A", title="Last progress", width=110, unit="s", decimals=0),
            Column(source="Value #B", title="Allowed", width=85, unit="s", decimals=0),
            Column(
                source="Value #C", title="Step", width=85, unit="locale", decimals=0, empty="none"
            ),
            Column(
                source="Value #D", title="Behind by", width=85, unit="locale", decimals=0, empty="–"
            ),
        ],
        empty=f"No rank in the last {query.LAST_KNOWN}",
        sort=("Last progress", True),
    )


def _hosts(place: panel.Place) -> Any:
    ages = f"max by (host) ({with_info(f'time() - {BEATS}', 'host')})"
    worst = f"topk(50, {ages})"
    suspects = f"count by (host) ({query.suspects(RUN, TOLD)})"
    return table_panel(
        "Hosts, longest without progress first",
        "At most 50. No suspects is good. A host of which all ranks are suspects has failed "
        "itself.",
        place,
        [Query(expr=worst), Query(expr=query.total(f"topk(64, {suspects})", worst, "host"))],
        [
            Column(source="host", title="Host", link=_this_host()),
            Column(
                source="Value #B",
                title="Suspects",
                width=85,
                decimals=0,
                empty="none",
                coloured="text",
                thresholds={1: panel.RED},
            ),
            Column(source="Value #A", title="Last progress", width=110, unit="s", decimals=0),
        ],
        empty=f"No rank in the last {query.LAST_KNOWN}",
        sort=("Last progress", True),
    )


def _slow_hosts(place: panel.Place) -> Any:
    slow = excess(VALUES["speed_range"])
    return table_panel(
        "Hosts with slow ranks",
        "None is good. Otherwise how many of a host's ranks are above the median in a phase, by a "
        "twentieth of a step or more. All of them: it is the host that is slow, a hot accelerator, "
        "a bad link, a neighbour.",
        place,
        [Query(expr=f"topk(50, count by (host, phase) ({slow}))")],
        [
            Column(source="host", title="Host", link=_this_host()),
            Column(source="phase", title="Phase", width=110),
            Column(source="Value", title="Slow ranks", width=100, decimals=0),
        ],
        empty="No host is slower than the others",
        sort=("Slow ranks", True),
    )


def _this_host() -> str:
    return frame.link_to(frame.RANKS_UID, run="${run}", host="${__data.fields.Host}")


def build() -> dict[str, Any]:
    """The dashboard as classic JSON."""
    info = 'training_health_rank_info{job=~"$job",run="$run"}'
    of_host = 'training_health_rank_info{job=~"$job",run="$run",host=~"$host"}'
    by_name = dashboard.VariableSort.ALPHABETICAL_ASC
    by_number = dashboard.VariableSort.NUMERICAL_ASC
    return frame.render(
        uid=frame.RANKS_UID,
        title="Training health: ranks",
        description="Which rank, or which host, is the problem of this run?",
        span="1h",
        variables=[
            frame.data_source_variable(),
            frame.job_variable(),
            frame.run_variable(many=False),
            frame.values_variable("host", "Host", info, many=True, sort=by_name),
            frame.values_variable("rank", "Rank", of_host, many=True, sort=by_number),
        ],
        marks=frame.marks(RUN, TOLD),
        panels=[
            *_first_screen(),
            frame.row("Over time", 21),
            *rank_history.over_time(22),
            frame.row("Chosen ranks", 40, rank_history.chosen(41)),
        ],
    )
