"""A resume is compared with the same steps before it."""

from __future__ import annotations

import json
import math
import random

import pytest

from health_exporter import Anomaly, TrainingHealthMonitor
from tests.unit.core.production_stream import NOISE, gaussian

CRASH, CHECKPOINT = 700, 550


def losses(seed: int) -> list[float]:
    """A loss that falls, so that the newest values lie below those at the checkpoint."""
    return [loss + 2 * math.exp(-i / 400) for i, loss in enumerate(gaussian(1_000, seed))]


def until_crash() -> TrainingHealthMonitor:
    monitor = TrainingHealthMonitor.production()
    for step, loss in enumerate(losses(1)[:CRASH]):
        monitor.observe_step(step, loss)
    return monitor


def resume(
    monitor: TrainingHealthMonitor, values: list[float], offset: float, start: int = CHECKPOINT
) -> list[Anomaly]:
    found = []
    for step in range(start, start + 150):
        found += monitor.observe_step(step, values[step] + offset, restart=step == start)
    return found


def test_a_resume_that_repeats_its_steps_is_good() -> None:
    assert not resume(until_crash(), losses(1), 0.0)


def test_rounding_is_no_discontinuity() -> None:
    draw = random.Random(2)
    values = [loss + 1e-3 * draw.gauss(0, 1) + 5e-4 for loss in losses(1)]
    assert not resume(until_crash(), values, 0.0)


@pytest.mark.parametrize("seed", range(2, 8))
def test_a_resume_with_another_data_order_is_good(seed: int) -> None:
    assert not resume(until_crash(), losses(seed), 0.0)


@pytest.mark.parametrize("order", [1, 2], ids=["same data", "other data"])
def test_a_jump_is_found_within_two_steps(order: int) -> None:
    found = resume(until_crash(), losses(order), 6 * NOISE)
    assert [(a.kind, a.step) for a in found] == [("restart_discontinuity", CHECKPOINT)]
    assert found[0].detected_at_step <= CHECKPOINT + 1


def test_a_lasting_offset_far_below_the_noise_is_found_where_the_data_are_the_same() -> None:
    found = resume(until_crash(), losses(1), 0.3 * NOISE)
    assert [a.kind for a in found] == ["restart_discontinuity"]
    assert found[0].detected_at_step < CHECKPOINT + 64


def test_a_hard_batch_that_comes_again_is_not_accused() -> None:
    values = losses(1)
    values[CHECKPOINT] += 20 * NOISE
    monitor = TrainingHealthMonitor.production()
    for step, loss in enumerate(values[:CRASH]):
        monitor.observe_step(step, loss)
    assert not resume(monitor, values, 0.0)


def test_without_a_repeated_step_a_jump_is_still_found() -> None:
    found = resume(until_crash(), losses(1), 12 * NOISE, start=CRASH)
    assert [a.kind for a in found] == ["restart_discontinuity"]


def test_a_loss_that_falls_a_little_is_good_news() -> None:
    assert not resume(until_crash(), losses(1), -3 * NOISE)


def test_another_task_after_a_resume_is_a_discontinuity() -> None:
    found = resume(until_crash(), losses(1), -40 * NOISE)
    assert [a.kind for a in found] == ["restart_discontinuity"]


def test_each_resume_is_accused_once() -> None:
    monitor = until_crash()
    assert len(resume(monitor, losses(1), 20 * NOISE)) == 1
    assert len(resume(monitor, losses(1), 60 * NOISE)) == 1
    assert not monitor.continuity_ok()


def test_a_new_process_compares_with_the_saved_steps() -> None:
    saved = json.loads(json.dumps(until_crash().state_dict(), allow_nan=False))
    monitor = TrainingHealthMonitor.production()
    monitor.load_state_dict(saved)
    found = resume(monitor, losses(1), 0.3 * NOISE)
    assert [a.kind for a in found] == ["restart_discontinuity"]


def test_a_run_without_a_past_is_not_accused() -> None:
    assert not resume(TrainingHealthMonitor.production(), losses(1), 20 * NOISE)
