"""The production preset: its arguments, its speed detector, its state, its bounds."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from health_exporter import ModelFlopConfig, TrainingHealthMonitor
from health_exporter.errors import StateError
from tests.unit.core.production_stream import LEVEL, NOISE, gaussian, watch

MODEL = ModelFlopConfig(n_params=124_337_664, n_layer=12, n_head=12, d_model=768, seq_len=1024)


def test_arguments_override_the_preset() -> None:
    monitor = TrainingHealthMonitor.production(loss_window=64, grad_z_thresh=9.0, flop_config=MODEL)
    assert monitor.loss_signal.baseline.window == 64
    assert monitor.grad_z_thresh == 9.0
    assert monitor.flop_config == MODEL


@pytest.mark.parametrize(
    ("argument", "error"),
    [
        ({"loss_window": 1}, ValueError),
        ({"loss_window": 2.5}, TypeError),
        ({"grad_z_thresh": -1.0}, ValueError),
        ({"peak_flops_per_sec": 0.0}, ValueError),
        ({"window": 128}, TypeError),
    ],
)
def test_arguments_are_checked_as_the_constructor_checks_them(
    argument: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        TrainingHealthMonitor.production(**argument)


def test_the_specification_is_not_changed_by_the_preset() -> None:
    TrainingHealthMonitor.production()
    assert TrainingHealthMonitor().loss_signal.baseline.window == 20


@pytest.mark.parametrize("window", [2, 8, 30, 500])
def test_any_window_judges(window: int) -> None:
    monitor = TrainingHealthMonitor.production(
        loss_window=window, loss_min_periods=2, grad_window=window, grad_min_periods=2
    )
    watch(gaussian(1_200, 1), monitor)
    assert [a.kind for a in monitor.observe_step(1_200, 100.0)] == ["loss_spike"]


def test_what_is_published_is_in_the_units_of_the_values() -> None:
    monitor = TrainingHealthMonitor.production()
    draw = random.Random(1)
    for step in range(500):
        norm = 2.0 * math.exp(0.2 * draw.gauss(0, 1))
        monitor.observe_step(step, LEVEL + NOISE * draw.gauss(0, 1), grad_norm=norm)
    assert monitor.loss_signal.judged is not None
    assert monitor.grad_signal.judged is not None
    median, spread, _ = monitor.loss_signal.judged
    assert median == pytest.approx(LEVEL, abs=NOISE)
    assert spread == pytest.approx(NOISE, rel=0.4)
    median, spread, _ = monitor.grad_signal.judged
    assert median == pytest.approx(2.0, rel=0.15)
    assert median + spread == pytest.approx(2.0 * math.exp(0.2), rel=0.15)


def speeds(before: float, after: float, n: int = 1_200) -> list[float]:
    draw = random.Random(1)
    return [
        (before if step < n // 2 else after) * (1 + 0.02 * draw.gauss(0, 1)) for step in range(n)
    ]


def watch_speed(times: list[float], **overrides: Any) -> list[tuple[int, str]]:
    monitor = TrainingHealthMonitor.production(**overrides)
    return [
        (a.detected_at_step, a.kind)
        for step, seconds in enumerate(times)
        for a in monitor.observe_step(step, LEVEL, step_time_s=seconds, batch_size=8)
    ]


@pytest.mark.parametrize(
    "overrides", [{}, {"flop_config": MODEL, "peak_flops_per_sec": 312e12}], ids=["rate", "MFU"]
)
def test_a_lasting_loss_of_speed_is_one_event(overrides: dict[str, Any]) -> None:
    found = watch_speed(speeds(0.5, 0.75), **overrides)
    assert [kind for _, kind in found] == ["mfu_drop"]
    assert 600 < found[0][0] < 700


def test_a_faster_run_is_healthy() -> None:
    assert not watch_speed(speeds(0.5, 0.3))


@pytest.mark.parametrize(("every", "stall"), [(250, 60.0), (10, 1.0), (3, 1.0)])
def test_a_stall_that_comes_regularly_is_healthy(every: int, stall: float) -> None:
    times = [t + (stall if i % every == 0 else 0) for i, t in enumerate(speeds(0.5, 0.5))]
    assert not watch_speed(times)


def test_slow_steps_that_end_soon_are_healthy() -> None:
    times = speeds(0.5, 0.5)
    times[700:730] = [2.0] * 30
    assert not watch_speed(times)


def eventful(n: int, seed: int) -> list[dict[str, Any]]:
    """Observations with spikes, NaN, infinite norms and resumes."""
    draw = random.Random(seed)
    rows, step = [], 0
    for i in range(n):
        restart = i in (n // 3, 2 * n // 3)
        step = step - 60 if restart else step + 1
        loss = LEVEL + 2 * math.exp(-i / 300) + NOISE * draw.gauss(0, 1)
        loss += 1.0 if draw.random() < 0.004 else 0.0
        norm = math.exp(0.2 * draw.gauss(0, 1)) * (5 if draw.random() < 0.004 else 1)
        rows.append(
            {
                "step": max(0, step),
                "loss": math.nan if draw.random() < 0.002 else loss,
                "grad_norm": math.inf if draw.random() < 0.002 else norm,
                "step_time_s": 0.5 + 0.01 * draw.random() + (0.4 if i > n // 2 else 0),
                "restart": restart,
            }
        )
    return rows


@pytest.mark.parametrize("cut", [3, 24, 25, 150, 700, 1_000])
def test_a_monitor_goes_on_from_its_state(cut: int) -> None:
    rows = eventful(1_500, cut)
    whole = TrainingHealthMonitor.production()
    for row in rows[:cut]:
        whole.observe_step(**row)
    resumed = TrainingHealthMonitor.production()
    resumed.load_state_dict(json.loads(json.dumps(whole.state_dict(), allow_nan=False)))
    for row in rows[cut:]:
        assert repr(resumed.observe_step(**row)) == repr(whole.observe_step(**row))
        assert resumed.loss_signal.judged == whole.loss_signal.judged


def test_the_state_of_the_other_preset_is_taken_over_as_far_as_it_goes() -> None:
    specified, production = TrainingHealthMonitor(), TrainingHealthMonitor.production()
    watch(gaussian(50, 1), specified)
    production.load_state_dict(specified.state_dict())
    assert [a.kind for a in production.observe_step(50, 30.0)] == ["loss_spike"]
    specified.load_state_dict(production.state_dict())
    assert specified.report()["n_steps"] == 51


@pytest.mark.parametrize("part", ["loss", "grad_norm", "drift", "speed", "comparison"])
def test_a_damaged_state_changes_nothing(part: str) -> None:
    monitor = TrainingHealthMonitor.production()
    watch(gaussian(50, 1), monitor)
    damaged = monitor.state_dict()
    damaged["production"][part] = {}
    before = monitor.report()
    with pytest.raises(StateError):
        monitor.load_state_dict(damaged)
    assert monitor.report() == before


def test_memory_is_bounded() -> None:
    monitor = TrainingHealthMonitor.production()
    sizes = []
    for n in (6_000, 9_000):
        for step in range(monitor.run.last_step + 1, n):
            monitor.observe_step(step, LEVEL + step % 7 * 0.01, grad_norm=1.0, step_time_s=0.5)
        sizes.append(len(json.dumps(monitor.state_dict())))
    assert sizes[1] < sizes[0] * 1.05


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.floats(), st.none() | st.floats(min_value=0.0), st.booleans()),
        max_size=120,
    )
)
def test_no_values_break_the_monitor(rows: list[tuple[float, float | None, bool]]) -> None:
    monitor = TrainingHealthMonitor.production()
    for step, (loss, norm, restart) in enumerate(rows):
        found = monitor.observe_step(step, loss, grad_norm=norm, restart=restart)
        assert math.isfinite(loss) or "nan_inf_loss" in {a.kind for a in found}
    state = json.loads(json.dumps(monitor.state_dict(), allow_nan=False))
    TrainingHealthMonitor.production().load_state_dict(state)
    json.dumps(monitor.report(), allow_nan=False)
