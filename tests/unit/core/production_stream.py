"""Seeded streams of losses and gradient norms, healthy and not."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable

from health_exporter import Anomaly, TrainingHealthMonitor

LEVEL = 3.0
NOISE = 0.05


def gaussian(n: int, seed: int) -> list[float]:
    draw = random.Random(seed)
    return [LEVEL + NOISE * draw.gauss(0, 1) for _ in range(n)]


def autoregressive(n: int, seed: int, phi: float = 0.8) -> list[float]:
    draw = random.Random(seed)
    values, state = [], 0.0
    for _ in range(n):
        state = phi * state + math.sqrt(1 - phi * phi) * draw.gauss(0, 1)
        values.append(LEVEL + NOISE * state)
    return values


def student_t3(n: int, seed: int) -> list[float]:
    draw = random.Random(seed)
    return [
        LEVEL + NOISE * draw.gauss(0, 1) / math.sqrt(draw.gammavariate(1.5, 2) / 3)
        for _ in range(n)
    ]


def log_normal(n: int, seed: int, sigma: float = 0.4) -> list[float]:
    draw = random.Random(seed)
    return [math.exp(sigma * draw.gauss(0, 1)) for _ in range(n)]


def watch(
    losses: Iterable[float], monitor: TrainingHealthMonitor | None = None, first: int = 0
) -> list[Anomaly]:
    """All anomalies of a stream of losses."""
    judge = monitor or TrainingHealthMonitor.production()
    return [a for step, loss in enumerate(losses, first) for a in judge.observe_step(step, loss)]


def watch_grad(norms: Iterable[float]) -> list[Anomaly]:
    """All anomalies of a stream of gradient norms."""
    judge = TrainingHealthMonitor.production()
    return [
        anomaly
        for step, norm in enumerate(norms)
        for anomaly in judge.observe_step(step, LEVEL, grad_norm=norm)
    ]


def episodes(found: Iterable[Anomaly], gap: int = 10) -> int:
    """Anomalies, those within `gap` steps of the one before counted once."""
    count, last = 0, -math.inf
    for anomaly in found:
        count += anomaly.detected_at_step - last > gap
        last = anomaly.detected_at_step
    return count
