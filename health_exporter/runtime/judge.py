"""Rank 0's judgement of the run, made safe to read while it goes on."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping
from typing import Any

from health_exporter.catalog import STEP_SECONDS_BOUNDS
from health_exporter.core import argument
from health_exporter.core.anomaly import KINDS, Anomaly
from health_exporter.core.goodput import Goodput
from health_exporter.core.monitor import TrainingHealthMonitor
from health_exporter.errors import StateError
from health_exporter.export.history import History, as_table
from health_exporter.snapshot import StepView

STATE_VERSION = 1

_REPORTED_COLUMNS = 200
"""Of the history, in the report: what a plot of it can show, in some 40 kB."""


class Judge:
    """A monitor, and around it what is exported but is no judgement: durations and times.

    The training thread calls `observe`; other threads read `view`, which is replaced and never
    changed, or take the lock for the short copies that `report` and `state` need.

    Args:
        monitor: Judges the steps.
        wall: Unix time in seconds.
    """

    def __init__(
        self, monitor: TrainingHealthMonitor, *, wall: Callable[[], float] = time.time
    ) -> None:
        self.monitor = monitor
        self._wall = wall
        self._lock = threading.RLock()
        self._pristine = monitor.state_dict()
        self.first_step: int | None = None
        self.first_start_time = wall()
        self._goodput = Goodput()
        self._duration_counts = [0] * (len(STEP_SECONDS_BOUNDS) + 1)
        self._duration_sum_s = 0.0
        self._last_anomalies: Mapping[str, tuple[float, int]] = {}
        self._anomalies: Mapping[str, int] = dict.fromkeys(KINDS, 0)
        self.history = History()  # of this attempt; its first step is the first of this process
        self.view = self._make_view(None, None)

    def observe(
        self,
        step: int,
        loss: float,
        *,
        grad_norm: float | None,
        step_time_s: float | None,
        batch_size: int | None,
        restart: bool,
    ) -> tuple[list[Anomaly], int]:
        """Judge a step and publish the view of it.

        Returns:
            Its anomalies, and how many there have been in the run, with them.

        Raises:
            TypeError, ValueError: As of `TrainingHealthMonitor.observe_step`; nothing is recorded.
        """
        with self._lock:
            monitor = self.monitor
            last_step = monitor.run.last_step
            found = monitor.observe_step(
                step,
                loss,
                grad_norm=grad_norm,
                step_time_s=step_time_s,
                batch_size=batch_size,
                restart=restart,
            )
            step = monitor.run.last_step
            if self.first_step is None:
                self.first_step = step
            if restart and step <= last_step:
                self._goodput.rewind(step)
            if step_time_s is not None:
                seconds = float(step_time_s)
                self._goodput.add(step, seconds)
                self._duration_counts[bisect_left(STEP_SECONDS_BOUNDS, seconds)] += 1
                self._duration_sum_s += seconds
            if found:
                self._date(found)
            # As checked: of Python's own types, whatever the trainer has given.
            _, loss, grad_norm, step_time_s, restart = monitor.run.steps[-1]
            self.view = view = self._make_view(loss, grad_norm)
            self.history.add(view, step_time_s, restart)
            return found, monitor.run.n_anomalies

    def add_anomaly(self, anomaly: Anomaly) -> int:
        """Record an anomaly that was found elsewhere, and publish it.

        Returns:
            How many there have been in the run, with it.
        """
        with self._lock:
            self.monitor.add_anomaly(anomaly)
            self._date([anomaly])
            self.view = self._make_view(self.view.loss, self.view.grad_norm)
            return self.monitor.run.n_anomalies

    def _date(self, found: list[Anomaly]) -> None:
        now = self._wall()
        dates = {anomaly.kind: (now, anomaly.detected_at_step) for anomaly in found}
        self._last_anomalies = {**self._last_anomalies, **dates}
        self._anomalies = {**dict.fromkeys(KINDS, 0), **self.monitor.run.anomalies_by_kind}

    def _make_view(self, loss: float | None, grad_norm: float | None) -> StepView:
        monitor = self.monitor
        run = monitor.run
        return StepView(
            run.last_step if run.n_steps else None,
            run.n_steps,
            run.lost_steps,
            run.n_tokens,
            loss,
            grad_norm,
            monitor.loss_signal.judged,
            monitor.grad_signal.judged,
            monitor.loss_signal.threshold,
            monitor.grad_signal.threshold,
            run.mfu,
            run.flops_per_second,
            tuple(self._duration_counts),
            self._duration_sum_s,
            self._anomalies,
            self._last_anomalies,
            run.n_restarts,
            monitor.continuity_ok(),
            self._goodput.productive_s,
        )

    def goodput(self) -> float | None:
        """Share of the time since the run's first start that went into steps that counted."""
        elapsed = self._wall() - self.first_start_time
        return min(1.0, self.view.productive_s / elapsed) if elapsed > 0.0 else None

    def report(self) -> dict[str, Any]:
        """The monitor's report and what the judge adds to it; strict JSON."""
        with self._lock:
            report = self.monitor.report()
            view = self.view
        report["goodput"] = self.goodput()
        report["history"] = as_table(self.history.whole(_REPORTED_COLUMNS))
        report["last_anomalies"] = {
            kind: {"time": at, "step": step} for kind, (at, step) in view.last_anomalies.items()
        }
        return report

    def state(self) -> dict[str, Any]:
        """What `load` needs, as strict JSON."""
        with self._lock:
            return {
                "version": STATE_VERSION,
                "monitor": self.monitor.state_dict(),
                "first_step": self.first_step,
                "first_start_time": self.first_start_time,
                "goodput": self._goodput.state(),
                "duration_counts": list(self._duration_counts),
                "duration_sum_s": self._duration_sum_s,
                "last_anomalies": {k: list(v) for k, v in self._last_anomalies.items()},
            }

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state.

        Raises:
            StateError: It is damaged or of a newer version; nothing has changed then.
        """
        try:
            if state["version"] != STATE_VERSION:
                raise StateError(f"state has version {state['version']!r}, this is {STATE_VERSION}")
            first_step = state["first_step"]
            if first_step is not None:
                first_step = argument.integer(first_step, "first_step", minimum=0)
            first_start = argument.finite(state["first_start_time"], "first_start_time")
            goodput = Goodput.from_state(state["goodput"])
            counts = [
                argument.integer(count, "duration_counts", minimum=0)
                for count in state["duration_counts"]
            ]
            if len(counts) != len(self._duration_counts):
                raise StateError(f"duration_counts has {len(counts)} buckets")
            total = argument.nonnegative(state["duration_sum_s"], "duration_sum_s")
            dates = {
                str(kind): (argument.finite(at, "last_anomalies"), argument.integer(step, kind))
                for kind, (at, step) in state["last_anomalies"].items()
            }
            monitor_state = state["monitor"]
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            if isinstance(error, StateError):
                raise
            raise StateError(f"state is damaged: {type(error).__name__}: {error}") from error
        with self._lock:
            self.monitor.load_state_dict(monitor_state)
            self.first_step, self.first_start_time = first_step, first_start
            self._goodput, self._duration_counts, self._duration_sum_s = goodput, counts, total
            self._last_anomalies = dates
            self._anomalies = {**dict.fromkeys(KINDS, 0), **self.monitor.run.anomalies_by_kind}
            self.view = self._make_view(None, None)

    def reset(self) -> None:
        """Forget everything: the monitor is as it was when it was handed over."""
        fresh = Judge(self.monitor, wall=self._wall).state()
        with self._lock:
            self.load({**fresh, "monitor": self._pristine})
            self.history = History()
