"""What the losses so far say of those between the newest of them and a resume."""

from __future__ import annotations

from itertools import pairwise
from math import ceil, sqrt

from health_exporter.core.median import median

_RARE = 0.1  # share of the rises before that are larger than what passes for the run's own course
_MEDIAN_ERROR = 1.25  # that of a median of n normal values, in spreads, times the root of n
_ERRORS = 2.0  # a rise that is carried on may be larger by these standard errors


def losses(steps: list[int], first: int) -> int:
    """How many losses are missing between the newest one and that of step `first`.

    Args:
        steps: Those with a loss, rising; losses may be logged every so many steps.
        first: The first step after the resume.
    """
    if len(steps) < 2:
        return 0
    apart = median([float(new - old) for old, new in pairwise(steps)])
    return max(0, round((first - steps[-1]) / apart) - 1)


def rise(seen: list[float], missing: int, around: int, spread: float) -> float:
    """How far the loss may have risen by itself, by what it did in as many steps before.

    Args:
        seen: The losses so far, oldest first.
        missing: Losses between the newest one and the resume.
        around: Losses that make a level.
        spread: Of the newest losses.
    """
    size = min(around, len(seen) // 2)
    if not size:
        return 0.0
    ends = range(len(seen), size - 1, -size)
    levels = [median(seen[end - size : end]) for end in ends]  # newest first
    wanted = (missing + size) / size  # from the middle of the newest level to the first losses
    apart = min(ceil(wanted), len(levels) - 1)
    rises = [new - old for new, old in zip(levels, levels[apart:], strict=False)]
    usual = sorted(rises)[int((1.0 - _RARE) * len(rises))]
    most = max(rises[0], usual)
    if wanted <= apart:
        return max(0.0, most)
    # Less has been seen than is missing: as much for each step, and the error of it with it.
    error = sqrt(2.0) * _MEDIAN_ERROR * spread / sqrt(size)
    return max(0.0, most + _ERRORS * error) * wanted / apart
