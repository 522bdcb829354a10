"""A replay as an OpenMetrics file, for `promtool tsdb create-blocks-from openmetrics`.

The metrics are the catalogue's, taken from the same view of a step that a live run exports, so
that the dashboards show an old run as they show a new one.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterable, Iterator
from functools import lru_cache
from math import isfinite
from pathlib import Path
from typing import BinaryIO, TextIO, cast

import health_exporter
from health_exporter.catalog import CATALOG, STEP_SECONDS_BOUNDS, Metric
from health_exporter.core.anomaly import Anomaly
from health_exporter.core.monitor import TrainingHealthMonitor
from health_exporter.replay.error import LogError
from health_exporter.replay.judging import Judge as JudgeStep
from health_exporter.replay.ordering import Step
from health_exporter.runtime.atomic_file import replacing
from health_exporter.runtime.judge import Judge
from health_exporter.snapshot import RunView

# What changes with every step, and what a scrape would show of the rest. A log says nothing of
# ranks, receipts, or the hardware.
_OF_EACH_STEP = frozenset(
    "training_health_" + name
    for name in ("step", "loss", "grad_norm", "baseline", "spread", "z_score")
)
_NOW_AND_THEN = frozenset(
    "training_health_" + name
    for name in (
        "run_info",
        "run_state",
        "run_start_timestamp_seconds",
        "steps_total",
        "lost_steps_total",
        "z_score_threshold",
        "step_duration_seconds",
        "anomalies_total",
        "last_anomaly_timestamp_seconds",
        "last_anomaly_step",
        "restarts_total",
        "continuity_ok",
    )
)

# A log of short steps is thinned to one sample a second; a scrape is rarer still. Anomalies and
# restarts are never thinned out.
_STEP_INTERVAL_S = 1.0

# As often as Prometheus scrapes where nothing else is configured for it.
_OTHER_INTERVAL_S = 15.0

# A query looks back five minutes for a value: in longer gaps between two lines of the log, the
# values are repeated, as scrapes would have. A gap of over an hour is a run that stood still.
_REPEAT_S = 60.0
_STILL_S = 3600.0

# Where a log has neither dates nor step times.
_UNKNOWN_STEP_S = 1.0

_TICK_S = 0.001  # the resolution of Prometheus


class OpenMetricsFile:
    """Writes what a scrape would have seen, step by step.

    Samples of a metric must stand together, so each metric has a file of its own until the end.

    Args:
        path: The file; replaced when `finish` is called.
        run: Value of the label `run`.
        start_time: Unix time at which the first step is placed; None: when the log says.
        end_time: Unix time at which the last step is placed, where the log has no times.
    """

    def __init__(self, path: Path, run: str, *, start_time: float | None, end_time: float) -> None:
        self._path = path
        self._run = run
        self._start_time = start_time
        self._end_time = end_time
        # Beside the file, since it has room for one of its size, which /tmp may not have.
        self._folder = tempfile.TemporaryDirectory(prefix=".health-exporter-", dir=path.parent)
        self._metrics = [m for m in CATALOG if m.name in _OF_EACH_STEP | _NOW_AND_THEN]
        self._files: dict[str, TextIO] = {}
        self._series: dict[str, list[str]] = {}  # what was written last, without its time
        self._now = 0.0
        self._first = 0.0
        self._dated = False
        self._before: Step | None = None
        self._attempt_time = 0.0
        self._judge: Judge | None = None
        self._step_written = self._other_written = -_STILL_S

    def __enter__(self) -> OpenMetricsFile:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for file in self._files.values():
            with contextlib.suppress(OSError):  # what is still to be written is thrown away
                file.close()
        self._folder.cleanup()

    def judged_by(self, monitor: TrainingHealthMonitor) -> JudgeStep:
        """Observe steps with `monitor`, and write them."""
        judge: Judge | None = None

        def judge_step(step: Step) -> list[Anomaly]:
            nonlocal judge
            before = self._now
            self._advance(step)
            if judge is None:
                judge = Judge(monitor, wall=lambda: self._now)
            anew = bool(step.restart or step.launch)
            if anew:
                self._attempt_time = self._now
            elif self._now - before <= _STILL_S:
                self._fill(before)
            self._judge = judge
            row = step.row
            loss = cast("float", row.loss)
            found, _ = judge.observe(
                row.step,
                loss,
                grad_norm=row.grad_norm,
                step_time_s=step.step_time_s,
                batch_size=None,
                restart=step.restart != "",
            )
            self._write(urgent=anew or bool(found) or not isfinite(loss))
            return found

        return judge_step

    def _advance(self, step: Step) -> None:
        """Set the clock to the step's time."""
        row, before = step.row, self._before
        self._before = step
        if before is None:
            self._dated = row.time is not None
            self._first = self._now = row.time or 0.0
            return
        seconds = step.step_time_s or _UNKNOWN_STEP_S
        steps = 1 if step.restart or step.launch else row.step - before.row.step
        guess = self._now + seconds * steps
        self._now = guess if row.time is None else max(row.time, self._now + _TICK_S)

    def _fill(self, since: float) -> None:
        """Write the last values again during a gap in the log."""
        if self._now - since <= _REPEAT_S:
            return
        if self._step_written < since:
            self._write_view(since, others=True)
        at = since + _REPEAT_S
        while at < self._now - _STEP_INTERVAL_S:
            for name, series in self._series.items():
                self._put(name, series, at)
            at += _REPEAT_S

    def _write(self, *, urgent: bool) -> None:
        now = self._now
        if urgent or now - self._step_written >= _STEP_INTERVAL_S:
            self._write_view(now, others=urgent or now - self._other_written >= _OTHER_INTERVAL_S)

    def _write_view(self, now: float, *, others: bool) -> None:
        self._step_written = now
        if others:
            self._other_written = now
        view = self._view()
        for metric in self._metrics:
            if others or metric.name in _OF_EACH_STEP:
                series = list(_series(metric, self._run, view))
                self._series[metric.name] = series
                self._put(metric.name, series, now)

    def _put(self, name: str, series: Iterable[str], time: float) -> None:
        file = self._files.get(name)
        moment = f"{time:.3f}\n"
        try:
            if file is None:
                file = (Path(self._folder.name) / name).open("w+", encoding="utf-8")
                self._files[name] = file
            file.write("".join([f"{text} {moment}" for text in series]))
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> LogError:
        return LogError(f"--openmetrics {self._path} cannot be written: {error.strerror or error}")

    def _view(self) -> RunView:
        judge = self._judge
        assert judge is not None
        return RunView(
            info={"version": health_exporter.__version__, "framework": "replay"},
            state="running",
            start_time=self._attempt_time,
            world_size=1,
            peak_flops_per_second=None,
            last=judge.view,
            goodput=None,
            ranks={},
            suspects=(),
            rejected={},
            receipt_failures=0,
            receipt_time=None,
        )

    def finish(self) -> tuple[float, float]:
        """Put the file together.

        Returns:
            Unix times of the first and the last sample.

        Raises:
            LogError: It cannot be written.
        """
        if self._before is not None and self._other_written < self._now:
            self._write_view(self._now, others=True)
        if self._start_time is not None:
            offset = self._start_time - self._first
        else:
            offset = 0.0 if self._dated else self._end_time - self._now
        try:
            with replacing(self._path, shared=True, sync=False) as out:
                for metric in self._metrics:
                    if metric.name in self._files:
                        out.write(_heading(metric).encode())
                        self._copy(self._files[metric.name], out, offset, metric.name)
                out.write(b"# EOF\n")
        except OSError as error:
            raise self._unwritable(error) from error
        return self._first + offset, self._now + offset

    def _copy(self, file: TextIO, out: BinaryIO, offset: float, name: str) -> None:
        file.seek(0)
        if offset == 0.0:
            while piece := file.read(1 << 20):
                out.write(piece.encode())
            return
        is_time = name.endswith("_timestamp_seconds")
        for line in file:
            text, _, time = line.rpartition(" ")
            if is_time:
                text, _, value = text.rpartition(" ")
                text = f"{text} {float(value) + offset!r}"
            out.write(f"{text} {float(time) + offset:.3f}\n".encode())


def _heading(metric: Metric) -> str:
    # The family of a counter is named without its suffix.
    family = metric.name.removesuffix("_total") if metric.kind == "counter" else metric.name
    text = metric.help.replace("\\", r"\\").replace("\n", r"\n")
    return f"# TYPE {family} {metric.kind}\n# HELP {family} {text}\n"


def _series(metric: Metric, run: str, view: RunView) -> Iterator[str]:
    """Names, labels and values of a metric's samples."""
    if metric.kind == "histogram":
        yield from _histogram(metric.name, run, view)
        return
    for values, number in metric.of_run(view):
        yield f"{metric.name}{_labels(metric.all_labels, (run, *values))} {_number(number)}"


def _histogram(name: str, run: str, view: RunView) -> Iterator[str]:
    counts = view.last.duration_counts
    total = 0
    for bound, count in zip((*STEP_SECONDS_BOUNDS, None), counts, strict=True):
        total += count
        edge = "+Inf" if bound is None else repr(float(bound))
        yield f"{name}_bucket{_labels(('run', 'le'), (run, edge))} {total}"
    yield f"{name}_count{_labels(('run',), (run,))} {total}"
    yield f"{name}_sum{_labels(('run',), (run,))} {_number(view.last.duration_sum_s)}"


@lru_cache(maxsize=1024)  # the same some tens of label sets, at every step
def _labels(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    pairs = ",".join(
        f'{name}="{_escaped(value)}"' for name, value in zip(names, values, strict=True)
    )
    return f"{{{pairs}}}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    if value != value:
        return "NaN"
    if not isfinite(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)
