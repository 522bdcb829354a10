"""A resume from a checkpoint of steps that the record of a killed process does not have."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable

import pytest

from health_exporter import Anomaly, TrainingHealthMonitor

Curve = Callable[[int], float]
LATER = 70  # steps after the resume: all of what is judged of it


def falling(tau: float) -> Curve:
    return lambda step: 2 + 3 * math.exp(-step / tau)


def rising(step: int) -> float:
    return 3 + step / 1_000


def plateau(step: int) -> float:
    """As in a warm-up: no progress at first, and then much."""
    return 10.8 if step < 12 else 4 + 6.8 * math.exp(-(step - 12) / 60)


def flat(_: int) -> float:
    return 3.0


def resumed(
    before: Curve, known: int, unseen: int, after: Curve | None = None, *, every: int = 1
) -> list[Anomaly]:
    """What is found where `unseen` losses are missing after the `known` ones."""
    draw = random.Random(known + unseen)
    monitor = TrainingHealthMonitor.production()
    for row in range(known):
        monitor.observe_step(row * every, before(row) + draw.gauss(0, 0.02))
    saved = json.loads(json.dumps(monitor.state_dict(), allow_nan=False))
    monitor = TrainingHealthMonitor.production()
    monitor.load_state_dict(saved)
    found: list[Anomaly] = []
    first = known + unseen
    for row in range(first, first + LATER):
        loss = (after or before)(row) + draw.gauss(0, 0.02)
        found += monitor.observe_step(row * every, loss, restart=row == first)
        if row == first:  # the next process may be killed just as early
            saved = json.loads(json.dumps(monitor.state_dict(), allow_nan=False))
            monitor = TrainingHealthMonitor.production()
            monitor.load_state_dict(saved)
    return found


def kinds(found: list[Anomaly]) -> list[str]:
    return [anomaly.kind for anomaly in found]


@pytest.mark.parametrize("tau", [50, 400, 1_000])
@pytest.mark.parametrize("unseen", [10, 40, 100, 400])
@pytest.mark.parametrize("known", [10, 20, 60, 300])
def test_a_loss_that_fell_unseen_is_not_accused(tau: int, unseen: int, known: int) -> None:
    assert not resumed(falling(tau), known, unseen)


@pytest.mark.parametrize("unseen", [0, 4, 10, 40, 100])
@pytest.mark.parametrize("known", [10, 14, 20, 60])
def test_a_loss_that_begins_to_fall_is_not_accused(unseen: int, known: int) -> None:
    assert not resumed(plateau, known, unseen)


@pytest.mark.parametrize("unseen", [20, 40, 100, 400])
@pytest.mark.parametrize("known", [20, 60, 300])
def test_a_loss_that_goes_on_rising_is_not_accused(unseen: int, known: int) -> None:
    assert "restart_discontinuity" not in kinds(resumed(rising, known, unseen))


@pytest.mark.parametrize("every", [10, 1_000])
def test_unseen_are_losses_and_not_steps(every: int) -> None:
    lower = resumed(flat, 60, 0, lambda _: 1.0, every=every)
    assert kinds(lower) == ["restart_discontinuity"]
    assert not resumed(flat, 60, 5, lambda _: 1.0, every=every)


@pytest.mark.parametrize("tau", [50, 400, 1_000])
@pytest.mark.parametrize("unseen", [0, 10, 40, 100])
@pytest.mark.parametrize("known", [60, 300])
def test_a_model_that_begins_anew_is_found(tau: int, unseen: int, known: int) -> None:
    before = falling(tau)
    found = resumed(before, known, unseen, lambda row: before(row - known - unseen))
    assert kinds(found)[:1] == ["restart_discontinuity"]
    assert found[0].step == known + unseen
    assert found[0].detected_at_step < known + unseen + 16


@pytest.mark.parametrize("unseen", [10, 40, 100])
def test_a_state_of_half_the_age_is_found(unseen: int) -> None:
    before = falling(400)
    found = resumed(before, 300, unseen, lambda row: before(row - (300 + unseen) // 2))
    assert kinds(found)[:1] == ["restart_discontinuity"]


@pytest.mark.parametrize("unseen", [10, 40, 100, 400])
@pytest.mark.parametrize("before", [flat, rising], ids=["flat", "rising"])
def test_a_jump_beyond_the_runs_own_course_is_found(before: Curve, unseen: int) -> None:
    found = resumed(before, 600, unseen, lambda row: before(row) + 1.0)
    assert "restart_discontinuity" in kinds(found)


def test_losses_that_were_nan_are_unseen() -> None:
    found = resumed(lambda row: 3.0 if row < 60 else math.nan, 90, 0, lambda _: 1.0)
    assert not found


def test_a_state_of_an_earlier_version_is_judged_by_its_level() -> None:
    monitor = TrainingHealthMonitor.production()
    for step in range(100):
        monitor.observe_step(step, 3.0 + 0.02 * (step % 3))
    monitor.observe_step(100, 3.05, restart=True)
    saved = monitor.state_dict()
    for name in ("rise", "lowest"):
        del saved["production"]["comparison"][name]
    monitor = TrainingHealthMonitor.production()
    monitor.load_state_dict(saved)
    assert kinds(monitor.observe_step(101, 5.0)) == ["restart_discontinuity"]
