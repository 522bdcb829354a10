"""One row of a log, whatever trainer wrote it."""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    """What one line, record or object of a log says of a step; None is not said.

    Args:
        step: Number of the optimizer step.
        loss: Training loss; may be NaN or infinite.
        grad_norm: Gradient norm; may be NaN or infinite.
        step_time_s: Seconds that one step took.
        lr: Learning rate.
        time: Unix time in seconds.
        resumed: What the log says of a resume between the row before and this one; "" if nothing.
        line: Number of the line, from 1; of a record or object in other formats.
    """

    step: int
    loss: float | None
    grad_norm: float | None = None
    step_time_s: float | None = None
    lr: float | None = None
    time: float | None = None
    resumed: str = ""
    line: int = 0


FIELDS = ("step", "loss", "grad_norm", "step_time_s", "lr", "time", "restart")
"""What a column of a table, a key of an object or a tag can be taken for."""
