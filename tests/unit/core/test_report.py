"""The report, and that nothing behind it grows with the number of steps."""

from __future__ import annotations

import json
import math
import tracemalloc

import pytest

from health_exporter import Anomaly, ModelFlopConfig, TrainingHealthMonitor

CONFIG = ModelFlopConfig(n_params=1000, n_layer=2, n_head=2, d_model=16, seq_len=8)


def strict(report):
    return json.loads(json.dumps(report, allow_nan=False))


def eventful():
    """A run with an anomaly of every kind that the specification has."""
    monitor = TrainingHealthMonitor(
        flop_config=CONFIG, peak_flops_per_sec=1e9, rank_heartbeat_threshold=2
    )
    for step in range(10):
        monitor.observe_rank_step("r", step)
        monitor.observe_step(
            step, 3.0 - step / 100, grad_norm=1.0 + step / 100, step_time_s=0.5, batch_size=2
        )
    monitor.observe_step(10, 50.0, grad_norm=50.0, step_time_s=1.5, batch_size=4)
    monitor.observe_step(11, math.nan, grad_norm=math.inf)
    monitor.observe_step(12, -math.inf, grad_norm=math.nan)
    monitor.check_rank_liveness(12)
    monitor.observe_step(9, 60.0, restart=True)
    return monitor


def test_keys_and_values():
    report = eventful().report()
    anomalies = report.pop("anomalies")
    assert [(a["step"], a["kind"], a["value"]) for a in anomalies] == [
        (10, "loss_spike", 50.0),
        (10, "grad_norm_spike", 50.0),
        (11, "nan_inf_loss", "NaN"),
        (11, "nan_inf_grad", "Infinity"),
        (12, "nan_inf_loss", "-Infinity"),
        (12, "nan_inf_grad", "NaN"),
        (9, "dead_rank", 3.0),
        (9, "restart_discontinuity", 60.0),
    ]
    # A sequence is 72,576 FLOPs: 290,304 a second at first, then a third less at twice the batch.
    slow, fast = 290_304 / 1.5 / 1e9, 290_304 / 1e9
    mfu = {"n_samples": 11, "mean": (10 * fast + slow) / 11, "min": slow, "max": fast}
    assert report.pop("mfu") == pytest.approx(mfu)
    assert report.pop("step_time_s") == pytest.approx(
        {"n": 11, "mean": 6.5 / 11, "min": 0.5, "max": 1.5}
    )
    assert report == {
        "n_steps": 14,
        "last_step": 9,
        "n_tokens": (10 * 2 + 4) * 8,
        "n_anomalies": 8,
        "anomalies_by_kind": {
            "loss_spike": 1,
            "grad_norm_spike": 1,
            "nan_inf_loss": 2,
            "nan_inf_grad": 2,
            "dead_rank": 1,
            "restart_discontinuity": 1,
        },
        "restarts": {"steps": [9], "continuity_ok": False, "n": 1, "lost_steps": 4},
        "outages": [
            {"rank": "r", "last_step": 9, "detected_at_step": 12, "recovered_at_step": None}
        ],
        "dropped": {"anomalies": 0, "restarts": 0, "outages": 0},
    }


def test_an_anomaly_has_its_fields_and_a_rank_where_it_has_one():
    fields = {"step", "kind", "value", "baseline", "z_score", "detected_at_step"}
    listed = eventful().report()["anomalies"]
    for anomaly in listed:
        assert set(anomaly) == (fields | {"rank"} if anomaly["kind"] == "dead_rank" else fields)
    assert listed[6]["rank"] == "r"


def test_the_report_is_strict_json():
    report = eventful().report()
    assert strict(report) == report


def test_numbers_that_overflow_are_strict_json():
    monitor = TrainingHealthMonitor(flop_config=CONFIG, peak_flops_per_sec=5e-324)
    for step in range(8):
        monitor.observe_step(step, (-1) ** step * 1e308, grad_norm=1e308, step_time_s=1e308)
    monitor.observe_step(8, 1.7e308, grad_norm=1.7e308, step_time_s=5e-324)
    assert strict(monitor.report()) == monitor.report()


def test_an_empty_report():
    report = TrainingHealthMonitor().report()
    nothing = {"mean": None, "min": None, "max": None}
    assert strict(report) == {
        "n_steps": 0,
        "last_step": None,
        "n_tokens": None,
        "n_anomalies": 0,
        "anomalies_by_kind": {},
        "anomalies": [],
        "mfu": {"n_samples": 0, **nothing},
        "step_time_s": {"n": 0, **nothing},
        "restarts": {"steps": [], "continuity_ok": True, "n": 0, "lost_steps": 0},
        "outages": [],
        "dropped": {"anomalies": 0, "restarts": 0, "outages": 0},
    }


def test_a_report_is_a_copy():
    monitor = eventful()
    report = monitor.report()
    report["anomalies"].clear()
    report["anomalies_by_kind"].clear()
    report["restarts"]["steps"].append(99)
    report["outages"][0]["rank"] = "x"
    assert monitor.report() == eventful().report()


@pytest.mark.parametrize("times", [[2.0], [3.0, 2.0, 1.0], [1.0, 2.0, 3.0], [2.0, 2.0]], ids=str)
def test_extremes_of_step_times(times):
    monitor = TrainingHealthMonitor(flop_config=CONFIG, peak_flops_per_sec=72_576)
    for step, step_time_s in enumerate(times):
        monitor.observe_step(step, 1.0, step_time_s=step_time_s)
    report = monitor.report()
    listed = report["step_time_s"]
    assert (listed["min"], listed["max"]) == (min(times), max(times))
    listed = report["mfu"]
    assert (listed["min"], listed["max"]) == (1.0 / max(times), 1.0 / min(times))


def test_lists_keep_the_newest_and_counts_are_exact():
    monitor = TrainingHealthMonitor(flop_config=CONFIG, peak_flops_per_sec=1e9)
    for step in range(12_000):
        monitor.observe_step(step, math.nan, step_time_s=0.5 + step, restart=step % 2 == 0)
    assert [len(monitor.records), len(monitor.mfu_samples)] == [1000, 1000]
    assert [monitor.records[0].step, monitor.records[-1].step] == [11_000, 11_999]
    assert [monitor.mfu_samples[0].step, monitor.mfu_samples[-1].step] == [11_000, 11_999]
    assert [len(monitor.anomalies), monitor.anomalies[0].step] == [10_000, 2000]
    report = monitor.report()
    assert report["n_steps"] == 12_000
    assert report["n_anomalies"] == 12_000
    assert report["anomalies_by_kind"] == {"nan_inf_loss": 12_000}
    assert len(report["anomalies"]) == 10_000
    assert report["restarts"]["n"] == 6000
    assert report["restarts"]["steps"] == list(range(10_000, 12_000, 2))
    assert report["dropped"] == {"anomalies": 2000, "restarts": 5000, "outages": 0}
    assert report["mfu"]["n_samples"] == 12_000
    assert report["step_time_s"]["n"] == 12_000
    assert report["step_time_s"]["mean"] == pytest.approx(6000.0)
    assert (report["step_time_s"]["min"], report["step_time_s"]["max"]) == (0.5, 11_999.5)


def test_continuity_stays_broken_when_the_discontinuity_is_no_longer_listed():
    monitor = TrainingHealthMonitor()
    for step in range(6):
        monitor.observe_step(step, 1.0)
    monitor.observe_step(6, 9.0, restart=True)
    for step in range(7, 10_100):
        monitor.observe_step(step, math.inf)
    assert {anomaly.kind for anomaly in monitor.anomalies} == {"nan_inf_loss"}
    assert not monitor.continuity_ok()
    assert not monitor.report()["restarts"]["continuity_ok"]


@pytest.mark.parametrize(
    ("preset", "further_steps"),
    [(TrainingHealthMonitor, 100_000), (TrainingHealthMonitor.production, 10_000)],
)
def test_further_steps_add_less_than_a_mebibyte(preset, further_steps):
    monitor = preset(flop_config=CONFIG, peak_flops_per_sec=1e9, rank_heartbeat_threshold=3)
    step = 0

    def train(n_steps, ordinary=5):
        """One ordinary step in `ordinary`; the others have every anomaly and restart there is."""
        nonlocal step
        for _ in range(n_steps):
            step += 1
            loss = 3.0 + step % 7 / 10 if step % ordinary else math.nan
            grad_norm = 1e3 if step % 11 == 0 else 1.0 + step % 5 / 10
            monitor.observe_step(
                step,
                loss,
                grad_norm=grad_norm,
                step_time_s=0.1 + step % 3,
                batch_size=4,
                restart=step % 13 == 0,
            )
            if step % 10 == 0:
                monitor.observe_rank_step(step // 10 % 4, step)
                monitor.check_rank_liveness(step)

    tracemalloc.start()
    try:
        train(11_000, ordinary=1)  # fills the 10,000 anomalies that are kept
        before, _ = tracemalloc.get_traced_memory()
        train(further_steps)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(monitor.anomalies) == 10_000
    assert after - before < 2**20


def test_anomaly_kinds_of_the_specification_are_described():
    from health_exporter.core.anomaly import KINDS

    assert {anomaly.kind for anomaly in eventful().anomalies} <= set(KINDS)
    assert Anomaly(1, "dead_rank", 2.0, None, None, 3).rank is None
