"""Pictures: what is in them, without looking."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from health_exporter.replay import plot
from health_exporter.replay.curve import Curve


def curve(losses: list[float], *, start: int = 0) -> Curve:
    made = Curve()
    for step, loss in enumerate(losses, start):
        made.add(step, loss, None, None, 2.0, 2.5)
    return made


def test_no_spike_is_lost_however_long_the_log() -> None:
    made = Curve()
    spikes = {12_345: 9.0, 77_777: -4.0, 199_999: 7.0}
    for step in range(200_000):
        made.add(step, spikes.get(step, 2.0), None, None)
    (segment,) = made.segments()
    assert len(segment.step) <= 4096 + 2048
    assert np.nanmax(segment.high["loss"]) == 9.0
    assert np.nanmin(segment.low["loss"]) == -4.0
    assert segment.high["loss"][-1] == 7.0
    column = int(np.argmax(segment.high["loss"]))
    assert segment.step[column] <= 12_345 < segment.step[column] + made.width


def test_short_logs_are_drawn_as_they_are() -> None:
    (segment,) = curve([3.0, 2.0, math.nan, 2.5]).segments()
    assert segment.step.tolist() == [0, 1, 2, 3]
    np.testing.assert_array_equal(segment.high["loss"], [3.0, 2.0, math.nan, 2.5])


def test_attempts_are_not_joined() -> None:
    made = curve([3.0, 2.0])
    made.cut()
    made.add(1, 2.0, None, None)
    assert [segment.step.tolist() for segment in made.segments()] == [[0, 1], [1]]


def test_a_resume_at_every_step_is_bounded_work() -> None:
    made = Curve()
    for step in range(10_000):
        made.cut()
        made.add(step, 2.0, None, None)
    assert 100 < len(made.segments()) < 1000


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_events_are_in_the_legend(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"plot{suffix}"
    events = [
        {"kind": "loss_spike", "first_step": 1, "last_step": 1, "value": 3.0},
        {"kind": "nan_inf_loss", "first_step": 2, "last_step": 3, "value": "NaN"},
        {"kind": "restart", "first_step": 2, "last_step": 2},
    ]
    plot.save(path, curve([2.0, 3.0, math.nan, math.nan, 2.0]), events, title="a run")
    if suffix == ".png":
        with Image.open(path) as image:
            assert image.width > 1000
    else:
        text = path.read_text()
        for label in ("a run", "loss spike", "loss NaN or infinite", "resume", "baseline", "step"):
            assert f"<!-- {label} -->" in text


@pytest.mark.parametrize(
    "losses",
    [
        [],
        [2.0],
        [math.nan] * 5,
        [2.0] * 100,
        [-1.0, 0.0, 1.0] * 5,
        [1e-300, 1e300, 1.0],
        [0.0] * 10,
        [-1e6, 1.0, 1e6] * 3,
    ],
)
def test_any_losses_can_be_drawn(tmp_path: Path, losses: list[float]) -> None:
    path = tmp_path / "plot.png"
    made = Curve()
    for step, loss in enumerate(losses):
        made.add(step, loss, abs(loss), abs(loss))
    plot.save(path, made, [{"kind": "mfu_drop", "first_step": 1, "value": 0.2}], title="")
    assert path.stat().st_size > 5000
