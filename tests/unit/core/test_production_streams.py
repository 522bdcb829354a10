"""The production preset on seeded streams of 100,000 steps and on single spikes."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from health_exporter import TrainingHealthMonitor
from tests.unit.core.production_stream import (
    LEVEL,
    NOISE,
    autoregressive,
    episodes,
    gaussian,
    log_normal,
    student_t3,
    watch,
    watch_grad,
)

STEPS = 100_000


@pytest.mark.parametrize("stream", [gaussian, autoregressive, student_t3])
def test_healthy_losses_raise_at_most_one_false_episode(
    stream: Callable[[int, int], list[float]],
) -> None:
    assert episodes(watch(stream(STEPS, 0))) <= 1


def test_healthy_grad_norms_raise_at_most_one_false_episode() -> None:
    assert episodes(watch_grad(log_normal(STEPS, 0))) <= 1


@pytest.mark.parametrize("noise", [0.01, NOISE, 0.5])
def test_a_spike_of_twelve_sigma_is_found(noise: float) -> None:
    found = total = 0
    for seed in range(25):
        draw = random.Random(seed)
        monitor = TrainingHealthMonitor.production()
        step = 0
        for quiet in (200, 61, 61, 61, 61):
            healthy = [LEVEL + noise * draw.gauss(0, 1) for _ in range(quiet)]
            watch(healthy, monitor, step)
            step += quiet
            spike = LEVEL + noise * (draw.gauss(0, 1) + 12)
            found += [a.kind for a in monitor.observe_step(step, spike)] == ["loss_spike"]
            total += 1
            step += 1
    assert found / total >= 0.99


def test_a_spike_soon_after_a_huge_one_is_found() -> None:
    losses = [*gaussian(200, 1), LEVEL + 300 * NOISE, *gaussian(9, 2), LEVEL + 12 * NOISE]
    assert [a.step for a in watch(losses) if a.kind == "loss_spike"] == [200, 210]


def test_a_spike_soon_after_a_nan_is_found() -> None:
    losses = [*gaussian(200, 1), math.nan, *gaussian(9, 2), LEVEL + 12 * NOISE]
    assert [(a.step, a.kind) for a in watch(losses)] == [(200, "nan_inf_loss"), (210, "loss_spike")]


@pytest.mark.parametrize("jitter", [0.0, 1e-6, 1e-3])
def test_a_loss_that_hardly_moves_is_healthy(jitter: float) -> None:
    draw = random.Random(0)
    assert not watch([LEVEL + jitter * draw.random() for _ in range(5_000)])


@pytest.mark.parametrize("step", [0.2, 0.5, 2.0])
def test_stairs_downward_are_healthy(step: float) -> None:
    losses = [loss - step * (i // 500) for i, loss in enumerate(gaussian(4_000, 3))]
    assert not watch(losses)


def test_a_falling_loss_is_healthy() -> None:
    losses = [loss + 7 * math.exp(-i / 150) for i, loss in enumerate(gaussian(4_000, 4))]
    assert not watch(losses)


@pytest.mark.parametrize("rise", [0.1, 0.6, 3.0])
def test_a_lasting_shift_upward_is_one_event(rise: float) -> None:
    losses = [loss + (rise if i >= 1_000 else 0) for i, loss in enumerate(gaussian(3_000, 5))]
    found = watch(losses)
    assert len(found) == 1
    assert found[0].detected_at_step >= 1_000


@pytest.mark.parametrize(("slope", "within"), [(1e-3, 400), (1e-4, 2_000)])
def test_a_slow_ramp_is_drift(slope: float, within: int) -> None:
    losses = [loss + slope * max(0, i - 1_000) for i, loss in enumerate(gaussian(3_500, 6))]
    found = watch(losses)
    assert {a.kind for a in found} == {"loss_drift"}
    assert 1_000 <= found[0].detected_at_step <= 1_000 + within


def test_an_exponential_divergence_is_found_by_the_time_the_loss_has_doubled() -> None:
    losses = [loss + 0.02 * 1.05 ** max(0, i - 600) for i, loss in enumerate(gaussian(760, 7))]
    found = watch(losses)
    assert found
    assert losses[found[0].detected_at_step] < 2.1 * LEVEL


def test_a_running_mean_that_begins_afresh_is_healthy() -> None:
    draw = random.Random(8)
    means: list[float] = []
    for _epoch in range(60):
        total = 0.0
        for n in range(1, 81):
            total += LEVEL + 0.5 * draw.gauss(0, 1)
            means.append(total / n)
    assert episodes(watch(means)) <= 1


@pytest.mark.parametrize("seed", range(9, 21))
def test_a_loss_with_two_modes_is_learnt(seed: int) -> None:
    draw = random.Random(seed)
    losses = [draw.choice((2.5, 2.5, 5.0)) + 0.2 * draw.gauss(0, 1) for _ in range(2_000)]
    found = watch(losses)
    assert len(found) <= 8
    assert all(anomaly.step < 128 for anomaly in found)


@pytest.mark.parametrize("factor", [3.0, 10.0])
def test_a_grad_norm_that_explodes_is_found(factor: float) -> None:
    norms = [*log_normal(300, 1, 0.1), factor, *log_normal(20, 2, 0.1)]
    assert [(a.step, a.kind) for a in watch_grad(norms)] == [(300, "grad_norm_spike")]


def test_a_grad_norm_that_has_not_doubled_is_no_explosion() -> None:
    assert not watch_grad([*([1.0] * 300), 1.8, *([1.0] * 20)])
