"""Steps of a log, judged one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from math import isfinite
from typing import Any, Protocol, TypeAlias

from health_exporter.core.anomaly import KINDS, Anomaly
from health_exporter.core.monitor import TrainingHealthMonitor
from health_exporter.core.statistic import Extremes
from health_exporter.replay.event import LAUNCH, RESTART, Event, Events
from health_exporter.replay.ordering import Step
from health_exporter.replay.row import Row

Judge: TypeAlias = Callable[[Step], list[Anomaly]]
"""Observes a step with a monitor, and gives its anomalies."""


def plainly(monitor: TrainingHealthMonitor) -> Judge:
    """Observe with the monitor, and do nothing else."""
    observe = monitor.observe_step

    def judge(step: Step) -> list[Anomaly]:
        row = step.row
        loss = row.loss
        assert loss is not None  # the ordering lets only such steps through
        return observe(
            row.step,
            loss,
            grad_norm=row.grad_norm,
            step_time_s=step.step_time_s,
            restart=step.restart != "",
        )

    return judge


class Listener(Protocol):
    """Is told of every step after it was judged: a plot."""

    def launch(self, monitor: TrainingHealthMonitor) -> None:
        """A run begins, judged by `monitor`."""

    def step(self, step: Step, found: list[Anomaly]) -> None:
        """A step was judged; what is known of it is in the monitor."""


class Judging:
    """Runs steps through monitors: one for each launch of the run.

    Args:
        make_monitor: Makes a monitor that has seen nothing.
        make_judge: How steps are observed with it.
        listeners: Told of every step.

    Attributes:
        events: What happened.
    """

    def __init__(
        self,
        make_monitor: Callable[[], TrainingHealthMonitor],
        make_judge: Callable[[TrainingHealthMonitor], Judge] = plainly,
        listeners: Iterable[Listener] = (),
    ) -> None:
        self._make_monitor = make_monitor
        self._make_judge = make_judge
        self._listeners = tuple(listeners)
        self.events = Events()
        self.n_steps = 0
        self.n_launches = 0
        self.first_step: int | None = None
        self.last_step: int | None = None
        self._monitor = make_monitor()
        self._judge = make_judge(self._monitor)
        self._kinds: Counter[str] = Counter()
        self._n_restarts = self._lost_steps = 0
        self._step_time = Extremes()
        self._loss = Extremes()
        self._first_loss: float | None = None
        self._last_loss: float | None = None
        self._first_time: float | None = None
        self._last_time: float | None = None

    def run(self, steps: Iterable[Step], file: int = 0) -> None:
        """Judge the steps of one file."""
        judge = self._judge
        for item in steps:
            row, seconds, restart, launch = item
            if launch:
                self._begin(item, file)
                judge = self._judge
            elif restart:
                self._resumed(item, file)
            found = judge(item)
            if found:
                self.events.anomalies(found, self.n_steps, row.line, file, row.time)
            for listener in self._listeners:
                listener.step(item, found)
            self.n_steps += 1
            self._sum_up(row, seconds)

    def _sum_up(self, row: Row, seconds: float | None) -> None:
        self.last_step = row.step
        loss = row.loss
        if loss is not None and isfinite(loss):
            self._loss.add(loss)
            self._last_loss = loss
            if self._first_loss is None:
                self._first_loss = loss
        if seconds is not None:
            self._step_time.add(seconds)
        if row.time is not None:
            self._last_time = row.time
            if self._first_time is None:
                self._first_time = row.time

    def _begin(self, item: Step, file: int) -> None:
        if self.n_launches:
            self._close()
            self._monitor = self._make_monitor()
            self._judge = self._make_judge(self._monitor)
            text = f"the run begins anew at step {item.row.step}; it had reached {self.last_step}"
            self.events.happened(self._event(LAUNCH, item, file, text))
        self.n_launches += 1
        if self.first_step is None:
            self.first_step = item.row.step
        for listener in self._listeners:
            listener.launch(self._monitor)

    def _resumed(self, item: Step, file: int) -> None:
        last = self._monitor.run.last_step
        lost = max(0, last - item.row.step + 1)
        text = f"after step {last}" + (f", {lost} steps done again" if lost else "")
        why = item.restart
        if not why.startswith("the step goes back"):
            text += f" ({why})"
        self.events.happened(self._event(RESTART, item, file, text))

    def _event(self, kind: str, item: Step, file: int, text: str) -> Event:
        step = item.row.step
        return Event(
            kind=kind,
            row=self.n_steps,
            first_step=step,
            last_step=step,
            line=item.row.line,
            file=file,
            time=item.row.time,
            text=text,
        )

    def _close(self) -> None:
        """Keep the counts of a launch that is over."""
        run = self._monitor.run
        self._kinds.update(run.anomalies_by_kind)
        self._n_restarts += run.n_restarts
        self._lost_steps += run.lost_steps

    def report(self) -> dict[str, Any]:
        """What was found, over all launches; numbers that are none are floats still."""
        run = self._monitor.run
        kinds = self._kinds + Counter(run.anomalies_by_kind)
        loss = self._loss.summary()
        return {
            "n_steps": self.n_steps,
            "first_step": self.first_step,
            "last_step": self.last_step,
            "n_launches": self.n_launches,
            "started_time": self._first_time,
            "ended_time": self._last_time,
            "loss": {
                "first": self._first_loss,
                "last": self._last_loss,
                "min": loss["min"],
                "max": loss["max"],
            },
            "step_time_s": self._step_time.summary(),
            "n_anomalies": sum(kinds.values()),
            "anomalies_by_kind": {kind: kinds[kind] for kind in KINDS if kinds[kind]},
            "restarts": {
                "n": self._n_restarts + run.n_restarts,
                "lost_steps": self._lost_steps + run.lost_steps,
                "continuity_ok": not kinds["restart_discontinuity"],
            },
            "events": [event.as_dict() for event in self.events.listed],
            "n_events": self.events.n,
        }
