"""Rows in the order of a log, made into steps that a monitor takes: restarts, launches, doubles."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from health_exporter.replay.row import Row

# Rows looked at, after a step that goes back, to tell a restart from a straggling line.
_AHEAD = 16

# Newest steps that are remembered: a straggler is late by a few lines, not by hundreds.
_REMEMBERED = 256

# A date in whole seconds is wrong by up to one; over this many it no longer matters.
_COARSE_S = 10.0

# Where every step is printed by several ranks, a rank is behind the first by no more steps.
_LATE = 3


class Step(NamedTuple):
    """A step for the monitor.

    Args:
        row: What the log says of it.
        step_time_s: Seconds that it took, as the log says or as its dates do.
        restart: Why this is taken for the first step after a resume; "" if it is none.
        launch: The run begins anew here: an earlier one was given up, or this is the first.
    """

    row: Row
    step_time_s: float | None
    restart: str
    launch: bool


class Ordering:
    """Decides what a step is that does not come after the one before. One for the whole run.

    - A resume line, and a step that goes back and goes on from there, is a restart.
    - A step back at or before the first one is a new launch: nothing of the old one is compared.
    - The same step again, from another rank or another launch that writes to the same file, is a
      double: the first counts, unless only the second shows a loss that is no number.
    - A single line that is late is out of order, and left out.

    Attributes:
        n_duplicates: Rows left out because their step had been seen.
        n_out_of_order: Rows left out because they came late.
        n_without_loss: Rows left out because no loss came with their step.
        n_unusable: Values left out: negative gradient norms, step times that are no durations.
    """

    def __init__(self) -> None:
        self.n_duplicates = 0
        self.n_out_of_order = 0
        self.n_without_loss = 0
        self.n_unusable = 0
        self._n_kept = 0
        self._first: int | None = None
        self._last = -1
        self._recent: deque[int] = deque(maxlen=_REMEMBERED)
        self._before: Row | None = None  # with a time, in the same attempt
        self._timed = False  # the log gives step times

    def steps(self, rows: Iterable[Row]) -> Iterator[Step]:
        """The steps in the order in which a monitor takes them."""
        stream = _Ahead(self._joined(rows))
        resumed = ""
        for row in stream:
            resumed = resumed or row.resumed
            if row.loss is None:
                self.n_without_loss += 1
                continue
            step = row.step
            if self._first is None or (resumed and self._is_anew(step)):
                yield self._begin(row)
            elif resumed:
                yield self._go_on(row, resumed)
            elif step > self._last:
                yield self._go_on(row, "")
            elif step == self._last:
                self.n_duplicates += 1
                continue
            elif self._straggles(step, stream):
                self.n_out_of_order += 1
                continue
            elif self._is_anew(step):
                yield self._begin(row)
            else:
                yield self._go_on(row, f"the step goes back from {self._last} to {step}")
            resumed = ""

    def _joined(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Neighbouring rows of one step, put together where they complete each other."""
        held: Row | None = None
        for row in rows:
            if held is None:
                held = row
            elif row.step != held.step or row.resumed:
                yield held
                held = row
            elif row.loss is None or held.loss is None:
                held = _completed(held, row)
            else:
                self.n_duplicates += 1
                if math.isfinite(held.loss) and not math.isfinite(row.loss):
                    held = held._replace(loss=row.loss)
        if held is not None:
            yield held

    def _is_anew(self, step: int) -> bool:
        """Whether `step`, at or before the first one, is the first of a run of its own.

        A run that logs as often as this one could have it as its first; a later one is that of a
        checkpoint older than this log.
        """
        if self._first is None or step > self._first:
            return False
        recent = self._recent
        interval = recent[-1] - recent[-2] if len(recent) > 1 else step
        return step <= max(1, interval)

    def _straggles(self, step: int, stream: _Ahead) -> bool:
        """Whether a step that is below the last one is a late line, not a restart.

        After a restart at `step` the steps up to the last one come again. After a late line the
        next ones go on above it.
        """
        several = self.n_duplicates + self.n_out_of_order > 0  # ranks or launches write here
        if 2 * self.n_duplicates >= self._n_kept and step in list(self._recent)[-_LATE:]:
            return not any(row.resumed for row in stream.ahead(1))
        again = {step}
        before = step
        for row in stream.ahead(_AHEAD):
            if row.resumed:
                return False
            if row.step > self._last:
                known = {known for known in self._recent if step < known <= self._last}
                return not known <= again
            if row.step <= before:
                return several
            before = row.step
            again.add(before)
        return len(again) == 1 and several

    def _begin(self, row: Row) -> Step:
        self._first = row.step
        self._recent.clear()
        self._before = None
        return self._made(row, "", launch=True)

    def _go_on(self, row: Row, restart: str) -> Step:
        if restart:
            self._before = None
            while self._recent and self._recent[-1] >= row.step:
                self._recent.pop()
        return self._made(row, restart, launch=False)

    def _made(self, row: Row, restart: str, *, launch: bool) -> Step:
        self._n_kept += 1
        self._last = row.step
        self._recent.append(row.step)
        if row.grad_norm is not None and row.grad_norm < 0.0 and row.grad_norm != -math.inf:
            self.n_unusable += 1  # some loops write -1 where they measured none
            row = row._replace(grad_norm=None)
        seconds = row.step_time_s
        if seconds is not None:
            self._timed = True
            if not 0.0 < seconds < math.inf:
                self.n_unusable += seconds != 0.0
                seconds = None
        elif row.time is not None and not self._timed:
            seconds = self._from_times(row)
        return Step(row, seconds, restart, launch)

    def _from_times(self, row: Row) -> float | None:
        before, self._before = self._before, row
        if before is None or before.time is None or row.time is None:
            return None
        elapsed = row.time - before.time
        coarse = row.time.is_integer() and before.time.is_integer()
        if elapsed <= 0.0 or row.step <= before.step or (coarse and elapsed < _COARSE_S):
            return None
        return elapsed / (row.step - before.step)


class _Ahead:
    """An iterator that can be looked ahead of."""

    def __init__(self, rows: Iterator[Row]) -> None:
        self._rows = rows
        self._waiting: deque[Row] = deque()

    def __iter__(self) -> Iterator[Row]:
        return self

    def __next__(self) -> Row:
        return self._waiting.popleft() if self._waiting else next(self._rows)

    def ahead(self, n: int) -> Iterator[Row]:
        """The next `n` rows with a loss, without taking them."""
        index = 0
        while n > 0:
            if index >= len(self._waiting):
                row = next(self._rows, None)
                if row is None:
                    return
                self._waiting.append(row)
            row = self._waiting[index]
            index += 1
            if row.loss is not None:
                n -= 1
                yield row


def _completed(held: Row, row: Row) -> Row:
    """Two rows of one step as one."""
    return Row(
        held.step,
        row.loss if held.loss is None else held.loss,
        row.grad_norm if held.grad_norm is None else held.grad_norm,
        row.step_time_s if held.step_time_s is None else held.step_time_s,
        row.lr if held.lr is None else held.lr,
        row.time if held.time is None else held.time,
        held.resumed or row.resumed,
        held.line,
    )
