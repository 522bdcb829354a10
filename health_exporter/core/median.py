"""The median: of a list, and of a sliding window."""

from __future__ import annotations

from health_exporter.core.baseline import RollingBaseline


def median(values: list[float]) -> float:
    """The median of at least one value."""
    ordered = sorted(values)
    half = len(ordered) >> 1
    if len(ordered) & 1:
        return ordered[half]
    return ordered[half - 1] * 0.5 + ordered[half] * 0.5


class RollingMedian(RollingBaseline):
    """The median alone, which costs less; its spread is always 0."""

    __slots__ = ()

    def _measure(self, ordered: list[float], n: int) -> None:
        half = n >> 1
        if n & 1:
            self._current = (ordered[half], 0.0)
        else:
            self._current = (ordered[half - 1] * 0.5 + ordered[half] * 0.5, 0.0)
