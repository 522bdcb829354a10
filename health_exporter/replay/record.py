"""Records of named values, such as cells of a table or keys of an object, made into rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from health_exporter.replay import column
from health_exporter.replay.number import number, unix_time, whole
from health_exporter.replay.row import Row
from health_exporter.replay.tally import Tally

_TRUE = (True, "true", "True", "TRUE", "1", "1.0", "yes")


class RowMaker:
    """Makes rows of the raw values of a record, and counts what cannot be one.

    Args:
        chosen: Field to column.
        tally: What is counted.
    """

    def __init__(self, chosen: Mapping[str, str], tally: Tally) -> None:
        self._factor = column.factor_of(chosen.get("step_time_s", ""))
        self._numbered = "step" not in chosen
        self._tally = tally
        self._count = 0
        tally.columns.update(chosen)
        if self._numbered:
            tally.note("no column is a step (name it with --map step=NAME): rows are numbered")

    def make(
        self,
        line: int,
        raw_step: Any,
        raw_loss: Any,
        raw_norm: Any,
        raw_seconds: Any,
        raw_rate: Any,
        raw_time: Any,
        raw_restart: Any,
        resumed: str,
    ) -> Row | None:
        """The row; None if the record says nothing of a training step, or is damaged."""
        try:
            loss = number(raw_loss)
            norm = None if raw_norm is None else number(raw_norm)
            seconds = None if raw_seconds is None else number(raw_seconds)
            rate = None if raw_rate is None else number(raw_rate)
            step = self._count + (loss is not None) if self._numbered else whole(raw_step)
        except ValueError as error:
            self._tally.damage(line, str(error))
            return None
        if step is None or (loss is None and norm is None and seconds is None):
            return None
        self._count = step
        self._tally.n_rows += 1
        if seconds is not None:
            seconds *= self._factor
        if raw_restart is not None and raw_restart in _TRUE and not resumed:
            resumed = "the log says so"
        time = None if raw_time is None else unix_time(raw_time)
        return Row(step, loss, norm, seconds, rate, time, resumed, line)
