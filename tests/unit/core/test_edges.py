"""Values at the edges of what the monitor takes, and states that are nearly right."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from health_exporter import ModelFlopConfig, TrainingHealthMonitor
from health_exporter.errors import StateError

C = ModelFlopConfig(1000, 2, 2, 16, 8)


@pytest.mark.parametrize("name", ["step", "batch_size"])
def test_integers_beyond_64_bits_are_refused(name):
    m = TrainingHealthMonitor(flop_config=C, peak_flops_per_sec=1e9)
    before = m.state_dict()
    observation: dict[str, Any] = {"step": 1, "loss": 1.0, "step_time_s": 0.5, "batch_size": 1}
    with pytest.raises(ValueError, match=f"{name} must fit in 64 bits"):
        m.observe_step(**{**observation, name: 10**400})
    assert m.state_dict() == before


def test_a_flag_of_numpy_is_kept_as_a_bool():
    m = TrainingHealthMonitor()
    flag: Any = np.True_
    m.observe_step(1, 1.0, restart=flag)
    assert m.records[0].restart is True


@pytest.mark.parametrize("value", ["7", 7.5, math.inf])
def test_damaged_n_outages(value):
    s = TrainingHealthMonitor().state_dict()
    s["n_outages"] = value
    with pytest.raises(StateError):
        TrainingHealthMonitor().load_state_dict(s)


@pytest.mark.parametrize("value", [math.nan, True, "1"])
@pytest.mark.parametrize("i", [0, 1])
def test_damaged_reference(i, value):
    s = TrainingHealthMonitor().state_dict()
    reference = [1.0, 0.5]
    reference[i] = value
    s["loss"]["reference"] = reference
    with pytest.raises(StateError):
        TrainingHealthMonitor().load_state_dict(s)


@pytest.mark.parametrize("preset", [TrainingHealthMonitor, TrainingHealthMonitor.production])
def test_state_is_strict_json_when_the_spread_overflows(preset):
    m = preset()
    for step in range(30):
        m.observe_step(step, (-1) ** step * 1.7e308, grad_norm=1e308 * (step % 2))
    m.observe_step(30, 1.7e308, grad_norm=1e308, restart=True)
    state = json.loads(json.dumps(m.state_dict(), allow_nan=False))
    later = preset()
    later.load_state_dict(state)
    assert later.report() == m.report()
    json.dumps(m.report(), allow_nan=False)
