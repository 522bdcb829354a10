"""What the training thread does, on a clock that the test moves."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from health_exporter.runtime.progress import Progress
from health_exporter.runtime.settings import Settings
from health_exporter.snapshot import PHASES
from tests.unit.runtime.recorded import START, Clock


class Trainer:
    """A progress, and the two clocks of its thread."""

    def __init__(self, **settings: Any) -> None:
        self.monotonic = Clock(1000.0)
        self.wall = Clock(START)
        self.progress = Progress(
            Settings(run="r", **settings), monotonic=self.monotonic, wall=self.wall
        )

    def wait(self, seconds: float) -> None:
        self.monotonic.now += seconds
        self.wall.now += seconds

    def step(self, number: int, seconds: float) -> float | None:
        self.wait(seconds)
        return self.progress.observe_step(number)

    def spend(self, phase: str, seconds: float) -> None:
        with self.progress.phase(phase):
            self.wait(seconds)


def test_the_first_step_has_no_time():
    trainer = Trainer()
    assert trainer.step(1, 60.0) is None
    assert trainer.step(2, 2.0) == pytest.approx(2.0)


def test_pauses_are_no_step_time():
    trainer = Trainer()
    trainer.step(1, 1.0)
    trainer.spend("checkpoint", 100.0)
    trainer.spend("eval", 10.0)
    trainer.spend("data", 0.5)

    assert trainer.step(2, 2.0) == pytest.approx(2.5)
    assert trainer.step(3, 2.0) == pytest.approx(2.0)


def test_nested_pauses_are_counted_once():
    trainer = Trainer()
    trainer.step(1, 1.0)
    with trainer.progress.phase("eval"):
        trainer.wait(5.0)
        trainer.spend("checkpoint", 7.0)
        trainer.spend("data", 3.0)

    assert trainer.step(2, 2.0) == pytest.approx(2.0)
    assert trainer.progress.phase_seconds == pytest.approx(
        {"eval": 5.0, "checkpoint": 7.0, "data": 3.0}
    )


def test_a_step_inside_a_pause_has_its_share_of_it():
    """Seen where the whole loop was marked by mistake: no step time must come out wrong."""
    trainer = Trainer()
    trainer.step(1, 1.0)
    with trainer.progress.phase("eval"):
        assert trainer.step(2, 10.0) is None
        trainer.wait(2.0)

    assert trainer.step(3, 1.0) == pytest.approx(1.0)


def test_a_step_inside_another_phase_has_all_of_it():
    trainer = Trainer()
    trainer.step(1, 1.0)
    with trainer.progress.phase("optimizer"):
        trainer.wait(3.0)
        assert trainer.step(2, 1.0) == pytest.approx(4.0)


def test_a_pause_that_ends_by_an_exception_ends():
    trainer = Trainer()
    trainer.step(1, 1.0)
    with contextlib.suppress(OSError), trainer.progress.phase("checkpoint"):
        trainer.wait(50.0)
        raise OSError("disk")

    assert trainer.progress.current_phase == ""
    assert trainer.step(2, 2.0) == pytest.approx(2.0)


def test_phases_are_nested_and_reused():
    trainer = Trainer()
    progress = trainer.progress
    data = progress.phase("data")
    with progress.phase("forward"):
        trainer.wait(1.0)
        for _ in range(2):
            with data:
                assert progress.current_phase == "data"
                trainer.wait(0.25)
        with progress.phase("forward"):
            trainer.wait(0.125)
        assert progress.current_phase == "forward"
    trainer.wait(100.0)

    assert progress.phase_seconds == pytest.approx({"forward": 1.125, "data": 0.5})


@pytest.mark.parametrize("name", PHASES)
def test_every_mark_is_progress(name: str):
    trainer = Trainer()
    before = trainer.progress.mark
    trainer.wait(3.0)
    assert trainer.progress.still_s == pytest.approx(3.0)
    with trainer.progress.phase(name):
        assert trainer.progress.mark.n == before.n + 1
        assert trainer.progress.mark.time == START + 3.0
        assert trainer.progress.still_s == 0.0
        trainer.wait(2.0)
    assert trainer.progress.mark.n == before.n + 2
    assert trainer.progress.mark.step is None


def test_after_a_resume_the_time_between_is_no_step_time():
    trainer = Trainer()
    trainer.step(1, 1.0)
    trainer.progress.forget_last_step()

    assert trainer.step(1, 500.0) is None
    assert trainer.step(2, 1.0) == pytest.approx(1.0)


def test_durations_do_not_follow_the_wall_clock():
    trainer = Trainer()
    trainer.step(1, 1.0)
    trainer.wall.now -= 86400.0

    assert trainer.step(2, 1.0) == pytest.approx(1.0)
    assert trainer.progress.still_s == 0.0


def test_a_clock_that_has_not_moved_gives_no_step_time():
    trainer = Trainer()
    trainer.step(1, 1.0)

    assert trainer.step(2, 0.0) is None


def test_the_timeout_of_each_state():
    trainer = Trainer(startup_timeout_s=600, checkpoint_timeout_s=1800, eval_timeout_s=900)
    progress = trainer.progress
    assert progress.timeout_s == 600.0  # before the first step
    with progress.phase("eval"):
        assert progress.timeout_s == 900.0
    for step in range(4):
        assert progress.timeout_s == 600.0  # while steps are being compiled
        trainer.step(step, 1.0)
    assert progress.timeout_s == 30.0  # ten steps are less
    with progress.phase("checkpoint"):
        assert progress.timeout_s == 1800.0
        with progress.phase("eval"):
            assert progress.timeout_s == 1800.0
    with progress.phase("data"):
        assert progress.timeout_s == 30.0
    for step in range(4, 200):
        trainer.step(step, 60.0)
    assert progress.timeout_s == pytest.approx(600.0)


def test_a_few_slow_steps_do_not_move_the_timeout():
    trainer = Trainer()
    for step in range(100):
        trainer.step(step, 300.0 if step % 10 == 0 else 5.0)

    assert trainer.progress.timeout_s == pytest.approx(50.0)


def test_a_timeout_that_was_set_holds_from_the_first_step():
    trainer = Trainer(heartbeat_timeout_s=7.0, checkpoint_timeout_s=5.0)
    assert trainer.progress.timeout_s == 600.0
    trainer.step(1, 1.0)
    assert trainer.progress.timeout_s == 7.0
    with trainer.progress.phase("checkpoint"):
        assert trainer.progress.timeout_s == 7.0  # never less than what holds without the phase


def test_an_unknown_phase_is_an_error():
    with pytest.raises(ValueError, match=r"data, forward.*got 'dta'"):
        Trainer().progress.phase("dta")


def test_what_is_marked_within_a_pause_is_the_pause_to_others():
    progress = Progress(Settings(run="r"))
    with progress.phase("eval"), progress.phase("data"):
        assert progress.current_phase == "eval"
    with progress.phase("forward"), progress.phase("data"):
        assert progress.current_phase == "data"
