"""From values and steps to units of a plot's picture, and the round numbers along its edges."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil, floor, isfinite, log10

WIDTH, HEIGHT = 360, 190
LEFT, RIGHT, TOP, BOTTOM = 46, 352, 10, 164
"""Drawn in 360 units, which is about the width of a phone: text of 13 units stays readable there,
and a wider screen has several plots in a row."""

LARGEST = 1e300
"""Larger values are drawn there: a difference of two floats must be one."""

_WIDE = 4.0
"""A series whose largest value is this many times the middle one is drawn on a logarithmic scale:
on a linear one it would be a flat line and a spike."""


class Scale:
    """The scale of one plot: what lies outside of it is drawn at its edge.

    Args:
        x: First and last step.
        lows: The values that must find room at the lower end.
        highs: Those at the upper end.
        within: Values beyond these are drawn at them.
        log: True: logarithmic where the values allow it; None: where they need it.
    """

    def __init__(
        self,
        x: tuple[float, float],
        lows: Sequence[float],
        highs: Sequence[float],
        *,
        within: tuple[float, float],
        log: bool | None,
    ) -> None:
        low, high = max(min(lows), within[0]), min(max(highs), within[1])
        middle = sorted(highs)[len(highs) // 2]
        wants = high > _WIDE * abs(middle) if log is None else log
        self.log = wants and low > 0.0
        if self.log:
            low, high = log10(low), log10(high)
        room = 0.06 * (high - low) or 0.05 * abs(high) or (0.1 if self.log else 1.0)
        self.low, self.high = low - room, high + room
        self._per_unit = (BOTTOM - TOP) / (self.high - self.low)
        self.first, self.last = x if x[1] > x[0] else (x[0], x[0] + 1)

    def x(self, step: float) -> float:
        """Where a step is, from the left."""
        x = LEFT + (step - self.first) / (self.last - self.first) * (RIGHT - LEFT)
        return round(LEFT if x < LEFT else RIGHT if x > RIGHT else x, 1)

    def y(self, value: float) -> float:
        """Where a value is, from the top."""
        if self.log:
            value = log10(value) if value > 0.0 else self.low
        if value > LARGEST or value < -LARGEST:
            value = clipped(value)
        y = BOTTOM - (value - self.low) * self._per_unit
        return round(TOP if y < TOP else BOTTOM if y > BOTTOM else y, 1)

    def ticks(self) -> list[float]:
        """Round values to write beside the plot."""
        if not self.log:
            return round_numbers(self.low, self.high, 4)
        powers = range(floor(self.low), ceil(self.high) + 1)
        step = max(1, (len(powers) + 3) // 4)
        values = [10.0**p for p in powers if p % step == 0 and -300 < p < 300]
        if len(self._inside(values)) < 2:
            values = [f * 10.0**p for p in powers if -300 < p < 300 for f in (1, 2, 5)]
        if len(self._inside(values)) < 2 and self.low > -300 and self.high < 300:
            values = round_numbers(10.0**self.low, 10.0**self.high, 4)
        return self._inside(values)

    def _inside(self, values: Iterable[float]) -> list[float]:
        return [value for value in values if self.low <= log10(value) <= self.high]


def clipped(value: float) -> float:
    """A value that can be drawn."""
    return min(LARGEST, max(-LARGEST, value))


def round_numbers(low: float, high: float, most: int) -> list[float]:
    """Up to about `most` round numbers between two."""
    raw = (high - low) / most
    if not isfinite(raw) or raw <= 0.0:
        return []
    power = 10.0 ** floor(log10(raw))
    if not power:
        return []
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10, 20) if factor * power >= raw)
    first = ceil(low / step)
    return [n * step for n in range(first, first + most + 2) if n * step <= high]
