"""Every expected value of the specification's reference: `vectors.json` says where it is from."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from health_exporter import (
    ModelFlopConfig,
    RollingBaseline,
    TrainingHealthMonitor,
    theoretical_flops_per_iter,
)

VECTORS = json.loads((Path(__file__).parent / "vectors.json").read_text())
NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def case_name(case: dict[str, Any]) -> str:
    return str(case.get("name", "config"))


def decoded(value: Any) -> Any:
    return NON_FINITE.get(value, value) if isinstance(value, str) else value


def close(value: Any) -> Any:
    """Equal to a relative 1e-9; NaN equals NaN."""
    if isinstance(value, float):
        return pytest.approx(value, rel=1e-9, abs=0.0, nan_ok=True)
    if isinstance(value, dict):
        return {key: close(item) for key, item in value.items()}
    if isinstance(value, list):
        return [close(item) for item in value]
    return value


def monitor_of(case: dict[str, Any]) -> TrainingHealthMonitor:
    settings = dict(case["monitor"])
    if "flop_config" in settings:
        settings["flop_config"] = ModelFlopConfig(**settings["flop_config"])
    return TrainingHealthMonitor(**settings)


@pytest.mark.parametrize("case", VECTORS["monitor_cases"], ids=case_name)
def test_anomalies_of_every_step(case):
    monitor = monitor_of(case)
    for step in case["steps"]:
        observed = {name: decoded(value) for name, value in step["observed"].items()}
        found = [asdict(anomaly) for anomaly in monitor.observe_step(**observed)]
        expected = [
            {**{name: decoded(value) for name, value in anomaly.items()}, "rank": None}
            for anomaly in step["anomalies"]
        ]
        assert found == close(expected), f"step {observed['step']}"


@pytest.mark.parametrize("case", VECTORS["monitor_cases"], ids=case_name)
def test_report(case):
    monitor = monitor_of(case)
    for step in case["steps"]:
        monitor.observe_step(**{name: decoded(value) for name, value in step["observed"].items()})
    report = monitor.report()
    for key, expected in case["expected_report"].items():
        part = report[key]
        if isinstance(expected, dict) and key != "anomalies_by_kind":
            part = {name: part[name] for name in expected}  # the report may say more
        assert part == close(expected), key


@pytest.mark.parametrize("case", VECTORS["monitor_cases"], ids=case_name)
def test_rolling_baseline_and_z_score_of_every_step(case):
    settings = case["monitor"]
    baseline = RollingBaseline(
        window=settings.get("loss_window", 20), min_periods=settings.get("loss_min_periods", 5)
    )
    for step in case["steps"]:
        loss = decoded(step["observed"]["loss"])
        expected = step["loss_baseline"]
        if expected is not None:
            expected = close((expected["median"], expected["scaled_mad"]))
        assert baseline.baseline() == expected, f"step {step['observed']['step']}"
        if math.isfinite(loss):
            assert baseline.z_score(loss) == close(step["loss_z_score"])
            baseline.update(loss)


@pytest.mark.parametrize("case", VECTORS["flops_cases"], ids=case_name)
def test_flops(case):
    shape = {name: size for name, size in case["config"].items() if name != "batch_size"}
    batch_size = case["config"]["batch_size"]
    expected = close(case["flops_per_iter"])
    assert theoretical_flops_per_iter(**shape, batch_size=batch_size) == expected
    assert ModelFlopConfig(**shape).flops_per_iter(batch_size) == expected


@pytest.mark.parametrize("case", VECTORS["liveness_cases"], ids=case_name)
def test_dead_ranks(case):
    monitor = TrainingHealthMonitor(rank_heartbeat_threshold=case["rank_heartbeat_threshold"])
    checks = []
    for kind, *arguments in case["events"]:
        if kind == "beat":
            monitor.observe_rank_step(*arguments)
        else:
            found = [asdict(anomaly) for anomaly in monitor.check_rank_liveness(*arguments)]
            compared = ("value", "baseline", "step", "detected_at_step", "kind")
            dead = [{name: anomaly[name] for name in compared} for anomaly in found]
            checks.append({"check_at": arguments[0], "dead": dead})
    assert checks == case["expected_checks"]
