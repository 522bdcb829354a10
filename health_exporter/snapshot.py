"""The immutable values that cross from the training thread to the exporters.

The training thread makes one `StepView` a step and replaces the old one; a scrape reads the
reference once, so that it sees one consistent step and nobody waits for anybody.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from health_exporter.core.beat import STATES
from health_exporter.core.standing import Suspect

RUN_STATES = STATES
"""The run's state is that of rank 0."""

TERMINAL_STATES = RUN_STATES[2:]

PHASES = ("data", "forward", "backward", "optimizer", "checkpoint", "eval")
"""Phases of training that a trainer can mark."""


class StepView(NamedTuple):
    """The run as of one observed step; all of it belongs to the same observation.

    Seconds, Unix time where the name ends in `_time`; `None` is unknown.
    """

    step: int | None
    n_steps: int
    lost_steps: int
    n_tokens: int | None
    loss: float | None
    grad_norm: float | None
    loss_judged: tuple[float, float, float] | None
    """Median, spread, z-score."""
    grad_judged: tuple[float, float, float] | None
    loss_threshold: float
    grad_threshold: float
    mfu: float | None
    flops_per_second: float | None
    duration_counts: tuple[int, ...]
    """Steps in each bucket of `catalog.STEP_SECONDS_BOUNDS`, and last those above all bounds."""
    duration_sum_s: float
    anomalies: Mapping[str, int]
    last_anomalies: Mapping[str, tuple[float, int]]
    """Kind to (Unix time, step) of its newest anomaly."""
    n_restarts: int
    continuity_ok: bool
    productive_s: float


class RunView(NamedTuple):
    """What rank 0 knows of the whole run."""

    info: Mapping[str, str]
    """model, framework, world_size, version, device, flops_convention; empty where unknown."""
    state: str
    start_time: float
    world_size: int
    peak_flops_per_second: float | None
    last: StepView
    goodput: float | None
    ranks: Mapping[str, int]
    suspects: tuple[Suspect, ...]
    rejected: Mapping[str, int]
    receipt_failures: int
    receipt_time: float | None
    first_start_time: float | None = None
    """Start of the run's first attempt: what the counters that are carried over count from."""


class RankView(NamedTuple):
    """What a rank knows of itself."""

    host: str
    local_rank: int
    state: str
    heartbeat_time: float
    """Unix time of the last progress of the training thread."""
    step: int | None
    progress: int
    phase_seconds: Mapping[str, float]
    timeout_s: float
    store_connected: bool | None
    """Whether the ranks' store answers; None where there is none."""
    exception: str | None
    """Type of the exception that ended the rank's training; None without one."""
    otlp_failures: int | None = None
    """Pushes by OTLP that failed; None where nothing is pushed."""


class Snapshot(NamedTuple):
    """All that one scrape exports."""

    run: str
    rank: int
    own: RankView
    whole: RunView | None
    """None on ranks other than 0."""
