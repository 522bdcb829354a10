"""The monitor: judges every step of a training run, and sums the run up."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

from health_exporter.core import argument, production, strict_json
from health_exporter.core.anomaly import Anomaly, StepRecord
from health_exporter.core.flops import MFUSample, ModelFlopConfig
from health_exporter.core.judgement import Judgement, SpecifiedJudgement
from health_exporter.core.liveness import StepLiveness
from health_exporter.core.record import RunRecord
from health_exporter.core.signal import Signal
from health_exporter.errors import StateError

_INTEGER_END = 2**63  # larger ones are refused, by `argument.integer`

STATE_VERSION = 1


class TrainingHealthMonitor:
    """Judges a run step by step: call `observe_step` after each optimizer step.

    Pure accounting: no I/O, no thread, no clock. It is not thread-safe; `HealthExporter` adds
    that.

    Args:
        flop_config: Shape of the model; with `peak_flops_per_sec` and a step time it gives MFU.
        peak_flops_per_sec: Peak of the hardware in FLOPs per second (> 0), dense, for the number
            format that is trained in. It must speak of the same devices as the `batch_size` of
            `observe_step`: both of this rank, or both of the whole job.
        loss_window: Losses in the rolling baseline (>= 2).
        loss_min_periods: Losses needed before one is judged (2 to `loss_window`).
        loss_z_thresh: Robust z-score above which a loss is a `loss_spike` (>= 0).
        grad_window: The same for gradient norms.
        grad_min_periods: The same for gradient norms.
        grad_z_thresh: Robust z-score above which a gradient norm is a `grad_norm_spike`.
        rank_heartbeat_threshold: Steps (>= 0) for which a rank may be silent before
            `check_rank_liveness` flags it.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: An argument is out of range.
    """

    def __init__(
        self,
        *,
        flop_config: ModelFlopConfig | None = None,
        peak_flops_per_sec: float | None = None,
        loss_window: int = 20,
        loss_min_periods: int = 5,
        loss_z_thresh: float = 6.0,
        grad_window: int = 20,
        grad_min_periods: int = 5,
        grad_z_thresh: float = 6.0,
        rank_heartbeat_threshold: int = 50,
    ) -> None:
        if flop_config is not None and not isinstance(flop_config, ModelFlopConfig):
            raise TypeError(f"flop_config must be a ModelFlopConfig or None, got {flop_config!r}")
        if peak_flops_per_sec is not None:
            peak_flops_per_sec = argument.finite(
                peak_flops_per_sec, "peak_flops_per_sec", above=0.0
            )
        self.flop_config = flop_config
        self.peak_flops_per_sec = peak_flops_per_sec
        self.loss_z_thresh = argument.nonnegative(loss_z_thresh, "loss_z_thresh")
        self.grad_z_thresh = argument.nonnegative(grad_z_thresh, "grad_z_thresh")
        self.rank_heartbeat_threshold = argument.integer(
            rank_heartbeat_threshold, "rank_heartbeat_threshold", minimum=0
        )
        self.run = RunRecord(flop_config, peak_flops_per_sec)
        self._liveness = StepLiveness(self.rank_heartbeat_threshold)
        self._judge_by(
            SpecifiedJudgement(
                _signal("loss", loss_window, loss_min_periods, self.loss_z_thresh),
                _signal("grad", grad_window, grad_min_periods, self.grad_z_thresh),
            )
        )

    @classmethod
    def production(cls, **overrides: Any) -> TrainingHealthMonitor:
        """The preset for real runs: see `core.production` for every number in it and its reason.

        Args:
            **overrides: Any argument of the constructor; the windows and thresholds are this
                preset's unless given.

        Raises:
            TypeError: An argument is unknown or of the wrong type.
            ValueError: An argument is out of range.
        """
        monitor = cls(**{**production.SETTINGS, **overrides})
        monitor._judge_by(production.judgement(monitor.loss_signal, monitor.grad_signal))
        return monitor

    def _judge_by(self, judgement: Judgement) -> None:
        self._judgement = judgement
        self.loss_signal: Signal = judgement.loss_signal
        self.grad_signal: Signal = judgement.grad_signal

    def observe_step(
        self,
        step: int,
        loss: float,
        *,
        grad_norm: float | None = None,
        step_time_s: float | None = None,
        batch_size: int | None = None,
        restart: bool = False,
    ) -> list[Anomaly]:
        """Judge one optimizer step.

        Args:
            step: Number of the step (>= 0), above the one before; after a resume it may go back.
            loss: Training loss. NaN and infinity are flagged, not refused.
            grad_norm: Global gradient norm (>= 0), where the trainer has one.
            step_time_s: Wall time of the step in seconds (> 0), where measured.
            batch_size: Sequences in the step (>= 1), over the same devices as
                `peak_flops_per_sec`; MFU takes 1 where it is not given.
            restart: True on the first step after a resume. This step and the next are judged
                against the baseline as it stood before the resume, and a jump on either is one
                `restart_discontinuity`.

        Returns:
            The anomalies of this step; they are also kept in `anomalies`.

        Raises:
            TypeError: An argument is of the wrong type (a bool is no number).
            ValueError: An argument is out of range, or `step` goes back without `restart`.
                Nothing has been recorded then.
        """
        if type(step) is not int or not 0 <= step < _INTEGER_END:
            step = argument.integer(step, "step", minimum=0)
        if type(loss) is not float:
            loss = argument.real(loss, "loss")
        if grad_norm is not None:
            if type(grad_norm) is not float:
                grad_norm = argument.real(grad_norm, "grad_norm")
            if grad_norm < 0.0 and isfinite(grad_norm):
                raise ValueError(f"grad_norm must be >= 0, got {grad_norm}")
        if step_time_s is not None and not (
            type(step_time_s) is float and step_time_s > 0.0 and isfinite(step_time_s)
        ):
            step_time_s = argument.finite(step_time_s, "step_time_s", above=0.0)
        if batch_size is not None and (
            type(batch_size) is not int or not 0 < batch_size < _INTEGER_END
        ):
            batch_size = argument.integer(batch_size, "batch_size", minimum=1)
        if restart is not False:
            restart = argument.boolean(restart, "restart")
        run = self.run
        if step <= run.last_step and not restart:
            raise ValueError(
                f"step must be > {run.last_step}, the last one, unless restart=True, got {step}"
            )

        if restart:
            self._judgement.resume(step)
            self._liveness.begin_attempt()
        run.add_step(step, loss, grad_norm, step_time_s, batch_size, restart)
        found = self._judgement.judge(step, loss, grad_norm, step_time_s, run)
        if found:
            run.add_anomalies(found)
        return found

    def observe_rank_step(self, rank: str | int, step: int) -> None:
        """Record that `rank` has done `step`: one call per step and rank.

        A rank that reports again after an outage has recovered, and can be flagged again.

        Raises:
            TypeError: `rank` is no string or integer, or `step` is no integer.
            ValueError: `rank` is empty, or `step` is negative or not above the rank's last one
                (which a step observed with `restart=True` forgets).
        """
        self._liveness.observe(rank, step)

    def check_rank_liveness(self, current_step: int) -> list[Anomaly]:
        """Flag every rank that has reported no step for more than `rank_heartbeat_threshold` steps.

        Returns:
            A `dead_rank` anomaly for each, once per outage.

        Raises:
            TypeError: `current_step` is no integer.
            ValueError: A rank has already reported a later step.
        """
        found = self._liveness.check(current_step)
        self.run.add_anomalies(found)
        return found

    def add_anomaly(self, anomaly: Anomaly) -> None:
        """Record an anomaly that was found elsewhere, such as a rank dead on the clock of seconds.

        Raises:
            TypeError: Not an `Anomaly`.
        """
        if not isinstance(anomaly, Anomaly):
            raise TypeError(f"anomaly must be an Anomaly, got {anomaly!r}")
        self.run.add_anomalies([anomaly])

    def continuity_ok(self) -> bool:
        """True unless a `restart_discontinuity` was ever flagged."""
        return not self.run.anomalies_by_kind.get("restart_discontinuity")

    @property
    def records(self) -> list[StepRecord]:
        """The newest 1,000 steps, oldest first."""
        return [StepRecord(*fields) for fields in self.run.steps]

    @property
    def anomalies(self) -> list[Anomaly]:
        """The newest 10,000 anomalies, oldest first."""
        return list(self.run.anomalies)

    @property
    def mfu_samples(self) -> list[MFUSample]:
        """MFU of the newest 1,000 steps that had one, oldest first."""
        peak = self.peak_flops_per_sec
        return [] if peak is None else [MFUSample(*fields, peak) for fields in self.run.mfu_samples]

    def report(self) -> dict[str, Any]:
        """The run so far as strict JSON: non-finite numbers are strings.

        Returns:
            `n_steps`, `n_anomalies`, `anomalies_by_kind`, `anomalies` (the newest 10,000), `mfu`
            (`n_samples`, `mean`, `min`, `max`), `restarts` (`steps`, the newest 1,000,
            `continuity_ok`, `n`, `lost_steps`); beside them `last_step`, `n_tokens`,
            `step_time_s` (`n`, `mean`, `min`, `max`, in seconds), `outages` (each silence of a
            rank, the newest 1,000), and `dropped`: how many entries of `anomalies`, `restarts`
            and `outages` are counted but no longer listed.
        """
        listed = self.run.report()
        listed["outages"] = self._liveness.state()
        listed["dropped"]["outages"] = self._liveness.n_outages - len(listed["outages"])
        encoded: dict[str, Any] = strict_json.encode(listed)
        return encoded

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint carries so that a resumed run goes on being judged: baselines,
        counters, restart history, step-time statistics. Strict JSON.
        """
        return {
            "version": STATE_VERSION,
            **self._judgement.state(),
            "run": self.run.state(),
            "outages": self._liveness.state(),
            "n_outages": self._liveness.n_outages,
        }

    @staticmethod
    def resumed_state(checkpoint: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, Any]:
        """The state to go on from where a checkpoint and a newer record of the run both exist.

        Args:
            checkpoint: `state_dict()` as of the checkpoint. Its baselines stand before the steps
                that are done again now.
            record: `state_dict()` as of the last step before the restart. What it counted has
                happened, and what it remembers of the steps that are done again is what they are
                compared with.

        Raises:
            KeyError, TypeError: One of them is damaged.
        """
        merged = {**checkpoint, **{key: record[key] for key in ("run", "outages", "n_outages")}}
        if "production" in checkpoint and "production" in record:
            remembered = record["production"]["comparison"]
            merged["production"] = {**checkpoint["production"], "comparison": remembered}
        return merged

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over what `state_dict` described; the windows and thresholds of this monitor stay.

        Flag the first step afterwards with `restart=True` if it is one after a resume.

        Raises:
            StateError: The state is damaged, or of a newer version; nothing has changed then.
        """
        try:
            version = state_dict["version"]
            if version != STATE_VERSION:
                raise StateError(f"state_dict has version {version!r}, this is {STATE_VERSION}")
            judgement = self._judgement.restored(state_dict)
            run = RunRecord.from_state(state_dict["run"], self.run)
            liveness = StepLiveness(self.rank_heartbeat_threshold)
            liveness.load(state_dict["outages"], state_dict["n_outages"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, StateError):
                raise
            raise StateError(f"state_dict is damaged: {type(error).__name__}: {error}") from error
        self.run, self._liveness = run, liveness
        self._judge_by(judgement)


def _signal(prefix: str, window: int, min_periods: int, threshold: float) -> Signal:
    """A signal whose errors name the monitor's own arguments."""
    window = argument.integer(window, f"{prefix}_window", minimum=2)
    min_periods = argument.integer(min_periods, f"{prefix}_min_periods", minimum=2)
    if min_periods > window:
        raise ValueError(
            f"{prefix}_min_periods must be <= {prefix}_window={window}, got {min_periods}"
        )
    return Signal(window, min_periods, threshold)
