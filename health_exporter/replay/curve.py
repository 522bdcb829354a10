"""Curves for a plot: as many points as the plot has pixels, and no spike lost."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from health_exporter.core.anomaly import Anomaly
from health_exporter.core.monitor import TrainingHealthMonitor
from health_exporter.replay.ordering import Step

Array = NDArray[np.float64]

# Between this many and half of them are drawn: more than a picture is wide, so that decimation is
# never seen.
_COLUMNS = 4096

# Rows gathered before numpy reduces them: a call costs as much as some hundred rows.
_GATHERED = 2048

# Attempts that are drawn as lines of their own; those of a run that crashed more often are joined.
_SEGMENTS = 500

# Larger values are drawn there, smaller ones as 0: matplotlib's own arithmetic overflows beyond.
_LARGEST, _SMALLEST = 1e100, 1e-100

NAMES = ("loss", "grad_norm", "step_time_s")

# step, loss, gradient norm, seconds, baseline, upper edge of the band
_VALUES = 6


class Segment:
    """One attempt of the run: between two restarts the steps only rise.

    Attributes:
        step: First step of each column.
        low: Smallest value in each column, by name; NaN where there is none.
        high: Largest value in each column.
        baseline: The baseline in each column, in the middle.
        edge: The value above which a loss would have been a spike.
    """

    def __init__(self, columns: Array) -> None:
        self.step = columns[:, 0]
        self.low = {name: columns[:, 1 + 2 * i] for i, name in enumerate(NAMES)}
        self.high = {name: columns[:, 2 + 2 * i] for i, name in enumerate(NAMES)}
        self.baseline = columns[:, 7]
        self.edge = columns[:, 8]


_WIDTH = 9


class Curve:
    """Gathers the steps of a replay into at most a few thousand columns each of which keeps its
    smallest and its largest value. Memory does not grow with the log.
    """

    def __init__(self) -> None:
        self.width = 1  # rows in a column
        self._segments: list[list[Array]] = [[]]
        self._n_columns = 0
        self._rows: list[tuple[float, ...]] = []
        self._monitor: TrainingHealthMonitor | None = None

    def launch(self, monitor: TrainingHealthMonitor) -> None:
        """A run begins: its line is not joined to that of the one before."""
        self._monitor = monitor
        self.cut()

    def step(self, step: Step, found: list[Anomaly]) -> None:
        """A step was judged."""
        row = step.row
        if step.restart:
            self.cut()
        monitor = self._monitor
        judged = None if monitor is None else monitor.loss_signal.judged
        if judged is None or monitor is None:
            centre = edge = math.nan
        else:
            centre = judged[0]
            edge = centre + monitor.loss_signal.threshold * judged[1]
        self.add(row.step, row.loss, row.grad_norm, step.step_time_s, centre, edge)

    def add(
        self,
        step: int,
        loss: float | None,
        grad_norm: float | None,
        step_time_s: float | None,
        centre: float = math.nan,
        edge: float = math.nan,
    ) -> None:
        """One point of each curve; None and NaN are gaps."""
        nan = math.nan
        self._rows.append(
            (
                step,
                nan if loss is None else loss,
                nan if grad_norm is None else grad_norm,
                nan if step_time_s is None else step_time_s,
                centre,
                edge,
            )
        )
        if len(self._rows) >= _GATHERED and len(self._rows) >= self.width:
            self._reduce()

    def segments(self) -> list[Segment]:
        """The curves so far."""
        self._reduce()
        return [Segment(np.concatenate(parts)) for parts in self._segments if parts]

    def cut(self) -> None:
        """What comes next is not joined to what came before."""
        self._reduce()
        if self._segments[-1] and len(self._segments) < _SEGMENTS:
            self._segments.append([])

    def _reduce(self) -> None:
        if not self._rows:
            return
        values = np.array(self._rows, dtype=np.float64)
        self._rows.clear()
        values[~np.isfinite(values)] = np.nan
        np.clip(values, -_LARGEST, _LARGEST, out=values)
        values[np.abs(values) < _SMALLEST] = 0.0
        columns = np.empty((len(values), _WIDTH))
        columns[:, 0] = values[:, 0]
        for i in range(len(NAMES)):
            columns[:, 1 + 2 * i] = columns[:, 2 + 2 * i] = values[:, 1 + i]
        columns[:, 7:9] = values[:, 4:_VALUES]
        columns = _merged(columns, self.width)
        self._segments[-1].append(columns)
        self._n_columns += len(columns)
        while self._n_columns > _COLUMNS:
            self._halve()

    def _halve(self) -> None:
        """Make columns twice as wide. There are always more of them than of segments."""
        self.width *= 2
        self._segments = [
            [_merged(np.concatenate(parts), 2)] if parts else [] for parts in self._segments
        ]
        self._n_columns = sum(len(part) for parts in self._segments for part in parts)


def _merged(columns: Array, width: int) -> Array:
    """Every `width` columns made one."""
    if width == 1 or len(columns) == 1:
        return columns
    starts = np.arange(0, len(columns), width)
    merged = np.empty((len(starts), _WIDTH))
    merged[:, 0] = columns[starts, 0]
    for i in range(len(NAMES)):
        merged[:, 1 + 2 * i] = np.fmin.reduceat(columns[:, 1 + 2 * i], starts)
        merged[:, 2 + 2 * i] = np.fmax.reduceat(columns[:, 2 + 2 * i], starts)
    for index in (7, 8):
        merged[:, index] = _means(columns[:, index], starts)
    return merged


def _means(values: Array, starts: NDArray[np.intp]) -> Array:
    known = np.isfinite(values)
    total = np.add.reduceat(np.where(known, values, 0.0), starts)
    count: Any = np.add.reduceat(known.astype(np.float64), starts)
    with warnings.catch_warnings(), np.errstate(invalid="ignore", divide="ignore"):
        return np.where(count > 0, total / count, np.nan)
