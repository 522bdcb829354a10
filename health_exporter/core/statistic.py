"""Count, mean and extremes of a series, without the series."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from health_exporter.core import argument, strict_json


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
        """What `from_state` needs, as strict JSON: the sum may have grown to infinity."""
        return {
            "n": self.count,
            "total": strict_json.encode(self.total),
            "min": self.minimum if self.count else None,
            "max": self.maximum if self.count else None,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Extremes:
        """The statistic that `state()` described.

        Raises:
            KeyError: A key is missing.
            TypeError, ValueError: A value is not a number, or cannot be one of such a series.
        """
        restored = cls()
        restored.count = argument.integer(state["n"], "n", minimum=0)
        restored.total = argument.real(strict_json.number(state["total"]), "total")
        if restored.total != restored.total:
            raise ValueError("total must be a number, got nan")
        if restored.count:
            restored.minimum = argument.finite(state["min"], "min")
            restored.maximum = argument.finite(state["max"], "max")
        return restored
