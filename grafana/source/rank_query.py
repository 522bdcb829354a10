"""PromQL on single ranks: what each of them did last, and where."""

from __future__ import annotations

from grafana.source.query import LAST_KNOWN, RUN

OWN = f'{RUN},rank=~"$rank"'
"""Matchers of the chosen ranks."""
HEARTBEAT = "training_health_rank_heartbeat_timestamp_seconds"
_BY = "on (job, instance, run, rank) group_left"

# Ranks of this attempt on the chosen hosts, with what rank_info says of them. A rank that was there
# before the attempt began, and is not since, has scaled away. A minute's grace: ranks start before
# rank 0, and make progress only later.
_START = f"training_health_run_start_timestamp_seconds{{{RUN}}}"
_BEGAN = f"scalar(max(last_over_time({_START}[{LAST_KNOWN}]))) - 60"


def _of_hosts(expr: str, labels: str = "host") -> str:
    info = f'last_over_time(training_health_rank_info{{{OWN},host=~"$host"}}[{LAST_KNOWN}])'
    return f"{expr} * {_BY} ({labels}) {info}"


def age(labels: str, info: str = "host") -> str:
    """Seconds since each rank's last progress."""
    last = f"last_over_time({HEARTBEAT}{{{OWN}}}[{LAST_KNOWN}])"
    ages = _of_hosts(f"(time() - ({last} >= {_BEGAN}))", info)
    return f"min by ({labels}) ({ages})"


def phase_seconds(window: str) -> str:
    """Seconds of a step that each rank spends in each phase."""
    rate = _of_hosts(f"rate(training_health_rank_phase_seconds_total{{{OWN}}}[{window}])")
    steps = f"scalar(sum(rate(training_health_steps_total{{{RUN}}}[{window}])) > 0)"
    return f"sum by (rank, host, phase) ({rate}) / {steps}"


def excess(window: str) -> str:
    """Seconds of a step by which each rank is above the median of all ranks, in each phase.

    Only from a twentieth of a step on, all phases of the median together: less is noise.
    """
    own = phase_seconds(window)
    median = f"quantile by (phase) (0.5, {own})"
    return f"({own} - on (phase) group_left () {median}) > 0.05 * scalar(sum({median}))"


def share_of_allowed(labels: str) -> str:
    """Time without progress, over the time that the rank may be without, by `labels`."""
    allowed = f"training_health_rank_timeout_seconds{{{OWN}}}"
    share = f"clamp_min(time() - {HEARTBEAT}{{{OWN}}}, 0) / on (job, instance, run, rank) {allowed}"
    return f"min by ({labels}) ({share})"


def behind(step: str) -> str:
    """Steps by which `step` is behind where the first rank was a moment ago.

    Not where it is now: ranks are not scraped at the same moment.
    """
    first = f"max(training_health_rank_step{{{OWN}}} offset $__rate_interval)"
    return f"clamp_min(scalar({first}) - {step}, 0)"
