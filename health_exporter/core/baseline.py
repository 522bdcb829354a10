"""Robust rolling baseline: exact median and MAD of a sliding window, at a cost that hardly grows
with the window.

The window is kept twice: in order of arrival, to know what leaves, and sorted, where bisection
finds the place of what enters and leaves. The median is then read by index. The values nearest to
the median are neighbours in the sorted window, so the median absolute deviation is the half-width
of a stretch of it; when one value enters and one leaves, the stretch moves by a place or two, and
is followed from where it was.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Mapping
from typing import Any

from health_exporter.core import argument

MAD_TO_SIGMA = 1.4826
"""1 / Phi^-1(3/4): makes the MAD estimate the standard deviation of normal data. Rousseeuw and
Croux (1993), "Alternatives to the Median Absolute Deviation"."""

SPREAD_FLOOR = 1e-12
"""A window of equal values has no spread; the specification divides by this instead."""


class RollingBaseline:
    """Median and scaled MAD of the newest `window` values.

    A value is scored against the window as it stood before that value, so call `z_score` first
    and `update` after it.

    Args:
        window: Values kept (>= 2).
        min_periods: Values needed before anything is scored (2 to `window`).

    Raises:
        TypeError: A value is not an integer.
        ValueError: A value is out of range.
    """

    __slots__ = ("_arrival", "_at", "_current", "_sorted", "min_periods", "window")

    def __init__(self, window: int = 20, min_periods: int = 5) -> None:
        self.window = argument.integer(window, "window", minimum=2)
        self.min_periods = argument.integer(min_periods, "min_periods", minimum=2)
        if self.min_periods > self.window:
            raise ValueError(f"min_periods must be <= window={window}, got {min_periods}")
        self._arrival: deque[float] = deque()
        self._sorted: list[float] = []
        self._at = 0  # where the stretch of values nearest to the median begins in _sorted
        self._current: tuple[float, float] | None = None

    def __len__(self) -> int:
        return len(self._sorted)

    def baseline(self) -> tuple[float, float] | None:
        """`(median, scaled MAD)` of the window, or None before `min_periods` values."""
        return self._current

    def z_score(self, value: float) -> float | None:
        """Distance of `value` from the median in spreads, or None before `min_periods` values.

        Raises:
            TypeError: Not a real number.
        """
        if self._current is None:
            return None
        value = argument.real(value, "value")
        median, spread = self._current
        return (value - median) / (spread if spread > SPREAD_FLOOR else SPREAD_FLOOR)

    def update(self, value: float) -> None:
        """Take `value` into the window; the oldest leaves a full one.

        Raises:
            TypeError: Not a real number.
            ValueError: NaN or infinite, which would poison the window.
        """
        self.push(argument.finite(value, "value"))

    def push(self, value: float) -> None:
        """`update` for a value that is known to be a finite float."""
        ordered = self._sorted
        arrival = self._arrival
        arrival.append(value)
        n = len(ordered)
        if n == self.window:
            del ordered[bisect_left(ordered, arrival.popleft())]
        else:
            n += 1
        insort(ordered, value)
        if n >= self.min_periods:
            self._measure(ordered, n)

    def _measure(self, ordered: list[float], n: int) -> None:
        half = n >> 1
        if n & 1:
            median = ordered[half]
            near = half + 1  # the MAD is the deviation of the near-th nearest value
        else:
            median = (ordered[half - 1] + ordered[half]) * 0.5
            near = half  # ... or, of an even number, its mean with the next one's
            if median - median != 0.0:  # the sum overflowed, its half does not
                median = ordered[half - 1] * 0.5 + ordered[half] * 0.5
        # The `near` values nearest to the median are ordered[first:end]. Shift the stretch from
        # its last place until no value outside it is nearer than the farthest one inside.
        first = self._at  # it fits: as the window fills, n - near never shrinks
        end = first + near
        below = median - ordered[first]
        while end < n and ordered[end] - median < below:
            first += 1
            end += 1
            below = median - ordered[first]
        above = ordered[end - 1] - median
        while first and median - ordered[first - 1] < above:
            first -= 1
            end -= 1
            above = ordered[end - 1] - median
        self._at = first
        below = median - ordered[first]
        deviation = above if above > below else below
        if not n & 1:
            following = ordered[end] - median if end < n else math.inf
            if first:
                below = median - ordered[first - 1]
                if below < following:
                    following = below
            deviation = (deviation + following) * 0.5
        self._current = (median, deviation * MAD_TO_SIGMA)

    def state(self) -> dict[str, Any]:
        """What `from_state` needs: `window`, `min_periods`, and `values`, oldest first."""
        return {
            "window": self.window,
            "min_periods": self.min_periods,
            "values": list(self._arrival),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> RollingBaseline:
        """The baseline that `state()` described.

        Raises:
            KeyError: A key is missing.
            TypeError, ValueError: A value is of the wrong kind, or there are more than `window`.
        """
        restored = cls(window=state["window"], min_periods=state["min_periods"])
        values = state["values"]
        if len(values) > restored.window:
            raise ValueError(f"values must be at most window={restored.window}, got {len(values)}")
        for value in values:
            restored.update(value)
        return restored
