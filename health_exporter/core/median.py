"""The median: of a list, and of a sliding window."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque


def median(values: list[float]) -> float:
    """The median of at least one value."""
    ordered = sorted(values)
    half = len(ordered) >> 1
    if len(ordered) & 1:
        return ordered[half]
    return ordered[half - 1] * 0.5 + ordered[half] * 0.5


class RollingMedian:
    """Median of the newest `window` values; as `RollingBaseline`, without the spread.

    Attributes:
        window: Values kept.
        median: Of the values so far; 0.0 before the first.
    """

    __slots__ = ("_arrival", "_sorted", "median", "window")

    def __init__(self, window: int) -> None:
        self.window = window
        self.median = 0.0
        self._arrival: deque[float] = deque()
        self._sorted: list[float] = []

    @property
    def filled(self) -> bool:
        """There is a value."""
        return bool(self._sorted)

    def push(self, value: float) -> None:
        """Take a finite value into the window; the oldest leaves a full one."""
        ordered, arrival = self._sorted, self._arrival
        arrival.append(value)
        n = len(ordered)
        if n == self.window:
            del ordered[bisect_left(ordered, arrival.popleft())]
        else:
            n += 1
        insort(ordered, value)
        half = n >> 1
        if n & 1:
            self.median = ordered[half]
        else:
            self.median = ordered[half - 1] * 0.5 + ordered[half] * 0.5

    def values(self) -> list[float]:
        """The values in the window, oldest first."""
        return list(self._arrival)
