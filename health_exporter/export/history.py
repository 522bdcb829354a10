"""The curves of one attempt in bounded memory: newest steps as they are, older ones in columns.

A column keeps the smallest and the largest value of its steps, so that a spike of a single step
stays visible however long the run is; columns get wider as the run gets longer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import fsum, isfinite, nan
from typing import Any, NamedTuple

from health_exporter.snapshot import StepView

SERIES = (
    "loss",
    "grad_norm",
    "loss_z_to_threshold",
    "grad_norm_z_to_threshold",
    "mfu",
    "step_time_s",
)
"""What a column has ranges of, in this order. z-scores are in units of the threshold in force."""

_CHUNK = 128
"""Steps folded at once: under 0.1 ms, on one step of so many."""

_RECENT = 512
"""Newest steps that are kept one by one: more than a picture has pixels for."""

_FIRST_WIDTH = 16
"""Steps in a column at first: narrower ones would cost the first steps more than they show."""

_MAX_COLUMNS = 512
"""Between this many and half of them are kept, which is finer than a small picture shows."""

_CENTRE, _EDGE, _RESTART = 7, 8, 9  # positions in a row, behind the step and the series

_Row = tuple[Any, ...]
Range = tuple[float, float, float]
"""Smallest, largest and mean value."""


class Column(NamedTuple):
    """Neighbouring steps.

    Args:
        n: How many they are.
        first_step: The first of them.
        last_step: The last of them.
        ranges: Of the finite values of each of `SERIES`; None where there is none.
        centre: Baseline of the loss at the last of them that has one.
        edge: The loss above which it would have been a spike, likewise.
        restart: Whether a resume is at their beginning: no line leads here from the one before.
    """

    n: int
    first_step: int
    last_step: int
    ranges: tuple[Range | None, ...]
    centre: float | None
    edge: float | None
    restart: bool


class _State(NamedTuple):
    """Replaced whole, so that a reader without a lock sees each step once.

    The two lists only grow: a reader takes the first `n` columns, and rows up to any length.
    """

    columns: list[Column]
    n: int
    width: int  # steps in a column
    open: Column | None  # the last column, while it is narrower than that
    n_open: int
    rows: list[_Row]


class History:
    """Fed by the training thread; read by any other, without a lock."""

    def __init__(self) -> None:
        self._state = _State([], 0, _FIRST_WIDTH, None, 0, [])
        self._rows = self._state.rows

    def add(self, view: StepView, step_time_s: float | None, restart: bool) -> None:
        """One judged step; `restart` if it is the first after a resume."""
        centre = edge = z_score = None
        judged = view.loss_judged
        if judged is not None:
            centre, spread, z_score = judged
            edge = centre + view.loss_threshold * spread
            z_score /= view.loss_threshold
        grad = view.grad_judged
        rows = self._rows
        rows.append(
            (
                view.step,
                view.loss,
                view.grad_norm,
                z_score,
                None if grad is None else grad[2] / view.grad_threshold,
                view.mfu,
                step_time_s,
                centre,
                edge,
                restart,
            )
        )
        if len(rows) >= _RECENT + _CHUNK:
            self._fold()

    def recent(self, most: int) -> list[Column]:
        """The newest 512 to 640 steps, in not many more than `most` columns."""
        rows = list(self._state.rows)
        return list(_columns(rows, max(1, -(-len(rows) // most))))

    def whole(self, most: int) -> list[Column]:
        """All steps of this attempt, in not many more than `most` columns."""
        state = self._state
        rows = list(state.rows)
        older = state.columns[: state.n]
        if state.open is not None:
            older.append(state.open)
        n_older = sum(column.n for column in older)
        wanted = max(1, -(-(n_older + len(rows)) // most))
        times = -(-wanted * len(older) // n_older) if older else 1
        return [*_merged(older, times, keep_restarts=True), *_columns(rows, wanted)]

    @property
    def has_older(self) -> bool:
        """Whether `whole` reaches further back than `recent`."""
        state = self._state
        return bool(state.n or state.n_open)

    @property
    def last_step_time_s(self) -> float | None:
        """Of the newest step, in seconds."""
        rows = self._state.rows
        return rows[-1][1 + SERIES.index("step_time_s")] if rows else None

    def _fold(self) -> None:
        """Make columns of the oldest rows."""
        columns, n, width, opened, n_open, rows = self._state
        folded, rows = rows[:_CHUNK], rows[_CHUNK:]
        if width < _CHUNK:
            columns.extend(_columns(folded, width))
        else:
            for part in _columns(folded, _CHUNK):
                if opened is not None and (part.restart or n_open >= width):
                    columns.append(opened)
                    opened, n_open = None, 0
                opened = part if opened is None else _merge((opened, part))
                n_open += _CHUNK
        if len(columns) > _MAX_COLUMNS:
            # Columns cut short by resumes all the time are joined, or there would be no end.
            is_torn = sum(column.n for column in columns) < 0.75 * width * len(columns)
            columns = list(_merged(columns, 2, keep_restarts=not is_torn))
            width *= 1 if is_torn else 2
        n = len(columns)
        self._state = _State(columns, n, width, opened, n_open, rows)
        self._rows = rows


def _columns(rows: Sequence[_Row], width: int) -> Iterator[Column]:
    """Columns of up to `width` rows each, none across a resume."""
    starts = [i for i, row in enumerate(rows) if row[_RESTART] and i]
    for begin, end in zip([0, *starts], [*starts, len(rows)], strict=True):
        for i in range(begin, end, width):
            part = rows[i : min(i + width, end)]
            values = list(zip(*part, strict=True))
            yield Column(
                len(part),
                values[0][0],
                values[0][-1],
                tuple(map(_range, values[1:_CENTRE])),
                _last(values[_CENTRE]),
                _last(values[_EDGE]),
                part[0][_RESTART],
            )


def _range(values: Sequence[float | None]) -> Range | None:
    finite: Sequence[float] = values  # type: ignore[assignment]  # unless the sum says otherwise
    try:
        total = sum(finite)
    except TypeError:  # a None
        total = nan
    if not isfinite(total):
        finite = [value for value in values if value is not None and isfinite(value)]
        if not finite:
            return None
        mean = fsum(value / len(finite) for value in finite)
    else:
        mean = total / len(finite)
    ordered = sorted(finite)  # on a few floats faster than min and max
    return ordered[0], ordered[-1], mean


def _last(values: Sequence[float | None]) -> float | None:
    return next((value for value in reversed(values) if value is not None), None)


def _merged(columns: Sequence[Column], times: int, *, keep_restarts: bool) -> Iterator[Column]:
    """Every `times` columns made one; with `keep_restarts`, none across a resume."""
    part: list[Column] = []
    for column in columns:
        if len(part) == times or (part and column.restart and keep_restarts):
            yield _merge(part)
            part = []
        part.append(column)
    if part:
        yield _merge(part)


def _merge(columns: Sequence[Column]) -> Column:
    if len(columns) == 1:
        return columns[0]
    first, last = columns[0], columns[-1]
    counts = [column.n for column in columns]
    series = zip(*(column.ranges for column in columns), strict=True)
    return Column(
        sum(counts),
        first.first_step,
        last.last_step,
        tuple(_hull(ranges, counts) for ranges in series),
        _last([column.centre for column in columns]),
        _last([column.edge for column in columns]),
        first.restart,
    )


def _hull(ranges: Sequence[Range | None], counts: Sequence[int]) -> Range | None:
    known = [(r, n) for r, n in zip(ranges, counts, strict=True) if r is not None]
    if not known:
        return None
    weight = sum(n for _, n in known)
    mean = sum(r[2] * (n / weight) for r, n in known)
    return min(r[0] for r, _ in known), max(r[1] for r, _ in known), mean


def as_table(columns: Sequence[Column]) -> dict[str, list[Any]]:
    """Columns as strict JSON, the way a receipt carries them.

    Six digits are more than a picture shows.
    """

    def rounded(values: Iterable[float | None]) -> list[float | None]:
        return [None if value is None else float(f"{value:.6g}") for value in values]

    table: dict[str, list[Any]] = {
        "first_step": [column.first_step for column in columns],
        "last_step": [column.last_step for column in columns],
        "restart": [column.restart for column in columns],
    }
    for i, name in enumerate(SERIES):
        for end, which in (("min", 0), ("max", 1), ("mean", 2)):
            ranges = [column.ranges[i] for column in columns]
            table[f"{name}_{end}"] = rounded(None if r is None else r[which] for r in ranges)
    table["baseline"] = rounded(column.centre for column in columns)
    table["baseline_edge"] = rounded(column.edge for column in columns)
    return table
