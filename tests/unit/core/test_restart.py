from __future__ import annotations

import math

import pytest

from health_exporter import TrainingHealthMonitor

# Median 2.825, scaled MAD 0.0750 * 1.4826.
BEFORE = [3.0, 2.9, 2.85, 2.8, 2.75, 2.7]
MEDIAN, SPREAD = 2.825, 0.075 * 1.4826


def kinds(anomalies):
    return [anomaly.kind for anomaly in anomalies]


def stopped(losses=BEFORE):
    """A run that stopped after its sixth step, step 5."""
    monitor = TrainingHealthMonitor(loss_window=10, loss_min_periods=5)
    for step, loss in enumerate(losses):
        assert monitor.observe_step(step, loss, grad_norm=loss) == []
    return monitor


def resumed(monitor, losses, at=6):
    """The kinds of the anomalies of each step after a resume."""
    found = [kinds(monitor.observe_step(at, losses[0], restart=True))]
    found += [kinds(monitor.observe_step(at + i, losses[i])) for i in range(1, len(losses))]
    return found


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ([2.68, 2.65, 2.64], [[], [], []]),
        ([9.5, 2.65, 2.64], [["restart_discontinuity"], [], []]),
        ([2.68, 9.5, 2.64], [[], ["restart_discontinuity"], []]),
        ([9.5, 9.5, 2.64], [["restart_discontinuity"], [], []]),
        ([2.68, 2.65, 9.5], [[], [], ["loss_spike"]]),
        ([0.1, 0.1, 0.1], [[], [], []]),
    ],
    ids=["good", "flagged step", "next step", "once", "two steps on", "downward"],
)
def test_a_jump_on_the_flagged_step_or_the_next_is_one_discontinuity(after, expected):
    monitor = stopped()
    assert resumed(monitor, after) == expected
    assert monitor.continuity_ok() == (["restart_discontinuity"] not in expected)
    assert monitor.report()["restarts"]["continuity_ok"] == monitor.continuity_ok()


def test_the_next_step_is_judged_against_the_baseline_before_the_resume():
    monitor = stopped()
    monitor.observe_step(6, 2.0, restart=True)
    (anomaly,) = monitor.observe_step(7, 9.5)
    assert anomaly.baseline == pytest.approx(MEDIAN)
    assert anomaly.z_score == pytest.approx((9.5 - MEDIAN) / SPREAD)


def test_a_flagged_step_that_widens_the_window_hides_no_jump_on_the_next():
    # Median 2.825, MAD 0.025; with 2.0 in the window the MAD is 0.05, and the jump half as far.
    monitor = stopped([2.8, 2.9, 2.85, 2.75, 2.825])
    monitor.observe_step(5, 2.0, restart=True)
    (anomaly,) = monitor.observe_step(6, 2.825 + 6.5 * 0.025 * 1.4826)
    assert anomaly.kind == "restart_discontinuity"
    assert anomaly.z_score == pytest.approx(6.5)


def test_the_third_step_is_judged_against_the_rolling_window():
    monitor = stopped()
    resumed(monitor, [2.68, 2.65])
    (anomaly,) = monitor.observe_step(8, 9.5)
    assert anomaly.kind == "loss_spike"
    assert anomaly.baseline == pytest.approx((2.75 + 2.8) / 2)


def test_gradient_norms_are_judged_against_the_window_before_the_resume():
    monitor = TrainingHealthMonitor(grad_window=5)
    for step, grad_norm in enumerate([1.0, 2.0, 3.0, 4.0, 5.0]):
        monitor.observe_step(step, 1.0, grad_norm=grad_norm)
    monitor.observe_step(5, 1.0, grad_norm=0.0, restart=True)  # the window's median is 3 still
    (anomaly,) = monitor.observe_step(6, 1.0, grad_norm=30.0)
    assert anomaly.kind == "grad_norm_spike"
    assert anomaly.z_score == pytest.approx(27 / 1.4826)


def test_gradient_spikes_after_a_resume_are_no_discontinuity():
    monitor = stopped()
    assert kinds(monitor.observe_step(6, 2.68, grad_norm=1e6, restart=True)) == ["grad_norm_spike"]
    assert monitor.continuity_ok()


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_non_finite_loss_on_the_flagged_step_does_not_hide_a_jump_on_the_next(value):
    monitor = stopped()
    assert resumed(monitor, [value, 9.5]) == [["nan_inf_loss"], ["restart_discontinuity"]]


def test_non_finite_losses_alone_are_no_discontinuity():
    monitor = stopped()
    assert resumed(monitor, [math.nan, math.nan]) == [["nan_inf_loss"], ["nan_inf_loss"]]
    assert monitor.continuity_ok()


def test_a_resume_during_warm_up_is_not_judged():
    monitor = stopped(BEFORE[:4])
    assert resumed(monitor, [9.5, 9.5], at=4) == [[], []]
    assert monitor.continuity_ok()


def test_the_reference_of_an_earlier_resume_is_forgotten():
    monitor = stopped()
    resumed(monitor, [1.0] * 10)  # a new window, all of it
    (anomaly,) = monitor.observe_step(16, 9.5, restart=True)
    assert anomaly.baseline == 1.0


def test_a_run_may_begin_with_a_resume():
    monitor = TrainingHealthMonitor()
    assert monitor.observe_step(0, 3.0, restart=True) == []
    assert monitor.report()["restarts"] == {
        "steps": [0],
        "continuity_ok": True,
        "n": 1,
        "lost_steps": 0,
    }


def test_two_bad_resumes_in_a_row_are_two_discontinuities():
    monitor = stopped()
    assert kinds(monitor.observe_step(6, 9.5, restart=True)) == ["restart_discontinuity"]
    assert kinds(monitor.observe_step(7, 9.5, restart=True)) == ["restart_discontinuity"]
    assert kinds(monitor.observe_step(8, 9.5)) == []
    assert monitor.report()["anomalies_by_kind"] == {"restart_discontinuity": 2}
    assert monitor.report()["restarts"]["steps"] == [6, 7]


def test_a_second_resume_starts_its_two_steps_anew():
    monitor = stopped()
    monitor.observe_step(6, 2.68, restart=True)
    monitor.observe_step(7, 2.68, restart=True)
    assert kinds(monitor.observe_step(8, 9.5)) == ["restart_discontinuity"]


def test_a_good_resume_after_a_bad_one_leaves_continuity_broken():
    monitor = stopped()
    resumed(monitor, [9.5, 2.6])
    assert resumed(monitor, [2.6, 2.6], at=8) == [[], []]
    assert not monitor.continuity_ok()


@pytest.mark.parametrize(("at", "lost"), [(7, 0), (6, 0), (5, 1), (3, 3), (0, 6)])
def test_steps_done_again_are_lost_work(at, lost):
    monitor = stopped()
    monitor.observe_step(at, 2.68, restart=True)
    assert monitor.report()["restarts"]["lost_steps"] == lost
    assert monitor.report()["last_step"] == at


def test_lost_work_adds_up_over_resumes():
    monitor = stopped()
    resumed(monitor, [2.7, 2.7, 2.7], at=4)  # again from 4, to 6: 2 lost
    resumed(monitor, [2.7], at=5)  # again from 5: 2 lost
    assert monitor.report()["restarts"]["lost_steps"] == 4
    assert monitor.report()["n_steps"] == 10


def test_after_going_back_the_steps_increase_from_there():
    monitor = stopped()
    monitor.observe_step(2, 2.85, restart=True)
    with pytest.raises(ValueError, match="step must be > 2, the last one, unless restart=True"):
        monitor.observe_step(2, 2.85)
    monitor.observe_step(3, 2.85)
    assert [record.step for record in monitor.records][-2:] == [2, 3]


def test_a_refused_resume_changes_nothing():
    monitor = stopped()
    with pytest.raises(TypeError):
        monitor.observe_step(3, "2.7", restart=True)
    assert monitor.report()["restarts"]["n"] == 0
    assert kinds(monitor.observe_step(6, 9.5)) == ["loss_spike"]
