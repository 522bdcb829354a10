"""PromQL on single ranks: what each of them did last, and where."""

from __future__ import annotations

from grafana.source.query import LAST_KNOWN, RUN, TOLD

OWN = f'{RUN},rank=~"$rank"'
"""Matchers of the chosen ranks."""
HEARTBEAT = "training_health_rank_heartbeat_timestamp_seconds"

# Ranks of this attempt: one that was there before it began, and is not since, has scaled away. A
# minute's grace, since ranks start before rank 0, and make progress only later.
_START = f"training_health_run_start_timestamp_seconds{{{RUN}}}"
_BEGAN = f"scalar(max(last_over_time({_START}[{LAST_KNOWN}]))) - 60"
_INFO = f'training_health_rank_info{{{OWN},host=~"$host"}}'

# Of 16,384 ranks a selection by `and` costs half of a join. So: select, take the few at the top,
# and only then join what else is known of them.
_BEATS = f"last_over_time({HEARTBEAT}{{{OWN}}}[{LAST_KNOWN}])"
_CHOSEN = f"({_BEATS} and on (job, instance, run, rank) last_over_time({_INFO}[{LAST_KNOWN}]))"
BEATS = f"(max by (run, rank) ({_CHOSEN}) >= {_BEGAN})"
"""Time of the last progress of each rank on the chosen hosts, by run and rank."""


def with_info(few: str, labels: str) -> str:
    """Some ranks, by run and rank, with labels of their rank_info."""
    info = f"max by (run, rank, {labels}) (last_over_time({_INFO}[{LAST_KNOWN}]))"
    return f"({few}) * on (run, rank) group_right () {info}"


def excess(window: str) -> str:
    """Seconds of a step by which each rank is above the median of all ranks, in each phase.

    Only from a twentieth of a step on: less is noise.
    """
    phases = f"rate(training_health_rank_phase_seconds_total{{{OWN}}}[{window}])"
    steps = f"scalar(sum(rate(training_health_steps_total{{{RUN}}}[{window}])) > 0)"
    above = f"{phases} - on (phase) group_left () quantile by (phase) (0.5, {phases})"
    noise = f"0.05 * scalar(max(run:training_health_step_duration:seconds{{{TOLD}}}))"
    found = f"(({above}) / {steps} > {noise}) * on (job, instance, run, rank) group_left (host)"
    return f"max by (rank, host, phase) ({found} {_INFO})"


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
