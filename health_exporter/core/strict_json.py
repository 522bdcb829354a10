"""Strict JSON has no NaN and no infinity: they become strings, and floats again on the way back."""

from __future__ import annotations

import math
from typing import Any

_NAMES = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def encode(value: Any) -> Any:
    """`value` with every non-finite float replaced by "NaN", "Infinity" or "-Infinity"."""
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: encode(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [encode(item) for item in value]
    return value


def number(value: Any) -> Any:
    """The float that `encode` turned into a string; anything else comes back as it is."""
    return _NAMES.get(value, value) if isinstance(value, str) else value
