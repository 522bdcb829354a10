from __future__ import annotations

import math

import pytest

from health_exporter import Anomaly, ModelFlopConfig, StepRecord, TrainingHealthMonitor

# Median 3.0; absolute deviations 0, 1, 1, 2, 2 have the median 1, so a spread is 1.4826.
WINDOW = [1.0, 2.0, 3.0, 4.0, 5.0]
SPREAD = 1.4826


def kinds(anomalies):
    return [anomaly.kind for anomaly in anomalies]


def warm(**settings):
    """A monitor that has seen `WINDOW` as losses and as gradient norms, at steps 0 to 4."""
    monitor = TrainingHealthMonitor(**settings)
    for step, value in enumerate(WINDOW):
        assert monitor.observe_step(step, value, grad_norm=value) == []
    return monitor


@pytest.mark.parametrize(
    ("loss", "found"),
    [(3.0 + 5.99 * SPREAD, []), (3.0 + 6.01 * SPREAD, ["loss_spike"]), (-1e9, []), (1e9, None)],
)
def test_a_loss_is_a_spike_above_six_spreads(loss, found):
    anomalies = warm().observe_step(5, loss, grad_norm=3.0)
    assert kinds(anomalies) == (["loss_spike"] if found is None else found)


@pytest.mark.parametrize(
    ("grad_norm", "found"),
    [(3.0 + 5.99 * SPREAD, []), (3.0 + 6.01 * SPREAD, ["grad_norm_spike"]), (0.0, [])],
)
def test_a_gradient_norm_is_a_spike_above_six_spreads(grad_norm, found):
    assert kinds(warm().observe_step(5, 3.0, grad_norm=grad_norm)) == found


def test_a_value_at_the_threshold_is_no_spike():
    monitor = warm(loss_z_thresh=0, grad_z_thresh=0, loss_min_periods=5, grad_min_periods=5)
    assert monitor.observe_step(5, 3.0, grad_norm=3.0) == []


def test_the_thresholds_are_each_its_own():
    monitor = warm(loss_z_thresh=2.0, grad_z_thresh=4.0)
    assert kinds(monitor.observe_step(5, 3 + 3 * SPREAD, grad_norm=3 + 3 * SPREAD)) == [
        "loss_spike"
    ]
    monitor = warm(loss_z_thresh=4.0, grad_z_thresh=2.0)
    assert kinds(monitor.observe_step(5, 3 + 3 * SPREAD, grad_norm=3 + 3 * SPREAD)) == [
        "grad_norm_spike"
    ]


def test_the_windows_are_each_its_own():
    monitor = warm(loss_window=5, grad_window=8, grad_min_periods=7)
    monitor.observe_step(5, 100.0, grad_norm=100.0)  # the seventh gradient norm is still to come
    assert kinds(monitor.anomalies) == ["loss_spike"]


def test_a_spike_carries_what_it_was_judged_against():
    (anomaly,) = warm().observe_step(9, 30.0, grad_norm=3.0)
    assert anomaly.z_score == pytest.approx(27 / SPREAD)
    assert anomaly == Anomaly(9, "loss_spike", 30.0, 3.0, anomaly.z_score, 9)
    assert anomaly.rank is None


def test_a_gradient_spike_carries_what_it_was_judged_against():
    (anomaly,) = warm().observe_step(9, 3.0, grad_norm=30.0)
    assert anomaly.z_score == pytest.approx(27 / SPREAD)
    assert anomaly == Anomaly(9, "grad_norm_spike", 30.0, 3.0, anomaly.z_score, 9)


def test_a_spike_enters_the_window_like_any_other_value():
    monitor = TrainingHealthMonitor(loss_window=5)
    step = 0
    for step, value in enumerate([*WINDOW, 1000.0, 1001.0, 1002.0]):
        monitor.observe_step(step, value)
    assert kinds(monitor.anomalies) == ["loss_spike", "loss_spike", "loss_spike"]
    # The window is 4, 5, 1000, 1001, 1002 now: most of it is the new level.
    assert monitor.observe_step(step + 1, 1003.0) == []


def test_the_anomalies_of_a_step_are_kept_and_counted():
    monitor = warm()
    found = monitor.observe_step(5, math.nan, grad_norm=1e6)
    assert kinds(found) == ["nan_inf_loss", "grad_norm_spike"]
    assert monitor.anomalies == found
    assert monitor.report()["n_anomalies"] == 2


def test_both_signals_are_judged_in_one_step():
    assert kinds(warm().observe_step(5, 1e6, grad_norm=1e6)) == ["loss_spike", "grad_norm_spike"]


def test_a_step_without_a_gradient_norm_leaves_its_window_alone():
    monitor = warm()
    for step in range(5, 30):
        monitor.observe_step(step, 3.0)
    (anomaly,) = monitor.observe_step(30, 3.0, grad_norm=30.0)
    assert anomaly.baseline == 3.0
    assert anomaly.z_score == pytest.approx(27 / SPREAD)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_non_finite_values_fire_before_anything_can_be_judged(value):
    monitor = TrainingHealthMonitor()
    loss, grad = monitor.observe_step(0, value, grad_norm=value)
    assert (loss.kind, grad.kind) == ("nan_inf_loss", "nan_inf_grad")
    for anomaly in (loss, grad):
        assert (anomaly.step, anomaly.detected_at_step) == (0, 0)
        assert (anomaly.baseline, anomaly.z_score, anomaly.rank) == (None, None, None)
        assert anomaly.value == pytest.approx(value, nan_ok=True)


def test_non_finite_values_fire_every_time_and_never_enter_a_window():
    monitor = warm()
    for step in range(5, 50):
        assert len(monitor.observe_step(step, math.inf, grad_norm=math.nan)) == 2
    loss, grad = monitor.observe_step(50, 30.0, grad_norm=30.0)
    assert (loss.baseline, grad.baseline) == (3.0, 3.0)


def test_non_finite_values_do_not_end_the_warm_up():
    monitor = TrainingHealthMonitor()
    for step, loss in enumerate([1.0, math.nan, 2.0, math.inf, 3.0, 4.0]):
        monitor.observe_step(step, loss)
    assert kinds(monitor.observe_step(6, 1e6)) == []


@pytest.mark.parametrize("step", [3, 4])
def test_steps_increase(step):
    with pytest.raises(
        ValueError, match=f"step must be > 4, the last one, unless restart=True, got {step}"
    ):
        warm().observe_step(step, 3.0)


def test_steps_may_leave_gaps():
    monitor = warm()
    monitor.observe_step(1000, 3.0)
    assert [record.step for record in monitor.records] == [0, 1, 2, 3, 4, 1000]


def test_records_say_what_was_observed():
    monitor = TrainingHealthMonitor()
    monitor.observe_step(1, 2.5, grad_norm=0.5, step_time_s=0.25, batch_size=3)
    monitor.observe_step(7, 2, restart=True)
    assert monitor.records == [
        StepRecord(1, 2.5, 0.5, 0.25, False),
        StepRecord(7, 2.0, restart=True),
    ]


def test_latency_is_counted_from_the_true_step():
    anomaly = Anomaly(9, "dead_rank", 51.0, 50.0, None, 60, "rank-1")
    assert anomaly.latency(10) == 50


def test_anomalies_found_elsewhere_are_booked():
    monitor = TrainingHealthMonitor()
    anomaly = Anomaly(9, "stuck_rank", 31.0, 30.0, None, 9, "3")
    monitor.add_anomaly(anomaly)
    assert monitor.anomalies == [anomaly]
    assert monitor.report()["anomalies_by_kind"] == {"stuck_rank": 1}
    with pytest.raises(TypeError, match="anomaly must be an Anomaly, got 'stuck'"):
        monitor.add_anomaly("stuck")  # type: ignore[arg-type]


# 6 * 1000 + 12 * 2 * 16 * 8 = 9072 FLOPs for a token, 8 tokens in a sequence: 72,576 a sequence.
TINY = ModelFlopConfig(n_params=1000, n_layer=2, n_head=2, d_model=16, seq_len=8)


def test_mfu_is_achieved_over_peak():
    monitor = TrainingHealthMonitor(flop_config=TINY, peak_flops_per_sec=1e6)
    monitor.observe_step(0, 1.0, step_time_s=0.5, batch_size=4)
    (sample,) = monitor.mfu_samples
    assert (sample.step, sample.step_flops, sample.step_time_s) == (0, 290_304.0, 0.5)
    assert sample.mfu == pytest.approx(0.580608)
    assert monitor.report()["mfu"]["mean"] == pytest.approx(0.580608)


def test_mfu_takes_one_sequence_where_no_batch_size_is_given():
    monitor = TrainingHealthMonitor(flop_config=TINY, peak_flops_per_sec=1e6)
    monitor.observe_step(0, 1.0, step_time_s=0.5)
    assert monitor.mfu_samples[0].step_flops == 72_576.0
    assert monitor.report()["n_tokens"] is None


@pytest.mark.parametrize(
    "settings", [{}, {"flop_config": TINY}, {"peak_flops_per_sec": 1e6}], ids=str
)
def test_there_is_no_mfu_without_a_model_and_a_peak(settings):
    monitor = TrainingHealthMonitor(**settings)
    monitor.observe_step(0, 1.0, step_time_s=0.5, batch_size=4)
    assert monitor.mfu_samples == []
    assert monitor.report()["mfu"] == {"n_samples": 0, "mean": None, "min": None, "max": None}


def test_there_is_no_mfu_without_a_step_time():
    monitor = TrainingHealthMonitor(flop_config=TINY, peak_flops_per_sec=1e6)
    monitor.observe_step(0, 1.0, step_time_s=0.5, batch_size=4)
    monitor.observe_step(1, 1.0, batch_size=4)
    assert [sample.step for sample in monitor.mfu_samples] == [0]
    assert monitor.run.mfu is None
    assert monitor.run.flops_per_second is None


def test_speed_is_known_without_a_peak():
    monitor = TrainingHealthMonitor(flop_config=TINY)
    monitor.observe_step(0, 1.0, step_time_s=0.5, batch_size=4)
    assert monitor.run.flops_per_second == 580_608.0


def test_tokens_are_counted_over_the_whole_run():
    monitor = TrainingHealthMonitor(flop_config=TINY)
    for step, batch_size in enumerate([4, 3, None, 5]):
        monitor.observe_step(step, 1.0, batch_size=batch_size)
    assert monitor.report()["n_tokens"] == 12 * 8
