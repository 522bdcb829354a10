"""The receipt is what `report.schema.json`, which ships with the package, says."""

from __future__ import annotations

import contextlib
import json
import math
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from health_exporter import HealthExporter, ModelFlopConfig, TrainingHealthMonitor
from health_exporter.core.anomaly import KINDS
from health_exporter.runtime.receipt_reader import read_receipt
from health_exporter.snapshot import RUN_STATES
from tests.unit.runtime.recorded import loads, take_over

CONFIG = ModelFlopConfig(n_params=1000, n_layer=2, n_head=2, d_model=16, seq_len=8)
Validator = jsonschema.Draft202012Validator


def schema() -> dict[str, Any]:
    text = resources.files("health_exporter").joinpath("report.schema.json").read_text()
    content: dict[str, Any] = loads(text)
    return content


def errors(report: Any) -> list[str]:
    strict = loads(json.dumps(report, allow_nan=False))
    checker = Validator.FORMAT_CHECKER
    found = Validator(schema(), format_checker=checker).iter_errors(strict)
    return [f"{error.json_path}: {error.message}" for error in found]


def eventful_monitor() -> TrainingHealthMonitor:
    return TrainingHealthMonitor(
        flop_config=CONFIG, peak_flops_per_sec=1e9, rank_heartbeat_threshold=2
    )


def test_the_schema_is_one():
    Validator.check_schema(schema())


def described(part: Any, path: str = "$") -> list[str]:
    """Paths of properties without a description."""
    missing = []
    for name, inner in part.get("properties", {}).items():
        if len(inner.get("description", "")) < 4:
            missing.append(f"{path}.{name}")
        missing += described(inner, f"{path}.{name}")
    for name, inner in part.get("$defs", {}).items():
        missing += described(inner, f"{path}.$defs.{name}")
    return missing


def test_every_key_is_described():
    assert described(schema()) == []


@pytest.mark.parametrize("word", ["wall_s", "receipt_interval_s", "step_time_s"])
def test_units_are_told(word: str):
    assert "econds" in json.dumps(schema()["properties"][word])


def test_it_knows_every_kind_and_state():
    defs = schema()
    assert defs["$defs"]["anomaly"]["properties"]["kind"]["enum"] == list(KINDS)
    assert defs["properties"]["status"]["enum"] == [*RUN_STATES, "lost"]


def test_a_receipt_before_the_first_step(tmp_path: Path):
    run = take_over(tmp_path)

    assert errors(run.report()) == []


def test_a_receipt_of_everything_that_can_happen(tmp_path: Path):
    with (
        contextlib.suppress(ValueError),
        HealthExporter(
            eventful_monitor(), run="r", port=None, receipt_dir=tmp_path, linger_s=0, model="m"
        ) as exporter,
    ):
        for step in range(10):
            exporter.monitor.observe_rank_step("3", step)
            exporter.observe_step(
                step, 2.0 + step / 100, grad_norm=1 + step / 100, step_time_s=0.5, batch_size=2
            )
        exporter.observe_step(10, 60.0, grad_norm=-math.inf, step_time_s=1e-300)
        exporter.observe_step(11, math.nan, grad_norm=50.0)
        exporter.monitor.check_rank_liveness(12)
        exporter.observe_step(5, math.inf, restart=True)
        exporter.observe_step("12", 1.0)  # type: ignore[arg-type]
        assert errors(exporter.report()) == []
        raise ValueError("the end")
    path = exporter.receipt_path
    assert path is not None
    report = loads(path.read_text())
    assert errors(report) == []
    assert report["exception"] == {"type": "ValueError", "message": "the end"}
    assert report["rejected_observations"]["type"] == 1
    told = read_receipt(path)
    extra = set(told) - set(report)
    assert extra == {"path", "last_sign_at"}
    assert extra <= schema()["$defs"]["told"]["properties"].keys()


def test_a_receipt_that_was_resumed(tmp_path: Path):
    for first in (0, 5):
        with HealthExporter(run="r", port=None, receipt_dir=tmp_path, linger_s=0) as exporter:
            for step in range(first, first + 10):
                exporter.observe_step(step, 2.0, step_time_s=0.5)
            exporter.close("terminated")
    report = exporter.report()

    assert errors(report) == []
    assert report["n_steps"] == 20
    assert report["restarts"] == {"steps": [5], "continuity_ok": True, "n": 1, "lost_steps": 5}


def test_a_receipt_carries_its_curves(tmp_path: Path):
    with HealthExporter(run="r", port=None, receipt_dir=tmp_path, linger_s=0) as exporter:
        for step in range(100):
            exporter.observe_step(step, 2.0 if step != 70 else math.nan, step_time_s=0.5)
    report = exporter.report()

    assert errors(report) == []
    history = report["history"]
    assert (history["first_step"][0], history["last_step"][-1]) == (0, 99)
    assert {*history["loss_max"]} == {2.0, None}
    assert errors({**report, "history": {**history, "loss": [1.0]}})


def test_wrong_receipts_are_told(tmp_path: Path):
    good = take_over(tmp_path).report()
    assert errors({**good, "n_steps": -1})
    assert errors({**good, "more": 1})
    assert errors({**good, "status": "lively"})
    del good["mfu"]
    assert errors(good)
