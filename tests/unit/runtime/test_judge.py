"""What the judge adds to the monitor: durations, times, and a view that others may read."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from health_exporter import StateError, TrainingHealthMonitor
from health_exporter.catalog import STEP_SECONDS_BOUNDS
from health_exporter.core.anomaly import KINDS, Anomaly
from health_exporter.runtime.judge import Judge
from tests.unit.runtime.recorded import START, Clock


def observe(judge: Judge, step: int, loss: float = 2.0, **more: object):
    arguments = {
        "grad_norm": None,
        "step_time_s": None,
        "batch_size": None,
        "restart": False,
        **more,
    }
    return judge.observe(step, loss, **arguments)  # type: ignore[arg-type]


def test_before_the_first_step():
    view = Judge(TrainingHealthMonitor()).view

    assert (view.step, view.n_steps, view.loss, view.loss_judged) == (None, 0, None, None)
    assert view.anomalies == dict.fromkeys(KINDS, 0)
    assert view.last_anomalies == {}
    assert view.continuity_ok


def test_a_view_is_of_one_step_and_does_not_change():
    judge = Judge(TrainingHealthMonitor(), wall=Clock())
    for step in range(6):
        observe(judge, step, 2.0 + step / 10, grad_norm=1.0)
    view = judge.view
    expected = view._replace()
    observe(judge, 6, math.nan)

    assert view == expected
    assert (view.step, view.loss, view.grad_norm, view.n_steps) == (5, 2.5, 1.0, 6)
    assert view.loss_judged is not None
    assert view.loss_judged[0] == pytest.approx(2.2)


@pytest.mark.parametrize(
    ("seconds", "bucket"),
    [(0.001, 0), (0.01, 0), (0.0100001, 1), (600.0, 20), (600.1, 21), (1e9, 21)],
)
def test_a_bound_belongs_to_its_bucket(seconds: float, bucket: int):
    judge = Judge(TrainingHealthMonitor())
    observe(judge, 1, step_time_s=seconds)

    assert judge.view.duration_counts.index(1) == bucket
    assert sum(judge.view.duration_counts) == 1
    assert len(judge.view.duration_counts) == len(STEP_SECONDS_BOUNDS) + 1
    assert judge.view.duration_sum_s == seconds


def test_an_anomaly_is_dated():
    clock = Clock()
    judge = Judge(TrainingHealthMonitor(), wall=clock)
    observe(judge, 1)
    clock.now += 5
    found, n = observe(judge, 2, math.nan, grad_norm=math.inf)

    assert ([a.kind for a in found], n) == (["nan_inf_loss", "nan_inf_grad"], 2)
    assert judge.view.last_anomalies == {
        "nan_inf_loss": (START + 5, 2),
        "nan_inf_grad": (START + 5, 2),
    }
    number = judge.add_anomaly(Anomaly(1, "dead_rank", 60.0, None, None, 2, "3"))
    assert number == 3
    assert judge.view.anomalies["dead_rank"] == 1
    assert math.isnan(judge.view.loss or 0.0)


def test_a_refused_step_changes_nothing():
    judge = Judge(TrainingHealthMonitor())
    observe(judge, 5, step_time_s=1.0)
    view, state = judge.view, judge.state()
    wrongs: list[dict[str, Any]] = [
        {"step": 4},
        {"loss": "x"},
        {"step_time_s": -1.0},
        {"grad_norm": -1.0},
    ]
    for wrong in wrongs:
        with pytest.raises((TypeError, ValueError)):
            observe(judge, **{"step": 6, **wrong})

    assert judge.view is view
    assert judge.state() == state


def test_goodput_is_time_in_steps_over_time_since_the_start():
    clock = Clock()
    judge = Judge(TrainingHealthMonitor(), wall=clock)
    assert judge.goodput() is None
    for step in range(10):
        clock.now += 2.0
        observe(judge, step, step_time_s=1.0)
    assert judge.goodput() == pytest.approx(0.5)
    clock.now += 20.0
    observe(judge, 5, step_time_s=1.0, restart=True)

    assert judge.goodput() == pytest.approx(6.0 / 40.0)


def test_a_state_travels_as_strict_json():
    clock = Clock()
    judge = Judge(TrainingHealthMonitor(), wall=clock)
    for step in range(20):
        observe(judge, step, 2.0 + step % 3, step_time_s=1.0 + step % 2, grad_norm=1.0)
    observe(judge, 20, math.nan)
    state = json.loads(json.dumps(judge.state(), allow_nan=False))

    other = Judge(TrainingHealthMonitor(), wall=Clock(START + 1000))
    other.load(state)

    assert other.state() == judge.state()
    assert other.view._replace(loss=None) == judge.view._replace(loss=None)
    assert other.first_start_time == START


def test_numpy_values_leave_a_report_of_strict_json():
    judge = Judge(TrainingHealthMonitor())
    observe(judge, 1, step_time_s=np.float32(0.5), restart=np.bool_(False))
    observe(judge, 2, step_time_s=np.array(0.5), restart=np.bool_(True))

    json.dumps(judge.report(), allow_nan=False)


def test_a_damaged_state_changes_nothing():
    judge = Judge(TrainingHealthMonitor())
    observe(judge, 1)
    good, view = judge.state(), judge.view
    for key in good:
        values: tuple[Any, ...] = (None, "x", [], {"a": 1}, 1e999)
        for value in values:
            state = {**good, key: value}
            if key == "first_step" and value is None:
                continue
            with pytest.raises(StateError):
                judge.load(state)
    assert judge.state() == good
    assert judge.view is view


def test_a_reset_judge_is_as_new():
    clock = Clock()
    monitor = TrainingHealthMonitor(loss_z_thresh=4.0)
    judge = Judge(monitor, wall=clock)
    new = judge.state()
    for step in range(30):
        observe(judge, step, math.nan, step_time_s=1.0)
    clock.now += 100.0
    judge.reset()

    assert judge.state() == {**new, "first_start_time": START + 100.0}
    assert judge.view.loss_threshold == 4.0
    assert judge.view.step is None
