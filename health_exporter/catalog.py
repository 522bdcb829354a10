"""Every metric, once: name, type, unit, help, labels, and where its values come from.

The Prometheus collector, the documentation's table and the checks of dashboards and rules are
derived from `CATALOG`. To add a metric, add an entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from health_exporter.core.anomaly import KINDS
from health_exporter.core.standing import STATUSES
from health_exporter.snapshot import RUN_STATES, RankView, RunView

Sample = tuple[tuple[str, ...], float]
"""Values of the metric's own labels, and the value."""

STEP_SECONDS_BOUNDS = (
    *(0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.4, 0.65, 1.0, 1.5, 2.5, 4.0, 6.5),
    *(10.0, 15.0, 25.0, 40.0, 65.0, 100.0, 300.0, 600.0),
)
"""Upper bounds in seconds. Steps take from milliseconds (a test) to minutes (a large model with
accumulation); neighbours are at most a factor 1.7 apart from 0.1 to 100 s, where real runs are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric.

    Args:
        name: Name in Prometheus, with its unit and `_total`.
        kind: Type.
        help: One sentence.
        scope: `run`: from rank 0, label run. `rank`: from every rank, labels run and rank.
        labels: Its own labels, beside those of its scope.
        unit: Unit in UCUM as OpenTelemetry writes it; "" for none. It is the one that the name ends
            in, since the names that OpenTelemetry's are translated to are made from it.
        carried_over: A counter that goes on where an earlier process of the run has ended.
        of_run: Values of a `run` metric. A value that is unknown is left out.
        of_rank: Values of a `rank` metric.
    """

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    help: str
    scope: Literal["run", "rank"]
    labels: tuple[str, ...] = ()
    unit: str = ""
    carried_over: bool = False
    of_run: Callable[[RunView], Iterable[Sample]] = lambda view: ()
    of_rank: Callable[[RankView], Iterable[Sample]] = lambda view: ()

    @property
    def all_labels(self) -> tuple[str, ...]:
        """The scope's labels, then its own."""
        return (("run",) if self.scope == "run" else ("run", "rank")) + self.labels


def _known(value: float | None) -> tuple[Sample, ...]:
    return () if value is None else (((), value),)


def _by_label(values: Mapping[str, float], names: Iterable[str]) -> Iterator[Sample]:
    for name in names:
        yield (name,), values.get(name, 0)


def _state(state: str) -> Iterator[Sample]:
    for name in RUN_STATES:
        yield (name,), float(name == state)


def _by_signal(loss: float | None, grad_norm: float | None) -> Iterator[Sample]:
    if loss is not None:
        yield ("loss",), loss
    if grad_norm is not None:
        yield ("grad_norm",), grad_norm


def _judged(view: RunView, index: int) -> Iterator[Sample]:
    loss, grad = view.last.loss_judged, view.last.grad_judged
    return _by_signal(loss and loss[index], grad and grad[index])


_INFO = ("model", "framework", "world_size", "version", "device", "flops_convention")

_OF_RUN = (
    Metric(
        name="training_health_run_info",
        kind="gauge",
        help="Facts about the run, as labels; always 1.",
        scope="run",
        labels=_INFO,
        of_run=lambda v: [(tuple(v.info.get(name, "") for name in _INFO), 1.0)],
    ),
    Metric(
        name="training_health_run_state",
        kind="gauge",
        help="1 for the state that the run is in, 0 for the others.",
        scope="run",
        labels=("state",),
        of_run=lambda v: _state(v.state),
    ),
    Metric(
        name="training_health_run_start_timestamp_seconds",
        kind="gauge",
        help="Unix time at which this attempt of the run started.",
        scope="run",
        unit="s",
        of_run=lambda v: _known(v.start_time),
    ),
    Metric(
        name="training_health_step",
        kind="gauge",
        help="Number of the last observed optimizer step.",
        scope="run",
        of_run=lambda v: _known(v.last.step),
    ),
    Metric(
        name="training_health_steps_total",
        kind="counter",
        help="Optimizer steps observed, repeated ones included.",
        scope="run",
        unit="{step}",
        carried_over=True,
        of_run=lambda v: _known(v.last.n_steps),
    ),
    Metric(
        name="training_health_lost_steps_total",
        kind="counter",
        help="Steps that had to be done again after resumes.",
        scope="run",
        unit="{step}",
        carried_over=True,
        of_run=lambda v: _known(v.last.lost_steps),
    ),
    Metric(
        name="training_health_tokens_total",
        kind="counter",
        help="Tokens trained on, repeated steps included; absent where the batch size or the "
        "sequence length is unknown.",
        scope="run",
        unit="{token}",
        carried_over=True,
        of_run=lambda v: _known(v.last.n_tokens),
    ),
    Metric(
        name="training_health_loss",
        kind="gauge",
        help="Training loss of the last observed step.",
        scope="run",
        of_run=lambda v: _known(v.last.loss),
    ),
    Metric(
        name="training_health_grad_norm",
        kind="gauge",
        help="Global gradient norm of the last observed step.",
        scope="run",
        of_run=lambda v: _known(v.last.grad_norm),
    ),
    Metric(
        name="training_health_baseline",
        kind="gauge",
        help="Rolling median that the last step was judged against.",
        scope="run",
        labels=("signal",),
        of_run=lambda v: _judged(v, 0),
    ),
    Metric(
        name="training_health_spread",
        kind="gauge",
        help="Robust spread (scaled median absolute deviation) that the last step was judged "
        "against.",
        scope="run",
        labels=("signal",),
        of_run=lambda v: _judged(v, 1),
    ),
    Metric(
        name="training_health_z_score",
        kind="gauge",
        help="Distance of the last step from its baseline, in spreads.",
        scope="run",
        labels=("signal",),
        of_run=lambda v: _judged(v, 2),
    ),
    Metric(
        name="training_health_z_score_threshold",
        kind="gauge",
        help="Robust z-score above which a value is a spike; the production preset follows the "
        "series.",
        scope="run",
        labels=("signal",),
        of_run=lambda v: _by_signal(v.last.loss_threshold, v.last.grad_threshold),
    ),
    Metric(
        name="training_health_mfu_ratio",
        kind="gauge",
        help="Model FLOPs utilisation of the last step: achieved over peak; absent where the peak "
        "is unknown.",
        scope="run",
        unit="1",
        of_run=lambda v: _known(v.last.mfu),
    ),
    Metric(
        name="training_health_model_flops_per_second",
        kind="gauge",
        help="Model FLOPs of the last step per second of it.",
        scope="run",
        unit="{flop}/s",
        of_run=lambda v: _known(v.last.flops_per_second),
    ),
    Metric(
        name="training_health_peak_flops_per_second",
        kind="gauge",
        help="Peak FLOPs per second that MFU is measured against, as given by the trainer.",
        scope="run",
        unit="{flop}/s",
        of_run=lambda v: _known(v.peak_flops_per_second),
    ),
    Metric(
        name="training_health_step_duration_seconds",
        kind="histogram",
        help="Wall time of a step, without marked checkpoints and evaluations.",
        scope="run",
        unit="s",
        carried_over=True,
    ),
    Metric(
        name="training_health_anomalies_total",
        kind="counter",
        help="Anomalies raised, by kind.",
        scope="run",
        labels=("kind",),
        unit="{anomaly}",
        carried_over=True,
        of_run=lambda v: _by_label(v.last.anomalies, KINDS),
    ),
    Metric(
        name="training_health_last_anomaly_timestamp_seconds",
        kind="gauge",
        help="Unix time of the newest anomaly of a kind; absent until there was one.",
        scope="run",
        labels=("kind",),
        unit="s",
        of_run=lambda v: [((kind,), at) for kind, (at, _) in v.last.last_anomalies.items()],
    ),
    Metric(
        name="training_health_last_anomaly_step",
        kind="gauge",
        help="Step of the newest anomaly of a kind; absent until there was one.",
        scope="run",
        labels=("kind",),
        of_run=lambda v: [((kind,), step) for kind, (_, step) in v.last.last_anomalies.items()],
    ),
    Metric(
        name="training_health_restarts_total",
        kind="counter",
        help="Resumes of the run.",
        scope="run",
        unit="{restart}",
        carried_over=True,
        of_run=lambda v: _known(v.last.n_restarts),
    ),
    Metric(
        name="training_health_continuity_ok",
        kind="gauge",
        help="1 while no resume has broken the loss curve, 0 from then on.",
        scope="run",
        of_run=lambda v: _known(float(v.last.continuity_ok)),
    ),
    Metric(
        name="training_health_goodput_ratio",
        kind="gauge",
        help="Share of the wall time since the run's first start that went into steps that "
        "counted.",
        scope="run",
        unit="1",
        of_run=lambda v: _known(v.goodput),
    ),
    Metric(
        name="training_health_world_size",
        kind="gauge",
        help="Ranks that this attempt of the run should have.",
        scope="run",
        of_run=lambda v: _known(v.world_size),
    ),
    Metric(
        name="training_health_ranks",
        kind="gauge",
        help="Ranks of this attempt by status, as rank 0 sees them.",
        scope="run",
        labels=("status",),
        unit="{rank}",
        of_run=lambda v: _by_label(v.ranks, STATUSES),
    ),
    Metric(
        name="training_health_suspect_rank",
        kind="gauge",
        help="1 for each rank that the others seem to wait for; at most 64.",
        scope="run",
        labels=("rank", "host", "reason"),
        of_run=lambda v: [((str(s.rank), s.host, s.reason), 1.0) for s in v.suspects],
    ),
    Metric(
        name="training_health_rejected_observations_total",
        kind="counter",
        help="Observations that were refused, by reason; they are logged with the value.",
        scope="run",
        labels=("reason",),
        unit="{observation}",
        of_run=lambda v: _by_label(v.rejected, v.rejected),
    ),
    Metric(
        name="training_health_receipt_write_failures_total",
        kind="counter",
        help="Receipts that could not be written.",
        scope="run",
        unit="{failure}",
        of_run=lambda v: _known(v.receipt_failures),
    ),
    Metric(
        name="training_health_receipt_timestamp_seconds",
        kind="gauge",
        help="Unix time at which the receipt was last written.",
        scope="run",
        unit="s",
        of_run=lambda v: _known(v.receipt_time),
    ),
)

_OF_RANK = (
    Metric(
        name="training_health_rank_info",
        kind="gauge",
        help="Where the rank runs, as labels; always 1.",
        scope="rank",
        labels=("host", "local_rank"),
        of_rank=lambda v: [((v.host, str(v.local_rank)), 1.0)],
    ),
    Metric(
        name="training_health_rank_state",
        kind="gauge",
        help="1 for the state that the rank is in, 0 for the others.",
        scope="rank",
        labels=("state",),
        of_rank=lambda v: _state(v.state),
    ),
    Metric(
        name="training_health_rank_exception_info",
        kind="gauge",
        help="Type of the exception that ended the rank, as a label; absent without one.",
        scope="rank",
        labels=("exception",),
        of_rank=lambda v: [] if v.exception is None else [((v.exception,), 1.0)],
    ),
    Metric(
        name="training_health_rank_heartbeat_timestamp_seconds",
        kind="gauge",
        help="Unix time at which the rank's training thread last made progress.",
        scope="rank",
        unit="s",
        of_rank=lambda v: _known(v.heartbeat_time),
    ),
    Metric(
        name="training_health_rank_step",
        kind="gauge",
        help="Last optimizer step of the rank.",
        scope="rank",
        of_rank=lambda v: _known(v.step),
    ),
    Metric(
        name="training_health_rank_progress_total",
        kind="counter",
        help="Steps done and phases entered or left by the rank's training thread.",
        scope="rank",
        of_rank=lambda v: _known(v.progress),
    ),
    Metric(
        name="training_health_rank_phase_seconds_total",
        kind="counter",
        help="Time that the rank has spent in each phase, where phases are marked.",
        scope="rank",
        labels=("phase",),
        unit="s",
        of_rank=lambda v: [((phase,), seconds) for phase, seconds in v.phase_seconds.items()],
    ),
    Metric(
        name="training_health_rank_timeout_seconds",
        kind="gauge",
        help="For how long the rank may make no progress, in what it is doing now.",
        scope="rank",
        unit="s",
        of_rank=lambda v: _known(v.timeout_s),
    ),
    Metric(
        name="training_health_rank_store_connected",
        kind="gauge",
        help="1 while the store through which the ranks tell each other that they live answers, "
        "0 while it does not; absent where there is none.",
        scope="rank",
        of_rank=lambda v: _known(None if v.store_connected is None else float(v.store_connected)),
    ),
    Metric(
        name="training_health_rank_otlp_export_failures_total",
        kind="counter",
        help="Pushes by OTLP that failed; absent where nothing is pushed.",
        scope="rank",
        unit="{failure}",
        of_rank=lambda v: _known(v.otlp_failures),
    ),
)

CATALOG = (*_OF_RUN, *_OF_RANK)


def markdown_table() -> str:
    """The catalogue as the Markdown table that the documentation shows."""
    lines = ["| name | type | labels | meaning |", "| --- | --- | --- | --- |"]
    for metric in CATALOG:
        labels = ", ".join(metric.all_labels)
        lines.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |")
    return "\n".join(lines) + "\n"
