"""Count, mean and extremes of a series, without the series."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


class Extremes:
    """Count, sum, minimum and maximum of all values added."""

    __slots__ = ("count", "maximum", "minimum", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.minimum = math.inf
        self.maximum = -math.inf

    def add(self, value: float) -> None:
        """Take in one finite value."""
        self.count += 1
        self.total += value
        if value < self.minimum:
            self.minimum = value
        if value > self.maximum:
            self.maximum = value

    def summary(self) -> dict[str, Any]:
        """`n`, `mean`, `min`, `max`; the last three None before the first value."""
        if not self.count:
            return {"n": 0, "mean": None, "min": None, "max": None}
        mean = self.total / self.count
        return {"n": self.count, "mean": mean, "min": self.minimum, "max": self.maximum}

    def state(self) -> dict[str, Any]:
        """What `load` needs."""
        return {
            "n": self.count,
            "total": self.total,
            "min": self.minimum if self.count else None,
            "max": self.maximum if self.count else None,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Extremes:
        """The statistic that `state()` described.

        Raises:
            KeyError: A key is missing.
            TypeError, ValueError: A value is not a number.
        """
        restored = cls()
        restored.count = int(state["n"])
        restored.total = float(state["total"])
        if restored.count:
            restored.minimum = float(state["min"])
            restored.maximum = float(state["max"])
        return restored
